//! The bytes and operations of a call, for rooflines, and its name in profiles.

use super::{AttentionCall, KvSource, KvStoreCall, OpCall, WeightArg};
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

fn attention(call: &AttentionCall, cache_use: CacheUse) -> Work {
    let (q, kv, m) = (call.heads.q_width(), call.heads.kv_width(), u64::from(call.m));
    let (read, pairs) = match &call.kv {
        KvSource::Rows { .. } => (8 * product(&[call.m, kv]), m * (m + 1) / 2),
        KvSource::Cache { cache, .. } => {
            let row = rows(cache.dtype, call.heads.head_dim, call.heads.n_kv_heads.into());
            (cache_use.positions.saturating_mul(2).saturating_mul(row), cache_use.pairs)
        }
    };
    let flops = pairs.saturating_mul(4).saturating_mul(q.into());
    Work { flops, bytes: read.saturating_add(8 * product(&[call.m, q])) }
}

fn store(call: &KvStoreCall) -> Work {
    let elements = 2 * product(&[call.m, call.heads.kv_width()]);
    let heads = 2 * product(&[call.m, call.heads.n_kv_heads]);
    let written = rows(call.cache.dtype, call.heads.head_dim, heads);
    Work { flops: elements, bytes: written.saturating_add(4 * elements) }
}

impl OpCall {
    /// The work of the call: each operand read and each result written once. Of an embedding table only the
    /// selected rows are read, of a KV cache what `cache_use` says.
    pub fn work(&self, cache_use: CacheUse) -> Work {
        match self {
            OpCall::Embed(call) => {
                let read = rows(call.table.dtype, call.width, call.m.into());
                Work { flops: 0, bytes: read.saturating_add(4 * product(&[call.m, call.width])) }
            }
            OpCall::MulMat(call) => {
                let mut work = Work { flops: 0, bytes: 4 * product(&[call.m, call.k]) };
                for part in &call.parts {
                    let n = part.weight.rows;
                    let results = product(&[call.m, n]);
                    let bias = if part.bias.is_some() { 4 * u64::from(n) } else { 0 };
                    let bytes = weight(&part.weight, call.k).saturating_add(4 * results + bias);
                    work += Work { flops: product(&[2, call.m, call.k, n]), bytes };
                }
                if let (Some(_), Some(part)) = (call.residual, call.parts.first()) {
                    work += floats(product(&[call.m, part.weight.rows]), 0);
                }
                work
            }
            OpCall::GateUp(call) => {
                let weights = weight(&call.gate, call.k).saturating_add(weight(&call.up, call.k));
                let moved = product(&[call.m, call.k]) + product(&[call.m, call.gate.rows]);
                let flops = product(&[4, call.m, call.k, call.gate.rows]);
                Work { flops, bytes: weights.saturating_add(4 * moved) }
            }
            OpCall::RmsNorm(call) => {
                let elements = product(&[call.rows, call.width]);
                floats(2 * elements + u64::from(call.width), elements)
            }
            OpCall::AddRmsNorm(call) => {
                let elements = product(&[call.rows, call.width]);
                floats(4 * elements + u64::from(call.width), elements)
            }
            OpCall::Add(call) | OpCall::Mul(call) | OpCall::SwiGlu(call) => {
                let elements = call.n_elements as u64;
                floats(elements.saturating_mul(3), elements)
            }
            OpCall::Silu(call)
            | OpCall::Gelu(call)
            | OpCall::GeluTanh(call)
            | OpCall::Scale(call)
            | OpCall::SoftCap(call) => {
                let elements = call.n_elements as u64;
                floats(elements.saturating_mul(2), elements)
            }
            OpCall::Rope(call) => {
                let elements = product(&[call.m, call.n_heads, call.head_dim]);
                floats(2 * elements, elements)
            }
            OpCall::SoftMax(call) => {
                let elements = product(&[call.rows, call.width]);
                floats(2 * elements, elements)
            }
            OpCall::Attention(call) => attention(call, cache_use),
            OpCall::KvStore(call) => store(call),
            OpCall::RopeStore(call) => {
                let queries = product(&[call.store.m, call.store.heads.q_width()]);
                let mut work = store(&call.store);
                work += floats(2 * queries, queries);
                work
            }
            OpCall::Copy(call) => Work { flops: 0, bytes: (call.bytes as u64).saturating_mul(2) },
            OpCall::ArgMax(call) => {
                let elements = product(&[call.m, call.n]);
                floats(elements, elements)
            }
            OpCall::Sample(call) => {
                let elements = product(&[call.m, call.n]);
                floats(elements, elements)
            }
            OpCall::Penalize(call) => {
                let elements = product(&[call.m, call.n]);
                floats((2 * elements).saturating_add(cache_use.positions), elements)
            }
            OpCall::Advance(call) => floats(5 * u64::from(call.m), 0),
        }
    }

    /// The op, with the shapes and types of its weights: `MulMat 2560x9728 Q4_K`.
    pub fn label(&self) -> String {
        let weight = |w: &WeightArg, k: u32| format!("{}x{k} {}", w.rows, w.dtype);
        let detail = match self {
            OpCall::MulMat(call) => {
                call.parts.iter().map(|part| weight(&part.weight, call.k)).collect::<Vec<_>>().join(" + ")
            }
            OpCall::GateUp(call) => weight(&call.gate, call.k),
            OpCall::Embed(call) => weight(&call.table, call.width),
            _ => return self.op().to_string(),
        };
        format!("{} {detail}", self.op())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArgMaxCall, Heads, KvCache, MulMatCall, Projection};

    #[test]
    fn a_matmul_reads_its_weights_once() {
        let part = Projection {
            weight: WeightArg { ptr: 1, dtype: DType::Q4_K, rows: 512 },
            bias: Some(2),
            output: 3,
        };
        let call =
            OpCall::MulMat(MulMatCall { input: 4, parts: vec![part; 2], residual: None, m: 3, k: 256 });
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
        let kv = KvSource::Cache { cache, positions: 3, sequences: Some(4) };
        let call =
            OpCall::Attention(AttentionCall { q: 5, kv, output: 6, m: 2, heads, scale: 1.0, layer: 0 });
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
