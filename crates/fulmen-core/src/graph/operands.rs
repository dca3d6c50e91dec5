//! Checks of the operands of a call against device memory: each lies inside an allocation, is aligned, is
//! writable if it is an output, and does not overlap an output unless the op works in place. The rules are
//! the same for every backend.

use super::call::*;
use super::{Heads, KV_PAGE, KvCache, LogitSlots, TokenHistory};
use crate::sampling::{Penalties, SampleState};
use crate::{BackendError, DType, Extent, LookUp};

type Checked<T = ()> = Result<T, BackendError>;

pub(super) fn area(rows: u32, width: u32) -> usize {
    (rows as usize).saturating_mul(width as usize)
}

/// `count` elements of `T`.
pub(super) fn span<T>(
    memory: &impl LookUp,
    what: &'static str,
    ptr: u64,
    count: usize,
    write: bool,
) -> Checked<Extent> {
    memory.look_up(what, ptr, count.saturating_mul(size_of::<T>()), align_of::<T>(), write)
}

pub(super) fn f32_rows(
    memory: &impl LookUp,
    what: &'static str,
    ptr: u64,
    rows: u32,
    width: u32,
) -> Checked<Extent> {
    span::<f32>(memory, what, ptr, area(rows, width), false)
}

pub(super) fn output(
    memory: &impl LookUp,
    what: &'static str,
    ptr: u64,
    rows: u32,
    width: u32,
) -> Checked<Extent> {
    span::<f32>(memory, what, ptr, area(rows, width), true)
}

fn indices(memory: &impl LookUp, what: &'static str, ptr: u64, m: u32) -> Checked<Extent> {
    span::<u32>(memory, what, ptr, m as usize, false)
}

pub(super) fn optional_rows(
    memory: &impl LookUp,
    what: &'static str,
    ptr: Option<u64>,
    rows: u32,
    width: u32,
) -> Checked<Option<Extent>> {
    ptr.map(|ptr| f32_rows(memory, what, ptr, rows, width)).transpose()
}

fn row_bytes(dtype: DType, width: u32) -> Checked<usize> {
    let call = "the size of a row";
    dtype.bytes(width as usize).map_err(|e| BackendError::Device {
        backend: "graph",
        call,
        source: Box::new(e),
    })
}

pub(super) fn weight(
    memory: &impl LookUp,
    what: &'static str,
    weight: &WeightArg,
    k: u32,
) -> Checked<Extent> {
    memory.check_weight_type(weight.dtype)?;
    let bytes = row_bytes(weight.dtype, k)?.saturating_mul(weight.rows as usize);
    memory.look_up(what, weight.ptr, bytes, memory.alignment(weight.dtype), false)
}

/// Keys and values.
fn cache(memory: &impl LookUp, cache: &KvCache, heads: Heads, write: bool) -> Checked<[Extent; 2]> {
    let row = row_bytes(cache.dtype, heads.head_dim)?;
    let sizes = [cache.n_pages, heads.n_kv_heads, KV_PAGE];
    let bytes = sizes.iter().fold(row, |bytes, &n| bytes.saturating_mul(n as usize));
    let align = memory.alignment(cache.dtype);
    Ok([
        memory.look_up("the keys' cache", cache.k_ptr, bytes, align, write)?,
        memory.look_up("the values' cache", cache.v_ptr, bytes, align, write)?,
    ])
}

fn page_table(memory: &impl LookUp, cache: &KvCache) -> Checked<Extent> {
    span::<u32>(memory, "the page table", cache.table_ptr, area(cache.n_seqs, cache.seq_pages), false)
}

fn history(memory: &impl LookUp, history: &TokenHistory, write: bool) -> Checked<Extent> {
    span::<u32>(memory, "the history", history.ptr, area(history.n_seqs, history.capacity), write)
}

