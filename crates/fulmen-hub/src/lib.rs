//! Downloads models from a server with the Hugging Face hub's API, into the cache folder shared with its
//! tools.
//!
//! - [`Reference`]: names a model, `[HOST/]ORG/NAME[@REVISION][:FILE]` or a URL.
//! - [`Settings`]: server, token and cache folder, from the environment variables that the hub's own tools
//!   use.
//! - [`choose`]: selects the files of a repository that make up a model.
//! - [`Cache`]: the layout of the cache folder, and lookup of cached models.
//! - [`Inventory`] and [`remove`]: the models in the cache, and removing them.
//! - [`pull`]: downloads files into the cache: resumed after interruptions, verified against their hashes,
//!   and by only one process at a time per file.
//!
//! The server is not trusted: file names become paths only if they stay inside the cache, responses, attempts
//! and waits are bounded, and the token is sent only to the configured server. Nothing is written through
//! symbolic links in the cache.

mod cache;
mod checksum;
mod choose;
mod client;
mod disk;
mod download;
mod error;
mod inventory;
mod limits;
mod pull;
mod reference;
mod retry;
mod settings;
#[cfg(test)]
mod tests;

pub use cache::Cache;
pub use choose::{Choice, ChooseError, RepoFile, choose};
pub use error::HubError;
pub use inventory::{CachedModel, Inventory, PartialDownload, remove, remove_partial};
pub use pull::{Event, Listing, Pulled, list, pull};
pub use reference::{Reference, ReferenceError};
pub use settings::{DEFAULT_ENDPOINT, Overrides, Settings};
