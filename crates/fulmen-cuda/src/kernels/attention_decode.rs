//! Decode attention over an f16 or Q8_0 KV cache, fused with the q/k RMS norm, RoPE and the KV store
//! (`attention_decode.cu`, `attention_decode_q8_0.cu`): 1 to 16 rows of one sequence, or a decode batch of up
//! to 1024 rows (32 with the fused store).

use bytemuck::Zeroable;
use fulmen_core::{ActivationForm, AttentionCall, BackendError, DType, Heads, KvSource, RopeStoreCall};

use super::f16_fragments::{F16Fragments, K_ORDERS};
use super::rope::RopeArgs;
use super::{Launched, apart, q8_activations, q8_rows};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Warps of a block on devices with thread block clusters, and without.
const CLUSTER_WARPS: u32 = 8;
const AMPERE_WARPS: u32 = 4;

/// Positions of a tile.
const TILE: u32 = 16;

/// Most query heads per KV head.
const MAX_GROUP: u32 = 8;

kernel_args! {
    file: "attention_decode_block.cuh";
    constants: [CLUSTER_WARPS, AMPERE_WARPS, TILE, MAX_GROUP];

    struct AttentionDecodeArgs {
        q: DevicePtr,
        k: DevicePtr,
        v: DevicePtr,
        q_gamma: DevicePtr,
        k_gamma: DevicePtr,
        positions: DevicePtr,
        sequences: DevicePtr,
        pages: DevicePtr,
        k_cache: DevicePtr,
        v_cache: DevicePtr,
        q_out: DevicePtr,
        out: DevicePtr,
        out_q8: DevicePtr,
        out_f16: [DevicePtr; K_ORDERS],
        out_f16_scales: DevicePtr,
        fault: DevicePtr,
        rope: RopeArgs,
        epsilon: f32,
        scale: f32,
        n_heads: u32,
        n_kv_heads: u32,
        capacity: u32,
        n_seqs: u32,
        fused_store: u32,
        splits: u32,
        n_pages: u32,
        unused: u32,
        partials: DevicePtr,
        rotated: DevicePtr,
    }
}

/// Most rows of one sequence: with more, the prefill kernels are faster, as rows share keys and values there.
const MAX_ROWS: u32 = 16;

/// Most rows of a decode batch.
const MAX_BATCH: u32 = 1024;

/// Most rows with the fused store: one warp of the kernel compares the slots of all of them.
const MAX_FUSED_STORE_ROWS: u32 = 32;

/// Upper bound of the kernel's static shared memory.
const STATIC_SHARED: u32 = 9 << 10;

/// Launches the call if this kernel supports it.
pub(crate) fn launch(
    queue: &mut Queue,
    call: &AttentionCall,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    let launch = args(queue, call)?;
    Some(run(queue, call, launch, forwarding))
}

/// Whether both calls can be one kernel: the attention reads what the store writes, and overwrites nothing
/// that the store reads, which other blocks may still need. The kernel reads the cache before the previous
/// kernels have finished, so none of them may write it.
pub(crate) fn fuses_store(caps: Caps, rope_store: &RopeStoreCall, attention: &AttentionCall) -> bool {
    let (store, rope) = (&rope_store.store, rope_store.rope);
    let same = KvSource::Cache { cache: store.cache, positions: store.positions, sequences: store.sequences };
    attention.m == store.m
        && attention.m <= MAX_FUSED_STORE_ROWS
        && attention.kv == same
        && attention.heads == store.heads
        && attention.q == rope_store.output
        && rope.n_rot == store.heads.head_dim
        && all_apart(rope_store, attention)
        && supports(caps, attention)
}

/// Launches both calls as one kernel if it supports them; see [`fuses_store`].
pub(crate) fn launch_with_store(
    queue: &mut Queue,
    rope_store: &RopeStoreCall,
    attention: &AttentionCall,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    if !fuses_store(queue.caps(), rope_store, attention) {
        return None;
    }
    let (store, (config, args)) = (&rope_store.store, args(queue, attention)?);
    let args = AttentionDecodeArgs {
        q: rope_store.q,
        k: store.k,
        v: store.v,
        q_gamma: rope_store.q_gamma.unwrap_or(0),
        k_gamma: rope_store.k_gamma.unwrap_or(0),
        q_out: rope_store.output,
        rope: RopeArgs::new(rope_store.rope, rope_store.factors),
        epsilon: rope_store.epsilon,
        fused_store: 1,
        ..args
    };
    Some(run(queue, attention, (config, args), forwarding))
}

