//! Norm per head, rotation and store.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BackendError, RopeStoreCall};

use super::Launched;
use super::kv::{Cache, Slots};
use super::rope::Rotation;
use crate::BACKEND;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    q_gamma: u64,
    k_gamma: u64,
    cache: Cache,
    slots: Slots,
    rope: Rotation,
    n_heads: u32,
    epsilon: f32,
}

const WARPS: u32 = 8;

/// One block a row, with its angles and a head for each warp in shared memory.
pub(crate) fn launch(queue: &mut Queue, call: &RopeStoreCall) -> Launched {
    let (store, heads) = (&call.store, call.store.heads);
    if store.m == 0 {
        return Ok(0);
    }
    let shared = u64::from(heads.head_dim) * 4 * u64::from(WARPS) + u64::from(call.rope.n_rot / 2) * 8;
    let shared = u32::try_from(shared).ok().filter(|&bytes| bytes <= queue.caps().shared_bytes);
    let shared = shared.ok_or_else(|| BackendError::Unsupported {
        backend: BACKEND,
        what: format!("rope_store with heads of {}", heads.head_dim),
    })?;
    let cache = Cache::new(&store.cache, heads)?;
    let (slots, launched) = Slots::of_store(queue, store)?;
    let params = Params {
        q: call.q,
        k: store.k,
        v: store.v,
        out: call.output,
        q_gamma: call.q_gamma.unwrap_or(0),
        k_gamma: call.k_gamma.unwrap_or(0),
        cache,
        slots,
        rope: Rotation::new(call.rope, call.factors),
        n_heads: heads.n_heads,
        epsilon: call.epsilon,
    };
    let blocks = queue.blocks("rope_store", store.m.into())?;
    let launch = Launch::new("rope_store", "rope_store", blocks, 32 * WARPS).shared(shared);
    queue.stores(store.cache.k_ptr);
    queue.launch(&launch, &params)?;
    Ok(launched + 1)
}
