//! Checks of typed calls that need no device: sizes fit each other, constants are in range, and no address of
//! something that must be read or written is null. Both front ends, [`GraphBuilder`](crate::GraphBuilder) and
//! [`ComputeGraph`](super::ComputeGraph), lower to calls that pass them.

use super::call::*;
use super::checks::*;
use super::{Heads, KvCache, LogitSlots, TokenHistory};
use crate::Problem;

/// The address of `rows` rows of `width` elements; null only where one of both is 0.
pub(super) fn matrix(what: &'static str, ptr: u64, rows: u32, width: u32) -> Checked<()> {
    elements(what, ptr, rows.min(width) as usize)
}

/// The address of `count` elements; null only where there are none.
pub(super) fn elements(what: &'static str, ptr: u64, count: usize) -> Checked<()> {
    if ptr == 0 && count > 0 { Err(Problem::Null { what }) } else { Ok(()) }
}

/// The address of an operand that may be left out.
pub(super) fn optional(what: &'static str, ptr: Option<u64>, count: u32) -> Checked<()> {
    ptr.map_or(Ok(()), |ptr| elements(what, ptr, count as usize))
}

impl WeightArg {
    pub(super) fn check(&self, what: &'static str, k: u32) -> Checked<()> {
        weight_type(what, self.dtype, self.rows, k)?;
        matrix(what, self.ptr, self.rows, k)
    }
}

impl KvCache {
    fn check(&self, heads: Heads) -> Checked<()> {
        check_cache(self, heads)?;
        elements("k_ptr of the KV cache", self.k_ptr, 1)?;
        elements("v_ptr of the KV cache", self.v_ptr, 1)?;
        elements("table_ptr of the KV cache", self.table_ptr, 1)
    }
}

impl TokenHistory {
    fn check(&self) -> Checked<()> {
        check_history(self.n_seqs, self.capacity)?;
        elements("the history", self.ptr, 1)
    }
}

impl MulMatCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("k", self.k)?;
        matrix("the input", self.input, self.m, self.k)?;
        if self.parts.is_empty() {
            return Err(Problem::Missing { what: "the weight" });
        }
        let several = self.parts.len() > 1;
        for part in &self.parts {
            let n = part.weight.rows;
            if several {
                at_least_1("the rows of one of several weights", n)?;
            }
            part.weight.check("the weight", self.k)?;
            optional("the bias", part.bias, n)?;
            matrix("the output", part.output, self.m, n)?;
        }
        let Some(residual) = self.residual else { return Ok(()) };
        same("the number of weights of a matmul with a residual", 1u32, self.parts.len() as u64)?;
        matrix("the residual", residual, self.m, self.parts[0].weight.rows)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.parts.iter().all(|part| part.weight.rows == 0)
    }
}

impl GateUpCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("k", self.k)?;
        matrix("the input", self.input, self.m, self.k)?;
        self.gate.check("the gate weight", self.k)?;
        self.up.check("the up weight", self.k)?;
        same("the rows of the up weight", self.gate.rows, self.up.rows)?;
        matrix("the output", self.output, self.m, self.gate.rows)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.gate.rows == 0
    }
}

impl TablePart {
    /// So many rows are a part of the whole table.
    pub(crate) fn check(&self, rows: u32) -> Checked<()> {
        let (what, end) = ("the end of a part of a table", u64::from(self.first) + u64::from(rows));
        let expected = "at most the rows of the whole table";
        let inside = end <= self.of.into();
        inside.then_some(()).ok_or(Problem::Value { what, expected, got: end as f64 })
    }
}

impl EmbedCall {
    /// The rows of the whole table, and the first that is there.
    pub fn whole(&self) -> TablePart {
        self.part.unwrap_or(TablePart { first: 0, of: self.table.rows })
    }

    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the rows of the table", self.table.rows)?;
        self.part.map_or(Ok(()), |part| part.check(self.table.rows))?;
        self.table.check("the table", self.width)?;
        matrix("tokens", self.tokens, self.m, 1)?;
        matrix("the output", self.output, self.m, self.width)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.width == 0
    }
}

impl RmsNormCall {
    pub(super) fn check(&self) -> Checked<()> {
        matrix("the input", self.input, self.rows, self.width)?;
        matrix("the gain", self.gamma, 1, self.width)?;
        matrix("the output", self.output, self.rows, self.width)?;
        epsilon(self.epsilon).map(|_| ())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 || self.width == 0
    }
}

impl AddRmsNormCall {
    pub(super) fn check(&self) -> Checked<()> {
        matrix("the first input", self.a, self.rows, self.width)?;
        matrix("the second input", self.b, self.rows, self.width)?;
        matrix("the gain", self.gamma, 1, self.width)?;
        matrix("the sum", self.sum, self.rows, self.width)?;
        matrix("the output", self.output, self.rows, self.width)?;
        epsilon(self.epsilon).map(|_| ())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 || self.width == 0
    }
}

impl BinaryCall {
    pub(super) fn check(&self) -> Checked<()> {
        elements("the first input", self.a, self.n_elements)?;
        elements("the second input", self.b, self.n_elements)?;
        elements("the output", self.output, self.n_elements)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n_elements == 0
    }
}

impl UnaryCall {
    pub(super) fn check(&self) -> Checked<()> {
        elements("the input", self.input, self.n_elements)?;
        elements("the output", self.output, self.n_elements)?;
        finite("scalar", self.scalar).map(|_| ())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n_elements == 0
    }
}

