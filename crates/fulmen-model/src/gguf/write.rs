//! Writes GGUF files tensor by tensor; only the header is held in memory.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use fulmen_core::unfinished::Unfinished;
use tempfile::NamedTempFile;

use super::array::Number;
use super::error::GgufProblem;
use super::metadata::Metadata;
use super::parse::{self, MAX_NAME};
use super::value::Value;
use crate::source::TensorInfo;

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufWriteError {
    /// An I/O error.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file exists and may not be replaced.
    #[error("{} already exists", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Something else than a file is in the way: it is never replaced.
    #[error("{} is {found}; only a regular file can be overwritten", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Metadata or tensors that the format cannot represent.
    #[error("cannot write the model as GGUF: {0}")]
    Content(GgufProblem),
    /// A tensor type that GGUF does not have.
    #[error("cannot write tensor {0}: GGUF does not have this type")]
    Type(TensorInfo),
    /// Tensors were written out of order.
    #[error("data of tensor {got:?} written out of order: {}", order_words(expected.as_deref()))]
    Order {
        /// The next tensor; `None` at the end.
        expected: Option<String>,
        /// The tensor that was written.
        got: String,
    },
    /// More data than the tensor has.
    #[error("tensor {tensor:?} has {left} bytes left to write, got {got}")]
    Length {
        /// The tensor.
        tensor: String,
        /// The bytes left to write.
        left: usize,
        /// The bytes passed.
        got: usize,
    },
    /// The file was finished before all data was written.
    #[error("{left} bytes of tensor {tensor:?} were not written")]
    Unfinished {
        /// The tensor.
        tensor: String,
        /// The missing bytes.
        left: usize,
    },
}

fn order_words(expected: Option<&str>) -> String {
    expected.map_or("all tensors are complete".to_owned(), |name| format!("expected {name:?}"))
}

/// Writes one GGUF file (version 3): first the header, then the data of each tensor in order, in chunks of
/// any size.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fulmen_core::DType;
/// use fulmen_model::{gguf::{GgufFile, GgufWriter, Metadata}, source::TensorInfo};
/// let mut metadata = Metadata::new();
/// metadata.set("general.architecture", "llama");
/// let tensors = [TensorInfo::new("x", &[2], DType::F32)?];
/// let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors)?;
/// writer.write("x", bytemuck::cast_slice(&[1f32, 2.0]))?;
/// let bytes = writer.finish()?;
/// let file = GgufFile::from_bytes(std::sync::Arc::new(bytes))?;
/// assert_eq!(file.data("x")?[..4], 1f32.to_le_bytes());
/// # Ok(())
/// # }
/// ```
pub struct GgufWriter<W> {
    out: W,
    /// For messages.
    path: PathBuf,
    alignment: usize,
    /// Bytes written so far.
    at: usize,
    tensors: Vec<TensorInfo>,
    /// The index of the tensor being written.
    current: usize,
    /// Bytes of this tensor written so far.
    written: usize,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header to `out`.
    pub fn new(out: W, metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self, GgufWriteError> {
        GgufWriter::at_path(out, "the output".into(), metadata, tensors)
    }

    fn at_path(
        out: W,
        path: PathBuf,
        metadata: &Metadata,
        tensors: &[TensorInfo],
    ) -> Result<Self, GgufWriteError> {
        let alignment = parse::alignment(metadata).map_err(GgufWriteError::Content)?;
        let alignment = usize::try_from(alignment).map_err(|_| overflow())?;
        let header = header(metadata, tensors, alignment)?;
        let tensors = tensors.to_vec();
        let mut writer = GgufWriter { out, path, alignment, at: 0, tensors, current: 0, written: 0 };
        writer.put(&header)?;
        if !writer.tensors.is_empty() {
            writer.pad()?;
        }
        Ok(writer)
    }

    /// Writes the next bytes of a tensor. Tensors must be written in order.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), GgufWriteError> {
        let tensor = match self.tensors.get(self.current) {
            Some(tensor) if tensor.name() == name => tensor,
            other => {
                let expected = other.map(|tensor| tensor.name().to_owned());
                return Err(GgufWriteError::Order { expected, got: name.to_owned() });
            }
        };
        let (size, left) = (tensor.bytes(), tensor.bytes() - self.written);
        if bytes.len() > left {
            return Err(GgufWriteError::Length { tensor: name.to_owned(), left, got: bytes.len() });
        }
        self.put(bytes)?;
        self.written += bytes.len();
        if self.written == size {
            self.pad()?;
            (self.current, self.written) = (self.current + 1, 0);
        }
        Ok(())
    }

