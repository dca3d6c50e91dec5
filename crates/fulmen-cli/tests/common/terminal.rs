//! The command on a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, Winsize};

/// How long a test waits for something to be printed.
const PATIENCE: Duration = Duration::from_secs(90);

/// A command whose stdin, stdout and stderr are a terminal.
pub(crate) struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: Vec<u8>,
    child: Child,
}

impl Terminal {
    /// Starts a command on a terminal of 80 columns.
    pub(crate) fn start(command: &mut Command) -> Terminal {
        Terminal::with_columns(command, 80)
    }

    /// Starts a command on a terminal of so many columns.
    pub(crate) fn with_columns(command: &mut Command, columns: u16) -> Terminal {
        let (ours, theirs) = pair();
        termios::tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
        let stream = || Stdio::from(theirs.try_clone().unwrap());
        command.stdin(stream()).stdout(stream()).stderr(stream());
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        // SAFETY: only async-signal-safe system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                // Ctrl-C is sent to the processes of the controlling terminal.
                Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
            })
        };
        let child = command.spawn().expect("the fulmen binary starts");
        // The command keeps the terminal's end open until it is dropped.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        drop(theirs);
        let mut reader = File::from(ours.try_clone().unwrap());
        let (send, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end of the other side is an error on Linux.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keyboard: File::from(ours), screen, seen: Vec::new(), child }
    }

    /// Presses keys.
    pub(crate) fn send(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Waits until the screen has shown this.
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait_until(text, |seen| seen.contains(text));
    }

    /// Waits until what the screen has shown fulfills a condition.
    pub(crate) fn wait_until(&mut self, what: &str, done: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(&self.seen()) {
            match self.screen.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.seen.extend(bytes),
                Err(RecvTimeoutError::Timeout) => panic!("waited in vain for {what}: {}", self.end()),
                Err(RecvTimeoutError::Disconnected) => panic!("ended before {what}: {}", self.end()),
            }
        }
    }

    /// Everything that the screen has shown so far.
    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// The last lines, for a message.
    fn end(&self) -> String {
        let seen = self.seen();
        let start = seen.char_indices().rev().nth(1000).map_or(0, |(at, _)| at);
        format!("{:?}", &seen[start..])
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Whether the terminal is in its usual mode, in which it echoes lines.
    pub(crate) fn echoes(&self) -> bool {
        let modes = termios::tcgetattr(&self.keyboard).unwrap().local_modes;
        modes.contains(termios::LocalModes::ECHO | termios::LocalModes::ICANON)
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn wait_end(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the command does not end: {}", self.end());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end: everything that was shown, and the exit code.
    pub(crate) fn finish(mut self) -> (String, Option<i32>) {
        let code = self.wait_end();
        // Until the reader has seen the end of the other side.
        while let Ok(bytes) = self.screen.recv_timeout(PATIENCE) {
            self.seen.extend(bytes);
        }
        (self.seen(), code)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a new pseudo-terminal.
fn pair() -> (OwnedFd, OwnedFd) {
    let ours = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    pty::grantpt(&ours).unwrap();
    pty::unlockpt(&ours).unwrap();
    let name = pty::ptsname(&ours, Vec::new()).unwrap();
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let theirs = File::options().read(true).write(true).open(path).unwrap();
    (ours, theirs.into())
}