/// An error if an output overlaps an operand.
pub(super) fn apart(outputs: &[Extent], operands: &[Option<Extent>]) -> Checked {
    for output in outputs {
        operands.iter().flatten().try_for_each(|operand| output.apart_from(*operand))?;
    }
    Ok(())
}

impl MulMatCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let x = f32_rows(memory, "the input", self.input, self.m, self.k)?;
        let mut outs: Vec<Extent> = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let out = output(memory, "the output", part.output, self.m, part.weight.rows)?;
            out.apart_from(x)?;
            if let Some(residual) =
                optional_rows(memory, "the residual", self.residual, self.m, part.weight.rows)?
            {
                out.apart_or_same(residual)?;
            }
            outs.iter().try_for_each(|other| out.apart_from(*other))?;
            outs.push(out);
        }
        for part in &self.parts {
            let weight = weight(memory, "the weight", &part.weight, self.k)?;
            let bias = optional_rows(memory, "the bias", part.bias, 1, part.weight.rows)?;
            apart(&outs, &[Some(weight), bias])?;
        }
        Ok(())
    }
}

impl GateUpCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let x = f32_rows(memory, "the input", self.input, self.m, self.k)?;
        let gate = weight(memory, "the gate weight", &self.gate, self.k)?;
        let up = weight(memory, "the up weight", &self.up, self.k)?;
        let out = output(memory, "the output", self.output, self.m, self.gate.rows)?;
        apart(&[out], &[Some(x), Some(gate), Some(up)])
    }
}

impl EmbedCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let table = weight(memory, "the table", &self.table, self.width)?;
        let tokens = indices(memory, "tokens", self.tokens, self.m)?;
        let out = output(memory, "the output", self.output, self.m, self.width)?;
        apart(&[out], &[Some(table), Some(tokens)])
    }
}

impl RmsNormCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let x = f32_rows(memory, "the input", self.input, self.rows, self.width)?;
        let gamma = f32_rows(memory, "the gain", self.gamma, 1, self.width)?;
        let out = output(memory, "the output", self.output, self.rows, self.width)?;
        out.apart_or_same(x)?;
        out.apart_from(gamma)
    }
}

impl AddRmsNormCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let (rows, width) = (self.rows, self.width);
        let a = f32_rows(memory, "the first input", self.a, rows, width)?;
        let b = f32_rows(memory, "the second input", self.b, rows, width)?;
        let gamma = f32_rows(memory, "the gain", self.gamma, 1, width)?;
        let sum = output(memory, "the sum", self.sum, rows, width)?;
        let out = output(memory, "the output", self.output, rows, width)?;
        sum.apart_or_same(a)?;
        sum.apart_or_same(b)?;
        sum.apart_from(gamma)?;
        apart(&[out], &[Some(a), Some(b), Some(gamma), Some(sum)])
    }
}

impl BinaryCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let a = span::<f32>(memory, "the first input", self.a, self.n_elements, false)?;
        let b = span::<f32>(memory, "the second input", self.b, self.n_elements, false)?;
        let out = span::<f32>(memory, "the output", self.output, self.n_elements, true)?;
        out.apart_or_same(a)?;
        out.apart_or_same(b)
    }
}

impl UnaryCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let x = span::<f32>(memory, "the input", self.input, self.n_elements, false)?;
        let out = span::<f32>(memory, "the output", self.output, self.n_elements, true)?;
        out.apart_or_same(x)
    }
}

impl RopeCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let width = self.n_heads.saturating_mul(self.head_dim);
        let x = f32_rows(memory, "the input", self.input, self.m, width)?;
        let positions = indices(memory, "positions", self.positions, self.m)?;
        let factors = optional_rows(memory, "the frequency factors", self.factors, 1, self.rope.n_rot / 2)?;
        let out = output(memory, "the output", self.output, self.m, width)?;
        out.apart_or_same(x)?;
        apart(&[out], &[Some(positions), factors])
    }
}

