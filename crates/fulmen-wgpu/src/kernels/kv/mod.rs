//! The KV cache: its memory layout, and the kernels that write rows into it.

mod store;

pub use store::{KvStore, RopeStore, kv_store, rope_store};

use fulmen_core::{DType, Heads, KV_PAGE};

use super::{
    KernelError,
    bind::{fits, invalid},
    launch_list::product,
};
use crate::kernel::Caps;

/// The cache of a layer: keys and values, each `[n_pages][n_kv_heads][KV_PAGE][head_dim]`, in buffers of
/// their own, and the table of the pages of each sequence, `[n_seqs][seq_pages]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cache {
    /// F32, F16 or Q8_0, with the values of a page and head before their scales.
    pub dtype: DType,
    /// Pages.
    pub n_pages: u32,
    /// Sequences.
    pub n_seqs: u32,
    /// Pages of each.
    pub seq_pages: u32,
}

impl Cache {
    /// Positions of each sequence.
    pub fn capacity(&self) -> u32 {
        self.seq_pages.saturating_mul(KV_PAGE)
    }

    /// Bytes of the page table.
    pub(super) fn table_bytes(&self) -> u64 {
        u64::from(self.n_seqs) * u64::from(self.seq_pages) * 4
    }

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
        let sizes = [self.n_pages.into(), heads.n_kv_heads.into(), KV_PAGE.into(), head];
        let bytes = product(op, "the cache", &sizes)?;
        fits(op, "the cache", bytes, caps)?;
        Ok(bytes)
    }
}
