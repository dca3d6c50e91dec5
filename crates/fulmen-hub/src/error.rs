//! Why a model could not be downloaded.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::choose::ChooseError;
use crate::reference::ReferenceError;

/// Why a model could not be downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// An invalid environment variable.
    #[error("the environment variable {name} {problem}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// The problem.
        problem: &'static str,
    },
    /// An invalid model reference.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The repository contains no suitable files.
    #[error("{repo}: {error}")]
    Choose {
        /// The repository.
        repo: String,
        /// The problem.
        error: ChooseError,
    },
    /// The server cannot be reached, or stopped answering.
    #[cfg(feature = "download")]
    #[error("{url}: {error}{}", advice(error))]
    Network {
        /// What was requested.
        url: String,
        /// The network error.
        error: Box<ureq::Error>,
    },
    /// The repository does not exist or is not accessible.
    #[error("{repo} does not exist at {endpoint}, or is private; {}", token_words(*.token))]
    NoRepo {
        /// The repository.
        repo: String,
        /// The server.
        endpoint: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// A gated repository.
    #[error("{repo} is gated: request access at {endpoint}/{repo}; {}", token_words(*.token))]
    Gated {
        /// The repository.
        repo: String,
        /// The server.
        endpoint: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// No such branch, tag or commit.
    #[error("{repo} has no revision {revision:?}")]
    NoRevision {
        /// The repository.
        repo: String,
        /// What was requested.
        revision: String,
    },
    /// A listed file does not exist.
    #[error("{repo} has no file {file:?}")]
    NoFile {
        /// The repository.
        repo: String,
        /// What was requested.
        file: String,
    },
    /// An unexpected HTTP status.
    #[error("{url}: the server answered {status}{}{}", in_parentheses(message), try_again(*.retry_after))]
    Status {
        /// What was requested.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's message.
        message: String,
        /// The wait that the server asks for (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// What was told of the progress asked to end the download.
    #[cfg(feature = "download")]
    #[error("the download was stopped; what was downloaded is kept, and the next one resumes there")]
    Stopped,
    /// An invalid response.
    #[error("{url}: {problem}")]
    Answer {
        /// What was requested.
        url: String,
        /// The problem.
        problem: String,
    },
    /// The list of files and the file itself differ in size.
    #[error("{file}: the list of files says {listed} bytes, but the file's header {got}")]
    ListedSize {
        /// The file.
        file: String,
        /// The size in the list.
        listed: u64,
        /// The size in the header of the file.
        got: u64,
    },
    /// The content is not as large as the header says.
    #[error("{file}: expected {expected} bytes, but the server has {got}")]
    Size {
        /// The file.
        file: String,
        /// The size in the header of the file.
        expected: u64,
        /// The size of the content.
        got: u64,
    },
    /// The server sends neither the rest of a file nor the whole.
    #[error("{file}: the server answered {status} to the request for {what}")]
    Range {
        /// The file.
        file: String,
        /// The HTTP status.
        status: u16,
        /// What was requested.
        what: String,
    },
    /// Too many requests or restarts for one file.
    #[error(
        "{file}: gave up after {requests} requests and {restarts} restarts, at {got} of {expected} bytes"
    )]
    GaveUp {
        /// The file.
        file: String,
        /// Requests for its content.
        requests: u32,
        /// How often it was started over.
        restarts: u32,
        /// Bytes received.
        got: u64,
        /// Bytes of the file.
        expected: u64,
    },
    /// The connection repeatedly ended early.
    #[error(
        "{file}: the connection ended after {got} of {expected} bytes; run the same command again to resume"
    )]
    Short {
        /// The file.
        file: String,
        /// Bytes received.
        got: u64,
        /// Bytes of the file.
        expected: u64,
    },
    /// The downloaded file does not have the expected hash.
    #[error("{file}: the checksum is {got}, expected {expected}; the download was discarded")]
    Checksum {
        /// The file.
        file: String,
        /// The hash of the download.
        got: String,
        /// The expected hash.
        expected: String,
    },
    /// There is too little space on the disk, found before the download starts.
    #[error(
        "{}: {} are needed, but the disk has {}; free some space, or set HF_HUB_CACHE to another folder",
        path.display(), bytes(*.needed), bytes(*.available)
    )]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes to download.
        needed: u64,
        /// Bytes that can be written.
        available: u64,
    },
    /// Something in the cache that this program did not put there, where it would write.
    #[error("refusing to write through {}: it is {what}; remove it and try again", path.display())]
    NotOurs {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Another process is downloading into the repository.
    #[error("{repo} is being downloaded by another process; wait for it, or stop it first")]
    Busy {
        /// The repository.
        repo: String,
    },
    /// The disk is full.
    #[error(
        "{}: the disk is full ({needed} bytes still to download); \
         free some space and run the same command again to resume",
        path.display()
    )]
    Full {
        /// The file being written.
        path: PathBuf,
        /// Bytes still to download.
        needed: u64,
    },
    /// The cache cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

fn in_parentheses(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

fn try_again(wait: Option<Duration>) -> String {
    wait.map_or(String::new(), |wait| format!("; it asks to try again in {} s", wait.as_secs()))
}

/// A size that is read and not computed with.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (count.max(1).ilog2() / 10) as usize;
    match power {
        0 => format!("{count} bytes"),
        _ => format!("{:.1} {}", count as f64 / (1u64 << (10 * power)) as f64, UNITS[power]),
    }
}

fn token_words(sent: bool) -> &'static str {
    if sent {
        "the token in use does not grant access"
    } else {
        "if you have access, set HF_TOKEN to your token"
    }
}

/// Advice for common causes.
#[cfg(feature = "download")]
fn advice(error: &ureq::Error) -> &'static str {
    match error {
        _ if is_unreachable(error) => {
            "; check the network connection, or set HF_ENDPOINT to another server or HTTPS_PROXY to a proxy"
        }
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
            "; set SSL_CERT_FILE to a file of trusted certificates"
        }
        _ => "",
    }
}

/// Whether the server cannot be reached at all.
#[cfg(feature = "download")]
fn is_unreachable(error: &ureq::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => {
            let kinds = [ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable];
            // The standard library has no kind for failed name resolution.
            kinds.contains(&error.kind()) || error.to_string().contains("lookup address")
        }
        _ => false,
    }
}

impl HubError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |error| HubError::Io { path, error }
    }

    /// For a failed write: whether the disk is full.
    pub(crate) fn write(path: impl Into<PathBuf>, needed: u64) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HubError::Full { path, needed },
            _ => HubError::Io { path, error },
        }
    }

    /// The wait that the server asks for.
    #[cfg(feature = "download")]
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            HubError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether a retry may help.
    #[cfg(feature = "download")]
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            HubError::Network { error, .. } => {
                let permanent =
                    matches!(**error, ureq::Error::BadUri(_) | ureq::Error::Tls(_) | ureq::Error::Rustls(_));
                !permanent && !is_unreachable(error)
            }
            HubError::Status { status, .. } => *status >= 500 || matches!(*status, 408 | 429),
            HubError::Short { .. } => true,
            _ => false,
        }
    }
}
