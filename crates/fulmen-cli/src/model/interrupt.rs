//! Ctrl-C: the first one ends the answer (or what else is under way and can be ended well), one that comes while there is
//! none ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The flag of the answer that is being generated.
static ANSWER: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// What a shell reports for a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: i32 = 130;

/// Takes Ctrl-C over. A second call changes nothing.
pub(crate) fn install() {
    // Without a handler Ctrl-C ends the program, as anywhere else.
    let _ = ctrlc::set_handler(|| {
        let answer = ANSWER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match answer.as_ref() {
            // Asked twice: somebody means it.
            Some(flag) if !flag.swap(true, Ordering::Relaxed) => {}
            _ => std::process::exit(EXIT_CODE),
        }
    });
}

/// While this lives, Ctrl-C sets the flag instead of ending the program.
pub(crate) struct Answering(Arc<AtomicBool>);

impl Answering {
    pub(crate) fn new(flag: Arc<AtomicBool>) -> Answering {
        flag.store(false, Ordering::Relaxed);
        *ANSWER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Arc::clone(&flag));
        Answering(flag)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        *ANSWER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
        self.0.store(false, Ordering::Relaxed);
    }
}
