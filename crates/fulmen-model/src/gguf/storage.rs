//! The bytes of one file: memory-mapped, or supplied by the caller.

use std::{
    ops::{Deref, Range},
    sync::Arc,
};

use fulmen_core::SharedBytes;

use super::error::GgufProblem;
use crate::mapping::MappedFile;

/// The bytes of one file, kept alive by the tensors that refer to them.
pub(crate) enum Storage {
    /// A mapped file.
    Mapped(MappedFile),
    /// Bytes supplied by the caller.
    Given(SharedBytes),
}

impl Storage {
    /// Fails if the file was changed while it was mapped: what was read from it is then worth nothing.
    pub(crate) fn check(&self) -> Result<(), GgufProblem> {
        match self {
            Storage::Mapped(file) => file.check(),
            Storage::Given(_) => Ok(()),
        }
    }

    /// Reads a part of a tensor at `range` from the file, without its mapping. Returns `false` if there is no
    /// file.
    ///
    /// # Panics
    /// If the part is not inside the range.
    pub(crate) fn read_at(
        &self,
        range: &Range<usize>,
        offset: usize,
        out: &mut [u8],
    ) -> Result<bool, GgufProblem> {
        assert!(
            offset <= range.len() && out.len() <= range.len() - offset,
            "{} bytes at {offset} of a tensor of {} bytes",
            out.len(),
            range.len()
        );
        match self {
            Storage::Mapped(file) => file.read_at(range.start + offset, out),
            Storage::Given(_) => Ok(false),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(file) => file.bytes(),
            Storage::Given(bytes) => (**bytes).as_ref(),
        }
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
