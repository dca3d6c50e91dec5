//! The bytes of one file: memory-mapped, or supplied by the caller.

use std::{
    fs::File,
    ops::{Deref, Range},
    path::Path,
    sync::Arc,
};

use fulmen_core::SharedBytes;
use memmap2::Mmap;

use super::error::GgufProblem;

/// The bytes of one file, kept alive by the tensors that refer to them.
pub(crate) enum Storage {
    /// A mapping, with the file for checking its size.
    Mapped { map: Mmap, file: File },
    /// Bytes supplied by the caller.
    Given(SharedBytes),
}

/// Opens a regular file for reading and returns its size. Directories, pipes and devices are rejected before
/// they are opened, because opening a pipe blocks until there is a writer.
pub(crate) fn open_file(path: &Path) -> Result<(File, u64), GgufProblem> {
    let failed = |call| move |error| GgufProblem::Io { call, error };
    let check = |metadata: &std::fs::Metadata| match metadata.file_type() {
        kind if kind.is_file() => Ok(metadata.len()),
        kind if kind.is_dir() => Err(GgufProblem::NotAFile { found: "a directory" }),
        _ => Err(GgufProblem::NotAFile { found: "a pipe, socket or device" }),
    };
    check(&std::fs::metadata(path).map_err(failed("open it"))?)?;
    let file = File::open(path).map_err(failed("open it"))?;
    // Checked again: the path may refer to another file by now.
    let size = check(&file.metadata().map_err(failed("read its size"))?)?;
    Ok((file, size))
}

impl Storage {
    /// Maps a file of `size` bytes.
    pub(crate) fn map(file: File, size: u64) -> Result<Storage, GgufProblem> {
        // SAFETY: the mapping is read-only and only read as plain bytes, which have no invalid values; the
        // header is never borrowed from it. Writing to the file while it is mapped changes the weights that
        // are read; truncation is detected by `check_size` before data is returned.
        let map = unsafe { Mmap::map(&file) };
        let map = map.map_err(|error| GgufProblem::Io { call: "map it into memory", error })?;
        let storage = Storage::Mapped { map, file };
        storage.check_size()?;
        let found = u64::try_from(storage.len()).unwrap_or(u64::MAX);
        match found == size {
            true => Ok(storage),
            false => Err(GgufProblem::Changed { expected: size, found }),
        }
    }

    /// Fails if the file is shorter than the mapping: reading past its end would end the process.
    pub(crate) fn check_size(&self) -> Result<(), GgufProblem> {
        let Storage::Mapped { map, file } = self else { return Ok(()) };
        let metadata = file.metadata().map_err(|error| GgufProblem::Io { call: "read its size", error })?;
        let expected = u64::try_from(map.len()).unwrap_or(u64::MAX);
        match metadata.len() {
            found if found < expected => Err(GgufProblem::Changed { expected, found }),
            _ => Ok(()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped { map, .. } => map,
            Storage::Given(bytes) => (**bytes).as_ref(),
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }
}

/// The data of one tensor. Cloning copies nothing; the file stays mapped while any clone exists.
#[derive(Clone)]
pub struct TensorData {
    storage: Arc<Storage>,
    /// A range of the storage.
    range: Range<usize>,
}

impl TensorData {
    /// `range` must lie inside the storage.
    pub(crate) fn new(storage: Arc<Storage>, range: Range<usize>) -> TensorData {
        TensorData { storage, range }
    }

    /// The data in the form that [`fulmen_core::DeviceMemory::import`] takes.
    pub fn shared(self) -> SharedBytes {
        Arc::new(self)
    }
}

impl AsRef<[u8]> for TensorData {
    fn as_ref(&self) -> &[u8] {
        &self.storage.bytes()[self.range.clone()]
    }
}

impl Deref for TensorData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl std::fmt::Debug for TensorData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TensorData({} bytes at {})", self.range.len(), self.range.start)
    }
}