/// Whether the inputs of the store, the rotated queries and the output of the attention do not overlap.
fn all_apart(rope_store: &RopeStoreCall, attention: &AttentionCall) -> bool {
    let bytes = |width: u32| u64::from(attention.m) * u64::from(width) * 4;
    let (q, kv) = (bytes(attention.heads.q_width()), bytes(attention.heads.kv_width()));
    let inputs = [(rope_store.q, q), (rope_store.store.k, kv), (rope_store.store.v, kv)];
    let (rotated, out) = ((rope_store.output, q), (attention.output, q));
    // Queries may be rotated in place.
    inputs.iter().all(|&input| apart(input, out) && (input == rotated || apart(input, rotated)))
        && apart(rotated, out)
}

/// Whether the kernel supports an attention.
fn supports(caps: Caps, call: &AttentionCall) -> bool {
    let KvSource::Cache { cache, sequences, .. } = call.kv else { return false };
    let heads = call.heads;
    let Some(config) = LaunchConfig::new(caps, call.m, heads, cache.dtype) else { return false };
    // Rows are a decode batch if each can have a sequence of its own. That is a guess by size, as sequence
    // numbers are in device memory; the kernel is right for any rows.
    let max_rows = if sequences.is_some() { cache.n_seqs.clamp(MAX_ROWS, MAX_BATCH) } else { MAX_ROWS };
    (1..=max_rows).contains(&call.m)
        && heads.n_kv_heads > 0
        && heads.n_heads / heads.n_kv_heads <= MAX_GROUP
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && config.shared() + STATIC_SHARED <= caps.shared_bytes
}

/// Whether the kernel can write its output in this form for the next matmul: where each block finishes a
/// multiple of 32 elements.
pub(crate) fn forwards(caps: Caps, call: &AttentionCall, activation: &ActivationForm) -> bool {
    forwarded_forms(caps, call).contains(&Some(*activation))
}

/// The q8 and the f16 form that the kernel can write.
fn forwarded_forms(caps: Caps, call: &AttentionCall) -> [Option<ActivationForm>; 2] {
    let KvSource::Cache { cache, .. } = call.kv else { return [None; 2] };
    if !supports(caps, call) {
        return [None; 2];
    }
    let (heads, m, width) = (call.heads, call.m, call.heads.q_width());
    let Some(config) = LaunchConfig::new(caps, m, heads, cache.dtype) else { return [None; 2] };
    let slices = if config.clustered { config.splits } else { 1 };
    if !(width / heads.n_kv_heads).is_multiple_of(32 * slices) {
        return [None; 2];
    }
    if config.single_row {
        let q8 = q8_activations::can_forward(width);
        return [q8.then(|| q8_activations::form(call.output, width)), None];
    }
    let q8 = config.clustered && q8_rows::can_forward(m, width);
    let f16 = config.clustered && F16Fragments::can_forward(m, width);
    [
        q8.then(|| q8_rows::form(call.output, m, width)),
        f16.then(|| F16Fragments::scaled(call.output, m, width)),
    ]
}

