//! Downloads a model into the cache.

use std::path::PathBuf;
use std::time::Duration;

use crate::cache::Cache;
use crate::choose::{Choice, RepoFile, choose};
use crate::client::Client;
use crate::download::{Wanted, download, retried};
use crate::error::HubError;
use crate::reference::Reference;
use crate::settings::Settings;

/// Progress of a download.
#[derive(Debug)]
pub enum Event<'a> {
    /// The files of the model were selected.
    Chosen(&'a Choice),
    /// A file is being downloaded; part of it may already be there.
    File {
        /// Its path in the repository.
        path: &'a str,
        /// Its size in bytes.
        size: u64,
        /// Bytes already downloaded.
        have: u64,
    },
    /// This many more bytes were downloaded.
    Bytes(u64),
    /// A file is complete.
    Complete {
        /// Its path in the repository.
        path: &'a str,
        /// Whether it was already in the cache.
        cached: bool,
    },
    /// Waiting for another process that downloads the same file.
    Waiting {
        /// Its path in the repository.
        path: &'a str,
    },
    /// A request failed and will be retried.
    Retry {
        /// The error.
        error: &'a HubError,
        /// The delay before the retry.
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
    /// What to open: its file, first shard, or folder.
    pub path: PathBuf,
    /// The commit.
    pub commit: String,
    /// Its files in the cache.
    pub files: Vec<PathBuf>,
}

/// Lists the files of a repository.
pub fn list(
    settings: &Settings,
    reference: &Reference,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<Listing, HubError> {
    let client = Client::new(settings)?;
    let (commit, files) = retried(events, || client.list(reference))?;
    Ok(Listing { commit, files })
}

/// Downloads the files of a model into the cache. Cached files are not downloaded again; interrupted
/// downloads are resumed.
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
    // The revision is recorded last, so that only complete models are found.
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
        // The process that held the lock may have downloaded it.
        cached = there();
        if !cached {
            download(client, cache, &Wanted { reference, commit, path, info: &info }, events)?;
        }
    }
    let place = cache.link(&info.etag, commit, path)?;
    events(Event::Complete { path, cached });
    Ok(place)
}
