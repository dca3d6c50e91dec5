//! Names of requests and answers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that no other request of this machine has: the prefix and 24 hexadecimal digits.
pub(crate) fn unique(prefix: &str) -> String {
    static START: OnceLock<u64> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // The hasher's keys are random in each process.
    let start = *START.get_or_init(|| RandomState::new().build_hasher().finish());
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{start:016x}{call:08x}")
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
