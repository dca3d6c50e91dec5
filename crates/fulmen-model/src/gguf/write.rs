//! Writing GGUF files, tensor by tensor: memory is needed for the header alone.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

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
    /// The operating system refused.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file that is there already and was not to be replaced.
    #[error("{} is there already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Metadata or tensors that the format cannot hold.
    #[error("cannot be written as GGUF: {0}")]
    Content(GgufProblem),
    /// A type that GGUF does not have.
    #[error("tensor {0} cannot be written: GGUF does not have its type")]
    Type(TensorInfo),
    /// Data of another tensor than the one whose turn it is.
    #[error("data of tensor {got:?} were written, but {}", turn_words(expected.as_deref()))]
    Order {
        /// The tensor whose turn it is; `None` at the end.
        expected: Option<String>,
        /// The tensor that was given.
        got: String,
    },
    /// More data than a tensor has.
    #[error("tensor {tensor:?} has {left} bytes left to write, {got} were given")]
    Length {
        /// The tensor.
        tensor: String,
        /// The bytes that it still takes.
        left: usize,
        /// The bytes given.
        got: usize,
    },
    /// A file that was to be finished before all data were written.
    #[error("{left} bytes of tensor {tensor:?} were not written")]
    Unfinished {
        /// The tensor.
        tensor: String,
        /// The bytes that are missing.
        left: usize,
    },
}

fn turn_words(expected: Option<&str>) -> String {
    expected.map_or("all tensors are complete".to_owned(), |name| format!("it is the turn of {name:?}"))
}

/// Writes one GGUF file (version 3): the header at once, then the data of each tensor in order, in pieces of any size.
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
    /// The tensor whose turn it is.
    turn: usize,
    /// How many of its bytes were written.
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
        let mut writer = GgufWriter { out, path, alignment, at: 0, tensors, turn: 0, written: 0 };
        writer.put(&header)?;
        if !writer.tensors.is_empty() {
            writer.pad()?;
        }
        Ok(writer)
    }

    /// Writes the next bytes of a tensor. It must be the one whose turn it is.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), GgufWriteError> {
        let tensor = match self.tensors.get(self.turn) {
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
            (self.turn, self.written) = (self.turn + 1, 0);
        }
        Ok(())
    }

    /// Checks that every tensor was written and gives back what was written to.
    pub fn finish(mut self) -> Result<W, GgufWriteError> {
        if let Some(tensor) = self.tensors.get(self.turn) {
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

/// A file in the making beside the place where it is to be. It is removed if it is dropped before it is kept.
pub struct NewFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    replace: bool,
}

impl NewFile {
    /// Makes an empty file in the folder of `path`. A file that is at `path` is refused now and when the new one is
    /// kept, unless it is to be replaced.
    pub fn create(path: &Path, replace: bool) -> Result<NewFile, GgufWriteError> {
        if !replace && path.symlink_metadata().is_ok() {
            return Err(GgufWriteError::Exists { path: path.to_owned() });
        }
        let failed = |error| GgufWriteError::Io { path: path.to_owned(), error };
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "its folder is not there")));
        }
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".{}.", name.to_string_lossy());
        builder.prefix(&prefix).suffix(".part");
        // The usual rights of new files (less what the process masks), not the private ones of temporary files.
        #[cfg(unix)]
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        #[cfg(unix)]
        builder.permissions(rights);
        // The kind alone: the whole error has the temporary name, which means nothing to people.
        let file = builder.tempfile_in(folder).map_err(|error| failed(error.kind().into()))?;
        Ok(NewFile { file: BufWriter::with_capacity(1 << 20, file), path: path.to_owned(), replace })
    }

    /// Puts the finished file in its place, all at once.
    pub fn keep(self) -> Result<(), GgufWriteError> {
        let NewFile { file, path, replace } = self;
        let failed = |error| GgufWriteError::Io { path: path.clone(), error };
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
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
    /// Writes a file that appears at `path` when [`GgufWriter::keep`] is called, complete, or not at all.
    pub fn create(
        path: impl AsRef<Path>,
        replace: bool,
        metadata: &Metadata,
        tensors: &[TensorInfo],
    ) -> Result<Self, GgufWriteError> {
        let path = path.as_ref();
        GgufWriter::at_path(NewFile::create(path, replace)?, path.to_owned(), metadata, tensors)
    }

    /// Checks that every tensor was written and puts the file in its place.
    pub fn keep(self) -> Result<(), GgufWriteError> {
        self.finish()?.keep()
    }
}

fn overflow() -> GgufWriteError {
    let error = io::Error::new(io::ErrorKind::FileTooLarge, "the size overflows");
    GgufWriteError::Content(GgufProblem::Io { call: "count its bytes", error })
}

/// The header up to the last tensor's entry.
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
            let twice = GgufProblem::Duplicate { what: "tensor", name: tensor.name().to_owned() };
            return Err(GgufWriteError::Content(twice));
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
    push_text(text, out)
}

fn push_text(text: &str, out: &mut Vec<u8>) -> Result<(), GgufWriteError> {
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
        Value::String(text) => push_text(text, out)?,
        Value::Array(array) => {
            array.item_type().number().push(out);
            count(array.len())?.push(out);
            out.extend_from_slice(array.bytes());
        }
    }
    Ok(())
}
