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
    /// Registers a file, before it is created.
    pub fn new(path: &Path) -> Unfinished {
        FILES.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
        Unfinished(path.to_owned())
    }

    /// Creates a file whose name is known only then, and registers it: no [`remove_all`] comes between.
    ///
    /// # Errors
    /// That of `create`.
    pub fn create<T, E>(
        create: impl FnOnce() -> Result<T, E>,
        path: impl FnOnce(&T) -> &Path,
    ) -> Result<(T, Unfinished), E> {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let file = create()?;
        let path = path(&file).to_owned();
        files.push(path.clone());
        Ok((file, Unfinished(path)))
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
        let is_locked = || FILES.try_lock().is_err();
        let created: Result<_, ()> = Unfinished::create(|| Ok((is_locked(), a)), |(_, path)| *path);
        let ((locked, _), third) = created.unwrap();
        assert!(locked, "nobody can remove files between creation and registration");
        assert_eq!(*FILES.lock().unwrap(), [a]);
        drop(third);
        assert_eq!(Unfinished::create(|| Err(5), |path: &&Path| *path).unwrap_err(), 5);
        assert!(FILES.lock().unwrap().is_empty());
    }
}
