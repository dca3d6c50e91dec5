//! What signals do.
//!
//! Ctrl-C (SIGINT) cancels the work in progress; a second one, or one while nothing can be cancelled, ends
//! the program. SIGTERM and SIGHUP cancel the work and end the program once it has stopped, or after a short
//! time if it does not. Whichever way the program ends, files that are being written are removed. On Windows
//! there is Ctrl-C only.

use std::io::IsTerminal;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fulmen_core::unfinished;

/// The cancel flag of the work in progress.
static CANCEL: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// What is printed if a signal ends the program.
static NOTE: Mutex<Option<String>> = Mutex::new(None);

/// The signal that asked the program to end; 0 for none.
static TERMINATED: AtomicI32 = AtomicI32::new(0);

/// What a shell reports for a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: i32 = SIGNALED + SIGINT;

/// What a shell adds to the number of the signal that ended a program.
const SIGNALED: i32 = 128;

/// Ctrl-C.
const SIGINT: i32 = 2;

/// How long work may take to stop after SIGTERM or SIGHUP.
const GRACE: Duration = Duration::from_secs(5);

/// Installs the handler. A second call changes nothing.
pub(crate) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::Relaxed) {
        listen();
    }
}

#[cfg(unix)]
fn listen() {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    terminal::remember();
    // A line editor's handler of SIGINT would be called after this one, and report Ctrl-C at the next prompt.
    // SAFETY: the default action is no code of this process.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    // Without a handler a signal ends the program, which is the default anyway.
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            handle(signal);
        }
    });
}

#[cfg(not(unix))]
fn listen() {
    let _ = ctrlc::set_handler(|| handle(SIGINT));
}

fn handle(signal: i32) {
    if signal != SIGINT {
        TERMINATED.store(signal, Ordering::Relaxed);
    }
    let cancel = CANCEL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match cancel {
        Some(flag) if !flag.swap(true, Ordering::Relaxed) => {
            if signal != SIGINT {
                // The work ends the program when it has stopped.
                std::thread::spawn(move || {
                    std::thread::sleep(GRACE);
                    end(signal)
                });
            }
        }
        _ => end(signal),
    }
}

/// Ends the program.
fn end(signal: i32) -> ! {
    unfinished::remove_all();
    #[cfg(unix)]
    terminal::restore();
    if let Some(note) = NOTE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // On a terminal a progress bar may be in this line.
        let erase = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
        eprintln!("{erase}{note}");
    }
    process::exit(SIGNALED + signal)
}

/// While this lives, Ctrl-C sets the flag instead of ending the program. If SIGTERM or SIGHUP set it, the
/// program ends with this value.
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
        match TERMINATED.load(Ordering::Relaxed) {
            0 => {}
            signal => end(signal),
        }
    }
}

/// While this lives, a signal that ends the program also prints this line on stderr.
#[cfg(feature = "hub")]
pub(crate) struct NoteOnSignal;

#[cfg(feature = "hub")]
impl NoteOnSignal {
    pub(crate) fn new(note: &str) -> NoteOnSignal {
        *NOTE.lock().unwrap_or_else(PoisonError::into_inner) = Some(note.to_owned());
        NoteOnSignal
    }
}

#[cfg(feature = "hub")]
impl Drop for NoteOnSignal {
    fn drop(&mut self) {
        *NOTE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The modes of the terminal, which a line editor may have changed when a signal ends the program.
#[cfg(unix)]
mod terminal {
    use std::sync::OnceLock;

    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

    static MODES: OnceLock<Termios> = OnceLock::new();

    pub(super) fn remember() {
        if let Ok(modes) = tcgetattr(rustix::stdio::stdin()) {
            let _ = MODES.set(modes);
        }
    }

    pub(super) fn restore() {
        if let Some(modes) = MODES.get() {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, modes);
        }
    }
}
