//! Decode attention over a KV cache, with f16 and Q8_0 fused with the q/k RMS norm, RoPE and the KV store
//! (`attention_decode.cu`, `attention_decode_q8_0.cu`, `attention_decode_f32.cu`,
//! `attention_decode_other_dims.cu`, and `*_scores.cu` with score modifiers: windows, capping, temperature
//! and sinks): 1 to 16 rows of one sequence, a decode batch of up to 1024 rows, or the decode rows of a mixed
//! step.

use bytemuck::Zeroable;
use fulmen_core::{
    ActivationForm, AttentionCall, AttentionRows, BackendError, DType, KvCache, KvSource, RopeStoreCall,
};

use super::attention_scores::ScoreArgs;
use super::f16_fragments::{F16Fragments, K_ORDERS, padded_rows};
use super::rope::RopeArgs;
use super::{Launched, apart, f16_panels, q8_activations};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Warps of a block on devices with thread block clusters, and without.
const CLUSTER_WARPS: u32 = 8;
const AMPERE_WARPS: u32 = 4;

/// Positions of a tile.
const TILE: u32 = 16;

/// Most query heads of a block; more are divided among blocks.
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
        rows: u32,
        partials: DevicePtr,
        rotated: DevicePtr,
        work: DevicePtr,
        panel_rows: u32,
        panel_order: u32,
        scores: ScoreArgs,
    }
}

/// Most rows of one sequence: with more, the prefill kernels are faster, as rows share keys and values there.
const MAX_ROWS: u32 = 16;

/// Most rows of a decode batch.
const MAX_BATCH: u32 = 1024;

/// Most rows with the fused store, unless there are clusters and the call says that its rows decode, so that
/// hardly any two are of one sequence: each row stores what the rows of its sequence before it do, too.
const MAX_FUSED_STORE_ROWS: u32 = 32;

/// Upper bound of the kernel's static shared memory.
const STATIC_SHARED: u32 = 14 << 10;

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
        && (attention.m <= MAX_FUSED_STORE_ROWS
            || (attention.rows == AttentionRows::Decode && caps.has_clusters()))
        && attention.rows.work().is_none()
        && attention.kv == same
        && attention.heads == store.heads
        && attention.q == rope_store.output
        && rope.n_rot == store.heads.head_dim
        && store.cache.dtype != DType::F32
        && LaunchConfig::new(caps, attention).is_some_and(LaunchConfig::keeps_queries)
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

/// Whether the kernel supports an attention: of a mixed step, its decode rows.
pub(super) fn supports(caps: Caps, call: &AttentionCall) -> bool {
    let KvSource::Cache { cache, sequences, .. } = call.kv else { return false };
    let heads = call.heads;
    let Some(config) = LaunchConfig::new(caps, call) else { return false };
    let max_rows = match call.rows {
        AttentionRows::Decode => MAX_BATCH,
        AttentionRows::Mixed { .. } => u32::MAX,
        AttentionRows::Prefill => MAX_ROWS,
        // Rows are a decode batch if each can have a sequence of its own. That is a guess by size, as
        // sequence numbers are in device memory; the kernel is right for any rows.
        AttentionRows::Any if sequences.is_some() => cache.n_seqs.clamp(MAX_ROWS, MAX_BATCH),
        AttentionRows::Any => MAX_ROWS,
    };
    (1..=max_rows).contains(&call.m)
        && heads.n_kv_heads > 0
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && config.shared() + STATIC_SHARED <= caps.shared_bytes
}

/// Whether the kernel can write its output in this form for the next matmul: where each block finishes a
/// multiple of 32 elements.
pub(crate) fn forwards(caps: Caps, call: &AttentionCall, activation: &ActivationForm) -> bool {
    forwarded_forms(caps, call).iter().any(|form| form.activation() == activation)
}

