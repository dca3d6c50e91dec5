//! Keys and values into a cache.

use bytemuck::{Pod, Zeroable};
use fulmen_core::KvStoreCall;

use super::Launched;
use super::kv::{Cache, Slots};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    k: u64,
    v: u64,
    cache: Cache,
    slots: Slots,
}

/// One warp a head, four a block.
pub(crate) fn launch(queue: &mut Queue, call: &KvStoreCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let cache = Cache::new(&call.cache, call.heads)?;
    let (slots, launched) = Slots::of_store(queue, call)?;
    let warps = 2 * u64::from(call.m) * u64::from(call.heads.n_kv_heads);
    let blocks = queue.blocks("kv_store", warps.div_ceil(4))?;
    let params = Params { k: call.k, v: call.v, cache, slots };
    queue.note_kv_store(call.cache.k_ptr);
    queue.launch(&Launch::new("kv_store", "kv_store", blocks, 128), &params)?;
    Ok(launched + 1)
}
