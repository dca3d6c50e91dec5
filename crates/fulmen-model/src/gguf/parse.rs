//! Parses the header of one file into metadata and tensors, checking every number before it is used.

use std::{
    collections::{HashSet, TryReserveError},
    io::Read,
    ops::Range,
    sync::Arc,
};

use fulmen_core::DType;

use super::array::Array;
use super::error::GgufProblem;
use super::header::Header;
use super::metadata::{Metadata, MetadataError};
use super::value::{Value, ValueType};
use crate::memory;
use crate::source::TensorInfo;

/// Larger headers are rejected. Those of real models are below 32 MiB.
pub(super) const MAX_HEADER: u64 = 1 << 30;
/// The longest name of a key or a tensor.
pub(super) const MAX_NAME: u64 = 65_535;
/// The default alignment.
pub(super) const DEFAULT_ALIGNMENT: u32 = 32;
const ALIGNMENTS: std::ops::RangeInclusive<u32> = 8..=1 << 20;
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

/// Minimum bytes of a key with its value: length, one byte of name, type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Minimum bytes of a tensor entry: length, one byte of name, count, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// ggml types that this library does not support, by number.
const UNSUPPORTED: [(u32, &str); 15] = [
    (9, "Q8_1"),
    (19, "IQ1_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (40, "NVFP4"),
];

// No type is both supported and refused.
const _: () = {
    let mut row = 0;
    while row < UNSUPPORTED.len() {
        let mut at = 0;
        while at < DType::ALL.len() {
            if let Some(number) = DType::ALL[at].ggml_type() {
                assert!(number != UNSUPPORTED[row].0);
            }
            at += 1;
        }
        row += 1;
    }
};

/// The parsed header of one file.
pub(super) struct Parsed {
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) metadata: Metadata,
    /// The tensors with their byte ranges in the file.
    pub(super) tensors: Vec<(TensorInfo, Range<usize>)>,
}

/// A parsed value; the items of an array are still in the header.
enum ParsedValue {
    Scalar(Value),
    Array { item: ValueType, len: usize, range: Range<usize> },
}

/// Parses the header from `source`, the start of a file of `file` bytes.
pub(super) fn parse(source: impl Read, file: u64) -> Result<Parsed, GgufProblem> {
    if file == 0 {
        return Err(GgufProblem::Empty);
    }
    let mut header = Header::new(source, file);
    let version = version(&mut header)?;
    let tensor_count = header.u64(format_args!("the number of tensors"))?;
    let key_count = header.count(MIN_KEY_BYTES, format_args!("the number of keys"))?;
    header.check_count(tensor_count, MIN_TENSOR_BYTES, format_args!("the number of tensors"))?;

    let mut entries: Vec<(String, ParsedValue)> = Vec::new();
    let mut seen = HashSet::new();
    for number in 0..key_count {
        let key = header.name(format_args!("key {number}"))?;
        let value = value(&mut header, &key)?;
        seen.try_reserve(1).map_err(no_memory)?;
        if !seen.insert(key.clone()) {
            return Err(GgufProblem::Duplicate { what: "key", name: key });
        }
        memory::push(&mut entries, (key, value)).map_err(no_memory)?;
    }
    drop(seen);
    header.check_count(tensor_count, MIN_TENSOR_BYTES, format_args!("the number of tensors"))?;
    let mut tensors = Vec::new();
    for number in 0..tensor_count {
        memory::push(&mut tensors, tensor(&mut header, number)?).map_err(no_memory)?;
    }

    let end = header.offset();
    let bytes = Arc::new(header.into_bytes());
    let mut metadata = Metadata::new();
    metadata.try_reserve(entries.len()).map_err(no_memory)?;
    for (key, value) in entries {
        let value = match value {
            ParsedValue::Scalar(value) => value,
            ParsedValue::Array { item, len, range } => Array::checked(item, len, bytes.clone(), range).into(),
        };
        metadata.set(key, value);
    }
    let alignment = alignment(&metadata)?;
    let tensors = locate(tensors, end, alignment, file)?;
    Ok(Parsed { version, alignment, metadata, tensors })
}