/// A form that the kernel can write.
#[derive(Clone, Copy, Debug)]
enum ForwardedForm {
    Q8(ActivationForm),
    Fragments(ActivationForm),
    Panels(ActivationForm, u32),
}

impl ForwardedForm {
    fn activation(&self) -> &ActivationForm {
        match self {
            ForwardedForm::Q8(form) | ForwardedForm::Fragments(form) | ForwardedForm::Panels(form, _) => form,
        }
    }
}

/// The forms that the kernel can write.
fn forwarded_forms(caps: Caps, call: &AttentionCall) -> Vec<ForwardedForm> {
    let Some(config) = LaunchConfig::new(caps, call).filter(|_| supports(caps, call)) else {
        return Vec::new();
    };
    if config.mixed || config.parts > 1 {
        return Vec::new();
    }
    let (heads, m, width) = (call.heads, call.m, call.heads.q_width());
    let slices = if config.clustered { config.splits } else { 1 };
    if !(width / heads.n_kv_heads).is_multiple_of(32 * slices) {
        return Vec::new();
    }
    if config.single_row {
        let q8 = q8_activations::can_forward(width).then(|| q8_activations::form(call.output, width));
        return q8.map(ForwardedForm::Q8).into_iter().collect();
    }
    if !config.clustered {
        return Vec::new();
    }
    let fragments = F16Fragments::scaled(call.output, m, width).map(ForwardedForm::Fragments);
    let panels = f16_panels::PANEL_ORDERS.into_iter().filter_map(|order| {
        let orders = f16_panels::PanelOrders::of([order].into_iter())?;
        Some(ForwardedForm::Panels(f16_panels::scaled_form(call.output, m, width, orders)?, order))
    });
    fragments.into_iter().chain(panels).collect()
}

