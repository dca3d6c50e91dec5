//! A model from the server into the cache.

use std::path::PathBuf;
use std::time::Duration;

use crate::cache::Cache;
use crate::choose::{Choice, RepoFile, choose};
use crate::client::Client;
use crate::download::{Wanted, download, retried};
use crate::error::HubError;
use crate::reference::Reference;
use crate::settings::Settings;

/// What happens while a model is pulled.
#[derive(Debug)]
pub enum Event<'a> {
    /// These files make the model.
    Chosen(&'a Choice),
    /// A file comes, and some of it is there already.
    File {
        /// Its path inside the repository.
        path: &'a str,
        /// Its bytes.
        size: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// So many bytes more.
    Bytes(u64),
    /// A file is complete.
    Complete {
        /// Its path inside the repository.
        path: &'a str,
        /// Whether it was in the cache before.
        cached: bool,
    },
    /// Another process fetches the same file; it is waited for.
    Waiting {
        /// Its path inside the repository.
        path: &'a str,
    },
    /// Something failed and is tried again.
    Retry {
        /// What failed.
        error: &'a HubError,
        /// When.
        wait: Duration,
    },
}

/// The files of a repository.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The commit of the revision.
    pub commit: String,
    /// All files.
    pub files: Vec<RepoFile>,
}

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// What to open: its file, the first of its parts, or its folder.
    pub path: PathBuf,
    /// The commit it is from.
    pub commit: String,
    /// Its files in the cache.
    pub files: Vec<PathBuf>,
}

/// The files that a repository has.
pub fn list(
    settings: &Settings,
    reference: &Reference,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<Listing, HubError> {
    let client = Client::new(settings)?;
    let (commit, files) = retried(events, || client.list(reference))?;
    Ok(Listing { commit, files })
}

/// Brings the files of a model into the cache. What is there already is not fetched again; what was cut is gone on with.
pub fn pull(
    settings: &Settings,
    reference: &Reference,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<Pulled, HubError> {
    let client = Client::new(settings)?;
    let cache = Cache::of(&settings.cache, reference);
    let (commit, files) = retried(events, || client.list(reference))?;
    let choice = choose(&files, reference.file())
        .map_err(|error| HubError::Choose { repo: reference.repo().to_owned(), error })?;
    events(Event::Chosen(&choice));
    let mut places = Vec::new();
    for file in &choice.files {
        places.push(one(&client, &cache, reference, &commit, &file.path, events)?);
    }
    // A model is found when it is complete, not before.
    cache.set_commit(reference.revision(), &commit)?;
    let path = choice.name.map_or_else(|| cache.snapshot(&commit), |name| cache.snapshot(&commit).join(name));
    Ok(Pulled { path, commit, files: places })
}

fn one(
    client: &Client,
    cache: &Cache,
    reference: &Reference,
    commit: &str,
    path: &str,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<PathBuf, HubError> {
    let info = retried(events, || client.info(reference, commit, path))?;
    let blob = cache.blob(&info.etag);
    let there = || blob.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == info.size);
    let mut cached = there();
    if !cached {
        let _lock = cache.lock(&info.etag, || events(Event::Waiting { path }))?;
        // The process that had the lock may have fetched it.
        cached = there();
        if !cached {
            download(client, cache, &Wanted { reference, commit, path, info: &info }, events)?;
        }
    }
    let place = cache.link(&info.etag, commit, path)?;
    events(Event::Complete { path, cached });
    Ok(place)
}
