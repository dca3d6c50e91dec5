//! The bytes and operations of a call, for rooflines, and its name in profiles.

use super::OpCall;
use super::Scores;
use super::call::*;
use crate::DType;

/// The arithmetic and the memory traffic of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations; a multiplication and an addition count as two.
    pub flops: u64,
    /// Bytes that must be read or written, each operand once.
    pub bytes: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.flops = self.flops.saturating_add(other.flops);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Work>>(iter: I) -> Work {
        iter.fold(Work::default(), |mut total, work| {
            total += work;
            total
        })
    }
}

/// How much of a KV cache a run reads. The calls do not say, because the positions are in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Positions that are read, over all sequences; rows of one sequence share what they read.
    pub positions: u64,
    /// Pairs of a row and a position that it sees.
    pub pairs: u64,
}

impl CacheUse {
    /// Decode: each row is the last of a sequence of this length.
    pub fn of_steps(lengths: impl IntoIterator<Item = u64>) -> CacheUse {
        let positions = lengths.into_iter().fold(0, u64::saturating_add);
        CacheUse { positions, pairs: positions }
    }

    /// Prefill: the rows from `first` to `end` of one sequence.
    pub fn of_rows(first: u64, end: u64) -> CacheUse {
        let rows = end.saturating_sub(first);
        // The sum of first + 1, …, end.
        let pairs = u128::from(rows) * (u128::from(first) + 1 + u128::from(end)) / 2;
        CacheUse { positions: end, pairs: u64::try_from(pairs).unwrap_or(u64::MAX) }
    }

    /// The same for `rows` rows of which none sees more than `most` positions: those of a sliding window or a
    /// chunk. Positions are those of a decode batch; rows of one sequence share some of them.
    fn within(self, most: Option<u32>, rows: u32) -> CacheUse {
        let Some(most) = most else { return self };
        let pairs = self.pairs.min(product(&[rows, most]));
        CacheUse { positions: self.positions.min(pairs), pairs }
    }
}

fn product(factors: &[u32]) -> u64 {
    factors.iter().fold(1, |product: u64, &factor| product.saturating_mul(factor.into()))
}

/// Bytes of `rows` rows of `width` elements.
fn rows(dtype: DType, width: u32, rows: u64) -> u64 {
    let row = dtype.bytes(width as usize).map_or(u64::MAX, |bytes| bytes as u64);
    rows.saturating_mul(row)
}

fn weight(weight: &WeightArg, k: u32) -> u64 {
    rows(weight.dtype, k, weight.rows.into())
}

/// Work of `moved` f32 values that are read or written, with one operation for each of `elements`.
fn floats(moved: u64, elements: u64) -> Work {
    Work { flops: elements, bytes: moved.saturating_mul(4) }
}

impl EmbedCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let read = rows(self.table.dtype, self.width, self.m.into());
        Work { flops: 0, bytes: read.saturating_add(4 * product(&[self.m, self.width])) }
    }
}

impl MulMatCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let mut work = Work { flops: 0, bytes: 4 * product(&[self.m, self.k]) };
        for part in &self.parts {
            let n = part.weight.rows;
            let results = product(&[self.m, n]);
            let bias = if part.bias.is_some() { 4 * u64::from(n) } else { 0 };
            let bytes = weight(&part.weight, self.k).saturating_add(4 * results + bias);
            work += Work { flops: product(&[2, self.m, self.k, n]), bytes };
        }
        if let (Some(_), Some(part)) = (self.residual, self.parts.first()) {
            work += floats(product(&[self.m, part.weight.rows]), 0);
        }
        work
    }
}

impl GateUpCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let weights = weight(&self.gate, self.k).saturating_add(weight(&self.up, self.k));
        let moved = product(&[self.m, self.k]) + product(&[self.m, self.gate.rows]);
        let flops = product(&[4, self.m, self.k, self.gate.rows]);
        Work { flops, bytes: weights.saturating_add(4 * moved) }
    }
}

impl RmsNormCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.rows, self.width]);
        floats(2 * elements + u64::from(self.width), elements)
    }
}