impl SoftMaxCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let x = f32_rows(memory, "the input", self.input, self.rows, self.width)?;
        let out = output(memory, "the output", self.output, self.rows, self.width)?;
        out.apart_or_same(x)
    }
}

impl AttentionCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let (heads, m) = (self.heads, self.m);
        let q = f32_rows(memory, "q", self.q, m, heads.q_width())?;
        let out = output(memory, "the output", self.output, m, heads.q_width())?;
        out.apart_from(q)?;
        if let Some(ptr) = self.scores.sinks {
            out.apart_from(f32_rows(memory, "the sinks", ptr, 1, heads.n_heads)?)?;
        }
        if let Some((&work, max_chunks)) = self.rows.work() {
            let entries = max_chunks.saturating_add(1).saturating_mul(4);
            out.apart_from(indices(memory, "the work list", work, entries)?)?;
        }
        match self.kv {
            KvSource::Rows { k, v } => {
                let k = f32_rows(memory, "k", k, m, heads.kv_width())?;
                let v = f32_rows(memory, "v", v, m, heads.kv_width())?;
                apart(&[out], &[Some(k), Some(v)])
            }
            KvSource::Cache { cache: kv, positions, sequences } => {
                let [k, v] = cache(memory, &kv, heads, false)?;
                let positions = indices(memory, "positions", positions, m)?;
                let sequences = sequences.map(|ptr| indices(memory, "sequences", ptr, m)).transpose()?;
                let table = page_table(memory, &kv)?;
                apart(&[out], &[Some(positions), sequences, Some(k), Some(v), Some(table)])
            }
        }
    }
}

/// The operands of a KV store.
struct Store {
    reads: [Option<Extent>; 5],
    caches: [Extent; 2],
}

impl KvStoreCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        self.store(memory).map(|_| ())
    }

    fn store(&self, memory: &impl LookUp) -> Checked<Store> {
        let (heads, m) = (self.heads, self.m);
        let reads = [
            Some(f32_rows(memory, "k", self.k, m, heads.kv_width())?),
            Some(f32_rows(memory, "v", self.v, m, heads.kv_width())?),
            Some(indices(memory, "positions", self.positions, m)?),
            self.sequences.map(|ptr| indices(memory, "sequences", ptr, m)).transpose()?,
            Some(page_table(memory, &self.cache)?),
        ];
        let caches = cache(memory, &self.cache, heads, true)?;
        apart(&caches, &reads)?;
        caches[0].apart_from(caches[1])?;
        Ok(Store { reads, caches })
    }
}

impl RopeStoreCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let (heads, m) = (self.store.heads, self.store.m);
        let Store { reads, caches } = self.store.store(memory)?;
        let q = f32_rows(memory, "q", self.q, m, heads.q_width())?;
        let out = output(memory, "the output", self.output, m, heads.q_width())?;
        let constants = [
            optional_rows(memory, "the frequency factors", self.factors, 1, self.rope.n_rot / 2)?,
            optional_rows(memory, "the gain of q", self.q_gamma, 1, heads.head_dim)?,
            optional_rows(memory, "the gain of k", self.k_gamma, 1, heads.head_dim)?,
        ];
        out.apart_or_same(q)?;
        apart(&[out], &reads)?;
        apart(&[out], &constants)?;
        apart(&caches, &[Some(out), Some(q)])?;
        apart(&caches, &constants)
    }
}

impl CopyCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let from = span::<u8>(memory, "the input", self.input, self.bytes, false)?;
        let to = span::<u8>(memory, "the output", self.output, self.bytes, true)?;
        to.apart_from(from)
    }
}

impl ArgMaxCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let x = f32_rows(memory, "the input", self.input, self.m, self.n)?;
        let out = span::<u32>(memory, "the output", self.output, self.m as usize, true)?;
        out.apart_from(x)
    }
}

