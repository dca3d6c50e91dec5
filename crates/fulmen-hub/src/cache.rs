//! The cache folder: its layout and lookup.
//!
//! ```text
//! models--ORG--NAME/blobs/HASH              the content of a file; HASH.incomplete during the download
//!                   refs/REVISION           the last known commit of a branch or tag
//!                   snapshots/COMMIT/PATH   a link to the blob
//! .locks/models--ORG--NAME/HASH.lock        held while a blob is written
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::choose::{RepoFile, choose};
use crate::disk::{self, Disk};
use crate::error::HubError;
use crate::reference::{Reference, is_inside};

/// How often a lock that another process holds is tried.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Maximum folder depth of a snapshot.
const DEPTH: usize = 8;

/// The cache's folder of one repository.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    name: String,
}

impl Cache {
    /// The folder of a repository, which need not exist.
    pub fn of(root: &Path, reference: &Reference) -> Cache {
        // A model of another server than the hub is another model. A colon is not allowed on Windows.
        let host = reference.host().map_or(String::new(), |host| host.replace(':', "+") + "--");
        let name = format!("models--{host}{}", reference.repo().replace('/', "--"));
        Cache { root: root.to_owned(), name }
    }

    /// Its path.
    pub fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// Looks up a model: the path of its file, first shard or folder. `None` if it is not cached; an error if
    /// it is incomplete or if several files match.
    pub fn find(&self, reference: &Reference) -> Result<Option<PathBuf>, HubError> {
        let Some(commit) = self.commit(reference.revision()) else { return Ok(None) };
        let snapshot = self.snapshot(&commit);
        let files = self.files(&commit);
        if files.is_empty() {
            return Ok(None);
        }
        let choice = choose(&files, reference.file())
            .map_err(|error| HubError::Choose { repo: reference.repo().to_owned(), error })?;
        Ok(Some(choice.name.map_or(snapshot.clone(), |name| snapshot.join(name))))
    }

    /// The last known commit of a revision.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if self.snapshot(revision).is_dir() {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.folder().join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_inside(commit) && !commit.contains('/'))
    }

    /// The files of a commit.
    pub(crate) fn files(&self, commit: &str) -> Vec<RepoFile> {
        let mut files = Vec::new();
        list(&self.snapshot(commit), "", DEPTH, &mut files);
        // The order of the folder is any.
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// The folder of the locks.
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join(".locks").join(&self.name)
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder().join("blobs").join(etag)
    }

    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder().join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The folder of the blobs, created if needed.
    pub(crate) fn blobs(&self) -> Result<PathBuf, HubError> {
        disk::folder(&self.root, [self.name.as_str(), "blobs"])
    }

    /// Records the commit of a revision.
    pub(crate) fn set_commit(&self, disk: &dyn Disk, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let (above, name) = revision.rsplit_once('/').map_or((None, revision), |(a, b)| (Some(a), b));
        let above = above.into_iter().flat_map(|above| above.split('/'));
        let folder = disk::folder(&self.root, [self.name.as_str(), "refs"].into_iter().chain(above))?;
        let path = folder.join(name);
        let written = disk.replace(&path, commit.as_bytes());
        written.map_err(HubError::write(&path, commit.len() as u64))
    }

    /// Links a blob into a snapshot and returns its path there.
    pub(crate) fn link(
        &self,
        disk: &dyn Disk,
        etag: &str,
        commit: &str,
        path: &str,
    ) -> Result<PathBuf, HubError> {
        let (above, name) = path.rsplit_once('/').map_or((None, path), |(a, b)| (Some(a), b));
        let above = above.into_iter().flat_map(|above| above.split('/'));
        let parts = [self.name.as_str(), "snapshots", commit].into_iter().chain(above);
        let place = disk::folder(&self.root, parts)?.join(name);
        // The relative path from the link up to the repository's folder.
        let up = "../".repeat(2 + path.matches('/').count());
        let blob = self.blob(etag);
        if same(&place, &blob) {
            return Ok(place);
        }
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(HubError::io(&place)(error)),
            _ => {}
        }
        match disk.link(&format!("{up}blobs/{etag}"), &blob, &place) {
            // Another process created it first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && same(&place, &blob) => Ok(place),
            Err(error) => Err(HubError::write(&place, 0)(error)),
            Ok(()) => Ok(place),
        }
    }

    /// Locks a blob for this process. While another process holds the lock, `wait` is called several times a
    /// second; its error ends the wait.
    pub(crate) fn lock(
        &self,
        etag: &str,
        mut wait: impl FnMut() -> Result<(), HubError>,
    ) -> Result<File, HubError> {
        let path = disk::folder(&self.root, [".locks", &self.name])?.join(format!("{etag}.lock"));
        let file = disk::open_file(&path)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => wait()?,
                Err(TryLockError::Error(error)) => return Err(HubError::io(path)(error)),
            }
            thread::sleep(LOCK_POLL);
        }
    }
}

