//! Keeps what drivers write to stderr off the terminal.
//!
//! Vulkan drivers and their layers complain where they find no desktop session ("XDG_RUNTIME_DIR is
//! invalid"), or warn about themselves, each time devices are listed. `--verbose` or `FULMEN_LOG=1` shows it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether drivers may write to stderr.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Prepares the process. Call this before anything else: it changes the environment.
pub(crate) fn install(verbose: bool) {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let verbose = verbose || set("FULMEN_LOG").is_some_and(|value| value != "0" && value != "off");
    VERBOSE.store(verbose, Ordering::Relaxed);
    if verbose {
        fulmen_core::timeline::start();
        return;
    }
    // Mesa's device-select layer asks the desktop which GPU it uses, to list that one first. A choice that
    // the user made through the layer is respected.
    let session = set("XDG_RUNTIME_DIR").is_some_and(|folder| Path::new(&folder).is_absolute());
    if cfg!(target_os = "linux") && !session && set("MESA_VK_DEVICE_SELECT").is_none() {
        // SAFETY: `main` calls this first, so no other thread can be reading the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    #[cfg(unix)]
    stderr::show_panics();
}

/// Runs work that opens drivers, and drops what they write to stderr. A panic is shown all the same. The work
/// must not print anything itself.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(unix)]
    let _redirected = (!VERBOSE.load(Ordering::Relaxed)).then(stderr::Redirected::new);
    work()
}

#[cfg(unix)]
mod stderr {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::{Mutex, PoisonError};

    /// Where stderr goes, and how many redirections are alive.
    static ORIGINAL: Mutex<(Option<OwnedFd>, usize)> = Mutex::new((None, 0));

    /// While this lives, stderr goes nowhere.
    pub(super) struct Redirected;

    impl Redirected {
        pub(super) fn new() -> Redirected {
            let mut original = ORIGINAL.lock().unwrap_or_else(PoisonError::into_inner);
            original.1 += 1;
            if original.1 == 1
                && let Ok(stderr) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)
                && let Ok(nowhere) = File::options().write(true).open("/dev/null")
                && rustix::stdio::dup2_stderr(&nowhere).is_ok()
            {
                original.0 = Some(stderr);
            }
            Redirected
        }
    }

    impl Drop for Redirected {
        fn drop(&mut self) {
            let mut original = ORIGINAL.lock().unwrap_or_else(PoisonError::into_inner);
            original.1 -= 1;
            if original.1 == 0 {
                restore(&mut original.0);
            }
        }
    }

    fn restore(original: &mut Option<OwnedFd>) {
        if let Some(stderr) = original.take() {
            // Nothing can be done, or said, if this fails.
            let _ = rustix::stdio::dup2_stderr(&stderr);
        }
    }

    /// Lets a panic of any thread bring stderr back before its message is written.
    pub(super) fn show_panics() {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore(&mut ORIGINAL.lock().unwrap_or_else(PoisonError::into_inner).0);
            show(panic);
        }));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "FULMEN_TEST_QUIET_CHILD";

    /// In a process of its own, because stderr belongs to the process: this test runs itself there.
    #[test]
    fn drivers_are_not_heard_and_panics_are() {
        if std::env::var_os(CHILD).is_none() {
            let myself = std::env::current_exe().unwrap();
            let mut child = Command::new(myself);
            child.args(["quiet::tests::drivers_are_not_heard_and_panics_are", "--exact", "--nocapture"]);
            let output = child.env(CHILD, "1").env_remove("FULMEN_LOG").output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!stderr.contains("noise"), "{stderr}");
            assert!(stderr.contains("our own words") && stderr.contains("in our own code"), "{stderr}");
            return;
        }
        install(false);
        // What a driver does: it writes to the file descriptor.
        let driver = |text: &[u8]| rustix::io::write(rustix::stdio::stderr(), text).unwrap();
        quietly(|| quietly(|| driver(b"noise 1\n")) + driver(b"noise 2\n"));
        driver(b"our own words\n");
        quietly(|| panic!("in our own code"));
    }
}
