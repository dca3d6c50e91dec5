//! A counting allocator, to measure what a file makes the reader allocate.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Current and peak bytes of this thread; each test runs on its own thread.
    static LIVE: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // Nothing to count while a thread is being torn down.
    let _ = LIVE.try_with(|cell| {
        let (live, peak) = cell.get();
        let live = live.saturating_add(bytes);
        cell.set((live, peak.max(live)));
    });
}

fn size(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: every call is forwarded to the system allocator with the same arguments; counting does not
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-size(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // Both blocks exist while the bytes are copied.
        count(size(new));
        count(-size(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(ptr, layout, new) }
    }
}

/// Runs `work` and returns the peak bytes that this thread allocated on top of what it had before.
pub(crate) fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.with(|cell| {
        let (live, _) = cell.get();
        cell.set((live, live));
        live
    });
    let result = work();
    let (_, most) = LIVE.with(Cell::get);
    (result, usize::try_from(most.saturating_sub(before)).unwrap_or(0))
}

#[test]
fn allocations_are_counted() {
    let (_, none) = peak(|| ());
    assert_eq!(none, 0);
    let (kept, bytes) = peak(|| vec![0u8; 5000]);
    assert!((5000..6000).contains(&bytes), "{bytes}");
    let (_, bytes) = peak(|| drop((vec![1u8; 300_000], vec![1u8; 300_000])));
    assert!((600_000..610_000).contains(&bytes), "{bytes}");
    drop(kept);
    let (_, bytes) = peak(|| (0..1000u64).collect::<Vec<_>>().push(1));
    assert!((8000..30_000).contains(&bytes), "{bytes}");
}
