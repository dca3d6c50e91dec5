//! Files that are being written, so that a process that ends in the middle can remove them.
//!
//! A temporary file is usually deleted when its owner is dropped. A signal handler that ends the process
//! drops nothing: it calls [`remove_all`] first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static FILES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is being written. Drop it when the file has its final name or is deleted.
#[derive(Debug)]
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Registers a file.
    pub fn new(path: &Path) -> Unfinished {
        FILES.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
        Unfinished(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = files.iter().position(|path| *path == self.0) {
            files.swap_remove(at);
        }
    }
}

/// Removes all files that are being written, and keeps others from being registered or finished: call this
/// only to end the process.
pub fn remove_all() {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    for path in files.iter() {
        // It may have got its final name meanwhile, and then it is complete.
        let _ = fs::remove_file(path);
    }
    // Whoever registers or drops a file now waits for the end of the process.
    std::mem::forget(files);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_files_are_forgotten() {
        let (a, b) = (Path::new("/a.part"), Path::new("/b.part"));
        let first = Unfinished::new(a);
        let second = Unfinished::new(b);
        drop(first);
        assert_eq!(*FILES.lock().unwrap(), [b]);
        drop(second);
        assert!(FILES.lock().unwrap().is_empty());
    }
}
