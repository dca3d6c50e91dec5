//! A global allocator that fails.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// A test binary makes it its allocator:
///
/// ```
/// use fulmen_testkit::inject::FailingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: FailingAllocator = FailingAllocator;
///
/// let (reserved, fired) = FailingAllocator::fail(1, 4096, || Vec::<u8>::new().try_reserve(10_000));
/// assert!(fired && reserved.is_err());
/// let (reserved, fired) = FailingAllocator::fail(2, 4096, || Vec::<u8>::new().try_reserve(10_000));
/// assert!(!fired && reserved.is_ok());
/// ```
#[derive(Debug)]
pub struct FailingAllocator;

#[derive(Clone, Copy)]
struct Countdown {
    /// Large allocations until the one that fails; 0 if none does.
    left: u64,
    at_least: usize,
    fired: bool,
}

const OFF: Countdown = Countdown { left: 0, at_least: 0, fired: false };

thread_local! {
    static COUNTDOWN: Cell<Countdown> = const { Cell::new(OFF) };
}

impl FailingAllocator {
    /// Runs `work`; allocation `number` (from 1) of at least `at_least` bytes on this thread fails. Returns
    /// whether there was one.
    pub fn fail<T>(number: u64, at_least: usize, work: impl FnOnce() -> T) -> (T, bool) {
        COUNTDOWN.set(Countdown { left: number, at_least, fired: false });
        let result = work();
        (result, COUNTDOWN.replace(OFF).fired)
    }
}

/// Whether an allocation of this size is the one that fails.
fn fails(bytes: usize) -> bool {
    // Nothing fails while a thread is being torn down.
    let counted = COUNTDOWN.try_with(|cell| {
        let mut countdown = cell.get();
        if countdown.left == 0 || bytes < countdown.at_least {
            return false;
        }
        countdown.left -= 1;
        countdown.fired = countdown.left == 0;
        cell.set(countdown);
        countdown.fired
    });
    counted.unwrap_or(false)
}

// SAFETY: calls are forwarded to the system allocator with the same arguments, or return null, which means
// that there is no memory. Counting does not allocate.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        if new > layout.size() && fails(new) {
            return std::ptr::null_mut();
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(ptr, layout, new) }
    }
}
