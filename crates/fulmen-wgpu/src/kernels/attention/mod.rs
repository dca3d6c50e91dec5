//! Causal grouped-query attention, among the rows of a batch or over a KV cache.
//!
//! - [`AttentionKernel::Decode`]: flash decoding, for decode and small batches, and for heads of any
//!   size. A workgroup computes the query heads of a row that share a KV head, over a chunk of the
//!   row's context; a second launch combines the chunks, and can also write the result as q8
//!   activations for the next matmul. For one row the first launch can also do per-head norm, RoPE and
//!   KV store ([`rope_store_attention`]).
//! - [`AttentionKernel::PrefillTiled`]: tiled flash attention in f32. A workgroup computes a head of 64
//!   rows, and reads keys and values once for all of them.
//! - [`AttentionKernel::PrefillCoop`]: the same on tensor cores (cooperative matrices), in f16.

mod decode;
mod fused_rope_store;
mod kv_reader;
mod prefill_coop;
mod prefill_tiled;
mod split_kv_reduce;

use fulmen_core::{Heads, Scores};

use self::fused_rope_store::FusedRopeStore;
use super::{
    KernelError, LaunchList,
    bind::{fits, invalid},
    kv::{Cache, KvStore, RopeStore},
    launch_list::product,
    matmul::FragmentOps,
};
use crate::kernel::Caps;

const OP: &str = "attention";

/// The most rows of [`AttentionKernel::BatchInvariant`] over a cache.
pub const BATCH_INVARIANT_ROWS: u32 = 64;

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvInput {
    /// Rows of the same batch, `[m, n_kv_heads · head_dim]` in f32: row `r` attends to rows 0 to `r`.
    Rows,
    /// A KV cache: row `r` attends to positions 0 to `positions[r]` of its sequence.
    Cache {
        /// The cache.
        cache: Cache,
        /// Rows have sequence numbers; otherwise all are of sequence 0.
        sequences: bool,
    },
}

/// The attention of some query rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Rows.
    pub m: u32,
    /// Heads.
    pub heads: Heads,
    /// What scores are, and the keys that a row sees; whether there are sinks.
    pub scores: Scores<()>,
    /// Keys and values.
    pub kv: KvInput,
}

/// An attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// Flash decoding.
    Decode,
    /// Flash decoding whose partition of the context depends on the position of a row alone, for up to
    /// [`BATCH_INVARIANT_ROWS`] rows over a cache.
    BatchInvariant,
    /// Tiled flash attention, 64 rows per tile; for head sizes that are a multiple of 32, up to 256.
    PrefillTiled,
    /// The same with 16 x 16 matrix fragments; for f16 and `Q8_0` caches and head sizes that are a
    /// multiple of 16, up to 128.
    PrefillCoop(FragmentOps),
}

/// Causal attention of each query row.
///
/// Input 0 is the queries, `[m, n_heads · head_dim]`; inputs 1 and 2 are the keys and values, rows or
/// the whole cache; over a cache, input 3 is the `m` positions, input 4 (if any) the `m` sequence
/// numbers and input 10 the page table; with sinks, input 11 is one f32 per query head. Output 0 is as
/// input 0; over a cache output 1 is the [record of faults](super::fault). A row whose position or
/// sequence is out of range is reported and gives zeros, as does a row whose scores are all -inf. A page
/// that is not in the pool is reported, and the results of the rows that see it are unspecified.
///
/// # Errors
/// [`KernelError`] where the heads do not fit the cache's type, or something is larger than a binding.
pub fn attention(spec: &Attention, caps: &Caps) -> Result<LaunchList, KernelError> {
    let shape = AttentionShape::new(spec, caps)?;
    attention_by(prefill_kernel(&shape, caps).unwrap_or(AttentionKernel::Decode), spec, caps)
}

/// The prefill kernel, if there are enough rows and one supports the heads.
fn prefill_kernel(shape: &AttentionShape, caps: &Caps) -> Option<AttentionKernel> {
    if !prefill_tiled::pays_off(shape) {
        None
    } else if prefill_coop::fits(shape, FragmentOps::CooperativeMatrix, caps) {
        Some(AttentionKernel::PrefillCoop(FragmentOps::CooperativeMatrix))
    } else {
        prefill_tiled::fits(shape, caps).then_some(AttentionKernel::PrefillTiled)
    }
}

