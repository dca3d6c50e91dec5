//! How long and how often a download is tried.

use std::time::Duration;

/// Bounds that end a download from a server that never sends the file. Tests make them shorter.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Consecutive attempts without progress.
    pub(crate) tries: u32,
    /// Requests for the content of one file, with or without progress.
    pub(crate) requests: u32,
    /// Times that one file is started over from its first byte.
    pub(crate) restarts: u32,
    /// Bytes beyond the farthest point so far that count as progress. Fewer bytes do not: a server that sends
    /// one byte per connection would never be given up.
    pub(crate) progress: u64,
    /// The wait after the first failure; it doubles with each further one, up to 16 times.
    pub(crate) backoff: Duration,
    /// The longest wait that a server may ask for with `Retry-After`; more ends the command.
    pub(crate) retry_after: Duration,
    /// A connection must bring `progress_per_window` bytes in this time.
    pub(crate) window: Duration,
    /// See `window`.
    pub(crate) progress_per_window: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            tries: 4,
            requests: 256,
            restarts: 2,
            progress: 1 << 20,
            backoff: Duration::from_millis(500),
            retry_after: Duration::from_secs(300),
            window: Duration::from_secs(60),
            progress_per_window: 16 << 10,
        }
    }
}
