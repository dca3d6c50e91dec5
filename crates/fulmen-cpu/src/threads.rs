//! The threads that kernels run on.

use std::ops::Range;

/// Runs work on the calling thread only.
pub struct Pool;

impl Pool {
    /// A pool of so many threads.
    pub fn new(_threads: usize) -> Pool {
        Pool
    }

    /// How many threads work at the same time.
    pub fn threads(&self) -> usize {
        1
    }

    /// Calls `f` once for each of `0..n` and returns when all are done.
    pub fn run(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        (0..n).for_each(f);
    }

    /// Calls `f` with ranges that cover `0..len` once, each but the last a multiple of `grain` long.
    pub fn run_ranges(&self, len: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let _ = grain;
        if len > 0 {
            f(0..len);
        }
    }
}
