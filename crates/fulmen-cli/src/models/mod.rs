//! The models in the download cache: `fulmen list`, `fulmen rm` and `fulmen show`.

mod list;
mod rm;
mod show;
mod time;

use std::io;
use std::path::PathBuf;

use fulmen_hub::HubError;
use fulmen_model::gguf::MetadataError;
use fulmen_model::source::SourceError;

use crate::config::ConfigError;
use crate::error::CommandError;
use crate::model::find::FindError;
use crate::model::suggest::did_you_mean;

pub(crate) use list::{Args as ListArgs, run as list};
pub(crate) use rm::{Args as RmArgs, run as rm};
pub(crate) use show::{Args as ShowArgs, run as show};

/// Why `fulmen list`, `rm` or `show` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelsError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{}: {error}", path.display())]
    Metadata { path: PathBuf, error: MetadataError },
    #[error("no downloaded model is called {name}{}", did_you_mean(near))]
    NotCached { name: String, near: Vec<String> },
    #[error("{name} matches several models: {}; give the full name", names.join(", "))]
    Ambiguous { name: String, names: Vec<String> },
    #[error("{name} is a file or folder; `fulmen rm` removes models from the download cache only")]
    IsPath { name: String },
    #[error("cannot ask for confirmation: standard input is not a terminal; pass --yes")]
    CannotAsk,
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for ModelsError {
    fn is_usage(&self) -> bool {
        match self {
            ModelsError::Config(error) => error.is_usage(),
            ModelsError::Find(error) => error.is_usage(),
            ModelsError::CannotAsk | ModelsError::Ambiguous { .. } | ModelsError::IsPath { .. } => true,
            _ => false,
        }
    }
}
