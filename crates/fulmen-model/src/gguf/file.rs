//! A model in one or several GGUF files, open.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use fulmen_core::SharedBytes;

use super::error::{GgufError, GgufProblem, SplitProblem};
use super::metadata::Metadata;
use super::parse::{Parsed, parse};
use super::split::Split;
use super::storage::{Storage, TensorData, open_file};
use crate::source::{ModelSource, SourceError, TensorInfo};

/// A GGUF model: every number in it was checked when it was opened.
///
/// The data are mapped, not read: opening takes time for the header alone. A model in parts
/// (`name-00001-of-00003.gguf`) is opened by any of them and looks like one file.
///
/// **Files that change.** Metadata are copied when the file is opened and never change. Data are not: whoever writes
/// into the file changes the weights. A file that was truncated is refused by [`GgufFile::data`], which looks at its
/// size each time; if it is truncated later, while data are in use, the operating system ends the process (`SIGBUS`).
/// Replace files by renaming, never in place, as
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
    /// The place of each tensor, in the same order.
    places: Vec<Place>,
    index: HashMap<String, usize>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Place {
    part: usize,
    range: Range<usize>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    bytes: u64,
    storage: Arc<Storage>,
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Storage::Mapped { .. } => f.write_str("mapped"),
            Storage::Given(_) => f.write_str("given"),
        }
    }
}

/// The name of files that are none.
const MEMORY: &str = "memory";

impl GgufFile {
    /// Opens a file, and all others of a model in parts.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        let at = |path: &Path| {
            let path = path.to_owned();
            move |problem| GgufError::new(path, problem)
        };
        let (parsed, part) = open_part(path).map_err(at(path))?;
        let Some(split) = Split::of(&parsed.metadata).map_err(at(path))? else {
            return GgufFile::join(vec![(parsed, part)]);
        };
        let paths = split.paths(path).map_err(|problem| at(path)(problem.into()))?;
        let mut given = Some((parsed, part));
        let mut parts = Vec::new();
        for (number, part_path) in (0u64..).zip(paths) {
            let opened = match given.take_if(|_| part_path == path) {
                Some(opened) => opened,
                None => open_part(&part_path).map_err(|problem| match problem {
                    GgufProblem::Io { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                        let (part, count) = (number.saturating_add(1), split.count());
                        at(&part_path)(SplitProblem::Missing { part, count, error }.into())
                    }
                    other => at(&part_path)(other),
                })?,
            };
            split.check_part(number, &opened.0.metadata).map_err(at(&part_path))?;
            parts.push(opened);
        }
        let file = GgufFile::join(parts)?;
        split.check_tensors(file.tensors.len()).map_err(at(path))?;
        Ok(file)
    }

    /// Reads a whole file that lies in memory. Data are not copied.
    pub fn from_bytes(bytes: SharedBytes) -> Result<GgufFile, GgufError> {
        let at = |problem| GgufError::new(MEMORY, problem);
        let content = (*bytes).as_ref();
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let parsed = parse(content, size).map_err(at)?;
        if let Some(split) = Split::of(&parsed.metadata).map_err(at)? {
            return Err(at(split.without_path().into()));
        }
        let storage = Arc::new(Storage::Given(bytes));
        GgufFile::join(vec![(parsed, Part { path: MEMORY.into(), bytes: size, storage })])
    }

    /// All parts as one model, with the metadata of the first.
    fn join(opened: Vec<(Parsed, Part)>) -> Result<GgufFile, GgufError> {
        let mut file = GgufFile {
            version: 0,
            alignment: 0,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            places: Vec::new(),
            index: HashMap::new(),
            parts: Vec::new(),
        };
        for (number, (parsed, part)) in opened.into_iter().enumerate() {
            if number == 0 {
                (file.version, file.alignment, file.metadata) =
                    (parsed.version, parsed.alignment, parsed.metadata);
            }
            for (info, range) in parsed.tensors {
                if file.index.insert(info.name().to_owned(), file.tensors.len()).is_some() {
                    let name = info.name().to_owned();
                    return Err(GgufError::new(part.path, GgufProblem::Duplicate { what: "tensor", name }));
                }
                file.tensors.push(info);
                file.places.push(Place { part: number, range });
            }
            file.parts.push(part);
        }
        Ok(file)
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Data start at multiples of this many bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// What the model says of itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// One tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The bytes of one tensor. They keep the mapping alive.
    pub fn data(&self, name: &str) -> Result<TensorData, GgufError> {
        let at = self.index.get(name).copied();
        let missing = || GgufError::new(self.path(), GgufProblem::NoTensor(name.to_owned()));
        let place = at.map(|at| &self.places[at]).ok_or_else(missing)?;
        let part = &self.parts[place.part];
        part.storage.check_size().map_err(|problem| GgufError::new(&part.path, problem))?;
        Ok(TensorData::new(part.storage.clone(), place.range.clone()))
    }

    /// The file that was opened first.
    pub fn path(&self) -> &Path {
        self.parts.first().map_or(Path::new(MEMORY), |part| &part.path)
    }

    /// The files and their sizes.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.parts.iter().map(|part| (part.path.as_path(), part.bytes))
    }
}

fn open_part(path: &Path) -> Result<(Parsed, Part), GgufProblem> {
    let (file, bytes) = open_file(path)?;
    let parsed = parse(&file, bytes)?;
    let storage = Arc::new(Storage::map(file, bytes)?);
    Ok((parsed, Part { path: path.to_owned(), bytes, storage }))
}

impl ModelSource for GgufFile {
    fn format(&self) -> String {
        format!("GGUF version {}", self.version)
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.parts().map(|(path, bytes)| (path.to_owned(), bytes)).collect()
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
}