impl RopeCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("head_dim", self.head_dim)?;
        at_least_1("n_heads", self.n_heads)?;
        head_widths(self.n_heads, self.head_dim)?;
        check_rope(self.rope, self.head_dim)?;
        matrix("the input", self.input, self.m, self.head_dim)?;
        matrix("positions", self.positions, self.m, 1)?;
        optional("the frequency factors", self.factors, self.rope.n_rot / 2)?;
        matrix("the output", self.output, self.m, self.head_dim)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl SoftMaxCall {
    pub(super) fn check(&self) -> Checked<()> {
        matrix("the input", self.input, self.rows, self.width)?;
        matrix("the output", self.output, self.rows, self.width)?;
        finite("the scale", self.scale).map(|_| ())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 || self.width == 0
    }
}

impl AttentionCall {
    pub(super) fn check(&self) -> Checked<()> {
        check_heads(self.heads)?;
        matrix("q", self.q, self.m, 1)?;
        match &self.kv {
            KvSource::Rows { k, v } => {
                matrix("k", *k, self.m, 1)?;
                matrix("v", *v, self.m, 1)?;
            }
            KvSource::Cache { cache, positions, sequences } => {
                cache.check(self.heads)?;
                matrix("positions", *positions, self.m, 1)?;
                optional("sequences", *sequences, self.m)?;
            }
        }
        if let Some((&work, max_chunks)) = self.rows.work() {
            matrix("the work list", work, max_chunks.saturating_add(1), 4)?;
        }
        matrix("the output", self.output, self.m, 1)?;
        optional("sinks", self.scores.sinks, self.m)?;
        self.scores.check()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl KvStoreCall {
    pub(super) fn check(&self) -> Checked<()> {
        check_heads(self.heads)?;
        matrix("k", self.k, self.m, 1)?;
        matrix("v", self.v, self.m, 1)?;
        self.cache.check(self.heads)?;
        matrix("positions", self.positions, self.m, 1)?;
        optional("sequences", self.sequences, self.m)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl RopeStoreCall {
    pub(super) fn check(&self) -> Checked<()> {
        self.store.check()?;
        let (heads, m) = (self.store.heads, self.store.m);
        check_rope(self.rope, heads.head_dim)?;
        epsilon(self.epsilon)?;
        matrix("q", self.q, m, 1)?;
        optional("the gain of q", self.q_gamma, heads.head_dim)?;
        optional("the gain of k", self.k_gamma, heads.head_dim)?;
        optional("the frequency factors", self.factors, self.rope.n_rot / 2)?;
        matrix("the output", self.output, m, 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.store.is_empty()
    }
}

impl CopyCall {
    pub(super) fn check(&self) -> Checked<()> {
        elements("the input", self.input, self.bytes)?;
        elements("the output", self.output, self.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl ArgMaxCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the width of the input", self.n)?;
        matrix("the input", self.input, self.m, self.n)?;
        matrix("the output", self.output, self.m, 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl TopKCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the width of the input", self.n)?;
        check_top_k(self.k)?;
        check_first_index(self.first, self.n)?;
        matrix("the input", self.input, self.m, self.n)?;
        matrix("the values", self.values, self.m, self.k)?;
        matrix("the indices", self.indices, self.m, self.k)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl SampleCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the width of the logits", self.n)?;
        matrix("the logits", self.logits, self.m, self.n)?;
        self.tokens.map_or(Ok(()), |tokens| matrix("the tokens", tokens, self.m, self.n))?;
        matrix("the sampling states", self.states, self.m, 1)?;
        matrix("the output", self.output, self.m, 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl PenalizeCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the width of the logits", self.n)?;
        matrix("the logits", self.logits, self.m, self.n)?;
        matrix("the penalties", self.penalties, self.m, 1)?;
        self.history.check()?;
        matrix("positions", self.positions, self.m, 1)?;
        optional("sequences", self.sequences, self.m)?;
        matrix("the output", self.output, self.m, self.n)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl GatherTokensCall {
    pub(super) fn check(&self) -> Checked<()> {
        self.history.check()?;
        matrix("positions", self.positions, self.m, 1)?;
        optional("sequences", self.sequences, self.m)?;
        matrix("the output", self.output, self.m, 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl LogitSlots {
    fn check(&self) -> Checked<()> {
        at_least_1("the number of sampling slots", self.n_slots)?;
        elements("the logit edits", self.edits_ptr, 1)?;
        elements("the token masks", self.masks_ptr, 1)
    }
}

impl MaskLogitsCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the width of the logits", self.n)?;
        matrix("the logits", self.logits, self.m, self.n)?;
        if !self.is_empty() {
            self.state.check()?;
        }
        if self.slots.is_none() {
            same("the number of sampling slots", self.m, self.state.n_slots)?;
        }
        optional("the sampling slots", self.slots, self.m)?;
        matrix("the output", self.output, self.m, self.n)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl LogProbsCall {
    pub(super) fn check(&self) -> Checked<()> {
        at_least_1("the width of the logits", self.n)?;
        check_top(self.top)?;
        matrix("the logits", self.logits, self.m, self.n)?;
        matrix("tokens", self.tokens, self.m, 1)?;
        matrix("the values", self.values, self.m, 1)?;
        matrix("the tokens of the values", self.indices, self.m, 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}

impl AdvanceCall {
    pub(super) fn check(&self) -> Checked<()> {
        matrix("the sampled tokens", self.drawn, self.m, 1)?;
        matrix("tokens", self.tokens, self.m, 1)?;
        matrix("positions", self.positions, self.m, 1)?;
        optional("sequences", self.sequences, self.m)?;
        self.history.check()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }
}