    /// Checks that every tensor was written and returns the writer.
    pub fn finish(mut self) -> Result<W, GgufWriteError> {
        if let Some(tensor) = self.tensors.get(self.current) {
            let left = tensor.bytes() - self.written;
            return Err(GgufWriteError::Unfinished { tensor: tensor.name().to_owned(), left });
        }
        let flushed = self.out.flush();
        flushed.map_err(|error| GgufWriteError::Io { path: self.path, error })?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), GgufWriteError> {
        let written = self.out.write_all(bytes);
        written.map_err(|error| GgufWriteError::Io { path: self.path.clone(), error })?;
        self.at = self.at.checked_add(bytes.len()).ok_or_else(overflow)?;
        Ok(())
    }

    fn pad(&mut self) -> Result<(), GgufWriteError> {
        let end = self.at.checked_next_multiple_of(self.alignment).ok_or_else(overflow)?;
        self.put(&vec![0; end - self.at])
    }
}

/// A temporary file next to its final path. It is deleted if it is dropped before it is kept.
pub struct NewFile {
    file: BufWriter<NamedTempFile>,
    unfinished: Unfinished,
    path: PathBuf,
    replace: bool,
}

impl NewFile {
    /// Whether a file can be created at `path`: there is none, or a regular file that may be replaced.
    /// Directories, devices, pipes, sockets and symbolic links are never replaced: a new file in place of
    /// `/dev/null` or of a link is not what anybody wants.
    pub fn check(path: &Path, replace: bool) -> Result<(), GgufWriteError> {
        // An error means that there is nothing, or a folder that cannot be read: creating the file says so.
        let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
        let found = match metadata.file_type() {
            kind if kind.is_file() && replace => return Ok(()),
            kind if kind.is_file() => return Err(GgufWriteError::Exists { path: path.to_owned() }),
            kind if kind.is_dir() => "a directory",
            kind if kind.is_symlink() => "a symbolic link",
            _ => "a device, pipe or socket",
        };
        Err(GgufWriteError::NotAFile { path: path.to_owned(), found })
    }