impl TopKCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let count = area(self.m, self.k);
        let x = f32_rows(memory, "the input", self.input, self.m, self.n)?;
        let values = span::<f32>(memory, "the values", self.values, count, true)?;
        let indices = span::<u32>(memory, "the indices", self.indices, count, true)?;
        apart(&[values, indices], &[Some(x)])?;
        values.apart_from(indices)
    }
}

impl SampleCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let logits = f32_rows(memory, "the logits", self.logits, self.m, self.n)?;
        let count = area(self.m, self.n);
        let tokens =
            self.tokens.map(|ptr| span::<u32>(memory, "the tokens", ptr, count, false)).transpose()?;
        let states = span::<SampleState>(memory, "the sampling states", self.states, self.m as usize, true)?;
        let out = span::<u32>(memory, "the output", self.output, self.m as usize, true)?;
        apart(&[out], &[Some(logits), tokens, Some(states)])?;
        apart(&[states], &[Some(logits), tokens])
    }
}

impl PenalizeCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let logits = f32_rows(memory, "the logits", self.logits, self.m, self.n)?;
        let out = output(memory, "the output", self.output, self.m, self.n)?;
        let reads = [
            Some(span::<Penalties>(memory, "the penalties", self.penalties, self.m as usize, false)?),
            Some(history(memory, &self.history, false)?),
            Some(indices(memory, "positions", self.positions, self.m)?),
            self.sequences.map(|ptr| indices(memory, "sequences", ptr, self.m)).transpose()?,
        ];
        out.apart_or_same(logits)?;
        apart(&[out], &reads)
    }
}

impl GatherTokensCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let reads = [
            Some(indices(memory, "positions", self.positions, self.m)?),
            self.sequences.map(|ptr| indices(memory, "sequences", ptr, self.m)).transpose()?,
        ];
        let history = history(memory, &self.history, true)?;
        let out = span::<u32>(memory, "the output", self.output, self.m as usize, true)?;
        apart(&[history, out], &reads)?;
        out.apart_from(history)
    }
}

impl MaskLogitsCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let LogitSlots { edits_ptr, masks_ptr, n_slots, .. } = self.state;
        let (edit_words, mask_words) = (self.state.edit_words(), self.n.div_ceil(32));
        let logits = f32_rows(memory, "the logits", self.logits, self.m, self.n)?;
        let out = output(memory, "the output", self.output, self.m, self.n)?;
        let reads = [
            Some(span::<u32>(memory, "the logit edits", edits_ptr, area(n_slots, edit_words), false)?),
            Some(span::<u32>(memory, "the token masks", masks_ptr, area(n_slots, mask_words), false)?),
            self.slots.map(|ptr| indices(memory, "the sampling slots", ptr, self.m)).transpose()?,
        ];
        out.apart_or_same(logits)?;
        apart(&[out], &reads)
    }
}

impl LogProbsCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let (m, count) = (self.m, area(self.m, self.top.saturating_add(1)));
        let reads = [
            Some(f32_rows(memory, "the logits", self.logits, m, self.n)?),
            Some(indices(memory, "tokens", self.tokens, m)?),
        ];
        let values = span::<f32>(memory, "the values", self.values, count, true)?;
        let tokens = span::<u32>(memory, "the tokens of the values", self.indices, count, true)?;
        apart(&[values, tokens], &reads)?;
        values.apart_from(tokens)
    }
}

impl AdvanceCall {
    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Checked {
        let m = self.m as usize;
        let reads = [
            Some(indices(memory, "the sampled tokens", self.drawn, self.m)?),
            self.sequences.map(|ptr| indices(memory, "sequences", ptr, self.m)).transpose()?,
        ];
        let tokens = span::<u32>(memory, "tokens", self.tokens, m, true)?;
        let positions = span::<u32>(memory, "positions", self.positions, m, true)?;
        let history = history(memory, &self.history, true)?;
        apart(&[tokens, positions, history], &reads)?;
        apart(&[history], &[Some(tokens), Some(positions)])?;
        tokens.apart_from(positions)
    }
}
