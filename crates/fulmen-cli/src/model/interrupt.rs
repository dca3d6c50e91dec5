//! Ctrl-C cancels the generation (or other work) in progress; if nothing can be cancelled, it ends the
//! program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The cancel flag of the work in progress.
static CANCEL: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// What a shell reports for a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: i32 = 130;

/// Installs the handler. A second call changes nothing.
pub(crate) fn install() {
    #[cfg(unix)]
    let modes = rustix::termios::tcgetattr(rustix::stdio::stdin()).ok();
    // Without a handler Ctrl-C ends the program, which is the default anyway.
    let _ = ctrlc::set_handler(move || {
        let cancel = CANCEL.lock().unwrap_or_else(PoisonError::into_inner);
        match cancel.as_ref() {
            // A second Ctrl-C ends the program.
            Some(flag) if !flag.swap(true, Ordering::Relaxed) => {}
            _ => {
                // A line editor may have changed the terminal.
                #[cfg(unix)]
                if let Some(modes) = &modes {
                    use rustix::termios::{OptionalActions, tcsetattr};
                    let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, modes);
                }
                std::process::exit(EXIT_CODE)
            }
        }
    });
}

/// While this lives, Ctrl-C sets the flag instead of ending the program.
pub(crate) struct CancelOnCtrlC(Arc<AtomicBool>);

impl CancelOnCtrlC {
    pub(crate) fn new(flag: Arc<AtomicBool>) -> CancelOnCtrlC {
        flag.store(false, Ordering::Relaxed);
        *CANCEL.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&flag));
        CancelOnCtrlC(flag)
    }
}

impl Drop for CancelOnCtrlC {
    fn drop(&mut self) {
        *CANCEL.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.store(false, Ordering::Relaxed);
    }
}
