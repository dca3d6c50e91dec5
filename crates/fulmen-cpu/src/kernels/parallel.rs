//! Parallel loops over ranges and rows, and pointers that threads may share.

use std::ops::Range;

use crate::threads::Pool;

/// A pointer that several threads use at once, each for disjoint elements.
pub(super) struct SharedPtr<T>(*mut T);

impl<T> Clone for SharedPtr<T> {
    fn clone(&self) -> SharedPtr<T> {
        *self
    }
}

impl<T> Copy for SharedPtr<T> {}

// SAFETY: the code that dereferences the pointer guarantees that the elements are disjoint.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// Wraps a pointer that is written through.
    pub(super) fn new(p: *mut T) -> SharedPtr<T> {
        SharedPtr(p)
    }

    /// Wraps a pointer that is only read through.
    pub(super) fn read(p: *const T) -> SharedPtr<T> {
        SharedPtr(p.cast_mut())
    }

    /// The pointer to element `i`.
    ///
    /// # Safety
    /// The element must lie in, or one past, the allocation.
    #[inline(always)]
    pub(super) unsafe fn at(self, i: usize) -> *mut T {
        // SAFETY: by the contract.
        unsafe { self.0.add(i) }
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// They must lie in the allocation, which must live for `'a`, and no other access may happen meanwhile.
    #[inline(always)]
    pub(super) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.at(start), len) }
    }
}

/// Calls `f` with ranges that cover `0..len`, in parallel if `len` is more than `grain`.
pub(super) fn ranges(pool: &Pool, len: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    if len == 0 {
    } else if len <= grain || pool.threads() == 1 {
        f(0..len);
    } else {
        pool.run_ranges(len, grain, f);
    }
}

/// Calls `f` with ranges that cover `0..rows`, each of about `grain` elements in rows of `width`.
pub(super) fn rows(pool: &Pool, rows: usize, width: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    ranges(pool, rows, grain.div_ceil(width.max(1)), f);
}
