//! Prefetching the KV cache into L2. The QKV matmul of a batch of sequences leaves memory bandwidth unused,
//! and the attention after it is bound by memory bandwidth, so the matmul prefetches the keys and values for
//! it.

use fulmen_core::RopeStoreCall;

use crate::device::Caps;
use crate::layout::{DevicePtr, kernel_args};

kernel_args! {
    file: "l2_prefetch.cuh";

    /// The keys and values to prefetch: the first positions of the sequence of each row.
    #[derive(Debug, Default, PartialEq)]
    pub(crate) struct L2Prefetch {
        /// Keys and values; 0 to prefetch nothing.
        pub(crate) caches: [DevicePtr; 2],
        pub(crate) positions: DevicePtr,
        pub(crate) sequences: DevicePtr,
        pub(crate) pages: DevicePtr,
        pub(crate) rows: u32,
        pub(crate) heads: u32,
        pub(crate) n_seqs: u32,
        pub(crate) capacity: u32,
        pub(crate) n_pages: u32,
        /// Bytes of one head at one position.
        pub(crate) head_bytes: u32,
        /// The most positions to prefetch per row.
        pub(crate) max_positions: u32,
        pub(crate) unused: u32,
    }
}

impl L2Prefetch {
    /// The prefetch for the cache that a call stores to, limited to half of the L2 cache.
    pub(crate) fn new(caps: Caps, call: &RopeStoreCall) -> Option<L2Prefetch> {
        let (store, heads) = (&call.store, call.store.heads);
        let head_bytes = u32::try_from(store.cache.dtype.bytes(heads.head_dim as usize).ok()?).ok()?;
        let position = 2 * u64::from(store.m) * u64::from(heads.n_kv_heads) * u64::from(head_bytes);
        let max_positions = u64::from(caps.l2_bytes / 2).checked_div(position)?;
        Some(L2Prefetch {
            caches: [store.cache.k_ptr, store.cache.v_ptr],
            positions: store.positions,
            sequences: store.sequences.unwrap_or(0),
            pages: store.cache.table_ptr,
            rows: store.m,
            heads: heads.n_kv_heads,
            n_seqs: store.cache.n_seqs,
            capacity: store.cache.capacity(),
            n_pages: store.cache.n_pages,
            head_bytes,
            max_positions: u32::try_from(max_positions).ok()?,
            unused: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::{DType, Heads, KvCache, KvStoreCall, RopePairing, RopeSpec};

    use super::*;

    const CAPS: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 60 << 20 };

    fn store(m: u32) -> RopeStoreCall {
        let cache = KvCache {
            k_ptr: 1 << 20,
            v_ptr: 1 << 21,
            dtype: DType::F16,
            n_pages: 16 * 32,
            table_ptr: 1 << 19,
            n_seqs: 16,
            seq_pages: 32,
        };
        let heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 128 };
        let store = KvStoreCall { k: 96, v: 112, cache, positions: 128, sequences: Some(144), m, heads };
        RopeStoreCall {
            q: 80,
            store,
            q_gamma: None,
            k_gamma: None,
            factors: None,
            output: 80,
            epsilon: 0.0,
            rope: RopeSpec::new(RopePairing::NeoX, 128, 1e6),
        }
    }

    #[test]
    fn at_most_half_of_the_l2_cache_is_prefetched() {
        let prefetch = L2Prefetch::new(CAPS, &store(16)).unwrap();
        assert_eq!((prefetch.head_bytes, prefetch.max_positions), (256, 480));
        let bytes = 2 * 16 * 8 * u64::from(prefetch.head_bytes) * u64::from(prefetch.max_positions);
        assert_eq!(bytes, u64::from(CAPS.l2_bytes) / 2);
        assert_eq!(L2Prefetch::new(CAPS, &store(0)), None, "nothing is stored");
        assert_eq!(L2Prefetch::new(Caps { l2_bytes: 0, ..CAPS }, &store(1)).unwrap().max_positions, 0);
    }
}