impl AddRmsNormCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.rows, self.width]);
        floats(4 * elements + u64::from(self.width), elements)
    }
}

impl BinaryCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = self.n_elements as u64;
        floats(elements.saturating_mul(3), elements)
    }
}

impl UnaryCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = self.n_elements as u64;
        floats(elements.saturating_mul(2), elements)
    }
}

impl RopeCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.m, self.n_heads, self.head_dim]);
        floats(2 * elements, elements)
    }
}

impl SoftMaxCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.rows, self.width]);
        floats(2 * elements, elements)
    }
}

/// Pairs of a row and one of the `m` rows that it sees; with a window in chunks the larger number of both.
fn pairs_among_rows(scores: &Scores, m: u32) -> u64 {
    let m = u64::from(m);
    // The first rows see fewer keys than the window has.
    let of_window = |window: u64| m * window - window * window.saturating_sub(1) / 2;
    let up_to = |rows: u64| rows * (rows + 1) / 2;
    let window = scores.window.map(|window| of_window(m.min(window.into())));
    let chunk = scores.chunk.map(|chunk| u64::from(chunk.max(1)));
    let chunk = chunk.map(|chunk| m / chunk * up_to(chunk) + up_to(m % chunk));
    window.into_iter().chain(chunk).min().unwrap_or(up_to(m))
}

impl AttentionCall {
    pub(super) fn work(&self, cache_use: CacheUse) -> Work {
        let (q, kv) = (self.heads.q_width(), self.heads.kv_width());
        let (read, pairs) = match &self.kv {
            KvSource::Rows { .. } => (8 * product(&[self.m, kv]), pairs_among_rows(&self.scores, self.m)),
            KvSource::Cache { cache, .. } => {
                let row = rows(cache.dtype, self.heads.head_dim, self.heads.n_kv_heads.into());
                let CacheUse { positions, pairs } = cache_use.within(self.scores.most_visible(), self.m);
                (positions.saturating_mul(2).saturating_mul(row), pairs)
            }
        };
        let flops = pairs.saturating_mul(4).saturating_mul(q.into());
        Work { flops, bytes: read.saturating_add(8 * product(&[self.m, q])) }
    }
}

impl KvStoreCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = 2 * product(&[self.m, self.heads.kv_width()]);
        let heads = 2 * product(&[self.m, self.heads.n_kv_heads]);
        let written = rows(self.cache.dtype, self.heads.head_dim, heads);
        Work { flops: elements, bytes: written.saturating_add(4 * elements) }
    }
}

impl RopeStoreCall {
    pub(super) fn work(&self, cache_use: CacheUse) -> Work {
        let queries = product(&[self.store.m, self.store.heads.q_width()]);
        let mut work = self.store.work(cache_use);
        work += floats(2 * queries, queries);
        work
    }
}

impl CopyCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        Work { flops: 0, bytes: (self.bytes as u64).saturating_mul(2) }
    }
}

impl ArgMaxCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.m, self.n]);
        floats(elements, elements)
    }
}

impl TopKCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.m, self.n]);
        floats(elements.saturating_add(2 * product(&[self.m, self.k])), elements)
    }
}

impl SampleCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.m, self.n]);
        floats(elements, elements)
    }
}

impl PenalizeCall {
    pub(super) fn work(&self, cache_use: CacheUse) -> Work {
        let elements = product(&[self.m, self.n]);
        floats((2 * elements).saturating_add(cache_use.positions), elements)
    }
}

impl GatherTokensCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        floats(4 * u64::from(self.m), 0)
    }
}

impl MaskLogitsCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.m, self.n]);
        let edits = product(&[self.m, self.n.div_ceil(32).saturating_add(self.state.edit_words())]);
        floats((2 * elements).saturating_add(edits), elements)
    }
}

impl LogProbsCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = product(&[self.m, self.n]);
        floats(elements.saturating_add(2 * product(&[self.m, self.top.saturating_add(1)])), elements)
    }
}

impl AdvanceCall {
    pub(super) fn work(&self, _: CacheUse) -> Work {
        floats(5 * u64::from(self.m), 0)
    }
}

