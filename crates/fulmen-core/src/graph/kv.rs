//! KV pages: where the keys and values of a position lie.
//!
//! The cache of a layer is a pool of pages for its keys and one for its values. A page holds
//! [`KV_PAGE`] positions of all KV heads, and a page table in device memory says which pages a sequence has:
//!
//! ```text
//! table  [n_seqs][seq_pages] u32        pool  [n_pages][n_kv_heads][KV_PAGE][head_dim]
//!        seq 0:  7  2  -                      page 0   page 1   page 2   …   page 7
//!        seq 1:  7  0  4                               (free)   seq 0        seq 0 and 1
//! ```
//!
//! Position `p` of sequence `s` is row `p % KV_PAGE` of page `table[s][p / KV_PAGE]`. All layers of a group
//! have one table: a page number means the same positions in each of them. One sequence with the table
//! `0, 1, 2, …` is a contiguous cache.
//!
//! Of each page and head, F32 and F16 rows are contiguous. Q8_0 keeps the blocks' values and scales apart,
//! first `[KV_PAGE][head_dim]` int8, then `[KV_PAGE][head_dim / 32]` f16, so that both can be copied 16 bytes
//! at a time; both take the bytes of the blocks.

use super::checks::{Checked, check_heads};
use super::{CopyCall, Heads};
use crate::{DType, DTypeError, Problem};

/// Positions of a KV page.
pub const KV_PAGE: u32 = 128;

/// The entry of a page table for a page that a sequence does not have.
pub const NO_PAGE: u32 = u32::MAX;

/// The KV cache of one layer: a pool of pages for keys and one for values, each
/// `[n_pages][n_kv_heads][KV_PAGE][head_dim]`, and a table of the pages of each sequence. The kernels report
/// a page that a row needs and that is not in the pool, and do not read or write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvCache {
    /// Address of the keys.
    pub k_ptr: u64,
    /// Address of the values.
    pub v_ptr: u64,
    /// F32, F16 or Q8_0.
    pub dtype: DType,
    /// Pages in the pool.
    pub n_pages: u32,
    /// Address of the page table: `[n_seqs][seq_pages]` u32, [`NO_PAGE`] where there is no page.
    pub table_ptr: u64,
    /// Sequences: rows of the table.
    pub n_seqs: u32,
    /// Pages of a sequence: columns of the table.
    pub seq_pages: u32,
}

impl KvCache {
    /// Positions of a sequence.
    pub fn capacity(&self) -> u32 {
        self.seq_pages.saturating_mul(KV_PAGE)
    }

    /// The copies, of keys and of values, that make page `to` equal to page `from`.
    pub fn copy_page(&self, heads: Heads, from: u32, to: u32) -> Checked<[CopyCall; 2]> {
        let layout = PageLayout::new(self.dtype, heads)?;
        for page in [from, to] {
            if page >= self.n_pages {
                let (what, expected) = ("the page", "a page of the pool");
                return Err(Problem::Value { what, expected, got: page.into() });
            }
        }
        let bytes = layout.bytes();
        let at = |ptr: u64, page: u32| ptr + u64::from(page) * bytes as u64;
        let copy = |ptr| CopyCall { input: at(ptr, from), output: at(ptr, to), bytes };
        Ok([copy(self.k_ptr), copy(self.v_ptr)])
    }
}

/// The pages that so many positions take.
pub const fn pages_of(positions: u32) -> u32 {
    positions.div_ceil(KV_PAGE)
}

/// The bytes of a page of the keys, or of the values, of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageLayout {
    dtype: DType,
    n_kv_heads: u32,
    head_dim: u32,
    head_bytes: usize,
}

impl PageLayout {
    /// The layout of pages of this type; an error if the heads or the type cannot be those of a cache.
    pub fn new(dtype: DType, heads: Heads) -> Checked<PageLayout> {
        check_heads(heads)?;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::Q8_0) {
            return Err(Problem::Type { what: "the KV cache", expected: "F32, F16 or Q8_0", got: dtype });
        }
        let Heads { n_kv_heads, head_dim, .. } = heads;
        let overflow = || DTypeError::Overflow { dtype, elements: usize::MAX };
        let row = dtype.bytes(head_dim as usize)?;
        let head_bytes = row.checked_mul(KV_PAGE as usize).ok_or_else(overflow)?;
        head_bytes.checked_mul(n_kv_heads as usize).ok_or_else(overflow)?;
        Ok(PageLayout { dtype, n_kv_heads, head_dim, head_bytes })
    }

    /// Bytes of a page.
    pub fn bytes(&self) -> usize {
        self.head_bytes * self.n_kv_heads as usize
    }

    /// Bytes of one head of a page.
    pub fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Where the scales of a head begin, behind its values; `head_bytes` for types without scales.
    pub fn scales_at(&self) -> usize {
        if self.dtype == DType::Q8_0 { (KV_PAGE * self.head_dim) as usize } else { self.head_bytes }
    }

    /// Bytes of `n_pages` pages.
    pub fn pool_bytes(&self, n_pages: u32) -> Checked<usize> {
        let overflow = DTypeError::Overflow { dtype: self.dtype, elements: usize::MAX };
        self.bytes().checked_mul(n_pages as usize).ok_or(Problem::DType(overflow))
    }
}

/// A group of layers whose caches have the same page numbers. Their heads may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPool {
    /// The layout of each layer; keys and values have the same.
    pub layers: Vec<PageLayout>,
    /// Pages of each layer.
    pub n_pages: u32,
}

