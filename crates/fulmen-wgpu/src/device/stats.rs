//! Counters of what a device has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a device has done since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DeviceStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes of the buffers that are alive: a state, not a count.
            pub live_bytes: u64,
        }

        /// The counters themselves.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) live_bytes: AtomicU64,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> DeviceStats {
                DeviceStats {
                    $($name: self.$name.load(Relaxed),)*
                    live_bytes: self.live_bytes.load(Relaxed),
                }
            }
        }

        impl DeviceStats {
            /// What was done after `earlier`, a snapshot of the same device. `live_bytes` stays as it is now.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.saturating_sub(earlier.$name),)*
                    live_bytes: self.live_bytes,
                }
            }
        }
    };
}

counters! {
    /// Submissions to the queue.
    submissions,
    /// Compute passes recorded.
    passes,
    /// Dispatches recorded.
    dispatches,
    /// Pipelines that the driver had to compile.
    pipelines_compiled,
    /// Pipelines that the driver found in the cache on disk.
    pipelines_loaded,
    /// Shader modules made.
    shader_modules,
    /// Buffers made, staging buffers among them.
    buffers,
    /// Bind groups made.
    bind_groups,
    /// Buffers mapped for reading.
    maps,
    /// Dispatch lists recorded for replay without encoding.
    recordings,
    /// Pipelines created for recordings, in addition to wgpu's.
    pipelines_recorded,
    /// Runs of a recorded dispatch list.
    replays,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
