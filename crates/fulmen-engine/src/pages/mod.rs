//! KV pages: pools with reference counts, groups of layers, and the page lists of sequences.
//!
//! The KV cache of a group of layers is a pool of pages; a page holds [`PAGE_SIZE`] positions, and its number
//! is the same in every layer of the group. There are three kinds of groups ([`GroupKind`]): full attention
//! keeps every page of a sequence, a sliding window frees the pages behind it, and a recurrent state is one
//! page per sequence, which is copied where a snapshot is wanted.

mod allocator;
mod list;
mod pool;
mod swap;
#[cfg(test)]
mod tests;

pub use allocator::{GroupConfig, GroupKind, PageAllocator, SequencePages};
pub use list::{PageEntry, PageList, Writer};
pub use pool::{OutOfPages, PageId, PagePool};
pub use swap::SwappedPages;

use serde::{Deserialize, Serialize};

/// Positions of a page.
pub const PAGE_SIZE: u32 = fulmen_core::KV_PAGE;

/// Work on whole pages that a device does before the rows of a step, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transfer {
    /// Copies a page inside the pool: copy on write, or a snapshot of a recurrent state.
    Copy {
        /// The group of layers.
        group: u32,
        /// The page to read.
        from: PageId,
        /// The page to write.
        to: PageId,
    },
    /// Copies a page to the host.
    SwapOut {
        /// The group of layers.
        group: u32,
        /// The page to read, in the device's pool.
        from: PageId,
        /// The page to write, in the host's pool.
        to: PageId,
    },
    /// Copies a page from the host.
    SwapIn {
        /// The group of layers.
        group: u32,
        /// The page to read, in the host's pool.
        from: PageId,
        /// The page to write, in the device's pool.
        to: PageId,
    },
}

impl Transfer {
    /// The group of layers.
    pub fn group(&self) -> u32 {
        match *self {
            Transfer::Copy { group, .. }
            | Transfer::SwapOut { group, .. }
            | Transfer::SwapIn { group, .. } => group,
        }
    }
}
