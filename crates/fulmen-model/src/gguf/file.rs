//! An open GGUF model, in one file or several shards.

use std::{
    collections::HashMap,
    io::{self, Read},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use fulmen_core::SharedBytes;

use super::error::{GgufError, GgufProblem};
use super::metadata::Metadata;
use super::parse::{Parsed, no_memory, parse};
use super::split::Split;
use super::storage::{Storage, TensorData};
use crate::mapping::OpenFile;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// A GGUF model. Everything in the header is validated when it is opened.
///
/// The tensor data is memory-mapped, so opening only reads the header. A model split into shards
/// (`name-00001-of-00003.gguf`) can be opened by the path of any shard and appears as one file.
///
/// **Files that change.** The metadata is copied when the file is opened and never changes. The tensor data
/// is not: writing to the file changes the weights, and what is cut off reads as zeros. [`GgufFile::data`]
/// fails if the file was changed since it was opened; call [`GgufFile::check_unchanged`] after the data was
/// used, and discard the result if it fails. Replace files by renaming, never in place, as
/// [`GgufWriter::keep`](super::GgufWriter::keep) does.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fulmen_model::gguf::GgufFile;
/// let file = GgufFile::open("model.gguf")?;
/// let layers = file.metadata().u32("llama.block_count")?;
/// let embedding = file.data("token_embd.weight")?;
/// println!("{layers} layers, {} bytes of embeddings", embedding.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufFile {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// The location of each tensor's data, in the same order.
    locations: Vec<DataLocation>,
    index: HashMap<String, usize>,
    shards: Vec<ShardFile>,
}

#[derive(Debug)]
struct DataLocation {
    shard: usize,
    range: Range<usize>,
}

/// One file of a model; a model that is not split has a single one.
#[derive(Debug)]
struct ShardFile {
    path: PathBuf,
    bytes: u64,
    storage: Arc<Storage>,
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Storage::Mapped(_) => f.write_str("mapped"),
            Storage::Given(_) => f.write_str("given"),
        }
    }
}

/// The path reported for models in memory.
const MEMORY: &str = "memory";

