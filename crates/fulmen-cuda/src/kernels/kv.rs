//! What the kernels of a cache share: mirrors `kv.cuh`.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BackendError, DType, Heads, KvCache, KvStoreCall};

use crate::BACKEND;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Cache {
    k: u64,
    v: u64,
    dtype: u32,
    n_seqs: u32,
    capacity: u32,
    n_kv_heads: u32,
    head_dim: u32,
    head_bytes: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Slots {
    pub(super) positions: u64,
    pub(super) sequences: u64,
    pub(super) superseded: u64,
    pub(super) fault: u64,
    pub(super) m: u32,
    pub(super) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SupersededParams {
    slots: Slots,
    out: u64,
}

/// Rows that a warp looks through by itself for a later row of the same place.
const LOOKED_THROUGH: u32 = 128;

/// Bytes of one head at one position.
pub(super) fn head_bytes(dtype: DType, head_dim: u32) -> Result<u32, BackendError> {
    let bytes = dtype.bytes(head_dim as usize).ok().and_then(|bytes| u32::try_from(bytes).ok());
    let what = || format!("a cache of {dtype} with heads of {head_dim}");
    bytes.ok_or_else(|| BackendError::Unsupported { backend: BACKEND, what: what() })
}

impl Cache {
    pub(super) fn new(cache: &KvCache, heads: Heads) -> Result<Cache, BackendError> {
        let dtype = match cache.dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Q8_0 => 2,
            other => {
                let what = format!("a cache of {other}");
                return Err(BackendError::Unsupported { backend: BACKEND, what });
            }
        };
        Ok(Cache {
            k: cache.k_ptr,
            v: cache.v_ptr,
            dtype,
            n_seqs: cache.n_seqs,
            capacity: cache.capacity,
            n_kv_heads: heads.n_kv_heads,
            head_dim: heads.head_dim,
            head_bytes: head_bytes(cache.dtype, heads.head_dim)?,
        })
    }
}

impl Slots {
    /// The places of a store's rows. For a large batch a kernel finds out first which rows a later one supersedes; how
    /// many were launched comes with it.
    pub(super) fn of_store(queue: &mut Queue, call: &KvStoreCall) -> Result<(Slots, usize), BackendError> {
        let slots = Slots {
            positions: call.positions,
            sequences: call.sequences.unwrap_or(0),
            superseded: 0,
            fault: queue.fault(),
            m: call.m,
            unused: 0,
        };
        if call.m <= LOOKED_THROUGH {
            return Ok((slots, 0));
        }
        let out = queue.scratch(call.m as usize * size_of::<u32>())?;
        let blocks = queue.blocks("kv_store", u64::from(call.m).div_ceil(4))?;
        queue
            .launch(&Launch::new("kv_store", "superseded", blocks, 128), &SupersededParams { slots, out })?;
        Ok((Slots { superseded: out, ..slots }, 1))
    }
}
