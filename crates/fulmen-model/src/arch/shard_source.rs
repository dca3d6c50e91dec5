//! The tensors of one rank as parts of those of a model source. Only the bytes of the parts are read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use fulmen_core::SharedBytes;

use crate::gguf::Metadata;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// The same ranges of each of several stretches of a tensor, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slices {
    /// How many stretches there are.
    pub(super) count: usize,
    /// Bytes of each.
    pub(super) stride: usize,
    /// Ranges of its bytes.
    pub(super) ranges: Vec<std::ops::Range<usize>>,
}

impl Slices {
    /// The bytes, if they are one range.
    fn one(&self) -> Option<std::ops::Range<usize>> {
        match &self.ranges[..] {
            [range] if self.count == 1 => Some(range.clone()),
            _ => None,
        }
    }
}

/// What a rank has of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its name, shape and type in the rank's source.
    pub(super) info: TensorInfo,
    /// The tensor that it is a part of.
    of: String,
    data: PartData,
}

#[derive(Clone, Debug)]
enum PartData {
    Whole,
    Slices(Slices),
    Zeros,
}

impl Part {
    fn of(info: &TensorInfo, local: TensorInfo, data: PartData) -> Part {
        Part { info: local, of: info.name().to_owned(), data }
    }

    pub(super) fn whole(info: &TensorInfo) -> Part {
        Part::of(info, info.clone(), PartData::Whole)
    }

    /// Zeros in its place: for what is added once, by another rank.
    pub(super) fn zeros(info: &TensorInfo) -> Part {
        Part::of(info, info.clone(), PartData::Zeros)
    }

    pub(super) fn slices(info: &TensorInfo, local: TensorInfo, slices: Slices) -> Part {
        Part::of(info, local, PartData::Slices(slices))
    }
}

/// The tensors of one rank.
pub(super) struct ShardSource {
    source: Arc<dyn ModelSource>,
    tensors: Vec<TensorInfo>,
    /// Parts by name, and their places in `tensors`.
    parts: HashMap<String, (usize, Part)>,
}

impl ShardSource {
    pub(super) fn new(source: Arc<dyn ModelSource>, parts: Vec<Part>) -> ShardSource {
        let tensors = parts.iter().map(|part| part.info.clone()).collect();
        let named = |(at, part): (usize, Part)| (part.info.name().to_owned(), (at, part));
        ShardSource { source, tensors, parts: parts.into_iter().enumerate().map(named).collect() }
    }

    fn part(&self, name: &str) -> Result<&Part, SourceError> {
        let missing = || SourceError::NoTensor { name: name.to_owned() };
        self.parts.get(name).map(|(_, part)| part).ok_or_else(missing)
    }
}

/// A range of shared bytes.
struct Range(SharedBytes, std::ops::Range<usize>);

impl AsRef<[u8]> for Range {
    fn as_ref(&self) -> &[u8] {
        &(*self.0).as_ref()[self.1.clone()]
    }
}

impl ModelSource for ShardSource {
    fn format(&self) -> String {
        self.source.format()
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.source.files()
    }

    fn metadata(&self) -> &Metadata {
        self.source.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.parts.get(name).map(|&(at, _)| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        let part = self.part(name)?;
        match &part.data {
            PartData::Whole => self.source.data(&part.of),
            PartData::Zeros => Ok(Arc::new(vec![0u8; part.info.bytes()])),
            PartData::Slices(slices) => {
                let data = self.source.data(&part.of)?;
                if let Some(range) = slices.one() {
                    return Ok(Arc::new(Range(data, range)));
                }
                let (data, mut gathered) = ((*data).as_ref(), Vec::with_capacity(part.info.bytes()));
                for start in (0..slices.count).map(|at| at * slices.stride) {
                    for range in &slices.ranges {
                        gathered.extend_from_slice(&data[start + range.start..start + range.end]);
                    }
                }
                Ok(Arc::new(gathered))
            }
        }
    }

    fn read_at(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<bool, SourceError> {
        let part = self.part(name)?;
        let first = match &part.data {
            PartData::Whole => Some(0),
            PartData::Slices(slices) => slices.one().map(|range| range.start),
            PartData::Zeros => None,
        };
        match first {
            Some(first) => self.source.read_at(&part.of, first + offset, out),
            // Rows of a part are short, and one read for each is slower than copying them from the mapping.
            None => Ok(false),
        }
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.source.check_unchanged()
    }

    fn tokenizer_json(&self) -> Option<PathBuf> {
        self.source.tokenizer_json()
    }
}
