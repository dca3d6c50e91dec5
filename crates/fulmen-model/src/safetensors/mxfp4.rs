//! The expert weights of gpt-oss folders, in MXFP4: blocks and scales are tensors of their own, elements are
//! in another order than in GGUF, and gate and up are one tensor with their rows in turn.

use std::collections::BTreeMap;
use std::ops::Range;

use fulmen_core::DType;

use super::error::SafetensorsProblem;
use super::header::RawTensor;
use crate::source::TensorInfo;

/// Bytes of a tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    pub(super) file: usize,
    pub(super) range: Range<usize>,
}

/// Where the data of a GGUF tensor in MXFP4 comes from.
#[derive(Clone, Debug)]
pub(super) struct Mxfp4Origin {
    pub(super) blocks: Bytes,
    pub(super) scales: Bytes,
    /// Blocks of a row.
    pub(super) row: usize,
    /// The rows: every `step`-th from the first one on.
    pub(super) first: usize,
    pub(super) step: usize,
}

impl Mxfp4Origin {
    /// The blocks as GGUF has them: exponent, then 16 bytes with element `i` below and `i + 16` above.
    pub(super) fn convert(&self, blocks: &[u8], scales: &[u8], out: &mut Vec<u8>) {
        let rows = blocks.chunks_exact(16 * self.row).zip(scales.chunks_exact(self.row));
        for (blocks, scales) in rows.skip(self.first).step_by(self.step) {
            for (block, &scale) in blocks.as_chunks::<16>().0.iter().zip(scales) {
                // Here byte `i` has element `2 i` below and `2 i + 1` above.
                let element = |at: usize| block[at / 2] >> (4 * (at % 2)) & 15;
                out.push(scale);
                out.extend((0..16).map(|at| element(at) | element(at + 16) << 4));
            }
        }
    }
}

/// Collects blocks and scales.
#[derive(Default)]
pub(super) struct Mxfp4Tensors {
    /// By the name without `_blocks` and `_scales`.
    parts: BTreeMap<String, [Option<(RawTensor, usize)>; 2]>,
}

impl Mxfp4Tensors {
    /// Adds a tensor of bytes of a file.
    pub(super) fn add(&mut self, raw: RawTensor, file: usize) -> Result<(), SafetensorsProblem> {
        let kinds = [("_blocks", 0), ("_scales", 1)];
        let kind = kinds.iter().find_map(|(end, at)| Some((raw.name.strip_suffix(end)?.to_owned(), *at)));
        let Some((name, at)) = kind else {
            return Err(SafetensorsProblem::Type { tensor: raw.name, dtype: "U8".to_owned() });
        };
        match self.parts.entry(name).or_default()[at].replace((raw, file)) {
            Some((raw, _)) => Err(SafetensorsProblem::Duplicate(raw.name)),
            None => Ok(()),
        }
    }

    /// The GGUF tensors.
    pub(super) fn finish(self) -> Result<Vec<(TensorInfo, Mxfp4Origin)>, SafetensorsProblem> {
        let mut all = Vec::new();
        for (name, [blocks, scales]) in self.parts {
            let missing = |end: &str| SafetensorsProblem::NoTensor(format!("{name}{end}"));
            let (blocks, file) = blocks.ok_or_else(|| missing("_blocks"))?;
            let (scales, scales_file) = scales.ok_or_else(|| missing("_scales"))?;
            let shape = |raw: &RawTensor| SafetensorsProblem::Shape {
                tensor: raw.name.clone(),
                shape: raw.shape.iter().map(|&dim| dim as u64).collect(),
            };
            let &[experts, rows, row, 16] = &blocks.shape[..] else { return Err(shape(&blocks)) };
            if scales.shape != [experts, rows, row] {
                return Err(shape(&scales));
            }
            let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            let Some((layer, part)) = layer.filter(|(layer, _)| layer.parse::<u32>().is_ok()) else {
                return Err(SafetensorsProblem::UnknownTensor(blocks.name));
            };
            let into: &[&str] = match part {
                "mlp.experts.gate_up_proj" if rows.is_multiple_of(2) => &["gate", "up"],
                "mlp.experts.down_proj" => &["down"],
                _ => return Err(SafetensorsProblem::UnknownTensor(blocks.name)),
            };
            for (first, part) in into.iter().enumerate() {
                let ours = format!("blk.{layer}.ffn_{part}_exps.weight");
                let width = row.checked_mul(32).ok_or_else(|| shape(&blocks))?;
                let info = TensorInfo::new(&ours, &[width, rows / into.len(), experts], DType::MXFP4);
                let info = info.map_err(|error| SafetensorsProblem::Size { tensor: ours, error })?;
                let blocks = Bytes { file, range: blocks.range.clone() };
                let scales = Bytes { file: scales_file, range: scales.range.clone() };
                all.push((info, Mxfp4Origin { blocks, scales, row, first, step: into.len() }));
            }
        }
        Ok(all)
    }
}
