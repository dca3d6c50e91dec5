//! Pages of layers with a sliding window in the prefix cache.
//!
//! ```text
//! positions:   0 ........................ p ......      a window of w positions
//! full pages:  │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │           all of the prefix
//! window:                      │ 4 │ 5 │ 6 │           those with one of the positions p - w + 1 .. p
//! ```
//!
//! A node of the cache has the full page of its tokens, and the page of the window as long as there is room.
//! A prompt can continue at position p if the cache has the full pages before p and, of the window, the pages
//! that the row at p sees. Otherwise it continues at the last page border where that holds. A sequence that
//! computes a page again whose window page was evicted gives it back to the cache.

use std::collections::VecDeque;

use super::memory::KvMemory;
use super::sharing::{PartialSource, PrefixHit};
use crate::pages::{GroupKind, PageEntry, PageId, SequencePages};
use crate::prefix_cache::{NodeId, PrefixCache};

/// How far a chain of cached pages can be used.
pub(super) struct WindowReach {
    /// The most pages behind which a sequence can continue.
    pub(super) pages: usize,
    /// In each group, the index behind the last page that is missing.
    present_from: Vec<u32>,
}

impl KvMemory {
    /// Whether a group has a sliding window.
    pub(super) fn has_window(&self, group: usize) -> bool {
        matches!(self.allocator.kind(group), GroupKind::Window { .. })
    }

    /// Whether the prefix cache has pages of windows.
    pub(super) fn caches_windows(&self) -> bool {
        self.cache.is_some() && self.groups().any(|group| self.has_window(group))
    }

    /// Pages of windows in the prefix cache.
    pub(super) fn cached_window_pages(&self) -> usize {
        self.cache.as_ref().map_or(0, PrefixCache::windows)
    }

    /// Notes that a sequence has ended at a position, with these pages and the partial page `last`: its next
    /// turn needs those that the next row sees.
    pub(super) fn use_last_windows(
        &mut self,
        pages: &SequencePages,
        position: u32,
        last: Option<(u32, NodeId)>,
    ) {
        let windows = self.groups().filter(|&group| self.has_window(group));
        let first = windows.map(|group| self.allocator.first_seen(group, position)).min();
        let Some(first) = first else { return };
        let Some(cache) = &mut self.cache else { return };
        let full = pages.list(0).iter().filter(|&(index, _)| index >= first);
        let nodes = full.filter_map(|(_, entry)| entry.node).chain(last.map(|(_, node)| node));
        nodes.for_each(|node| cache.use_windows(node));
    }

    /// What of a chain can be used that follows `first` pages of a sequence, of which it has what its window
    /// needs.
    pub(super) fn window_reach(&self, first: u32, nodes: &[NodeId]) -> WindowReach {
        let mut reach = WindowReach { pages: 0, present_from: vec![0; self.allocator.groups()] };
        let Some(cache) = &self.cache else { return reach };
        for (end, &node) in (first + 1..).zip(nodes) {
            for (from, page) in reach.present_from.iter_mut().zip(cache.page(node).0) {
                if page.is_none() {
                    *from = end;
                }
            }
            if self.sees_present(&reach, end * self.page_size()) {
                reach.pages = (end - first) as usize;
            }
        }
        reach
    }

    /// Whether all pages are there that a row at `position` sees.
    fn sees_present(&self, reach: &WindowReach, position: u32) -> bool {
        let mut groups = (0..).zip(&reach.present_from);
        groups.all(|(group, &from)| {
            !self.has_window(group) || from <= self.allocator.first_seen(group, position)
        })
    }

    /// What of a hit a sequence can use whose layers have windows.
    pub(super) fn cut_to_windows(&self, mut hit: PrefixHit) -> PrefixHit {
        let Some(cache) = self.cache.as_ref().filter(|_| self.caches_windows()) else { return hit };
        let reach = self.window_reach(0, &hit.nodes);
        let whole = match &hit.partial {
            None => false,
            Some(PartialSource::Live { .. }) => true,
            Some(PartialSource::TakeOver { node, .. } | PartialSource::Cached { node, .. }) => {
                cache.page(*node).0.iter().all(Option::is_some)
            }
        };
        if whole && self.sees_present(&reach, hit.tokens(self.page_size())) {
            return hit;
        }
        hit.nodes.truncate(reach.pages);
        PrefixHit { partial: None, ..hit }
    }

    /// Moves the windows of a sequence with `first` pages behind the nodes that follow.
    pub(super) fn move_windows(&mut self, pages: &mut SequencePages, first: u32, nodes: &[NodeId]) {
        if nodes.is_empty() {
            return;
        }
        let end = first + nodes.len() as u32;
        for group in self.groups() {
            if !self.has_window(group) {
                continue;
            }
            let from = self.allocator.first_seen(group, end * self.page_size());
            let own = |index: u32| pages.list(group).get(index).copied().filter(|_| index < first);
            let entries: VecDeque<PageEntry> = (from..end)
                .filter_map(|index| {
                    own(index).or_else(|| {
                        self.cached_window(group, *nodes.get((index.wrapping_sub(first)) as usize)?)
                    })
                })
                .collect();
            for entry in &entries {
                self.allocator.pool_mut(group).retain(entry.id);
            }
            for old in pages.list_mut(group).replace(from, entries) {
                self.allocator.pool_mut(group).release(old.id);
            }
        }
    }

    /// The page of a window that a node has.
    fn cached_window(&mut self, group: usize, node: NodeId) -> Option<PageEntry> {
        let cache = self.cache.as_mut()?;
        cache.use_windows(node);
        let (ids, writer) = cache.page(node);
        Some(PageEntry::private(ids.get(group).copied().flatten()?, writer))
    }

    /// Gives the page of a sequence to a node that lacks it.
    pub(super) fn add_window(&mut self, node: NodeId, group: usize, page: PageId) {
        let Some(cache) = &mut self.cache else { return };
        if cache.add_window(node, group, page) {
            let pool = self.allocator.pool_mut(group);
            pool.retain(page);
            pool.set_evictable(page, true);
        }
    }

    /// Notes that pages are in the cache, which has a reference to each.
    pub(super) fn enter_cache(&mut self, ids: &[Option<PageId>]) {
        self.set_evictable(ids, true);
    }

    /// Notes that pages are no longer in the cache.
    pub(super) fn leave_cache(&mut self, ids: &[Option<PageId>]) {
        self.set_evictable(ids, false);
    }

    fn set_evictable(&mut self, ids: &[Option<PageId>], evictable: bool) {
        for (group, id) in ids.iter().enumerate() {
            if self.has_window(group) {
                id.iter().for_each(|&id| self.allocator.pool_mut(group).set_evictable(id, evictable));
            }
        }
    }

    /// Frees the least recently used page of a window that only the cache refers to.
    pub(super) fn evict_window(&mut self, group: usize) -> bool {
        let pool = self.allocator.pool(group);
        let alone = |page: PageId| pool.references(page) == 1;
        let evicted = self.cache.as_mut().and_then(|cache| cache.evict_window(group, alone));
        if let Some(page) = evicted {
            let pool = self.allocator.pool_mut(group);
            pool.set_evictable(page, false);
            pool.release(page);
        }
        evicted.is_some()
    }
}
