//! The KV cache: its memory layout, and the kernels that write rows into it.

mod store;

pub use store::{KvStore, RopeStore, kv_store, rope_store};

use fulmen_core::{DType, Heads};

use super::{
    KernelError,
    bind::{fits, invalid},
    launch_list::product,
};
use crate::kernel::Caps;

/// The cache of a layer: keys and values, each `[n_seqs][n_kv_heads][capacity][head_dim]`, in buffers
/// of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cache {
    /// F32, F16 or Q8_0 (ggml's block layout).
    pub dtype: DType,
    /// Sequences.
    pub n_seqs: u32,
    /// Positions of each.
    pub capacity: u32,
}

impl Cache {
    /// Bytes of a head at a position.
    pub(super) fn head_bytes(&self, op: &'static str, heads: Heads) -> Result<u64, KernelError> {
        let Heads { n_heads, n_kv_heads, head_dim } = heads;
        if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) || head_dim == 0 {
            return Err(invalid(
                op,
                format!("{n_heads} heads of {head_dim} cannot share {n_kv_heads} heads of keys"),
            ));
        }
        let head_dim = u64::from(head_dim);
        match self.dtype {
            DType::F32 => Ok(4 * head_dim),
            DType::F16 => Ok(2 * head_dim),
            DType::Q8_0 if head_dim.is_multiple_of(32) => Ok(head_dim / 32 * 34),
            dtype => Err(invalid(op, format!("a cache of {dtype:?} with heads of {head_dim}"))),
        }
    }

    /// Bytes of the key cache, and of the value cache; an error where a binding does not hold them.
    pub(super) fn bytes(&self, op: &'static str, heads: Heads, caps: &Caps) -> Result<u64, KernelError> {
        let head = self.head_bytes(op, heads)?;
        let sizes = [self.n_seqs.into(), heads.n_kv_heads.into(), self.capacity.into(), head];
        let bytes = product(op, "the cache", &sizes)?;
        fits(op, "the cache", bytes, caps)?;
        Ok(bytes)
    }
}
