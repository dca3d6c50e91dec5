//! Why a model could not be had.

use std::io;
use std::path::PathBuf;

use crate::choose::ChooseError;
use crate::reference::ReferenceError;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A variable of the environment.
    #[error("the environment variable {name} {problem}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
    /// A text that names no model.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// No files that make a model.
    #[error("{repo}: {error}")]
    Choose {
        /// The repository.
        repo: String,
        /// What is missing.
        error: ChooseError,
    },
    /// The server cannot be reached, or stopped answering.
    #[error("{url}: {error}{}", advice(error))]
    Network {
        /// What was asked for.
        url: String,
        /// What happened.
        error: Box<ureq::Error>,
    },
    /// No such repository, or none that may be seen.
    #[error("{repo} is not at {endpoint}, or it is private: {}", token_words(*.token))]
    NoRepo {
        /// The repository.
        repo: String,
        /// The server.
        endpoint: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// A repository that has to be asked for.
    #[error("{repo} is gated: ask for access at {endpoint}/{repo}; {}", token_words(*.token))]
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
        /// What was asked for.
        revision: String,
    },
    /// A file that was listed and is not there.
    #[error("{repo} has no file {file:?}")]
    NoFile {
        /// The repository.
        repo: String,
        /// What was asked for.
        file: String,
    },
    /// Another answer than expected.
    #[error("{url}: the server answers {status}{}", if message.is_empty() { String::new() } else { format!(" ({message})") })]
    Status {
        /// What was asked for.
        url: String,
        /// The status of the answer.
        status: u16,
        /// What the server says.
        message: String,
    },
    /// An answer that makes no sense.
    #[error("{url}: {problem}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The connection ended early, again and again.
    #[error(
        "{file}: the connection ended after {got} of {expected} bytes; what is there is kept, and the same command goes on from \
         there"
    )]
    Short {
        /// The file.
        file: String,
        /// Bytes that came.
        got: u64,
        /// Bytes of the file.
        expected: u64,
    },
    /// What came is not what the server said it would send.
    #[error("{file}: the checksum is {got}, not {expected}; what came was thrown away")]
    Checksum {
        /// The file.
        file: String,
        /// The hash of what came.
        got: String,
        /// The hash that the server named.
        expected: String,
    },
    /// The disk is full.
    #[error(
        "{}: the disk is full ({needed} bytes are still to come); what is there is kept, and the same command goes on from there", path.display()
    )]
    Full {
        /// The file that was written.
        path: PathBuf,
        /// Bytes that are missing.
        needed: u64,
    },
    /// The cache cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

fn token_words(sent: bool) -> &'static str {
    if sent {
        "the token that was sent does not allow it"
    } else {
        "if you have access, put your token into HF_TOKEN"
    }
}

/// What to do about the usual reasons.
fn advice(error: &ureq::Error) -> &'static str {
    match error {
        _ if is_unreachable(error) => {
            "; is there a network? HF_ENDPOINT names another server, HTTPS_PROXY a way to it"
        }
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "; SSL_CERT_FILE names certificates to trust",
        _ => "",
    }
}

/// Whether nobody answers at all.
fn is_unreachable(error: &ureq::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => {
            let kinds = [ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable];
            // The standard library has no kind for names that lead nowhere.
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

    /// Whether another try may help.
    pub(crate) fn passes(&self) -> bool {
        match self {
            HubError::Network { error, .. } => {
                let lasts =
                    matches!(**error, ureq::Error::BadUri(_) | ureq::Error::Tls(_) | ureq::Error::Rustls(_));
                !lasts && !is_unreachable(error)
            }
            HubError::Status { status, .. } => *status >= 500 || matches!(*status, 408 | 429),
            HubError::Short { .. } => true,
            _ => false,
        }
    }
}
