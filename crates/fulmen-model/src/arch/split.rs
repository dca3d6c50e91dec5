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

/// The embeddings that layers have of their own, and the projections of the shared one, by layer: files have
/// those of all layers in one tensor each.
pub(super) const LAYER_EMBEDDING: &str = "per_layer_token_embd";
pub(super) const LAYER_PROJECTION: &str = "per_layer_model_proj";

/// The source as a graph of its architecture reads it: the same, or with fused tensors as their parts. Phi-3
/// has query, key and value weights in `attn_qkv` and gate and up weights in `ffn_up`, one below the other;
/// models with a delta net have the rows of several weights by head; Gemma 4 has gate and up weights by
/// expert, and the embeddings of all layers side by side.
pub fn split_fused(source: Arc<dyn ModelSource>) -> Result<Arc<dyn ModelSource>, ModelError> {
    let config = Config::read(source.as_ref())?;
    let is_split = matches!(config.architecture, Architecture::Phi3 | Architecture::Gemma4);
    if !is_split && config.delta_net.is_none() {
        return Ok(source);
    }
    let mut split = Split::default();
    for info in source.tensors() {
        let (layer, kind) = match info.name().rsplit_once('.') {
            Some((layer, kind)) => (layer, kind),
            None => (info.name(), ""),
        };
        let (layer, name) = layer.rsplit_once('.').unwrap_or(("", layer));
        if layer.is_empty() && config.variant.layer_embedding > 0 && name == LAYER_EMBEDDING {
            split.by_columns(&config, info)?;
        } else if layer.is_empty() && config.variant.layer_embedding > 0 && name == LAYER_PROJECTION {
            let width = config.variant.layer_embedding as usize;
            let rows = |layer: u32| (layer_name(layer, name), vec![[layer as usize * width, width]]);
            split.by_rows(info, (0..config.layers).map(rows).collect())?;
        } else if let Some(parts) = parts_of(&config, name) {
            let named = |(part, rows)| (format!("{layer}.{part}.{kind}"), rows);
            split.by_rows(info, parts.into_iter().map(named).collect())?;
        } else {
            split.tensors.push(info.clone());
        }
    }
    let Split { tensors, parts } = split;
    let index = tensors.iter().enumerate().map(|(at, info)| (info.name().to_owned(), at)).collect();
    Ok(Arc::new(SplitSource { source, tensors, index, parts }))
}

fn layer_name(layer: u32, name: &str) -> String {
    format!("blk.{layer}.{name}.weight")
}

/// The weights that a tensor of this name holds, if it holds several.
fn parts_of(config: &Config, name: &str) -> Option<Parts> {
    if config.delta_net.is_some() {
        return delta_net::parts(config, name);
    }
    let (q, kv) = (config.heads.q_width() as usize, config.heads.kv_width() as usize);
    let inner = config.inner as usize;
    match (config.architecture, name) {
        (Architecture::Phi3, "attn_qkv") => {
            Some(vec![("attn_q", vec![[0, q]]), ("attn_k", vec![[q, kv]]), ("attn_v", vec![[q + kv, kv]])])
        }
        (Architecture::Phi3, "ffn_up") => {
            Some(vec![("ffn_gate", vec![[0, inner]]), ("ffn_up", vec![[inner, inner]])])
        }
        (Architecture::Gemma4, "ffn_gate_up_exps") => {
            let experts = config.experts?;
            let inner = experts.inner as usize;
            let each = |first| (0..experts.count as usize).map(move |at| [2 * at * inner + first, inner]);
            Some(vec![("ffn_gate_exps", each(0).collect()), ("ffn_up_exps", each(inner).collect())])
        }
        _ => None,
    }
}

/// The tensors of a source, some as their parts.
#[derive(Default)]
struct Split {
    tensors: Vec<TensorInfo>,
    parts: HashMap<String, Part>,
}

impl Split {
    /// Adds the parts of a tensor that are rows of it: the name of each, and its ranges of rows.
    fn by_rows(&mut self, info: &TensorInfo, into: Vec<(String, Vec<[usize; 2]>)>) -> Result<(), ModelError> {
        // A bias is a row of values, a weight has a row for each output.
        let bias = info.dims().len() == 1;
        let found = if bias { info.width() } else { info.rows() };
        let rows: usize = into.iter().flat_map(|(_, ranges)| ranges).map(|range| range[1]).sum();
        if found != rows {
            let expected = if bias { format!("[{rows}]") } else { format!("[{}, {rows}]", info.width()) };
            return Err(wrong_shape(info, expected, info.width() == rows));
        }
        // Rows are whole blocks, so each has the same number of bytes.
        let row_bytes = info.bytes().checked_div(rows).unwrap_or(0);
        // Those of experts.
        let outer = info.dims().get(2).copied().filter(|&outer| outer > 0);
        for (name, ranges) in into {
            let rows: usize = ranges.iter().map(|range| range[1]).sum();
            let dims = match outer {
                _ if bias => vec![rows],
                None => vec![info.width(), rows],
                Some(outer) => vec![info.width(), rows / outer, outer],
            };
            let bytes = |[first, count]: [usize; 2]| Piece::one(first * row_bytes, count * row_bytes);
            let pieces = ranges.into_iter().map(bytes).collect();
            self.add(info, name, &dims, pieces)?;
        }
        Ok(())
    }

