//! Attention among rows and over a cache.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{AttentionCall, BackendError, DType, KvSource};

use super::kv::{Slots, head_bytes};
use super::{Launched, attention_prefill, attention_step, type_name};
use crate::BACKEND;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Params {
    q: u64,
    out: u64,
    partials: u64,
    k: u64,
    v: u64,
    slots: Slots,
    seq_bytes: u64,
    head_bytes: u64,
    pos_bytes: u64,
    n_seqs: u32,
    capacity: u32,
    n_heads: u32,
    group: u32,
    head_dim: u32,
    parts: u32,
    scale: f32,
    unused: u32,
}

const THREADS: u32 = 128;

/// Positions that are worth a part of their own.
const PART: u32 = 128;

/// Parts of a row's context at most.
const MOST_PARTS: u32 = 64;

/// Elements of a head that a lane holds: the kernels that there are.
const PER_LANE: [u32; 5] = [1, 2, 4, 8, 16];

pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Launched {
    if let Some(launched) = attention_step::launch(queue, call) {
        return launched;
    }
    if let Some(launched) = attention_prefill::launch(queue, call) {
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
    let (mut params, dtype) = source(queue, call)?;
    // Enough blocks for every multiprocessor, of parts that are not too short.
    let wanted = u64::from(4 * queue.caps().multiprocessors).div_ceil(queries);
    let parts = u64::from(params.capacity.div_ceil(PART)).min(wanted).clamp(1, MOST_PARTS.into());
    params.parts = u32::try_from(parts).unwrap_or(1);
    if params.parts > 1 {
        let floats = queries as usize * params.parts as usize * (heads.head_dim as usize + 2);
        params.partials = queue.scratch(floats * size_of::<f32>())?;
    }
    let entry = format!("attention_{}_{per_lane}", type_name(dtype));
    let launch = Launch::new("attention", &entry, blocks, THREADS).rows(params.parts);
    queue.launch(&launch, &params)?;
    if params.parts == 1 {
        return Ok(1);
    }
    queue.launch(&Launch::new("attention", "attention_combine", blocks, THREADS), &params)?;
    Ok(2)
}

/// Where keys and values lie, and their type.
pub(super) fn source(queue: &Queue, call: &AttentionCall) -> Result<(Params, DType), BackendError> {
    let heads = call.heads;
    let mut params = Params {
        q: call.q,
        out: call.output,
        slots: Slots { fault: queue.fault(), m: call.m, ..Slots::zeroed() },
        n_heads: heads.n_heads,
        group: heads.n_heads / heads.n_kv_heads.max(1),
        head_dim: heads.head_dim,
        scale: call.scale,
        ..Params::zeroed()
    };
    match call.kv {
        KvSource::Rows { k, v } => {
            (params.k, params.v) = (k, v);
            (params.n_seqs, params.capacity) = (1, call.m);
            params.head_bytes = 4 * u64::from(heads.head_dim);
            params.pos_bytes = 4 * u64::from(heads.kv_width());
            Ok((params, DType::F32))
        }
        KvSource::Cache { cache, positions, sequences } => {
            (params.k, params.v) = (cache.k_ptr, cache.v_ptr);
            (params.slots.positions, params.slots.sequences) = (positions, sequences.unwrap_or(0));
            (params.n_seqs, params.capacity) = (cache.n_seqs, cache.capacity);
            params.pos_bytes = head_bytes(cache.dtype, heads.head_dim)?.into();
            params.head_bytes = params.pos_bytes * u64::from(cache.capacity);
            params.seq_bytes = params.head_bytes * u64::from(heads.n_kv_heads);
            Ok((params, cache.dtype))
        }
    }
}
