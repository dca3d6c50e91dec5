//! Errors of the wgpu backend: the call, what was expected and what was found.

use std::{path::PathBuf, time::Duration};

/// Why a call of this backend failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No driver offered an adapter.
    #[error("no GPU adapter was found through {tried}; {}", remedy())]
    NoAdapter {
        /// The graphics interfaces that were asked.
        tried: &'static str,
    },
    /// No adapter matches the request.
    #[error("no GPU adapter is {wanted}; found: {}", names(found))]
    AdapterNotFound {
        /// The requested index or name.
        wanted: String,
        /// The names of all adapters, by index.
        found: Vec<String>,
    },
    /// The driver refused to open the adapter.
    #[error("adapter {adapter:?} could not be opened: {message}")]
    RequestDevice {
        /// The adapter's name.
        adapter: String,
        /// What the driver said.
        message: String,
    },
    /// wgpu refused a call.
    #[error("{call}: wgpu refused it: {message}")]
    Validation {
        /// The call.
        call: &'static str,
        /// What wgpu said.
        message: String,
    },
    /// The driver failed, through no fault of the call.
    #[error("{call}: the driver failed: {message}")]
    Internal {
        /// The call.
        call: &'static str,
        /// What wgpu said.
        message: String,
    },
    /// Not enough device memory.
    #[error("{call}: out of memory: {} needed, {}", bytes(*needed), free_bytes(*available))]
    OutOfMemory {
        /// The call.
        call: &'static str,
        /// Bytes asked for, where the call knows.
        needed: Option<u64>,
        /// Free bytes, where the device reports it.
        available: Option<u64>,
    },
    /// The device is lost, and every call on it fails. A new one can be opened.
    #[error("the device is lost: {reason}; open a new one")]
    DeviceLost {
        /// What the driver said.
        reason: String,
    },
    /// A kernel that does not compile.
    #[error("kernel {label:?} does not compile: {message}")]
    Shader {
        /// The kernel.
        label: String,
        /// What the compiler said.
        message: String,
    },
    /// A size above what the device can do.
    #[error("{call}: {what} is {needed}, and this device allows {limit}")]
    TooLarge {
        /// The call.
        call: &'static str,
        /// Which size.
        what: String,
        /// The size asked for.
        needed: u64,
        /// The largest that the device allows.
        limit: u64,
    },
    /// An invalid argument.
    #[error("{call}: {what} must be {expected}, got {got}")]
    Argument {
        /// The call.
        call: &'static str,
        /// Which argument.
        what: String,
        /// What is valid.
        expected: String,
        /// What was given.
        got: String,
    },
    /// No weight has this name.
    #[error("{call}: there is no weight {name:?}{}", eviction_hint(*evicted))]
    UnknownWeight {
        /// The call.
        call: &'static str,
        /// The name.
        name: String,
        /// It was evicted to make room for other weights.
        evicted: bool,
    },
    /// A weight with this name exists already.
    #[error("{call}: there is a weight {name:?} already; replace_weight puts another one in its place")]
    WeightExists {
        /// The call.
        call: &'static str,
        /// The name.
        name: String,
    },
    /// One buffer with two conflicting bindings.
    #[error(
        "{call}: {dispatch} binds one buffer as {first} and as {second}: a buffer that a kernel writes \
         may be bound twice only if both bindings are read_write and their ranges are disjoint or equal"
    )]
    Aliased {
        /// The call.
        call: &'static str,
        /// The dispatch.
        dispatch: String,
        /// The first binding.
        first: usize,
        /// The second binding.
        second: usize,
    },
    /// An object of another device.
    #[error("{call}: {what} belongs to another device")]
    ForeignDevice {
        /// The call.
        call: &'static str,
        /// What does.
        what: String,
    },
    /// A feature that this device lacks.
    #[error("{call}: this device has no {what}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// What it lacks.
        what: &'static str,
    },
    /// A buffer could not be mapped.
    #[error("{call}: the buffer could not be mapped: {message}")]
    BufferMap {
        /// The call.
        call: &'static str,
        /// What wgpu said.
        message: String,
    },
    /// The device did not finish in the time it was given.
    #[error("{call}: the device did not finish within {after:?}")]
    Timeout {
        /// The call.
        call: &'static str,
        /// The time it was given.
        after: Duration,
    },
    /// The pipeline cache could not be written to disk.
    #[error("the pipeline cache {} could not be written: {message}", path.display())]
    CacheFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
}

impl GpuError {
    /// The call that failed, for errors of a graph.
    pub(crate) fn call(&self) -> &'static str {
        match self {
            Self::NoAdapter { .. } | Self::AdapterNotFound { .. } | Self::RequestDevice { .. } => {
                "opening the device"
            }
            Self::DeviceLost { .. } => "the device",
            Self::Shader { .. } => "compiling a kernel",
            Self::CacheFile { .. } => "the pipeline cache",
            Self::Validation { call, .. }
            | Self::Internal { call, .. }
            | Self::OutOfMemory { call, .. }
            | Self::TooLarge { call, .. }
            | Self::Argument { call, .. }
            | Self::UnknownWeight { call, .. }
            | Self::WeightExists { call, .. }
            | Self::Aliased { call, .. }
            | Self::ForeignDevice { call, .. }
            | Self::Unsupported { call, .. }
            | Self::BufferMap { call, .. }
            | Self::Timeout { call, .. } => call,
        }
    }
}

/// The graphics interfaces that this build asks on this system.
pub(crate) const TRIED: &str = if cfg!(target_vendor = "apple") {
    "Metal"
} else if cfg!(windows) {
    "Vulkan and DX12"
} else {
    "Vulkan"
};

/// The names of adapters for a message.
fn names(found: &[String]) -> String {
    if found.is_empty() { "none".to_owned() } else { found.join(", ") }
}

/// What to install when there is no adapter.
fn remedy() -> &'static str {
    if cfg!(target_vendor = "apple") {
        "Metal needs a macOS session that has a GPU (a virtual machine may have none)"
    } else if cfg!(windows) {
        "install the GPU vendor's driver"
    } else {
        "install the Vulkan loader and a Vulkan driver: the GPU vendor's own, or, for a software driver \
         that runs on the CPU, on Debian and Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers"
    }
}

fn eviction_hint(evicted: bool) -> &'static str {
    if evicted { ": it was evicted to make room for another one; upload it again" } else { "" }
}

fn free_bytes(available: Option<u64>) -> String {
    available.map_or("the free memory is unknown".to_owned(), |n| format!("{n} bytes available"))
}

fn bytes(count: Option<u64>) -> String {
    count.map_or("more memory than there is".to_owned(), |n| format!("{n} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_adapter_says_what_was_tried_and_what_to_do() {
        let message = GpuError::NoAdapter { tried: TRIED }.to_string();
        assert!(message.starts_with(&format!("no GPU adapter was found through {TRIED}; ")), "{message}");
        #[cfg(target_os = "linux")]
        assert!(message.contains("mesa-vulkan-drivers"), "{message}");
    }

    #[test]
    fn out_of_memory_says_what_is_known() {
        let error =
            |needed, available| GpuError::OutOfMemory { call: "upload", needed, available }.to_string();
        assert_eq!(error(Some(8), Some(4)), "upload: out of memory: 8 bytes needed, 4 bytes available");
        assert_eq!(
            error(None, None),
            "upload: out of memory: more memory than there is needed, the free memory is unknown"
        );
    }
}
