//! The folders that the command writes to: their size, and the space that is left.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::chat::state_folder;
use crate::config;

/// More entries than this are not counted.
const MAX_ENTRIES: usize = 1_000_000;

/// A folder, which may not exist yet.
pub(super) struct Folder {
    /// What it holds.
    pub(super) name: &'static str,
    /// Where it is, or why there is none.
    pub(super) path: Result<PathBuf, String>,
    pub(super) files: usize,
    pub(super) bytes: u64,
    /// Space that is left on its disk, where the platform tells.
    pub(super) free: Option<u64>,
}

impl Folder {
    fn new(name: &'static str, path: Result<PathBuf, String>) -> Folder {
        let (mut files, mut bytes, mut free) = (0, 0, None);
        if let Ok(path) = &path {
            (files, bytes) = size(path);
            free = free_space(path);
        }
        Folder { name, path, files, bytes, free }
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "path": self.path.as_ref().ok().map(|path| path.display().to_string()),
            "reason": self.path.as_ref().err(),
            "files": self.files,
            "bytes": self.bytes,
            "free_bytes": self.free,
        })
    }
}

/// Every folder that the command writes to.
pub(super) fn folders() -> Vec<Folder> {
    let models =
        config::current().hub_settings().map(|settings| settings.cache).map_err(|error| error.to_string());
    let chats = state_folder().ok_or_else(|| "HOME is not set".to_owned());
    let mut folders = vec![Folder::new("models", models)];
    #[cfg(feature = "wgpu")]
    {
        let pipelines = fulmen_wgpu::DiskCache::UserFolder.folder();
        folders.push(Folder::new("kernels", pipelines.ok_or_else(|| "the cache is off".to_owned())));
    }
    folders.push(Folder::new("chats", chats));
    folders
}

/// The number and the bytes of the files below a folder. Links are not followed, so that nothing counts
/// twice.
fn size(folder: &Path) -> (usize, u64) {
    let (mut files, mut bytes, mut seen) = (0, 0_u64, 0);
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_ENTRIES {
                return (files, bytes);
            }
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => waiting.push(entry.path()),
                Ok(metadata) if metadata.is_file() => {
                    (files, bytes) = (files + 1, bytes.saturating_add(metadata.len()));
                }
                _ => {}
            }
        }
    }
    (files, bytes)
}

/// The space that is left for this user where a path is, or will be.
fn free_space(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|path| path.exists())?;
    fs4::available_space(existing).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(size(folder.path()), (0, 0));
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/one"), [0; 100]).unwrap();
        fs::write(folder.path().join("two"), [0; 23]).unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(folder.path(), folder.path().join("a/loop")).unwrap();
            std::os::unix::fs::symlink("b/one", folder.path().join("a/link")).unwrap();
        }
        assert!(free_space(&folder.path().join("not/there")).is_some_and(|free| free > 0));
        assert_eq!(size(folder.path()), (2, 123));
        assert_eq!(size(&folder.path().join("none")), (0, 0));
    }
}
