//! The handler for `SIGBUS`: a page of a mapped model file that cannot be read.
//!
//! It runs on the thread that reads, between two instructions, so it only loads and stores atomics and makes
//! one system call: it maps zeros over the rest of the file's mapping, from the page on that could not be
//! read. The read then goes on and returns zeros, and [`Guard::lost`] says that they are not the file's. A
//! `SIGBUS` anywhere else goes to the handler that was there before, or ends the process as it always did.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// The mapping of one file, as the handler sees it. Slots are reused and never freed, so the handler can walk
/// the list at any time.
struct Slot {
    start: AtomicUsize,
    /// 0 while the slot is not in use. Set last and cleared first, so that no half-written range is seen.
    end: AtomicUsize,
    lost: AtomicBool,
    /// Set before the slot is in the list, never changed after.
    next: *const Slot,
}

// SAFETY: `next` is constant and points to a slot that is never freed; the rest is atomic.
unsafe impl Sync for Slot {}

/// The last slot that was added.
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// Held while a slot is taken or added.
static TAKING: Mutex<()> = Mutex::new(());
static PAGE: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Keeps reads from one mapping from ending the process.
pub(super) struct Guard(&'static Slot);

impl Guard {
    /// Watches over a mapping, which must outlive the guard.
    pub(super) fn new(map: &[u8]) -> io::Result<Guard> {
        let taking = TAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        install()?;
        let slot = match slots().find(|slot| slot.end.load(Ordering::Acquire) == 0) {
            Some(slot) => slot,
            None => {
                let slot = Box::leak(Box::new(Slot {
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    lost: AtomicBool::new(false),
                    next: SLOTS.load(Ordering::Acquire),
                }));
                SLOTS.store(slot, Ordering::Release);
                slot
            }
        };
        let start = map.as_ptr().addr();
        slot.lost.store(false, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        slot.end.store(start + map.len(), Ordering::Release);
        drop(taking);
        Ok(Guard(slot))
    }

    /// Whether a page could not be read.
    pub(super) fn lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
    }
}

fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut next: *const Slot = SLOTS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a slot that was leaked.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next;
        Some(slot)
    })
}

/// Installs the handler once. The caller holds `TAKING`.
fn install() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: a plain query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).ok().filter(|page| page.is_power_of_two());
    PAGE.store(page.ok_or(io::ErrorKind::Unsupported)?, Ordering::Release);
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the handler that is installed now is written to valid memory, nothing is changed.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid `sigaction`, and the system has filled it in. Stored before the handler
    // can run.
    PREVIOUS.get_or_init(|| unsafe { previous.assume_init() });
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    // On the alternate stack where a thread has one, as Rust's own handler for stack overflows.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what is allowed in one; see the module's comment.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer.
    let address = unsafe { (*info).si_addr() }.addr();
    if !replace_with_zeros(address) {
        forward(signal, info, context);
    }
}

/// Maps zeros from the page of `address` to the end of its mapping. Returns false if the address belongs to
/// no file of ours.
fn replace_with_zeros(address: usize) -> bool {
    for slot in slots() {
        let end = slot.end.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Acquire);
        // A slot that is being given to another mapping is not that of the thread that reads.
        let stable = slot.end.load(Ordering::Acquire) == end;
        if !stable || !(start..end).contains(&address) {
            continue;
        }
        slot.lost.store(true, Ordering::Release);
        let from = address & !(PAGE.load(Ordering::Acquire) - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range lies inside a mapping that its reader keeps alive; it is only read, as bytes.
        let mapped = unsafe {
            let at = ptr::without_provenance_mut(from);
            libc::mmap(at, end - from, libc::PROT_READ, flags, -1, 0)
        };
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// Does what would have happened without this handler.
fn forward(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    match PREVIOUS.get() {
        Some(previous) if !matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: with `SA_SIGINFO` the field holds a function of this type.
                let handler = unsafe {
                    std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
                        previous.sa_sigaction,
                    )
                };
                handler(signal, info, context);
            } else {
                // SAFETY: without `SA_SIGINFO` the field holds a function of this type.
                let handler =
                    unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(previous.sa_sigaction) };
                handler(signal);
            }
        }
        // The instruction runs again and ends the process.
        // SAFETY: restores the default.
        _ => _ = unsafe { libc::signal(signal, libc::SIG_DFL) },
    }
}
