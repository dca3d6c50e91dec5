//! Stores keys and values in the KV cache (`kv_store.cu`).

use fulmen_core::KvStoreCall;

use super::Launched;
use super::kv::{KvCacheArgs, KvSlots};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "kv_store.cu";

    struct KvStoreArgs {
        k: DevicePtr,
        v: DevicePtr,
        cache: KvCacheArgs,
        slots: KvSlots,
    }

    pub(super) struct SupersededArgs {
        pub(super) slots: KvSlots,
        pub(super) out: DevicePtr,
    }
}

/// One warp per head, four per block.
pub(crate) fn launch(queue: &mut Queue, call: &KvStoreCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let cache = KvCacheArgs::new(&call.cache, call.heads)?;
    let (slots, launched) = KvSlots::of_store(queue, call)?;
    let warps = 2 * u64::from(call.m) * u64::from(call.heads.n_kv_heads);
    let blocks = queue.blocks("kv_store", warps.div_ceil(4))?;
    let args = KvStoreArgs { k: call.k, v: call.v, cache, slots };
    queue.launch(&Launch::new("kv_store", "kv_store", blocks, 128), &args)?;
    Ok(launched + 1)
}
