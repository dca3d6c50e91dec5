//! What a product calls into the L2 cache for the attention behind it. Products of several rows leave the memory idle for most of their
//! time, and the attention of several sequences is bound by it.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{OpCall, RopeStoreCall, Step};

use crate::device::Caps;

/// Keys and values, of which the first positions of each row are called, as `l2_prefetch.cuh` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(crate) struct Ahead {
    /// Keys and values; 0 for nothing.
    pub(crate) caches: [u64; 2],
    pub(crate) positions: u64,
    pub(crate) sequences: u64,
    pub(crate) rows: u32,
    pub(crate) heads: u32,
    pub(crate) n_seqs: u32,
    pub(crate) capacity: u32,
    /// Bytes of a head at a position.
    pub(crate) width: u32,
    /// Positions of a row that are called at most.
    pub(crate) most: u32,
}

impl Ahead {
    /// The cache that the first call of these, or the pair that it is the first of, is followed by, if it is a product.
    pub(crate) fn store_behind(left: &[Step]) -> Option<&RopeStoreCall> {
        let product = |step: &Step| matches!(step.call, OpCall::MulMat(_) | OpCall::GateUp(_));
        let behind = left.iter().take(2).position(product)? + 1;
        match &left.get(behind)?.call {
            OpCall::RopeStore(call) => Some(call),
            _ => None,
        }
    }

    /// No more than half of the L2 cache.
    pub(crate) fn of(caps: Caps, call: &RopeStoreCall) -> Option<Ahead> {
        let (store, heads) = (&call.store, call.store.heads);
        let width = u32::try_from(store.cache.dtype.bytes(heads.head_dim as usize).ok()?).ok()?;
        let position = 2 * u64::from(store.m) * u64::from(heads.n_kv_heads) * u64::from(width);
        let most = u64::from(caps.l2_bytes / 2).checked_div(position)?;
        Some(Ahead {
            caches: [store.cache.k_ptr, store.cache.v_ptr],
            positions: store.positions,
            sequences: store.sequences.unwrap_or(0),
            rows: store.m,
            heads: heads.n_kv_heads,
            n_seqs: store.cache.n_seqs,
            capacity: store.cache.capacity,
            width,
            most: u32::try_from(most).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::{
        DType, Heads, KvCache, KvStoreCall, MatPart, MulMatCall, RmsNormCall, RopePairing, RopeSpec,
        WeightArg,
    };

    use super::*;

    const CAPS: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 60 << 20 };

    fn step(call: OpCall) -> Step {
        Step { node: 0, name: None, call }
    }

    fn norm() -> Step {
        step(OpCall::RmsNorm(RmsNormCall {
            input: 16,
            gamma: 32,
            output: 48,
            rows: 16,
            width: 256,
            epsilon: 1e-6,
        }))
    }

    fn product() -> Step {
        let weight = WeightArg { ptr: 64, dtype: DType::Q4_K, rows: 16 };
        let part = MatPart { weight, bias: None, output: 80 };
        step(OpCall::MulMat(MulMatCall { input: 48, parts: vec![part], residual: None, m: 16, k: 256 }))
    }

    fn store(m: u32) -> RopeStoreCall {
        let cache = KvCache { k_ptr: 1 << 20, v_ptr: 1 << 21, dtype: DType::F16, n_seqs: 16, capacity: 4096 };
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
    fn the_store_behind_a_product_is_seen_with_and_without_a_norm_before_it() {
        let behind = || step(OpCall::RopeStore(store(16)));
        assert!(Ahead::store_behind(&[norm(), product(), behind()]).is_some());
        assert!(Ahead::store_behind(&[product(), behind()]).is_some());
        for none in [
            vec![],
            vec![product()],
            vec![behind()],
            vec![norm(), norm(), product(), behind()],
            vec![product(), norm(), behind()],
        ] {
            assert!(Ahead::store_behind(&none).is_none());
        }
    }

    #[test]
    fn no_more_than_half_of_the_cache_is_called() {
        let ahead = Ahead::of(CAPS, &store(16)).unwrap();
        assert_eq!((ahead.width, ahead.most), (256, 480));
        let bytes = 2 * 16 * 8 * u64::from(ahead.width) * u64::from(ahead.most);
        assert_eq!(bytes, u64::from(CAPS.l2_bytes) / 2);
        assert_eq!(Ahead::of(CAPS, &store(0)), None, "nothing is stored");
        assert_eq!(Ahead::of(Caps { l2_bytes: 0, ..CAPS }, &store(1)).unwrap().most, 0);
    }
}