/// The error of an allocation that failed.
pub(super) fn no_memory(error: TryReserveError) -> GgufProblem {
    GgufProblem::Io { call: "hold its header in memory", error: error.into() }
}

fn version<R: Read>(header: &mut Header<R>) -> Result<u32, GgufProblem> {
    let found = header.array(format_args!("the magic number"))?;
    if found != *b"GGUF" {
        return Err(GgufProblem::Magic { found });
    }
    let version = header.u32(format_args!("the version"))?;
    match (version, version.swap_bytes()) {
        (2 | 3, _) => Ok(version),
        // Versions fit into 16 bits, so a larger number that is small when swapped means big-endian.
        (65_536.., swapped @ 1..65_536) => Err(GgufProblem::BigEndian { version: swapped }),
        _ => Err(GgufProblem::Version { version }),
    }
}

fn value_type<R: Read>(header: &mut Header<R>, of: std::fmt::Arguments) -> Result<ValueType, GgufProblem> {
    let found = header.u32(format_args!("the type of {of}"))?;
    ValueType::from_number(found).ok_or_else(|| GgufProblem::ValueType { what: of.to_string(), found })
}

fn value<R: Read>(header: &mut Header<R>, key: &str) -> Result<ParsedValue, GgufProblem> {
    let what = format_args!("the value of key {key:?}");
    Ok(ParsedValue::Scalar(match value_type(header, format_args!("key {key:?}"))? {
        ValueType::U8 => u8::from_le_bytes(header.array(what)?).into(),
        ValueType::I8 => i8::from_le_bytes(header.array(what)?).into(),
        ValueType::U16 => u16::from_le_bytes(header.array(what)?).into(),
        ValueType::I16 => i16::from_le_bytes(header.array(what)?).into(),
        ValueType::U32 => header.u32(what)?.into(),
        ValueType::I32 => i32::from_le_bytes(header.array(what)?).into(),
        ValueType::F32 => f32::from_le_bytes(header.array(what)?).into(),
        ValueType::U64 => header.u64(what)?.into(),
        ValueType::I64 => i64::from_le_bytes(header.array(what)?).into(),
        ValueType::F64 => f64::from_le_bytes(header.array(what)?).into(),
        ValueType::Bool => match header.array(what)? {
            [0] => false.into(),
            [1] => true.into(),
            [found] => return Err(GgufProblem::Bool { what: format!("key {key:?}"), found }),
        },
        ValueType::String => memory::text(header.text(what)?).map_err(no_memory)?.into(),
        ValueType::Array => return array(header, key),
    }))
}

fn array<R: Read>(header: &mut Header<R>, key: &str) -> Result<ParsedValue, GgufProblem> {
    let item = value_type(header, format_args!("the array of key {key:?}"))?;
    let what = format_args!("the array of key {key:?}");
    let size = match item {
        ValueType::Array => return Err(GgufProblem::NestedArray { key: key.to_owned() }),
        // The length of the string.
        ValueType::String => 8,
        item => item.size().unwrap_or(1),
    };
    let size = u64::try_from(size).unwrap_or(u64::MAX);
    let count = header.count(size, format_args!("the length of the array of key {key:?}"))?;
    let range = if item == ValueType::String {
        let start = header.position();
        for number in 0..count {
            header.text(format_args!("item {number} of key {key:?}"))?;
        }
        start..header.position()
    } else {
        let bytes = count.checked_mul(size);
        let left = header.left();
        let too_long = || GgufProblem::Count { what: what.to_string(), count, least: size, left };
        header.take(bytes.ok_or_else(too_long)?, what)?
    };
    if item == ValueType::Bool
        && let Some((at, &found)) =
            header.bytes(range.clone()).iter().enumerate().find(|(_, byte)| **byte > 1)
    {
        return Err(GgufProblem::Bool { what: format!("item {at} of key {key:?}"), found });
    }
    let too_many = || GgufProblem::Count { what: what.to_string(), count, least: size, left: header.left() };
    let len = usize::try_from(count).map_err(|_| too_many())?;
    Ok(ParsedValue::Array { item, len, range })
}

/// A tensor entry whose location has not been checked yet.
struct Entry {
    info: TensorInfo,
    offset: u64,
}