/// The launch and the arguments of an attention alone.
fn args(queue: &Queue, call: &AttentionCall) -> Option<(LaunchConfig, AttentionDecodeArgs)> {
    let KvSource::Cache { cache, positions, sequences } = call.kv else { return None };
    let (heads, caps) = (call.heads, queue.caps());
    let config = LaunchConfig::new(caps, call).filter(|_| supports(caps, call))?;
    let args = AttentionDecodeArgs {
        q: call.q,
        positions,
        sequences: sequences.unwrap_or(0),
        pages: cache.table_ptr,
        k_cache: cache.k_ptr,
        v_cache: cache.v_ptr,
        out: call.output,
        fault: queue.fault(),
        scale: call.scores.scale,
        n_heads: heads.n_heads,
        n_kv_heads: heads.n_kv_heads,
        capacity: cache.capacity(),
        n_seqs: cache.n_seqs,
        n_pages: cache.n_pages,
        rows: call.m,
        work: call.rows.work().map_or(0, |(&work, _)| work),
        scores: call.scores().into(),
        ..AttentionDecodeArgs::zeroed()
    };
    Some((config, args))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaunchConfig {
    /// Blocks per row and KV head: a cluster, if the device has them. Every device that has them supports
    /// clusters of 8.
    splits: u32,
    /// Blocks among which the query heads of a KV head are divided.
    parts: u32,
    clustered: bool,
    warps: u32,
    /// Tiles in a warp's ring.
    stages: u32,
    single_row: bool,
    mixed: bool,
    /// Rows of the grid.
    rows: u32,
    head_dim: u32,
    /// Of the cache: F32, F16 or Q8_0.
    dtype: DType,
    /// Whether the scores have more than a scale.
    scores: bool,
    /// Most query heads of a block.
    heads: u32,
}

impl LaunchConfig {
    /// A single row has a kernel of its own. With more rows: the largest cluster whose grid has at most
    /// SMs / 2 blocks; if none, 1. Measured, this is faster than a block for each SM. Without clusters, where
    /// the next kernel cannot start on the other SMs, a block for each. `None` if there is no kernel for the
    /// cache.
    ///
    /// How many rows of a mixed step decode is not known, so its blocks fill the device and take one row
    /// after the other, two blocks a row and KV head.
    fn new(caps: Caps, call: &AttentionCall) -> Option<LaunchConfig> {
        let KvSource::Cache { cache: KvCache { dtype, .. }, .. } = call.kv else { return None };
        let (heads, mixed) = (call.heads, call.rows.work().is_some());
        let (clustered, head_dim) = (caps.has_clusters(), heads.head_dim);
        let group = heads.n_heads.checked_div(heads.n_kv_heads)?;
        let parts = group.div_ceil(MAX_GROUP).max(1);
        // No kernels of their own for a single row and for mixed steps.
        let cluster_entries_only = !matches!(head_dim, 64 | 128 | 256) || dtype == DType::F32;
        let single_row = call.m == 1 && !mixed && !cluster_entries_only && parts == 1;
        let stages = match (dtype, head_dim) {
            _ if cluster_entries_only && mixed => return None,
            (DType::F16, 64 | 128) if single_row => 2,
            (DType::F16, 128) if clustered => 3,
            (DType::F16, 128) => 2,
            (DType::F16, 64 | 80) => 4,
            (DType::F16, 96) => 3,
            (DType::F16, 256) if clustered => 3,
            (DType::F32, 64 | 128) => 2 + u32::from(clustered),
            (DType::Q8_0, 96 | 128) => 4,
            (DType::Q8_0, 64) => 6,
            _ => return None,
        };
        let warps = match (dtype, head_dim) {
            (DType::F16, 256) => CLUSTER_WARPS / 2,
            (DType::F32, 128) if clustered => CLUSTER_WARPS / 2,
            (DType::F32, 128) => AMPERE_WARPS / 2,
            _ if clustered => CLUSTER_WARPS,
            _ => AMPERE_WARPS,
        };
        let blocks = u64::from(if clustered { caps.multiprocessors / 2 } else { caps.multiprocessors });
        let groups = u64::from(call.m).saturating_mul(heads.n_kv_heads.into()).saturating_mul(parts.into());
        let fits = |&splits: &u32| single_row || groups.saturating_mul(splits.into()) <= blocks;
        let splits = match (mixed, clustered) {
            (true, true) => 2,
            (true, false) => 1,
            _ => [8, 4, 2].iter().copied().find(fits).unwrap_or(1),
        };
        let row_blocks = splits.saturating_mul(heads.n_kv_heads).saturating_mul(parts);
        let at_once = caps.multiprocessors.checked_div(row_blocks).unwrap_or(1).max(1);
        let rows = if mixed { call.m.min(at_once) } else { call.m };
        Some(LaunchConfig {
            splits,
            parts,
            clustered,
            warps,
            stages,
            single_row,
            mixed,
            rows,
            head_dim,
            dtype,
            scores: !call.scores().is_plain(),
            heads: group.div_ceil(parts),
        })
    }

    /// Bytes of dynamic shared memory: the rings of keys and values, which the partial outputs of the warps
    /// reuse.
    fn shared(self) -> u32 {
        let tile = match self.dtype {
            // Values, then scales.
            DType::Q8_0 => TILE * (self.head_dim + self.head_dim / 32 * 2),
            DType::F32 => TILE * self.head_dim * 4,
            _ => TILE * self.head_dim * 2,
        };
        let rings = self.warps * self.stages * (2 * tile).next_multiple_of(128);
        let partials = self.warps * MAX_GROUP * self.head_dim * 4;
        rings.max(partials)
    }

    /// Whether each warp has one query of the block at most, which it keeps for the fused store.
    fn keeps_queries(self) -> bool {
        !self.clustered || self.heads <= self.warps
    }

    /// Whether a second kernel combines the blocks of a row and KV head.
    fn combines(self) -> bool {
        !self.clustered && self.splits > 1
    }

    /// What the names of the kernels for this type of cache begin with.
    fn name(self) -> &'static str {
        match (self.dtype, self.scores) {
            (DType::Q8_0, false) => "attention_decode_q8_0",
            (DType::Q8_0, true) => "attention_decode_q8_0_scores",
            (DType::F32, false) => "attention_decode_f32",
            (DType::F32, true) => "attention_decode_f32_scores",
            (_, false) => "attention_decode",
            (_, true) => "attention_decode_scores",
        }
    }

    /// The kernel file.
    fn file(self) -> &'static str {
        match (self.head_dim, self.scores) {
            (64 | 128, _) => self.name(),
            (_, false) => "attention_decode_other_dims",
            (_, true) => "attention_decode_other_dims_scores",
        }
    }

    fn entry(self) -> String {
        let (name, head_dim) = (self.name(), self.head_dim);
        if self.single_row {
            format!("{name}_{head_dim}_single_row")
        } else if self.mixed {
            format!("{name}_{head_dim}_mixed")
        } else {
            format!("{name}_{head_dim}_cluster{}", self.splits)
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
    // Blocks of a row, but for splits.
    let parts = u64::from(config.parts) * u64::from(args.n_kv_heads);
    let blocks = queue.blocks(&entry, u64::from(config.splits) * parts)?;
    let width = call.heads.q_width();
    args.splits = config.splits;
    if config.combines() {
        let outputs = call.m as usize * width as usize;
        let partial = (MAX_GROUP * (head_dim + 2)) as usize;
        let partials = call.m as usize * parts as usize * config.splits as usize * partial;
        args.rotated = queue.scratch((outputs + partials) * size_of::<f32>())?;
        args.partials = args.rotated + (outputs * size_of::<f32>()) as u64;
    }
    for form in forwarded_forms(queue.caps(), call) {
        let Some(at) = forwarding.output(form.activation()) else { continue };
        match form {
            ForwardedForm::Q8(_) => args.out_q8 = at,
            ForwardedForm::Fragments(_) => {
                let rows = padded_rows(call.m).unwrap_or(call.m);
                let f16 = F16Fragments::at(at, rows, width);
                (args.out_f16, args.out_f16_scales) = (f16.fragments, f16.row_scales);
            }
            ForwardedForm::Panels(_, order) => {
                let rows = f16_panels::padded_rows(call.m).unwrap_or(call.m);
                (args.out_f16[0], args.out_f16_scales) = (at + f16_panels::after_row_scales(rows), at);
                (args.panel_rows, args.panel_order) = (rows, order);
            }
        }
    }
    let mut launch = Launch::new(config.file(), &entry, blocks, 32 * config.warps)
        .rows(config.rows)
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
    let file = if matches!(head_dim, 64 | 128) { "attention_decode" } else { "attention_decode_other_dims" };
    let threads = 32 * AMPERE_WARPS;
    let blocks = queue.blocks(&entry, width.div_ceil(threads).into())?;
    Ok(queue.launch(&Launch::new(file, &entry, blocks, threads).rows(rows), args)?)
}

#[cfg(test)]
mod tests {
    use fulmen_core::Heads;

    use super::*;

    /// An attention over a cache of 64 sequences.
    fn call(m: u32, n_kv_heads: u32, head_dim: u32, dtype: DType, rows: AttentionRows) -> AttentionCall {
        let heads = Heads { n_heads: n_kv_heads, n_kv_heads, head_dim };
        let (k_ptr, v_ptr, table_ptr) = (1 << 20, 1 << 21, 1 << 19);
        let cache = KvCache { k_ptr, v_ptr, dtype, n_pages: 64, table_ptr, n_seqs: 64, seq_pages: 8 };
        let kv = KvSource::Cache { cache, positions: 128, sequences: Some(144) };
        AttentionCall {
            q: 80,
            kv,
            output: 96,
            m,
            heads,
            rows,
            scores: 1.0.into(),
            layer: 0,
            batch_invariant: false,
        }
    }

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
            let call = call(rows, kv_heads, 128, DType::F16, AttentionRows::Any);
            let cluster = LaunchConfig::new(caps, &call).unwrap().splits;
            let blocks = u64::from(rows) * u64::from(kv_heads) * u64::from(cluster);
            assert_eq!((cluster, blocks), expected, "{rows} rows of {kv_heads} on {multiprocessors}");
        }
    }

    #[test]
    fn rings_fit_shared_memory_and_keep_enough_bytes_in_flight() {
        let shapes = [64, 80, 96, 128, 256].into_iter().flat_map(|head_dim| [(head_dim, 1), (head_dim, 2)]);
        let dtypes = [DType::F16, DType::Q8_0, DType::F32];
        for ((head_dim, rows), dtype) in shapes.flat_map(|shape| dtypes.map(|dtype| (shape, dtype))) {
            let call = call(rows, 8, head_dim, dtype, AttentionRows::Any);
            let Some(config) = LaunchConfig::new(H200, &call) else {
                assert!(dtype != DType::F16 && matches!(head_dim, 80 | 96 | 256), "{dtype} {head_dim}");
                continue;
            };
            // The shared memory of an H100, and what each multiprocessor must have in flight.
            assert!(config.shared() + STATIC_SHARED <= 227 << 10, "{config:?}");
            assert!(config.shared() >= 64 << 10, "{config:?}");
            let ampere = Caps { capability: 86, multiprocessors: 82, ..H200 };
            let Some(config) = LaunchConfig::new(ampere, &call) else {
                assert_eq!(head_dim, 256);
                continue;
            };
            assert!(config.shared() + STATIC_SHARED <= 99 << 10, "{config:?}");
            assert!(config.shared() >= 32 << 10 && !config.clustered, "{config:?}");
        }
    }

    #[test]
    fn many_query_heads_are_divided_among_blocks() {
        // Query heads of one KV head and dims of a head: parts, and whether a single row has its own kernel.
        for (n_heads, head_dim, parts, single_row) in
            [(8, 128, 1, true), (9, 128, 2, false), (17, 64, 3, false), (71, 64, 9, false), (8, 96, 1, false)]
        {
            let mut call = call(1, 1, head_dim, DType::F16, AttentionRows::Any);
            call.heads.n_heads = n_heads;
            let config = LaunchConfig::new(H200, &call).unwrap();
            assert_eq!((config.parts, config.single_row), (parts, single_row), "{n_heads}");
        }
    }

    #[test]
    fn what_is_known_of_the_rows_decides_where_their_number_does_not() {
        let mixed = AttentionRows::Mixed { work: 4096, max_chunks: 4 };
        // Rows, what is known of them, and whether and by how many blocks they are decoded.
        let table = [
            (64, AttentionRows::Any, Some(1)),
            (65, AttentionRows::Any, None),
            (65, AttentionRows::Decode, Some(1)),
            (1024, AttentionRows::Decode, Some(1)),
            (1025, AttentionRows::Decode, None),
            (16, AttentionRows::Prefill, Some(1)),
            (17, AttentionRows::Prefill, None),
            (1, mixed, Some(2)),
            (4096, mixed, Some(2)),
        ];
        for (m, rows, expected) in table {
            let call = call(m, 8, 128, DType::F16, rows);
            let splits = supports(H200, &call).then(|| LaunchConfig::new(H200, &call).unwrap().splits);
            assert_eq!(splits, expected, "{m} rows, {rows:?}");
        }
        let config = LaunchConfig::new(H200, &call(1, 8, 128, DType::F16, mixed)).unwrap();
        assert!(!config.single_row && config.rows == 1);
        let config = LaunchConfig::new(H200, &call(512, 8, 128, DType::F16, mixed)).unwrap();
        assert_eq!((config.rows, config.entry().as_str()), (8, "attention_decode_128_mixed"));
        assert!(forwarded_forms(H200, &call(8, 8, 128, DType::F16, mixed)).is_empty());
    }
}