/// The launch and the arguments of an attention alone.
fn args(queue: &Queue, call: &AttentionCall) -> Option<(LaunchConfig, AttentionDecodeArgs)> {
    let KvSource::Cache { cache, positions, sequences } = call.kv else { return None };
    let (heads, caps) = (call.heads, queue.caps());
    let config = LaunchConfig::new(caps, call.m, heads, cache.dtype).filter(|_| supports(caps, call))?;
    let args = AttentionDecodeArgs {
        q: call.q,
        positions,
        sequences: sequences.unwrap_or(0),
        pages: cache.table_ptr,
        k_cache: cache.k_ptr,
        v_cache: cache.v_ptr,
        out: call.output,
        fault: queue.fault(),
        scale: call.scale,
        n_heads: heads.n_heads,
        n_kv_heads: heads.n_kv_heads,
        capacity: cache.capacity(),
        n_seqs: cache.n_seqs,
        n_pages: cache.n_pages,
        ..AttentionDecodeArgs::zeroed()
    };
    Some((config, args))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaunchConfig {
    /// Blocks per row and KV head: a cluster, if the device has them. Every device that has them supports
    /// clusters of 8.
    splits: u32,
    clustered: bool,
    warps: u32,
    /// Tiles in a warp's ring.
    stages: u32,
    single_row: bool,
    head_dim: u32,
    /// Of the cache: F16 or Q8_0.
    dtype: DType,
}

impl LaunchConfig {
    /// A single row has a kernel of its own. With more rows: the largest cluster whose grid has at most
    /// SMs / 2 blocks; if none, 1. Measured, this is faster than a block for each SM. Without clusters, where
    /// the next kernel cannot start on the other SMs, a block for each. `None` if there is no kernel for the
    /// cache.
    fn new(caps: Caps, rows: u32, heads: Heads, dtype: DType) -> Option<LaunchConfig> {
        let (clustered, single_row, head_dim) = (caps.has_clusters(), rows == 1, heads.head_dim);
        let warps = if clustered { CLUSTER_WARPS } else { AMPERE_WARPS };
        let stages = match (dtype, head_dim) {
            (DType::F16, 64 | 128) if single_row => 2,
            (DType::F16, 128) if clustered => 3,
            (DType::F16, 128) => 2,
            (DType::F16, 64) => 4,
            (DType::Q8_0, 128) => 4,
            (DType::Q8_0, 64) => 6,
            _ => return None,
        };
        let blocks = u64::from(if clustered { caps.multiprocessors / 2 } else { caps.multiprocessors });
        let groups = u64::from(rows) * u64::from(heads.n_kv_heads);
        let fits = |&splits: &u32| single_row || groups * u64::from(splits) <= blocks;
        let splits = [8, 4, 2].iter().copied().find(fits).unwrap_or(1);
        Some(LaunchConfig { splits, clustered, warps, stages, single_row, head_dim, dtype })
    }

    /// Bytes of dynamic shared memory: the rings of keys and values, which the partial outputs of the warps
    /// reuse.
    fn shared(self) -> u32 {
        let tile = match self.dtype {
            // Values, then scales.
            DType::Q8_0 => TILE * (self.head_dim + self.head_dim / 32 * 2),
            _ => TILE * self.head_dim * 2,
        };
        let rings = self.warps * self.stages * (2 * tile).next_multiple_of(128);
        let partials = self.warps * MAX_GROUP * self.head_dim * 4;
        rings.max(partials)
    }

    /// Whether a second kernel combines the blocks of a row and KV head.
    fn combines(self) -> bool {
        !self.clustered && self.splits > 1
    }

    /// The kernel file.
    fn file(self) -> &'static str {
        if self.dtype == DType::Q8_0 { "attention_decode_q8_0" } else { "attention_decode" }
    }

    fn entry(self) -> String {
        let (file, head_dim) = (self.file(), self.head_dim);
        if self.single_row {
            format!("{file}_{head_dim}_single_row")
        } else {
            format!("{file}_{head_dim}_cluster{}", self.splits)
        }
    }
}