    /// Creates an empty file in the folder of `path`. Unless `replace` is set, a file that exists at `path`
    /// is an error; anything else than a regular file always is. Both are checked again by
    /// [`NewFile::keep`].
    pub fn create(path: &Path, replace: bool) -> Result<NewFile, GgufWriteError> {
        NewFile::check(path, replace)?;
        let failed = |error| GgufWriteError::Io { path: path.to_owned(), error };
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "its folder does not exist")));
        }
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".{}.", name.to_string_lossy());
        builder.prefix(&prefix).suffix(".part");
        // The usual permissions of new files (subject to the umask), not the private ones of temporary files.
        #[cfg(unix)]
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        #[cfg(unix)]
        builder.permissions(permissions);
        // Only the kind: the full error contains the temporary name, which means nothing to the user.
        let (file, unfinished) = Unfinished::create(|| builder.tempfile_in(folder), |file| file.path())
            .map_err(|error| failed(error.kind().into()))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(NewFile { file, unfinished, path: path.to_owned(), replace })
    }

    /// Moves the finished file to its final path, atomically.
    pub fn keep(self) -> Result<(), GgufWriteError> {
        self.keep_after(File::sync_all)
    }

    /// The same with another way to bring the bytes to the disk.
    fn keep_after(self, sync: impl FnOnce(&File) -> io::Result<()>) -> Result<(), GgufWriteError> {
        let NewFile { file, unfinished: _unfinished, path, replace } = self;
        let failed = |error| GgufWriteError::Io { path: path.clone(), error };
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        sync(file.as_file()).map_err(failed)?;
        NewFile::check(&path, replace)?;
        let kept: Result<File, _> = if replace { file.persist(&path) } else { file.persist_noclobber(&path) };
        match kept {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(GgufWriteError::Exists { path })
            }
            Err(error) => Err(GgufWriteError::Io { path, error: error.error }),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl GgufWriter<NewFile> {
    /// Writes a file that appears at `path` only when [`GgufWriter::keep`] is called.
    pub fn create(
        path: impl AsRef<Path>,
        replace: bool,
        metadata: &Metadata,
        tensors: &[TensorInfo],
    ) -> Result<Self, GgufWriteError> {
        let path = path.as_ref();
        GgufWriter::at_path(NewFile::create(path, replace)?, path.to_owned(), metadata, tensors)
    }

    /// Checks that every tensor was written and moves the file to its final path.
    pub fn keep(self) -> Result<(), GgufWriteError> {
        self.finish()?.keep()
    }
}

fn overflow() -> GgufWriteError {
    let error = io::Error::new(io::ErrorKind::FileTooLarge, "the size overflows");
    GgufWriteError::Content(GgufProblem::Io { call: "compute its size", error })
}

/// The header up to the last tensor entry.
fn header(metadata: &Metadata, tensors: &[TensorInfo], alignment: usize) -> Result<Vec<u8>, GgufWriteError> {
    let mut out = b"GGUF".to_vec();
    3u32.push(&mut out);
    count(tensors.len())?.push(&mut out);
    count(metadata.len())?.push(&mut out);
    for (number, (key, value)) in metadata.iter().enumerate() {
        name(key, format_args!("key {number}"), &mut out)?;
        push_value(value, &mut out)?;
    }
    let (mut seen, mut offset) = (HashSet::new(), 0usize);
    for (number, tensor) in tensors.iter().enumerate() {
        if !seen.insert(tensor.name()) {
            let duplicate = GgufProblem::Duplicate { what: "tensor", name: tensor.name().to_owned() };
            return Err(GgufWriteError::Content(duplicate));
        }
        name(tensor.name(), format_args!("tensor {number}"), &mut out)?;
        u32::try_from(tensor.dims().len()).map_err(|_| overflow())?.push(&mut out);
        for &dim in tensor.dims() {
            count(dim)?.push(&mut out);
        }
        let kind = tensor.dtype().ggml_type();
        kind.ok_or_else(|| GgufWriteError::Type(tensor.clone()))?.push(&mut out);
        count(offset)?.push(&mut out);
        let end = offset.checked_add(tensor.bytes());
        offset = end.and_then(|end| end.checked_next_multiple_of(alignment)).ok_or_else(overflow)?;
    }
    Ok(out)
}

fn count(count: usize) -> Result<u64, GgufWriteError> {
    u64::try_from(count).map_err(|_| overflow())
}

fn name(text: &str, what: std::fmt::Arguments, out: &mut Vec<u8>) -> Result<(), GgufWriteError> {
    let length = count(text.len())?;
    if length == 0 || length > MAX_NAME {
        return Err(GgufWriteError::Content(GgufProblem::NameLength { what: what.to_string(), length }));
    }
    push_string(text, out)
}

fn push_string(text: &str, out: &mut Vec<u8>) -> Result<(), GgufWriteError> {
    count(text.len())?.push(out);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn push_value(value: &Value, out: &mut Vec<u8>) -> Result<(), GgufWriteError> {
    value.value_type().number().push(out);
    match value {
        Value::U8(x) => x.push(out),
        Value::I8(x) => x.push(out),
        Value::U16(x) => x.push(out),
        Value::I16(x) => x.push(out),
        Value::U32(x) => x.push(out),
        Value::I32(x) => x.push(out),
        Value::F32(x) => x.push(out),
        Value::Bool(x) => x.push(out),
        Value::U64(x) => x.push(out),
        Value::I64(x) => x.push(out),
        Value::F64(x) => x.push(out),
        Value::String(text) => push_string(text, out)?,
        Value::Array(array) => {
            array.item_type().number().push(out);
            count(array.len())?.push(out);
            out.extend_from_slice(array.bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A new file with some bytes, over an old one or not, and what its folder must hold if it is not kept.
    fn new_file(folder: &Path, replace: bool) -> (NewFile, Vec<(String, Vec<u8>)>) {
        let path = folder.join("out.gguf");
        let before = if replace { vec![("out.gguf".to_owned(), b"old".to_vec())] } else { Vec::new() };
        before.iter().for_each(|(_, bytes)| fs::write(&path, bytes).unwrap());
        let mut file = NewFile::create(&path, replace).unwrap();
        file.write_all(b"new").unwrap();
        (file, before)
    }

    fn held(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
    }

    #[test]
    fn a_file_that_cannot_be_synced_or_renamed_leaves_what_was_there() {
        for replace in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (file, before) = new_file(folder.path(), replace);
            let error = file.keep_after(|_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
            let full = io::ErrorKind::StorageFull;
            assert!(matches!(&error, GgufWriteError::Io { error, .. } if error.kind() == full), "{error}");
            assert_eq!(held(folder.path()), before);

            // Somebody has removed the temporary file: there is nothing to rename.
            let (file, before) = new_file(folder.path(), replace);
            fs::remove_file(file.file.get_ref().path()).unwrap();
            let error = file.keep().unwrap_err();
            let none = io::ErrorKind::NotFound;
            assert!(matches!(&error, GgufWriteError::Io { error, .. } if error.kind() == none), "{error}");
            assert_eq!(held(folder.path()), before);

            let (file, _) = new_file(folder.path(), replace);
            file.keep().unwrap();
            assert_eq!(held(folder.path()), [("out.gguf".to_owned(), b"new".to_vec())]);
        }
    }
}