fn tensor<R: Read>(header: &mut Header<R>, number: u64) -> Result<Entry, GgufProblem> {
    let name = header.name(format_args!("tensor {number}"))?;
    let found = header.u32(format_args!("the number of dimensions of tensor {name:?}"))?;
    if !(1..=4).contains(&found) {
        return Err(GgufProblem::Dimensions { tensor: name, found });
    }
    let mut dims = Vec::new();
    for dimension in 0..found {
        dims.push(header.u64(format_args!("dimension {dimension} of tensor {name:?}"))?);
    }
    let number = header.u32(format_args!("the type of tensor {name:?}"))?;
    let offset = header.u64(format_args!("the offset of tensor {name:?}"))?;

    if let Some(dimension) = dims.iter().position(|&dim| dim == 0) {
        return Err(GgufProblem::ZeroDimension { tensor: name, dimension });
    }
    let elements = dims.iter().try_fold(1u64, |elements, &dim| elements.checked_mul(dim));
    let sizes: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let (Some(sizes), true) = (sizes, elements.is_some_and(|elements| usize::try_from(elements).is_ok()))
    else {
        return Err(GgufProblem::Elements { tensor: name, dims });
    };
    let dtype = match UNSUPPORTED.iter().find(|row| row.0 == number) {
        Some(row) => return Err(GgufProblem::UnsupportedType { tensor: name, name: row.1 }),
        None => DType::from_ggml_type(number),
    };
    let info = dtype.and_then(|dtype| TensorInfo::new(&name, &sizes, dtype));
    let info = info.map_err(|error| GgufProblem::Type { tensor: name, error })?;
    Ok(Entry { info, offset })
}

pub(super) fn alignment(metadata: &Metadata) -> Result<u64, GgufProblem> {
    let found = match metadata.get(ALIGNMENT_KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(&Value::U32(found)) => found,
        Some(other) => {
            let (key, found) = (ALIGNMENT_KEY.to_owned(), other.type_words());
            return Err(MetadataError::Type { key, expected: "u32", found }.into());
        }
    };
    match found.is_power_of_two() && ALIGNMENTS.contains(&found) {
        true => Ok(found.into()),
        false => Err(GgufProblem::Alignment { found }),
    }
}

/// Computes the byte range of every tensor: aligned, inside the file, without overlaps.
fn locate(
    entries: Vec<Entry>,
    header: u64,
    alignment: u64,
    file: u64,
) -> Result<Vec<(TensorInfo, Range<usize>)>, GgufProblem> {
    let mut names = HashSet::new();
    let mut ranges = Vec::new();
    names.try_reserve(entries.len()).map_err(no_memory)?;
    ranges.try_reserve_exact(entries.len()).map_err(no_memory)?;
    for Entry { info, offset } in &entries {
        if !names.insert(info.name()) {
            return Err(GgufProblem::Duplicate { what: "tensor", name: info.name().to_owned() });
        }
        let tensor = || info.name().to_owned();
        if !offset.is_multiple_of(alignment) {
            return Err(GgufProblem::OffsetAlignment { tensor: tensor(), offset: *offset, alignment });
        }
        let bytes = u64::try_from(info.bytes()).unwrap_or(u64::MAX);
        let data = header.checked_next_multiple_of(alignment);
        let start = data.and_then(|data| data.checked_add(*offset));
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|&end| end <= file);
        let range = start
            .zip(end)
            .and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
        let outside = || GgufProblem::Outside {
            tensor: tensor(),
            offset: *offset,
            bytes,
            start: data.unwrap_or(u64::MAX),
            file,
        };
        ranges.push(range.ok_or_else(outside)?);
    }
    let mut order: Vec<usize> = memory::collect(0..ranges.len()).map_err(no_memory)?;
    order.sort_unstable_by_key(|&at| ranges[at].start);
    for pair in order.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if ranges[second].start < ranges[first].end {
            let name = |at: usize| entries[at].info.name().to_owned();
            return Err(GgufProblem::Overlap { first: name(first), second: name(second) });
        }
    }
    memory::collect(entries.into_iter().map(|entry| entry.info).zip(ranges)).map_err(no_memory)
}
