//! Fused q/k RMS norm, RoPE and KV store for prefill (`rope_store.cu`).

use fulmen_core::{BackendError, RopeStoreCall};

use super::Launched;
use super::kv::{KvCacheArgs, KvSlots};
use super::rope::RopeArgs;
use crate::BACKEND;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const WARPS: u32 = 8;

kernel_args! {
    file: "rope_store.cu";
    constants: [WARPS];

    struct RopeStoreArgs {
        q: DevicePtr,
        k: DevicePtr,
        v: DevicePtr,
        out: DevicePtr,
        q_gamma: DevicePtr,
        k_gamma: DevicePtr,
        cache: KvCacheArgs,
        slots: KvSlots,
        rope: RopeArgs,
        n_heads: u32,
        epsilon: f32,
    }
}

/// One block per row; heads in registers where they fit, else in shared memory, a head per warp and the
/// angles.
pub(crate) fn launch(queue: &mut Queue, call: &RopeStoreCall) -> Launched {
    let (store, heads) = (&call.store, call.store.heads);
    if store.m == 0 {
        return Ok(0);
    }
    let (entry, shared) = match heads.head_dim {
        64 if fits_registers(call) => ("rope_store_64", 0),
        128 if fits_registers(call) => ("rope_store_128", 0),
        head_dim => {
            ("rope_store", head_dim.saturating_mul(4 * WARPS).saturating_add(call.rope.n_rot / 2 * 8))
        }
    };
    if shared > queue.caps().shared_bytes {
        let what = format!("rope_store with heads of {}", heads.head_dim);
        return Err(BackendError::Unsupported { backend: BACKEND, what });
    }
    let cache = KvCacheArgs::new(&store.cache, heads)?;
    let (slots, launched) = KvSlots::of_store(queue, store)?;
    let args = RopeStoreArgs {
        q: call.q,
        k: store.k,
        v: store.v,
        out: call.output,
        q_gamma: call.q_gamma.unwrap_or(0),
        k_gamma: call.k_gamma.unwrap_or(0),
        cache,
        slots,
        rope: RopeArgs::new(call.rope, call.factors),
        n_heads: heads.n_heads,
        epsilon: call.epsilon,
    };
    let blocks = queue.blocks(entry, store.m.into())?;
    let launch = Launch::new("rope_store", entry, blocks, 32 * WARPS).shared(shared);
    queue.launch(&launch, &args)?;
    Ok(launched + 1)
}

/// Whether heads are rotated as a whole and every operand is 16-byte aligned.
fn fits_registers(call: &RopeStoreCall) -> bool {
    let store = &call.store;
    let gammas = [call.q_gamma, call.k_gamma].map(|gamma| gamma.unwrap_or(0));
    let all = [call.q, store.k, store.v, call.output].into_iter().chain(gammas);
    call.rope.n_rot == store.heads.head_dim && all.into_iter().all(|ptr| ptr.is_multiple_of(16))
}
