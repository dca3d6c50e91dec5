//! Downloads a model into the cache.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::Cache;
use crate::choose::{Choice, RepoFile, choose};
use crate::client::{Client, FileInfo};
use crate::disk::{Disk, SystemDisk};
use crate::download::Download;
use crate::error::HubError;
use crate::limits::Limits;
use crate::reference::Reference;
use crate::retry::retried;
use crate::settings::Settings;

/// Progress of a download. What it is told to says whether to go on; otherwise the download ends with
/// [`HubError::Stopped`].
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
        /// Whether its hash was checked now: it was downloaded, and the server told its hash.
        verified: bool,
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
    /// Nothing new. Told several times a second while a retry or another process is waited for.
    Pending,
}

/// What is told of the progress, and says whether to go on.
pub type Events<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Tells an event. Fails if the download is to end.
pub(crate) fn tell(events: &mut Events<'_>, event: Event<'_>) -> Result<(), HubError> {
    match events(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(HubError::Stopped),
    }
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
    events: &mut Events<'_>,
) -> Result<Listing, HubError> {
    let client = Client::new(settings, reference)?;
    let (commit, files) = retried(&Limits::default(), events, || client.list(reference))?;
    Ok(Listing { commit, files })
}

/// Downloads the files of a model into the cache. Cached files are not downloaded again; interrupted
/// downloads are resumed. `events` may end it: at each block of bytes, at each request, and several times a
/// second during a wait, but not while a server is silent.
///
/// Nothing is downloaded unless all of it fits on the disk.
pub fn pull(settings: &Settings, reference: &Reference, events: &mut Events<'_>) -> Result<Pulled, HubError> {
    Puller::new(settings, reference, &SystemDisk, Limits::default())?.pull(events)
}

/// A download of the files of one model.
pub(crate) struct Puller<'a> {
    client: Client,
    cache: Cache,
    disk: &'a dyn Disk,
    limits: Limits,
    reference: &'a Reference,
}

impl<'a> Puller<'a> {
    pub(crate) fn new(
        settings: &Settings,
        reference: &'a Reference,
        disk: &'a dyn Disk,
        limits: Limits,
    ) -> Result<Puller<'a>, HubError> {
        let client = Client::new(settings, reference)?;
        Ok(Puller { client, cache: Cache::of(&settings.cache, reference), disk, limits, reference })
    }

    pub(crate) fn pull(&self, events: &mut Events<'_>) -> Result<Pulled, HubError> {
        let (commit, files) = retried(&self.limits, events, || self.client.list(self.reference))?;
        let choice = choose(&files, self.reference.file())
            .map_err(|error| HubError::Choose { repo: self.reference.repo().to_owned(), error })?;
        tell(events, Event::Chosen(&choice))?;
        let infos = self.infos(&commit, &choice, events)?;
        self.check_space(&infos)?;
        let mut places = Vec::new();
        for (file, info) in choice.files.iter().zip(&infos) {
            places.push(self.one(&commit, &file.path, info, events)?);
        }
        // The revision is recorded last, so that only complete models are found.
        self.cache.set_commit(self.disk, self.reference.revision(), &commit)?;
        let snapshot = self.cache.snapshot(&commit);
        let path = choice.name.map_or_else(|| snapshot.clone(), |name| snapshot.join(name));
        Ok(Pulled { path, commit, files: places })
    }

    /// What the server says about each file.
    fn infos(
        &self,
        commit: &str,
        choice: &Choice,
        events: &mut Events<'_>,
    ) -> Result<Vec<FileInfo>, HubError> {
        let mut sizes: HashMap<String, u64> = HashMap::new();
        let mut infos = Vec::new();
        for RepoFile { path, size } in &choice.files {
            let info = retried(&self.limits, events, || self.client.info(self.reference, commit, path))?;
            if let Some(listed) = size.filter(|&listed| listed != info.size) {
                return Err(HubError::ListedSize { file: path.clone(), listed, got: info.size });
            }
            // The blob is named by its ETag, so two contents must not share one.
            let known = *sizes.entry(info.etag.clone()).or_insert(info.size);
            if known != info.size {
                let url = self.client.file_url(self.reference, commit, path);
                let problem = format!("two files have the ETag {}, but different sizes", info.etag);
                return Err(HubError::Answer { url, problem });
            }
            infos.push(info);
        }
        Ok(infos)
    }

    /// Checks that everything that is missing fits on the disk.
    fn check_space(&self, infos: &[FileInfo]) -> Result<(), HubError> {
        let mut missing: HashMap<&str, u64> = HashMap::new();
        for info in infos.iter().filter(|info| !self.has(info)) {
            let have = self.cache.incomplete(&info.etag).symlink_metadata().map_or(0, |file| file.len());
            missing.insert(&info.etag, info.size.saturating_sub(have));
        }
        let needed = missing.into_values().fold(0, u64::saturating_add);
        let path = self.cache.blobs()?;
        match self.disk.available(&path) {
            Some(available) if needed > available => Err(HubError::NoSpace { path, needed, available }),
            _ => Ok(()),
        }
    }

    /// Whether a file is in the cache.
    fn has(&self, info: &FileInfo) -> bool {
        let blob = self.cache.blob(&info.etag).metadata();
        blob.is_ok_and(|metadata| metadata.is_file() && metadata.len() == info.size)
    }

    fn one(
        &self,
        commit: &str,
        path: &str,
        info: &FileInfo,
        events: &mut Events<'_>,
    ) -> Result<PathBuf, HubError> {
        let (mut cached, mut verified) = (self.has(info), false);
        if !cached {
            let mut told = false;
            let _lock = self.cache.lock(&info.etag, || {
                let first = !std::mem::replace(&mut told, true);
                tell(events, if first { Event::Waiting { path } } else { Event::Pending })
            })?;
            // The process that held the lock may have downloaded it.
            cached = self.has(info);
            if !cached {
                let Puller { client, cache, disk, limits, reference } = self;
                let download = Download { client, cache, disk: *disk, limits, reference, commit, path, info };
                verified = download.run(events)?;
            }
        }
        let place = self.cache.link(self.disk, &info.etag, commit, path)?;
        tell(events, Event::Complete { path, cached, verified })?;
        Ok(place)
    }
}