impl KvPool {
    /// Bytes of one page in all layers, keys and values.
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().fold(0, |bytes, layer| bytes.saturating_add(2 * layer.bytes()))
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> usize {
        self.page_bytes().saturating_mul(self.n_pages as usize)
    }

    /// The pages that fit into `bytes`.
    pub fn pages_in(&self, bytes: usize) -> u32 {
        let pages = bytes.checked_div(self.page_bytes()).unwrap_or(0);
        u32::try_from(pages).unwrap_or(NO_PAGE - 1).min(NO_PAGE - 1)
    }
}

const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;

/// Rearranges rows of Q8_0 blocks, `[heads of pages][KV_PAGE][head_dim / 32]`, into pages: values and scales
/// of each head apart. The last head may have fewer positions, as rows that are not in pages do not.
pub fn q8_0_to_pages(head_dim: usize, blocks: &[u8]) -> Vec<u8> {
    let head = KV_PAGE as usize * head_dim / BLOCK * BLOCK_BYTES;
    let mut pages = Vec::with_capacity(blocks.len());
    for head in blocks.chunks(head.max(1)) {
        head.chunks_exact(BLOCK_BYTES).for_each(|block| pages.extend_from_slice(&block[2..]));
        head.chunks_exact(BLOCK_BYTES).for_each(|block| pages.extend_from_slice(&block[..2]));
    }
    pages
}

/// The blocks of Q8_0 pages: the inverse of [`q8_0_to_pages`].
pub fn q8_0_from_pages(head_dim: usize, pages: &[u8]) -> Vec<u8> {
    let head = KV_PAGE as usize * head_dim / BLOCK * BLOCK_BYTES;
    let mut blocks = Vec::with_capacity(pages.len());
    for head in pages.chunks(head.max(1)) {
        let (values, scales) = head.split_at(head.len() / BLOCK_BYTES * BLOCK);
        for (values, scale) in values.chunks_exact(BLOCK).zip(scales.chunks_exact(2)) {
            blocks.extend_from_slice(scale);
            blocks.extend_from_slice(values);
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(n_kv_heads: u32, head_dim: u32) -> Heads {
        Heads { n_heads: 2 * n_kv_heads, n_kv_heads, head_dim }
    }

    #[test]
    fn heads_and_scales_of_pages_are_aligned() {
        for head_dim in [64, 80, 96, 128, 256] {
            for dtype in [DType::F32, DType::F16, DType::Q8_0] {
                let layout = PageLayout::new(dtype, heads(3, head_dim));
                if dtype == DType::Q8_0 && head_dim == 80 {
                    assert!(matches!(layout, Err(Problem::DType(DTypeError::PartialBlock { .. }))));
                    continue;
                }
                let layout = layout.unwrap();
                assert_eq!(layout.bytes(), 3 * 128 * dtype.bytes(head_dim as usize).unwrap());
                assert!(layout.head_bytes().is_multiple_of(256) && layout.scales_at().is_multiple_of(256));
            }
        }
        assert!(PageLayout::new(DType::Q4_K, heads(1, 256)).is_err());
        assert!(PageLayout::new(DType::F16, Heads { n_heads: 3, n_kv_heads: 2, head_dim: 64 }).is_err());
    }

    #[test]
    fn blocks_come_back_from_pages() {
        let mut random = fastrand::Rng::with_seed(5);
        for head_dim in [32, 64, 96, 128] {
            let mut blocks = vec![0; 3 * 128 * head_dim / 32 * 34];
            random.fill(&mut blocks);
            let pages = q8_0_to_pages(head_dim, &blocks);
            assert_eq!(q8_0_from_pages(head_dim, &pages), blocks);
            // Position 5 of the second head: value 33 (or 1) and its scale.
            let (block, within) = (5 * head_dim / 32 + usize::from(head_dim > 32), 1);
            let head = 128 * head_dim / 32 * 34;
            let value = head + 5 * head_dim + usize::from(head_dim > 32) * 32 + within;
            assert_eq!(pages[value], blocks[head + block * 34 + 2 + within]);
            assert_eq!(pages[head + 128 * head_dim + 2 * block], blocks[head + block * 34]);
        }
    }

    #[test]
    fn a_page_is_copied_in_keys_and_values() {
        let cache = KvCache {
            k_ptr: 0x10000,
            v_ptr: 0x20000,
            dtype: DType::F16,
            n_pages: 4,
            table_ptr: 0x100,
            n_seqs: 1,
            seq_pages: 3,
        };
        assert_eq!(cache.capacity(), 384);
        let bytes = 128 * 2 * 64 * 2;
        let copies = cache.copy_page(heads(2, 64), 1, 3).unwrap();
        let (from, to) = (bytes as u64, 3 * bytes as u64);
        assert_eq!(copies[0], CopyCall { input: 0x10000 + from, output: 0x10000 + to, bytes });
        assert_eq!(copies[1], CopyCall { input: 0x20000 + from, output: 0x20000 + to, bytes });
        assert!(cache.copy_page(heads(2, 64), 1, 4).is_err());
    }

    #[test]
    fn a_pool_adds_up_layers_of_different_heads() {
        let layers =
            [heads(2, 64), heads(1, 256)].map(|heads| PageLayout::new(DType::F16, heads).unwrap()).into();
        let pool = KvPool { layers, n_pages: 10 };
        assert_eq!(pool.page_bytes(), 2 * 128 * 2 * (128 + 256));
        assert_eq!(pool.bytes(), 10 * pool.page_bytes());
        assert_eq!(pool.pages_in(pool.bytes() - 1), 9);
        assert_eq!((pages_of(0), pages_of(128), pages_of(129)), (0, 1, 2));
    }
}
