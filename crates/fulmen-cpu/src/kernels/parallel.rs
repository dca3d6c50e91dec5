//! Work in pieces: pointers that threads may share, and how large a piece pays for its hand-off.

use std::ops::Range;

use crate::threads::Pool;

/// A pointer that several threads use at once, each on elements of its own.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T);

// SAFETY: the pointer alone does nothing; whoever dereferences it answers for the elements.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Wraps a pointer that is written through.
    pub(super) fn new(p: *mut T) -> Shared<T> {
        Shared(p)
    }

    /// Wraps a pointer that is only read through.
    pub(super) fn read(p: *const T) -> Shared<T> {
        Shared(p.cast_mut())
    }

    /// The pointer to element `i`.
    ///
    /// # Safety
    /// The element must lie in, or one past, the allocation.
    pub(super) unsafe fn at(self, i: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i) }
    }
}

/// Calls `f` with ranges that cover `0..len`, in parallel where there is more than `grain` of it.
pub(super) fn ranges(pool: &Pool, len: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    if len == 0 {
    } else if len <= grain || pool.threads() == 1 {
        f(0..len);
    } else {
        pool.run_ranges(len, grain, f);
    }
}

/// Calls `f` with ranges that cover `0..rows`, each worth about `grain` elements of rows `width` wide.
pub(super) fn rows(pool: &Pool, rows: usize, width: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    ranges(pool, rows, grain.div_ceil(width.max(1)), f);
}
