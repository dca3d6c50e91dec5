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

/// One block a row; heads in registers where they fit, else a head for each warp in shared memory, with the angles.
pub(crate) fn launch(queue: &mut Queue, call: &RopeStoreCall) -> Launched {
    let (store, heads) = (&call.store, call.store.heads);
    if store.m == 0 {
        return Ok(0);
    }
    let (entry, shared) = match heads.head_dim {
        64 if is_wide(call) => ("rope_store_64", 0),
        128 if is_wide(call) => ("rope_store_128", 0),
        head_dim => {
            ("rope_store", head_dim.saturating_mul(4 * WARPS).saturating_add(call.rope.n_rot / 2 * 8))
        }
    };
    if shared > queue.caps().shared_bytes {
        let what = format!("rope_store with heads of {}", heads.head_dim);
        return Err(BackendError::Unsupported { backend: BACKEND, what });
    }
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
    let blocks = queue.blocks(entry, store.m.into())?;
    let launch = Launch::new("rope_store", entry, blocks, 32 * WARPS).shared(shared);
    queue.note_kv_store(store.cache.k_ptr);
    queue.launch(&launch, &params)?;
    Ok(launched + 1)
}

/// Whether whole heads are turned, and lie at multiples of 16.
fn is_wide(call: &RopeStoreCall) -> bool {
    let store = &call.store;
    let gains = [call.q_gamma, call.k_gamma].map(|gamma| gamma.unwrap_or(0));
    let all = [call.q, store.k, store.v, call.output].into_iter().chain(gains);
    call.rope.n_rot == store.heads.head_dim && all.into_iter().all(|ptr| ptr.is_multiple_of(16))
}
