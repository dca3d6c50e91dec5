//! What the kernels share that access the KV cache (`kv.cuh`).

use fulmen_core::{BackendError, DType, Heads, KvCache, KvStoreCall, PageLayout};

use super::kv_store::SupersededArgs;
use crate::BACKEND;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const KV_F32: u32 = 0;
const KV_F16: u32 = 1;
const KV_Q8_0: u32 = 2;
pub(super) const KV_PAGE: u32 = fulmen_core::KV_PAGE;

kernel_args! {
    file: "kv.cuh";
    constants: [KV_F32, KV_F16, KV_Q8_0, KV_PAGE];

    pub(super) struct KvCacheArgs {
        k: DevicePtr,
        v: DevicePtr,
        pages: DevicePtr,
        kv_type: u32,
        n_pages: u32,
        n_seqs: u32,
        capacity: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        unused: u32,
    }

    pub(super) struct KvSlots {
        pub(super) positions: DevicePtr,
        pub(super) sequences: DevicePtr,
        pub(super) superseded: DevicePtr,
        pub(super) fault: DevicePtr,
        pub(super) m: u32,
        pub(super) unused: u32,
    }
}

/// Most rows among which every warp of a store searches for a later row with the same slot.
const MAX_SEARCHED_ROWS: u32 = 128;

/// Bytes of one head of a page.
pub(super) fn head_bytes(dtype: DType, heads: Heads) -> Result<u32, BackendError> {
    let bytes = PageLayout::new(dtype, heads).ok().and_then(|page| u32::try_from(page.head_bytes()).ok());
    let what = || format!("a cache of {dtype} with heads of {}", heads.head_dim);
    bytes.ok_or_else(|| BackendError::Unsupported { backend: BACKEND, what: what() })
}

impl KvCacheArgs {
    pub(super) fn new(cache: &KvCache, heads: Heads) -> Result<KvCacheArgs, BackendError> {
        let kv_type = match cache.dtype {
            DType::F32 => KV_F32,
            DType::F16 => KV_F16,
            DType::Q8_0 => KV_Q8_0,
            other => {
                let what = format!("a cache of {other}");
                return Err(BackendError::Unsupported { backend: BACKEND, what });
            }
        };
        Ok(KvCacheArgs {
            k: cache.k_ptr,
            v: cache.v_ptr,
            pages: cache.table_ptr,
            kv_type,
            n_pages: cache.n_pages,
            n_seqs: cache.n_seqs,
            capacity: cache.capacity(),
            n_kv_heads: heads.n_kv_heads,
            head_dim: heads.head_dim,
            head_bytes: head_bytes(cache.dtype, heads)?,
            unused: 0,
        })
    }
}

impl KvSlots {
    /// The slots of a store's rows. For a large batch a kernel first marks the rows that a later one
    /// supersedes. Also returns the number of kernels launched.
    pub(super) fn of_store(queue: &mut Queue, call: &KvStoreCall) -> Result<(KvSlots, usize), BackendError> {
        let slots = KvSlots {
            positions: call.positions,
            sequences: call.sequences.unwrap_or(0),
            superseded: 0,
            fault: queue.fault(),
            m: call.m,
            unused: 0,
        };
        if call.m <= MAX_SEARCHED_ROWS {
            return Ok((slots, 0));
        }
        let out = queue.scratch(call.m as usize * size_of::<u32>())?;
        let blocks = queue.blocks("kv_store", u64::from(call.m).div_ceil(4))?;
        let launch = Launch::new("kv_store", "superseded", blocks, 128);
        queue.launch(&launch, &SupersededArgs { slots, out })?;
        Ok((KvSlots { superseded: out, ..slots }, 1))
    }
}
