//! Attention: chooses between the decode, prefill and generic kernels, and launches the generic one
//! (`attention_generic.cu`).

use bytemuck::Zeroable;
use fulmen_core::{AttentionCall, BackendError, DType, KvSource};

use super::kv::{KV_PAGE, KvSlots, head_bytes};
use super::{Launched, attention_decode, attention_prefill, type_name};
use crate::BACKEND;
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "attention_args.cuh";

    pub(super) struct AttentionArgs {
        q: DevicePtr,
        out: DevicePtr,
        partials: DevicePtr,
        k: DevicePtr,
        v: DevicePtr,
        pages: DevicePtr,
        slots: KvSlots,
        page_bytes: u64,
        head_bytes: u64,
        pos_bytes: u64,
        n_pages: u32,
        n_seqs: u32,
        capacity: u32,
        n_heads: u32,
        group: u32,
        head_dim: u32,
        splits: u32,
        scale: f32,
        work: DevicePtr,
        max_chunks: u32,
        unused: u32,
    }
}

const THREADS: u32 = 128;

/// Shortest split of the positions.
const MIN_SPLIT: u32 = 128;

const MAX_SPLITS: u32 = 64;

/// Elements of a head per lane: the kernels that exist.
const PER_LANE: [u32; 5] = [1, 2, 4, 8, 16];

pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Launched {
    launch_planned(queue, call, &Forwarding::default())
}

/// Forwards the output of the call.
pub(crate) fn launch_planned(
    queue: &mut Queue,
    call: &AttentionCall,
    forwarding: &Forwarding<'_>,
) -> Launched {
    if call.rows.work().is_some() {
        // A mixed step: a launch for its decode rows and one for its chunks.
        if attention_decode::supports(queue.caps(), call) && attention_prefill::supports(queue.caps(), call) {
            let launches =
                [attention_decode::launch(queue, call, forwarding), attention_prefill::launch(queue, call)];
            return launches.into_iter().flatten().sum();
        }
    } else if let Some(launched) = attention_decode::launch(queue, call, forwarding) {
        return launched;
    } else if let Some(launched) = attention_prefill::launch(queue, call) {
        return launched;
    }
    let (heads, m) = (call.heads, call.m);
    if m == 0 {
        return Ok(0);
    }
    let per_lane = PER_LANE.into_iter().find(|per_lane| heads.head_dim <= 32 * per_lane);
    let per_lane = per_lane.ok_or_else(|| BackendError::Unsupported {
        backend: BACKEND,
        what: format!("attention with heads of {}", heads.head_dim),
    })?;
    let queries = u64::from(m) * u64::from(heads.n_heads);
    let blocks = queue.blocks("attention", queries)?;
    let (mut args, dtype) = args(queue, call)?;
    // Enough blocks to fill the device, with splits that are not too short.
    let wanted = u64::from(4 * queue.caps().multiprocessors).div_ceil(queries);
    let splits = u64::from(args.capacity.div_ceil(MIN_SPLIT)).min(wanted).clamp(1, MAX_SPLITS.into());
    args.splits = u32::try_from(splits).unwrap_or(1);
    if args.splits > 1 {
        let n_floats = queries as usize * args.splits as usize * (heads.head_dim as usize + 2);
        args.partials = queue.scratch(n_floats * size_of::<f32>())?;
    }
    let entry = format!("attention_{}_{per_lane}", type_name(dtype));
    let launch = Launch::new("attention_generic", &entry, blocks, THREADS).rows(args.splits);
    queue.launch(&launch, &args)?;
    if args.splits == 1 {
        return Ok(1);
    }
    queue.launch(&Launch::new("attention_generic", "attention_combine", blocks, THREADS), &args)?;
    Ok(2)
}

/// The arguments of a call, without splits, and the type of its keys and values.
pub(super) fn args(queue: &Queue, call: &AttentionCall) -> Result<(AttentionArgs, DType), BackendError> {
    let heads = call.heads;
    let mut args = AttentionArgs {
        q: call.q,
        out: call.output,
        slots: KvSlots { fault: queue.fault(), m: call.m, ..KvSlots::zeroed() },
        n_heads: heads.n_heads,
        group: heads.n_heads / heads.n_kv_heads.max(1),
        head_dim: heads.head_dim,
        scale: call.scale,
        ..AttentionArgs::zeroed()
    };
    if let Some((&work, max_chunks)) = call.rows.work() {
        (args.work, args.max_chunks) = (work, max_chunks);
    }
    match call.kv {
        KvSource::Rows { k, v } => {
            (args.k, args.v) = (k, v);
            (args.n_seqs, args.capacity) = (1, call.m);
            args.head_bytes = 4 * u64::from(heads.head_dim);
            args.pos_bytes = 4 * u64::from(heads.kv_width());
            Ok((args, DType::F32))
        }
        KvSource::Cache { cache, positions, sequences } => {
            (args.k, args.v) = (cache.k_ptr, cache.v_ptr);
            (args.slots.positions, args.slots.sequences) = (positions, sequences.unwrap_or(0));
            (args.pages, args.n_pages) = (cache.table_ptr, cache.n_pages);
            (args.n_seqs, args.capacity) = (cache.n_seqs, cache.capacity());
            args.head_bytes = head_bytes(cache.dtype, heads)?.into();
            args.page_bytes = args.head_bytes * u64::from(heads.n_kv_heads);
            args.pos_bytes = match cache.dtype {
                // The scales are behind the values of all positions.
                DType::Q8_0 => heads.head_dim.into(),
                _ => args.head_bytes / u64::from(KV_PAGE),
            };
            Ok((args, cache.dtype))
        }
    }
}