impl GgufFile {
    /// Opens a file, and all other shards of a split model.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        let at = |path: &Path| {
            let path = path.to_owned();
            move |problem| GgufError::new(path, problem)
        };
        let (parsed, shard) = open_shard(path).map_err(at(path))?;
        let Some(split) = Split::of(&parsed.metadata).map_err(at(path))? else {
            return GgufFile::join(vec![(parsed, shard)]);
        };
        let paths = split.paths(path).map_err(|problem| at(path)(problem.into()))?;
        let mut given = Some((parsed, shard));
        let mut shards = Vec::new();
        for (number, shard_path) in (0u64..).zip(paths) {
            let opened = match given.take_if(|_| shard_path == path) {
                Some(opened) => opened,
                None => open_shard(&shard_path).map_err(|problem| match problem {
                    GgufProblem::Io { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                        at(path)(split.missing(path).into())
                    }
                    other => at(&shard_path)(other),
                })?,
            };
            split.check_shard(number, &opened.0.metadata).map_err(at(&shard_path))?;
            shards.push(opened);
        }
        let file = GgufFile::join(shards)?;
        split.check_tensors(file.tensors.len()).map_err(at(path))?;
        Ok(file)
    }

    /// Opens a GGUF file held in memory, without copying the tensor data.
    pub fn from_bytes(bytes: SharedBytes) -> Result<GgufFile, GgufError> {
        let at = |problem| GgufError::new(MEMORY, problem);
        let content = (*bytes).as_ref();
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let parsed = parse(content, size).map_err(at)?;
        if let Some(split) = Split::of(&parsed.metadata).map_err(at)? {
            return Err(at(split.without_path().into()));
        }
        let storage = Arc::new(Storage::Given(bytes));
        GgufFile::join(vec![(parsed, ShardFile { path: MEMORY.into(), bytes: size, storage })])
    }

    /// Combines all shards into one model with the metadata of the first.
    fn join(opened: Vec<(Parsed, ShardFile)>) -> Result<GgufFile, GgufError> {
        let mut file = GgufFile {
            version: 0,
            alignment: 0,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            locations: Vec::new(),
            index: HashMap::new(),
            shards: Vec::new(),
        };
        for (number, (parsed, shard)) in opened.into_iter().enumerate() {
            if number == 0 {
                (file.version, file.alignment, file.metadata) =
                    (parsed.version, parsed.alignment, parsed.metadata);
            }
            let reserved = [
                file.index.try_reserve(parsed.tensors.len()),
                file.tensors.try_reserve(parsed.tensors.len()),
                file.locations.try_reserve(parsed.tensors.len()),
            ];
            for result in reserved {
                result.map_err(|error| GgufError::new(&shard.path, no_memory(error)))?;
            }
            for (info, range) in parsed.tensors {
                if file.index.insert(info.name().to_owned(), file.tensors.len()).is_some() {
                    let name = info.name().to_owned();
                    return Err(GgufError::new(shard.path, GgufProblem::Duplicate { what: "tensor", name }));
                }
                file.tensors.push(info);
                file.locations.push(DataLocation { shard: number, range });
            }
            file.shards.push(shard);
        }
        Ok(file)
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensor data starts at multiples of this many bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// Where the data of a tensor lies.
    fn location(&self, name: &str) -> Result<(&ShardFile, &DataLocation), GgufError> {
        let at = self.index.get(name).copied();
        let missing = || GgufError::new(self.path(), GgufProblem::NoTensor(name.to_owned()));
        let location = at.map(|at| &self.locations[at]).ok_or_else(missing)?;
        Ok((&self.shards[location.shard], location))
    }

    /// The data of one tensor. It keeps the mapping alive.
    pub fn data(&self, name: &str) -> Result<TensorData, GgufError> {
        let (shard, location) = self.location(name)?;
        shard.check()?;
        Ok(TensorData::new(shard.storage.clone(), location.range.clone()))
    }

    /// Fails if a file was changed since it was opened, which makes everything that was computed from its
    /// tensors worthless.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.shards.iter().try_for_each(ShardFile::check)
    }

    /// The path of the first file.
    pub fn path(&self) -> &Path {
        self.shards.first().map_or(Path::new(MEMORY), |shard| &shard.path)
    }

    /// The files and their sizes in bytes: one, or all shards of a split model.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.shards.iter().map(|shard| (shard.path.as_path(), shard.bytes))
    }
}

/// The metadata and tensors of one GGUF file of `size` bytes, read from its start. The tensor data is not
/// read.
pub fn read_header(reader: impl Read, size: u64) -> Result<(Metadata, Vec<TensorInfo>), GgufError> {
    let parsed = parse(reader, size).map_err(|problem| GgufError::new("the reader", problem))?;
    Ok((parsed.metadata, parsed.tensors.into_iter().map(|(info, _)| info).collect()))
}

impl ShardFile {
    fn check(&self) -> Result<(), GgufError> {
        self.storage.check().map_err(|problem| GgufError::new(&self.path, problem))
    }
}

fn open_shard(path: &Path) -> Result<(Parsed, ShardFile), GgufProblem> {
    let file = OpenFile::open(path)?;
    let bytes = file.size;
    let parsed = parse(&file.file, bytes)?;
    let storage = Arc::new(Storage::Mapped(file.map()?));
    Ok((parsed, ShardFile { path: path.to_owned(), bytes, storage }))
}

impl ModelSource for GgufFile {
    fn format(&self) -> String {
        format!("GGUF version {}", self.version)
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.shards().map(|(path, bytes)| (path.to_owned(), bytes)).collect()
    }

    fn metadata(&self) -> &Metadata {
        self.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor(name)
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        Ok(self.data(name)?.shared())
    }

    fn read_at(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<bool, SourceError> {
        let (shard, location) = self.location(name)?;
        let read = shard.storage.read_at(&location.range, offset, out);
        Ok(read.map_err(|problem| GgufError::new(&shard.path, problem))?)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        Ok(self.check_unchanged()?)
    }
}