/// As [`attention`], with the result also as q8 activations for a quantized matmul: output 2, of
/// [`q8_bytes`](super::qmatmul::q8_bytes) bytes, bit-identical to what a separate launch would
/// write. `None` where the last launch cannot write them.
///
/// # Errors
/// As [`attention`].
pub fn attention_with_q8(spec: &Attention, caps: &Caps) -> Result<Option<LaunchList>, KernelError> {
    let shape = AttentionShape::new(spec, caps)?;
    let empty = spec.m == 0 || spec.heads.n_heads == 0;
    if empty || prefill_kernel(&shape, caps).is_some() {
        return Ok(None);
    }
    decode::plan_with_q8(&shape, caps)
}

/// Per-head norm, RoPE and KV store of one row, and then attention over the cache, in two launches.
/// `None` where no kernel fuses them: then use [`rope_store`](super::kv::rope_store), and [`attention`]
/// of its result.
///
/// Input 0 is the queries, 3 the position, 4 (if any) the sequence number; inputs 5 and 6 are key and
/// value of the row, 7 and 8 (if any) the gains of the queries' and the key's norm, 9 (if any) the
/// frequency factors, 10 the page table. Output 0 is the result, 1 the [record of
/// faults](super::fault), 2 the result as q8 activations, as in [`attention_with_q8`], where heads are
/// multiples of 32 elements; 3 and 4 are the cache. With `keep_queries`, output 5 gets the rotated
/// queries, and may be the memory of input 0. A row whose position or sequence is out of range is
/// reported, stores and rotates nothing, and gives zeros; of a row whose page is not in the pool
/// nothing is stored.
///
/// # Errors
/// As [`attention`], and where the rotation does not fit the heads.
pub fn rope_store_attention(
    spec: &RopeStore,
    scale: f32,
    keep_queries: bool,
    caps: &Caps,
) -> Result<Option<LaunchList>, KernelError> {
    let KvStore { m, heads, cache, sequences } = spec.store;
    let kv = KvInput::Cache { cache, sequences };
    let shape = AttentionShape::new(&Attention { m, heads, scores: scale.into(), kv }, caps)?;
    if m != 1 || heads.n_heads == 0 {
        return Ok(None);
    }
    decode::plan_fused(&shape, FusedRopeStore { spec, keep_queries }, caps)
}

/// [`attention`] with a specific kernel.
///
/// # Errors
/// As [`attention`], and where the kernel does not support such heads.
pub fn attention_by(
    kernel: AttentionKernel,
    spec: &Attention,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    let shape = AttentionShape::new(spec, caps)?;
    if spec.m == 0 || spec.heads.n_heads == 0 {
        return Ok(LaunchList::default());
    }
    match kernel {
        AttentionKernel::Decode => decode::launch_list(&shape, caps),
        AttentionKernel::BatchInvariant => decode::batch_invariant(&shape, caps),
        AttentionKernel::PrefillTiled => prefill_tiled::launch_list(&shape, caps),
        AttentionKernel::PrefillCoop(fragment_ops) => prefill_coop::launch_list(&shape, fragment_ops, caps),
    }
}

/// The checked dimensions of the work.
struct AttentionShape {
    m: u32,
    heads: Heads,
    scores: Scores<()>,
    kv: KvInput,
    /// Query heads per KV head.
    group: u32,
    /// Bytes of the queries, and of the output.
    q_bytes: u64,
    /// Bytes of the keys, and of the values.
    kv_bytes: u64,
    /// The longest possible context of a row.
    capacity: u32,
}

impl AttentionShape {
    fn new(spec: &Attention, caps: &Caps) -> Result<Self, KernelError> {
        let Attention { m, heads, scores, kv } = *spec;
        let Heads { n_heads, n_kv_heads, head_dim } = heads;
        let (kv_bytes, capacity) = match kv {
            KvInput::Cache { cache, .. } => (cache.bytes(OP, heads, caps)?, cache.capacity()),
            KvInput::Rows => {
                if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) || head_dim == 0 {
                    let reason =
                        format!("{n_heads} heads of {head_dim} cannot share {n_kv_heads} heads of keys");
                    return Err(invalid(OP, reason));
                }
                (product(OP, "the keys", &[m.into(), n_kv_heads.into(), head_dim.into(), 4])?, m)
            }
        };
        let q_bytes = product(OP, "the queries", &[m.into(), n_heads.into(), head_dim.into(), 4])?;
        fits(OP, "the queries", q_bytes, caps)?;
        let group = n_heads / n_kv_heads;
        Ok(Self { m, heads, scores, kv, group, q_bytes, kv_bytes, capacity })
    }
}