/// Whether both exist and are the same file.
fn same(place: &Path, blob: &Path) -> bool {
    match (fs::canonicalize(place), fs::canonicalize(blob)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// The readable files below a folder, with their sizes.
pub(crate) fn list(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<RepoFile>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        // Follows links; a dangling link is not a file.
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_file() => files.push(RepoFile { path, size: Some(metadata.len()) }),
            Ok(metadata) if metadata.is_dir() && depth > 0 => {
                list(&entry.path(), &format!("{path}/"), depth - 1, files);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn what_was_linked_is_found() {
        let root = tempfile::tempdir().unwrap();
        let reference: Reference = "org/name:sub/m.gguf".parse().unwrap();
        let cache = Cache::of(root.path(), &reference);
        assert_eq!(cache.find(&reference).unwrap(), None);
        fs::create_dir_all(cache.folder().join("blobs")).unwrap();
        fs::write(cache.blob("aa"), b"old").unwrap();
        fs::write(cache.blob("bb"), b"new").unwrap();
        cache.set_commit(&SystemDisk, "main", "c0ffee").unwrap();
        assert_eq!(cache.find(&reference).unwrap(), None, "a commit without files");
        let place = cache.link(&SystemDisk, "aa", "c0ffee", "sub/m.gguf").unwrap();
        assert_eq!(place, root.path().join("models--org--name/snapshots/c0ffee/sub/m.gguf"));
        assert_eq!(cache.find(&reference).unwrap(), Some(place.clone()));
        assert_eq!(fs::read(&place).unwrap(), b"old");
        cache.link(&SystemDisk, "aa", "c0ffee", "sub/m.gguf").unwrap();
        cache.link(&SystemDisk, "bb", "c0ffee", "sub/m.gguf").unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        // Also by commit, and by no other revision.
        let at = |text: &str| cache.find(&text.parse().unwrap());
        assert_eq!(at("org/name@c0ffee").unwrap(), Some(place));
        assert_eq!(at("org/name@v2").unwrap(), None);
        assert!(at("org/name:other.gguf").unwrap_err().to_string().contains("no file \"other.gguf\""));
        fs::remove_file(cache.blob("bb")).unwrap();
        assert_eq!(at("org/name").unwrap(), None, "a link that leads nowhere is no file");
    }

    #[test]
    fn a_lock_is_held_by_one() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::of(root.path(), &"org/name".parse().unwrap());
        let held = cache.lock("aa", || panic!("nobody has it")).unwrap();
        let (said, waits) = std::sync::mpsc::channel();
        let other = cache.clone();
        let wait = move || {
            // Nobody listens after the first time.
            let _ = said.send(());
            Ok(())
        };
        let thread = std::thread::spawn(move || other.lock("aa", wait).map(drop));
        waits.recv().unwrap();
        assert!(!thread.is_finished());
        drop(held);
        thread.join().unwrap().unwrap();
        cache.lock("aa", || panic!("it was given back")).unwrap();
    }
}
