//! Models from a hub: a server that speaks as the Hugging Face hub does, and the cache folder that its tools share.
//!
//! - [`Reference`]: which model, `ORG/NAME[@REVISION][:FILE]`.
//! - [`Settings`]: which server, which token, which folder; from the environment that the hub's own tools read.
//! - [`choose`]: which files of a repository make a model.
//! - [`Cache`]: where files lie, and what is there already.
//! - [`pull`]: files from the server into the cache: resumed where they were cut, checked against their hashes, one process at a
//!   time for each file.
//!
//! Nothing that the server says is trusted: names become paths only if they stay inside the cache, answers are bounded, the
//! token goes to the server that was named and to no other.

mod cache;
mod checksum;
mod choose;
mod client;
mod download;
mod error;
mod pull;
mod reference;
mod settings;

pub use cache::Cache;
pub use choose::{Choice, ChooseError, RepoFile, choose};
pub use error::HubError;
pub use pull::{Event, Listing, Pulled, list, pull};
pub use reference::{Reference, ReferenceError};
pub use settings::{DEFAULT_ENDPOINT, Settings};
