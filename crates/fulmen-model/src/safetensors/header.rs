//! One safetensors file: an 8-byte length, a JSON header, the data.

use std::{
    collections::{HashSet, TryReserveError},
    fmt,
    io::Read,
    ops::Range,
    path::Path,
    sync::Arc,
};

use fulmen_core::DType;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::error::SafetensorsProblem;
use crate::gguf::storage::Storage;
use crate::mapping::OpenFile;
use crate::memory::{self, List};
use crate::source::TensorInfo;

/// The longest header that the format allows.
pub(super) const MAX_HEADER: u64 = 100_000_000;

/// An open file and its tensors, with the file's names, but with dimensions in GGUF order (width first).
pub(super) struct SafetensorsFile {
    pub(super) bytes: u64,
    pub(super) storage: Arc<Storage>,
    pub(super) tensors: Vec<Located>,
    /// Tensors of bytes (U8).
    pub(super) raw: Vec<RawTensor>,
}

/// A tensor and its bytes in the file.
pub(super) type Located = (TensorInfo, Range<usize>);

/// A tensor of bytes, which mean something only together with others.
#[derive(Clone, Debug)]
pub(super) struct RawTensor {
    pub(super) name: String,
    /// As the file has it: the width last.
    pub(super) shape: Vec<usize>,
    pub(super) range: Range<usize>,
}

/// A header entry.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: List<u64>,
    data_offsets: (u64, u64),
}

/// The entries in order, including duplicates, which a map would silently drop.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        memory::push(&mut entries, (name, map.next_value()?)).map_err(A::Error::custom)?;
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl SafetensorsFile {
    pub(super) fn open(path: &Path) -> Result<SafetensorsFile, SafetensorsProblem> {
        let file = OpenFile::open(path).map_err(SafetensorsProblem::File)?;
        let bytes = file.size;
        let (header, start) = header(&file.file, bytes)?;
        let Entries(entries) = serde_json::from_slice(&header)?;
        let (tensors, raw) = tensors(entries, start, bytes)?;
        let storage = Storage::Mapped(file.map().map_err(SafetensorsProblem::File)?);
        Ok(SafetensorsFile { bytes, storage: Arc::new(storage), tensors, raw })
    }
}

/// The JSON text and the offset of the data.
fn header(mut source: impl Read, file: u64) -> Result<(Vec<u8>, u64), SafetensorsProblem> {
    let failed = |error| SafetensorsProblem::Io { call: "read the header", error };
    let mut length = [0; 8];
    source.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    let start = length.checked_add(8).filter(|&start| start <= file && length <= MAX_HEADER);
    let start = start.ok_or(SafetensorsProblem::HeaderLength { length, file })?;
    let mut header = Vec::new();
    source.take(length).read_to_end(&mut header).map_err(failed)?;
    Ok((header, start))
}

/// The error of an allocation that failed.
pub(super) fn no_memory(error: TryReserveError) -> SafetensorsProblem {
    SafetensorsProblem::Io { call: "hold its header in memory", error: error.into() }
}

fn tensors(
    entries: Vec<(String, Entry)>,
    start: u64,
    file: u64,
) -> Result<(Vec<Located>, Vec<RawTensor>), SafetensorsProblem> {
    let (mut names, mut raw) = (HashSet::new(), Vec::new());
    let mut tensors: Vec<Located> = Vec::new();
    names.try_reserve(entries.len()).map_err(no_memory)?;
    tensors.try_reserve_exact(entries.len()).map_err(no_memory)?;
    for (name, Entry { dtype, shape: List(shape), data_offsets }) in entries {
        if !names.insert(name.clone()) {
            return Err(SafetensorsProblem::Duplicate(name));
        }
        let dtype = match dtype.as_str() {
            "F32" => Some(DType::F32),
            "F16" => Some(DType::F16),
            "BF16" => Some(DType::BF16),
            "U8" => None,
            _ => return Err(SafetensorsProblem::Type { tensor: name, dtype }),
        };
        let dims: Option<Vec<usize>> = shape.iter().rev().map(|&dim| usize::try_from(dim).ok()).collect();
        let dims = dims.filter(|dims| (1..=4).contains(&dims.len()) && !dims.contains(&0));
        let Some(mut dims) = dims else { return Err(SafetensorsProblem::Shape { tensor: name, shape }) };
        let info = dtype.map(|dtype| TensorInfo::new(&name, &dims, dtype)).transpose();
        let info = info.map_err(|error| SafetensorsProblem::Size { tensor: name.clone(), error })?;
        let bytes = || dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let needed = info.as_ref().map_or_else(|| bytes().unwrap_or(usize::MAX), TensorInfo::bytes);
        let wrong = || SafetensorsProblem::Offsets {
            tensor: name.clone(),
            start: data_offsets.0,
            end: data_offsets.1,
            needed: u64::try_from(needed).unwrap_or(u64::MAX),
            data: file.saturating_sub(start),
        };
        let range = locate(needed, data_offsets, start, file).ok_or_else(wrong)?;
        match info {
            Some(info) => tensors.push((info, range)),
            None => {
                dims.reverse();
                memory::push(&mut raw, RawTensor { name, shape: dims, range }).map_err(no_memory)?;
            }
        }
    }
    tensors.sort_unstable_by_key(|(_, range)| range.start);
    let floats = tensors.iter().map(|(info, range)| (info.name(), range));
    let mut places: Vec<(&str, &Range<usize>)> =
        floats.chain(raw.iter().map(|raw| (raw.name.as_str(), &raw.range))).collect();
    places.sort_unstable_by_key(|(_, range)| range.start);
    for pair in places.windows(2) {
        let [(first, a), (second, b)] = *pair else { continue };
        if b.start < a.end {
            let (first, second) = (first.to_owned(), second.to_owned());
            return Err(SafetensorsProblem::Overlap { first, second });
        }
    }
    Ok((tensors, raw))
}

/// The tensor's byte range in the file, if the offsets are valid.
fn locate(needed: usize, (from, to): (u64, u64), start: u64, file: u64) -> Option<Range<usize>> {
    let size = to.checked_sub(from)?;
    let end = start.checked_add(to).filter(|&end| end <= file)?;
    let range = usize::try_from(start.checked_add(from)?).ok()?..usize::try_from(end).ok()?;
    (usize::try_from(size) == Ok(needed)).then_some(range)
}