    /// Adds the parts of a table with the embeddings of all layers side by side.
    fn by_columns(&mut self, config: &Config, info: &TensorInfo) -> Result<(), ModelError> {
        let (width, layers) = (config.variant.layer_embedding as usize, config.layers as usize);
        let (name, rows) = (LAYER_EMBEDDING, config.vocabulary as usize);
        if info.width() != width.saturating_mul(layers) || info.rows() != rows {
            let expected = format!("[{}, {rows}]", width.saturating_mul(layers));
            return Err(wrong_shape(info, expected, false));
        }
        let Ok(len) = info.dtype().bytes(width) else {
            let (name, found) = (info.name().to_owned(), info.dtype());
            let expected = "one whose blocks divide the embedding of a layer";
            return Err(ModelError::TensorType { name, expected, found });
        };
        for layer in 0..config.layers {
            let pieces = vec![Piece { start: layer as usize * len, len, stride: len * layers, count: rows }];
            self.add(info, layer_name(layer, name), &[width, rows], pieces)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        of: &TensorInfo,
        name: String,
        dims: &[usize],
        pieces: Vec<Piece>,
    ) -> Result<(), ModelError> {
        let part = TensorInfo::new(&name, dims, of.dtype()).map_err(|error| {
            ModelError::Build(fulmen_core::BuildError {
                call: "split",
                problem: fulmen_core::Problem::DType(error),
            })
        })?;
        self.parts.insert(name, Part { of: of.name().to_owned(), pieces });
        self.tensors.push(part);
        Ok(())
    }
}

fn wrong_shape(info: &TensorInfo, expected: String, transposed: bool) -> ModelError {
    let (name, found) = (info.name().to_owned(), format!("{:?}", info.dims()));
    ModelError::Shape { name, expected, found, transposed }
}

/// Ranges of `len` bytes each, `stride` apart.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    len: usize,
    stride: usize,
    count: usize,
}

impl Piece {
    fn one(start: usize, len: usize) -> Piece {
        Piece { start, len, stride: len, count: 1 }
    }

    /// The ranges from the one with this number on.
    fn ranges(self, first: usize) -> impl Iterator<Item = Range<usize>> {
        (first..self.count).map(move |at| {
            let start = self.start + at * self.stride;
            start..start + self.len
        })
    }

    fn bytes(self) -> usize {
        self.len * self.count
    }
}

/// The bytes of a part in the tensor that holds it, in the order of its rows.
struct Part {
    of: String,
    pieces: Vec<Piece>,
}

impl Part {
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes()).sum()
    }

    /// Calls `piece` with the ranges of the tensor that bytes `first..first + len` of the part consist of,
    /// and where they begin in them.
    fn for_each_range(
        &self,
        first: usize,
        len: usize,
        mut each: impl FnMut(Range<usize>, usize) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let (mut before, end) = (0, first + len);
        for piece in &self.pieces {
            // Those before `first` are skipped at once.
            let skipped = first.saturating_sub(before).checked_div(piece.len).unwrap_or(0).min(piece.count);
            let mut at = before + skipped * piece.len;
            for range in piece.ranges(skipped) {
                let (from, to) = (first.max(at), end.min(at + range.len()));
                if from >= to {
                    break;
                }
                let start = range.start + from - at;
                each(start..start + (to - from), from - first)?;
                at += range.len();
            }
            before += piece.bytes();
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
        let len = part.bytes();
        let mut gathered = Gathered(vec![0; len.div_ceil(8)], len);
        let out: &mut [u8] = bytemuck::cast_slice_mut(&mut gathered.0);
        let mut at = 0;
        for range in part.pieces.iter().flat_map(|piece| piece.ranges(0)) {
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
                    [Piece { start, len, count: 1, .. }] => Ok(Arc::new(Slice(bytes, *start..*start + *len))),
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
                part.for_each_range(offset, out.len(), |range, at| {
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