fn run(
    queue: &mut Queue,
    call: &AttentionCall,
    (config, mut args): (LaunchConfig, AttentionDecodeArgs),
    forwarding: &Forwarding<'_>,
) -> Launched {
    let head_dim = config.head_dim;
    let entry = config.entry();
    let blocks = queue.blocks(&entry, u64::from(config.splits) * u64::from(args.n_kv_heads))?;
    let width = call.heads.q_width();
    args.splits = config.splits;
    if config.combines() {
        let outputs = call.m as usize * width as usize;
        let partial = (MAX_GROUP * (head_dim + 2)) as usize;
        let partials = call.m as usize * args.n_kv_heads as usize * config.splits as usize * partial;
        args.rotated = queue.scratch((outputs + partials) * size_of::<f32>())?;
        args.partials = args.rotated + (outputs * size_of::<f32>()) as u64;
    }
    let [q8, f16] =
        forwarded_forms(queue.caps(), call).map(|form| form.and_then(|form| forwarding.output(&form)));
    args.out_q8 = q8.unwrap_or(0);
    if let Some(at) = f16 {
        let f16 = F16Fragments::at(at, call.m, width);
        (args.out_f16, args.out_f16_scales) = (f16.fragments, f16.row_scales);
    }
    let mut launch = Launch::new(config.file(), &entry, blocks, 32 * config.warps)
        .rows(call.m)
        .shared(config.shared());
    launch.cluster = if config.clustered { config.splits } else { 1 };
    queue.launch(&launch, &args)?;
    if config.combines() {
        combine(queue, &args, head_dim, width, call.m)?;
    }
    Ok(if config.combines() { 2 } else { 1 })
}

/// Launches the kernel that combines the blocks of each row and KV head: one element per thread.
fn combine(
    queue: &mut Queue,
    args: &AttentionDecodeArgs,
    head_dim: u32,
    width: u32,
    rows: u32,
) -> Result<(), BackendError> {
    let entry = format!("attention_decode_combine_{head_dim}");
    let threads = 32 * AMPERE_WARPS;
    let blocks = queue.blocks(&entry, width.div_ceil(threads).into())?;
    Ok(queue.launch(&Launch::new("attention_decode", &entry, blocks, threads).rows(rows), args)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 227 << 10, l2_bytes: 50 << 20 };

    #[test]
    fn clusters_shrink_with_more_rows() {
        // Rows, KV heads and multiprocessors; blocks of a cluster and of the grid.
        let table = [
            ((1, 8, 132), (8, 64)),
            ((1, 32, 132), (8, 256)),
            ((2, 8, 132), (4, 64)),
            ((3, 8, 132), (2, 48)),
            ((4, 8, 132), (2, 64)),
            ((5, 8, 132), (1, 40)),
            ((8, 8, 132), (1, 64)),
            ((16, 8, 132), (1, 128)),
            ((4, 2, 132), (8, 64)),
            ((16, 2, 132), (2, 64)),
            ((16, 32, 132), (1, 512)),
            ((2, 8, 114), (2, 32)),
            ((2, u32::MAX, 132), (1, 2 * u64::from(u32::MAX))),
        ];
        for ((rows, kv_heads, multiprocessors), expected) in table {
            let caps = Caps { multiprocessors, ..H200 };
            let heads = Heads { n_heads: kv_heads, n_kv_heads: kv_heads, head_dim: 128 };
            let cluster = LaunchConfig::new(caps, rows, heads, DType::F16).unwrap().splits;
            let blocks = u64::from(rows) * u64::from(kv_heads) * u64::from(cluster);
            assert_eq!((cluster, blocks), expected, "{rows} rows of {kv_heads} on {multiprocessors}");
        }
    }

    #[test]
    fn rings_fit_shared_memory_and_keep_enough_bytes_in_flight() {
        let shapes = [(64, 1), (64, 2), (128, 1), (128, 2)];
        for ((head_dim, rows), dtype) in
            shapes.into_iter().flat_map(|shape| [(shape, DType::F16), (shape, DType::Q8_0)])
        {
            let heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim };
            let config = LaunchConfig::new(H200, rows, heads, dtype).unwrap();
            // The shared memory of an H100, and what each multiprocessor must have in flight.
            assert!(config.shared() + STATIC_SHARED <= 227 << 10, "{config:?}");
            assert!(config.shared() >= 64 << 10, "{config:?}");
            let ampere = Caps { capability: 86, multiprocessors: 82, ..H200 };
            let config = LaunchConfig::new(ampere, rows, heads, dtype).unwrap();
            assert!(config.shared() + STATIC_SHARED <= 99 << 10, "{config:?}");
            assert!(config.shared() >= 32 << 10 && !config.clustered, "{config:?}");
        }
    }
}
