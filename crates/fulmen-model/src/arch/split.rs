//! Tensors that hold several weights of a layer, seen as one tensor each.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use fulmen_core::SharedBytes;

use super::{Architecture, Config, delta_net};
use crate::error::ModelError;
use crate::gguf::Metadata;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// The weights that a tensor holds: their names, and the rows `[first, count]` that each consists of.
pub(super) type Parts = Vec<(&'static str, Vec<[usize; 2]>)>;

/// The source as a graph of its architecture reads it: the same, or with fused tensors as their parts. Phi-3
/// has query, key and value weights in `attn_qkv` and gate and up weights in `ffn_up`, one below the other;
/// models with a delta net have the rows of several weights by head.
pub fn split_fused(source: Arc<dyn ModelSource>) -> Result<Arc<dyn ModelSource>, ModelError> {
    let config = Config::read(source.as_ref())?;
    if config.architecture != Architecture::Phi3 && config.delta_net.is_none() {
        return Ok(source);
    }
    let (mut tensors, mut parts) = (Vec::new(), HashMap::new());
    for info in source.tensors() {
        let (layer, kind) = match info.name().rsplit_once('.') {
            Some((layer, kind)) => (layer, kind),
            None => (info.name(), ""),
        };
        let (layer, name) = layer.rsplit_once('.').unwrap_or(("", layer));
        let Some(into) = parts_of(&config, name) else {
            tensors.push(info.clone());
            continue;
        };
        // A bias is a row of values, a weight has a row for each output.
        let bias = info.dims().len() == 1;
        let found = if bias { info.width() } else { info.rows() };
        let rows: usize = into.iter().flat_map(|(_, ranges)| ranges).map(|range| range[1]).sum();
        if found != rows {
            let expected = if bias { format!("[{rows}]") } else { format!("[{}, {rows}]", info.width()) };
            let (name, found) = (info.name().to_owned(), format!("{:?}", info.dims()));
            return Err(ModelError::Shape { name, expected, found, transposed: info.width() == rows });
        }
        // Rows are whole blocks, so each has the same number of bytes.
        let row_bytes = info.bytes().checked_div(rows).unwrap_or(0);
        for (part, ranges) in into {
            let name = format!("{layer}.{part}.{kind}");
            let rows = ranges.iter().map(|range| range[1]).sum();
            let dims = if bias { vec![rows] } else { vec![info.width(), rows] };
            let part = TensorInfo::new(&name, &dims, info.dtype()).map_err(|error| {
                ModelError::Build(fulmen_core::BuildError {
                    call: "split",
                    problem: fulmen_core::Problem::DType(error),
                })
            })?;
            let bytes = |[first, count]: [usize; 2]| first * row_bytes..(first + count) * row_bytes;
            let pieces = ranges.into_iter().map(bytes).collect();
            parts.insert(name, Part { of: info.name().to_owned(), pieces });
            tensors.push(part);
        }
    }
    let index = tensors.iter().enumerate().map(|(at, info)| (info.name().to_owned(), at)).collect();
    Ok(Arc::new(SplitSource { source, tensors, index, parts }))
}

/// The weights that a tensor of this name holds, if it holds several.
fn parts_of(config: &Config, name: &str) -> Option<Parts> {
    if config.delta_net.is_some() {
        return delta_net::parts(config, name);
    }
    let (q, kv) = (config.heads.q_width() as usize, config.heads.kv_width() as usize);
    let inner = config.inner as usize;
    match name {
        "attn_qkv" => {
            Some(vec![("attn_q", vec![[0, q]]), ("attn_k", vec![[q, kv]]), ("attn_v", vec![[q + kv, kv]])])
        }
        "ffn_up" => Some(vec![("ffn_gate", vec![[0, inner]]), ("ffn_up", vec![[inner, inner]])]),
        _ => None,
    }
}

/// The bytes of a part in the tensor that holds it, in the order of its rows.
struct Part {
    of: String,
    pieces: Vec<Range<usize>>,
}

impl Part {
    /// Calls `piece` with the ranges of the tensor that bytes `first..first + len` of the part consist of,
    /// and where they begin in them.
    fn for_each_piece(
        &self,
        first: usize,
        len: usize,
        mut piece: impl FnMut(Range<usize>, usize) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let (mut before, end) = (0, first + len);
        for range in &self.pieces {
            let (from, to) = (first.max(before), end.min(before + range.len()));
            if from < to {
                let start = range.start + from - before;
                piece(start..start + (to - from), from - first)?;
            }
            before += range.len();
        }
        Ok(())
    }
}

struct SplitSource {
    source: Arc<dyn ModelSource>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    parts: HashMap<String, Part>,
}

/// A range of shared bytes.
struct Slice(SharedBytes, Range<usize>);

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &(*self.0).as_ref()[self.1.clone()]
    }
}

/// Bytes of several ranges in one place, aligned as every element type needs it.
struct Gathered(Vec<u64>, usize);

impl AsRef<[u8]> for Gathered {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

impl Gathered {
    fn new(part: &Part, bytes: &[u8]) -> Gathered {
        let len = part.pieces.iter().map(Range::len).sum::<usize>();
        let mut gathered = Gathered(vec![0; len.div_ceil(8)], len);
        let out: &mut [u8] = bytemuck::cast_slice_mut(&mut gathered.0);
        let mut at = 0;
        for range in &part.pieces {
            out[at..at + range.len()].copy_from_slice(&bytes[range.clone()]);
            at += range.len();
        }
        gathered
    }
}

impl ModelSource for SplitSource {
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
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        match self.parts.get(name) {
            Some(part) => {
                let bytes = self.source.data(&part.of)?;
                match &part.pieces[..] {
                    [range] => Ok(Arc::new(Slice(bytes, range.clone()))),
                    _ => Ok(Arc::new(Gathered::new(part, (*bytes).as_ref()))),
                }
            }
            None => self.source.data(name),
        }
    }

    fn read_at(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<bool, SourceError> {
        match self.parts.get(name) {
            Some(part) => {
                let mut read = true;
                part.for_each_piece(offset, out.len(), |range, at| {
                    let len = range.len();
                    read &= self.source.read_at(&part.of, range.start, &mut out[at..at + len])?;
                    Ok(())
                })?;
                Ok(read)
            }
            None => self.source.read_at(name, offset, out),
        }
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.source.check_unchanged()
    }

    fn tokenizer_json(&self) -> Option<PathBuf> {
        self.source.tokenizer_json()
    }
}
