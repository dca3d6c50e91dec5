//! A file mapped into memory that may be changed by others while it is in use.
//!
//! Weights are read where the mapping lies, without a copy, for as long as a model is loaded. Nothing stops
//! another process from truncating or overwriting the file meanwhile (`cp other.gguf model.gguf`), so:
//!
//! - **A page that is gone does not end the process.** The kernel answers a read past the end of a truncated
//!   file with `SIGBUS`. A signal handler ([`fault`], Unix only) puts zeros there and notes the loss in
//!   the mapping. Windows does not let a mapped file be truncated.
//! - **What was read is used only after a check.** [`MappedFile::check`] compares the size and the
//!   modification time with those of the moment the file was opened, and looks at the note. It is called when
//!   a tensor is read, after the weights are loaded, after each step of a device that reads weights in
//!   place, and before a quantized file gets its name. A change before such a check is an error at the check;
//!   results that may be wrong are discarded.
//!
//! A file that is deleted or replaced by renaming keeps its bytes until it is closed: that is no change.

#[cfg(unix)]
mod fault;

use std::{fs::File, path::Path, time::SystemTime};

use memmap2::{Mmap, MmapOptions};

use crate::gguf::GgufProblem;

/// A regular file that is open for reading.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Its size when it was opened.
    pub(crate) size: u64,
    /// Its modification time when it was opened, where the file system has one.
    modified: Option<SystemTime>,
}

impl OpenFile {
    /// Opens a regular file. Directories, pipes and devices are rejected before they are opened, because
    /// opening a pipe blocks until there is a writer.
    pub(crate) fn open(path: &Path) -> Result<OpenFile, GgufProblem> {
        let failed = |call| move |error| GgufProblem::Io { call, error };
        let check = |metadata: &std::fs::Metadata| match metadata.file_type() {
            kind if kind.is_file() => Ok(()),
            kind if kind.is_dir() => Err(GgufProblem::NotAFile { found: "a directory" }),
            _ => Err(GgufProblem::NotAFile { found: "a pipe, socket or device" }),
        };
        check(&std::fs::metadata(path).map_err(failed("open it"))?)?;
        let file = File::open(path).map_err(failed("open it"))?;
        // Checked again: the path may refer to another file by now.
        let metadata = file.metadata().map_err(failed("read its size"))?;
        check(&metadata)?;
        Ok(OpenFile { file, size: metadata.len(), modified: metadata.modified().ok() })
    }

    /// Maps the whole file.
    pub(crate) fn map(self) -> Result<MappedFile, GgufProblem> {
        let len = usize::try_from(self.size);
        let len = len.map_err(|_| GgufProblem::Io {
            call: "map it into memory",
            error: std::io::ErrorKind::FileTooLarge.into(),
        })?;
        // SAFETY: the mapping is read-only and only read as plain bytes, which have no invalid values; the
        // header is never borrowed from it. What changes or vanishes is noticed by `check`.
        let map = unsafe { MmapOptions::new().len(len).map(&self.file) };
        let map = map.map_err(|error| GgufProblem::Io { call: "map it into memory", error })?;
        #[cfg(unix)]
        let guard = fault::Guard::new(&map)
            .map_err(|error| GgufProblem::Io { call: "install the handler for pages that vanish", error })?;
        let mapped = MappedFile {
            #[cfg(unix)]
            guard,
            map,
            opened: self,
        };
        mapped.check()?;
        Ok(mapped)
    }

    fn check(&self) -> Result<(), GgufProblem> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| GgufProblem::Io { call: "read its size", error })?;
        if metadata.len() != self.size {
            return Err(GgufProblem::Changed { expected: self.size, found: metadata.len() });
        }
        match metadata.modified().ok() == self.modified {
            true => Ok(()),
            false => Err(GgufProblem::Modified),
        }
    }
}

/// A mapped file.
pub(crate) struct MappedFile {
    /// Dropped before the mapping.
    #[cfg(unix)]
    guard: fault::Guard,
    map: Mmap,
    opened: OpenFile,
}

impl MappedFile {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Reads from byte `offset` of the file on, without its mapping. Returns `false` where the system has no
    /// call for it.
    pub(crate) fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<bool, GgufProblem> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileExt;
            match self.opened.file.read_exact_at(out, offset as u64) {
                Ok(()) => Ok(true),
                Err(error) => {
                    // Whoever truncated it is the reason.
                    self.check()?;
                    Err(GgufProblem::Io { call: "read its tensors", error })
                }
            }
        }
        #[cfg(not(unix))]
        {
            let _ = (offset, out);
            Ok(false)
        }
    }

    /// Fails if the file was changed since it was opened, or if a page of it could not be read.
    pub(crate) fn check(&self) -> Result<(), GgufProblem> {
        self.opened.check()?;
        #[cfg(unix)]
        if self.guard.lost() {
            return Err(GgufProblem::PageLost);
        }
        Ok(())
    }
}