impl OpCall {
    /// The op, with the shapes and types of its weights: `MulMat 2560x9728 Q4_K`.
    pub fn label(&self) -> String {
        let weight = |w: &WeightArg, k: u32| format!("{}x{k} {}", w.rows, w.dtype);
        let detail = match self {
            OpCall::MulMat(call) => {
                call.parts.iter().map(|part| weight(&part.weight, call.k)).collect::<Vec<_>>().join(" + ")
            }
            OpCall::GateUp(call) => weight(&call.gate, call.k),
            OpCall::ExpertGateUp(call) => {
                format!("{}/{} of {}x{} {}", call.top, call.n_experts, call.n(), call.k, call.gate.dtype)
            }
            OpCall::ExpertDown(call) => {
                format!("{}/{} of {}x{} {}", call.top, call.n_experts, call.n(), call.k, call.down.dtype)
            }
            OpCall::Embed(call) => weight(&call.table, call.width),
            _ => return self.op().to_string(),
        };
        format!("{} {detail}", self.op())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttentionRows, Heads, KvCache};

    #[test]
    fn rows_are_paired_with_those_that_they_see() {
        for (window, chunk) in
            [(None, None), (Some(3), None), (None, Some(4)), (Some(40), None), (None, Some(1))]
        {
            let scores = Scores::<u64> { window, chunk, ..1.0.into() };
            for m in [0, 1, 2, 7, 8, 33] {
                let seen: u64 = (0..m).map(|row| u64::from(row + 1 - scores.first_visible(row))).sum();
                assert_eq!(pairs_among_rows(&scores, m), seen, "{scores:?} of {m} rows");
            }
        }
    }

    #[test]
    fn a_matmul_reads_its_weights_once() {
        let part = Projection {
            weight: WeightArg { ptr: 1, dtype: DType::Q4_K, rows: 512 },
            bias: Some(2),
            output: 3,
        };
        let call = OpCall::MulMat(MulMatCall {
            input: 4,
            parts: vec![part; 2],
            residual: None,
            m: 3,
            k: 256,
            batch_invariant: false,
        });
        let work = call.work(CacheUse::default());
        assert_eq!(work.flops, 2 * 2 * 3 * 256 * 512);
        assert_eq!(work.bytes, 2 * (512 * 144 + 4 * 3 * 512 + 4 * 512) + 4 * 3 * 256);
        assert_eq!(call.label(), "MulMat 512x256 Q4_K + 512x256 Q4_K");
    }

    #[test]
    fn attention_reads_the_used_part_of_a_cache() {
        let heads = Heads { n_heads: 8, n_kv_heads: 2, head_dim: 64 };
        let (dtype, n_seqs, seq_pages) = (DType::F16, 2, 32);
        let cache = KvCache { k_ptr: 1, v_ptr: 2, dtype, n_pages: 64, table_ptr: 7, n_seqs, seq_pages };
        let (kv, rows) =
            (KvSource::Cache { cache, positions: 3, sequences: Some(4) }, AttentionRows::default());
        let call = OpCall::Attention(AttentionCall {
            q: 5,
            kv,
            output: 6,
            m: 2,
            heads,
            rows,
            scores: 1.0.into(),
            layer: 0,
            batch_invariant: false,
        });
        let work = call.work(CacheUse::of_steps([100, 50]));
        assert_eq!(work.bytes, 2 * 150 * 2 * 64 * 2 + 8 * 2 * 512);
        assert_eq!(work.flops, 4 * 150 * 512);
        // Rows 10, 11 and 12 of a sequence see 11, 12 and 13 positions and share them.
        assert_eq!(CacheUse::of_rows(10, 13), CacheUse { positions: 13, pairs: 36 });
    }

    #[test]
    fn no_size_overflows() {
        let call = OpCall::ArgMax(ArgMaxCall { input: 1, output: 2, m: u32::MAX, n: u32::MAX });
        assert_eq!(call.work(CacheUse::default()).bytes, u64::MAX);
        assert_eq!(CacheUse::of_rows(0, u64::MAX).pairs, u64::MAX);
    }
}
