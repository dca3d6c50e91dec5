//! Why the configuration cannot be used.

use std::io;
use std::path::PathBuf;

use fulmen_hub::HubError;

use crate::error::CommandError;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration file {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}:{line}:{column}: {problem}", path.display())]
    At { path: PathBuf, line: usize, column: usize, problem: String },
    #[error("the environment variable {name} must be {expected}, not {got:?}")]
    Variable { name: &'static str, expected: String, got: String },
    #[error("the environment variable {0} is not UTF-8")]
    NotUtf8(&'static str),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("there is no place for a configuration file: HOME is not set; --config names a file")]
    NoFolder,
    #[error("cannot write the configuration: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for ConfigError {
    /// A wrong value in the file or the environment is wrong usage, as that of an option is.
    fn is_usage(&self) -> bool {
        matches!(self, ConfigError::At { .. } | ConfigError::Variable { .. } | ConfigError::NotUtf8(_))
    }
}
