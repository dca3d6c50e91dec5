//! What a download does to the disk.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::HubError;

/// A blob while it is downloaded.
pub(crate) trait PartialFile: Read + Write + Seek {
    /// Removes all bytes, and writes from the start.
    fn empty(&mut self) -> io::Result<()>;
    /// Returns when the bytes are on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system. Tests put one in its place whose writes fail.
pub(crate) trait Disk {
    /// Opens a file for reading and writing, and creates it if needed. Never follows a symbolic link.
    fn open_partial(&self, path: &Path) -> Result<Box<dyn PartialFile>, HubError>;
    /// Renames a file; one that exists at the new path is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Replaces a small file as a whole.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Makes `place` lead to a blob, whose path from there is `relative`.
    fn link(&self, relative: &str, blob: &Path, place: &Path) -> io::Result<()>;
    /// The bytes that this user may still write to the file system of a folder; `None` if it does not tell.
    fn available(&self, folder: &Path) -> Option<u64>;
}

/// The file system of the operating system.
pub(crate) struct SystemDisk;

impl PartialFile for File {
    fn empty(&mut self) -> io::Result<()> {
        self.set_len(0)?;
        self.seek(SeekFrom::Start(0)).map(drop)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for SystemDisk {
    fn open_partial(&self, path: &Path) -> Result<Box<dyn PartialFile>, HubError> {
        Ok(Box::new(open_file(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    }

    #[cfg(unix)]
    fn link(&self, relative: &str, _blob: &Path, place: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(relative, place)
    }

    /// Symbolic links need special privileges on Windows.
    #[cfg(not(unix))]
    fn link(&self, _relative: &str, blob: &Path, place: &Path) -> io::Result<()> {
        fs::hard_link(blob, place).or_else(|_| fs::copy(blob, place).map(drop))
    }

    fn available(&self, folder: &Path) -> Option<u64> {
        fs4::available_space(folder).ok()
    }
}

/// Opens a regular file for reading and writing, and creates it if needed. A symbolic link, a pipe or a
/// device at the path is an error: writing to it would change something outside of the cache.
pub(crate) fn open_file(path: &Path) -> Result<File, HubError> {
    let odd = |what| HubError::NotOurs { path: path.to_owned(), what };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => return Err(odd("a symbolic link")),
        Ok(metadata) if !metadata.is_file() => return Err(odd("not a regular file")),
        _ => {}
    }
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    // The path may have become a link since.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW);
    let file = options.open(path).map_err(HubError::io(path))?;
    match file.metadata().map_err(HubError::io(path))?.is_file() {
        true => Ok(file),
        false => Err(odd("not a regular file")),
    }
}

/// Creates the folders `root/parts[0]/parts[1]/…` and returns the last one. `root` may be a symbolic link;
/// a link below it is an error, because files would be written outside of the cache.
pub(crate) fn folder<'a>(root: &Path, parts: impl IntoIterator<Item = &'a str>) -> Result<PathBuf, HubError> {
    fs::create_dir_all(root).map_err(HubError::io(root))?;
    let mut path = root.to_owned();
    for part in parts {
        path.push(part);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(HubError::io(path)(error));
            }
            _ => {}
        }
        let metadata = fs::symlink_metadata(&path).map_err(HubError::io(&path))?;
        if !metadata.is_dir() {
            let what = if metadata.is_symlink() { "a symbolic link" } else { "not a folder" };
            return Err(HubError::NotOurs { path, what });
        }
    }
    Ok(path)
}
