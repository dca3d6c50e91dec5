//! Downloads models from a server with the Hugging Face hub's API, into the cache folder shared with its
//! tools.
//!
//! - [`Reference`]: names a model, `[HOST/]ORG/NAME[@REVISION][:FILE]` or a URL.
//! - [`Settings`]: server, token and cache folder, from the environment variables that the hub's own tools
//!   use.
//! - [`choose`]: selects the files of a repository that make up a model.
//! - [`Cache`]: the layout of the cache folder, and lookup of cached models.
//! - [`Inventory`] and [`remove`]: the models in the cache, and removing them.
//! - `pull` (feature `download`, on by default): downloads files into the cache: resumed after interruptions,
//!   verified against their hashes, and by only one process at a time per file.
//!
//! The server is not trusted: file names become paths only if they stay inside the cache, responses, attempts
//! and waits are bounded, and the token is sent only to the configured server. Nothing is written through
//! symbolic links in the cache.

#[cfg_attr(not(feature = "download"), allow(dead_code, reason = "written to by downloads only"))]
mod cache;
#[cfg(feature = "download")]
mod checksum;
mod choose;
#[cfg(feature = "download")]
mod client;
#[cfg_attr(not(feature = "download"), allow(dead_code, reason = "written to by downloads only"))]
mod disk;
#[cfg(feature = "download")]
mod download;
mod error;
mod inventory;
#[cfg(feature = "download")]
mod limits;
#[cfg(feature = "download")]
mod pull;
mod reference;
#[cfg(feature = "download")]
mod retry;
mod settings;
#[cfg(all(test, feature = "download"))]
mod tests;

pub use cache::Cache;
pub use choose::{Choice, ChooseError, RepoFile, choose};
pub use error::HubError;
pub use inventory::{CachedModel, Inventory, PartialDownload, remove, remove_partial};
#[cfg(feature = "download")]
pub use pull::{Event, Events, Listing, Pulled, list, pull};
pub use reference::{Reference, ReferenceError};
pub use settings::{DEFAULT_ENDPOINT, Overrides, Settings};
