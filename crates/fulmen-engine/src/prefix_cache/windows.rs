//! Pages of layers with a sliding window, which a node may lack.
//!
//! A prompt that continues behind a page needs the pages of a window only as far back as the window reaches,
//! so the cache keeps them as long as there is room: they are evicted one by one, the least recently used
//! first, or with their node. Those that a prompt has continued behind, or that a sequence has ended with,
//! stay longer than those in the middle of a prompt.

use super::{NodeId, PrefixCache};
use crate::pages::PageId;

impl PrefixCache {
    /// The groups from `first` on have windows. Pages that were used after they were added are evicted as if
    /// they had been used `bonus` uses of the cache later.
    pub fn with_windows_from(mut self, first: usize, bonus: u64) -> PrefixCache {
        (self.first_window, self.window_bonus) = (first, bonus);
        self
    }

    /// Adds the page that a node lacks in a group. `false` if it has one; otherwise the caller's reference
    /// passes to the cache.
    pub fn add_window(&mut self, node: NodeId, group: usize, page: PageId) -> bool {
        let Some(place) = self.nodes[node].pages.get_mut(group).filter(|place| place.is_none()) else {
            return false;
        };
        *place = Some(page);
        self.clock += 1;
        self.set_windows_used(node, self.clock);
        true
    }

    /// Notes that the pages of windows of a node are used.
    pub fn use_windows(&mut self, node: NodeId) {
        self.clock += 1;
        self.set_windows_used(node, self.clock + self.window_bonus);
    }

    fn set_windows_used(&mut self, node: NodeId, at: u64) {
        let used = self.nodes[node].windows_used;
        for group in self.window_groups(node) {
            self.windows.remove(&(used, node, group));
            self.windows.insert((at, node, group));
        }
        self.nodes[node].windows_used = at;
    }

    /// Pages of windows in the cache.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Removes the least recently used page of a group that `wanted` accepts; the cache's reference passes to
    /// the caller.
    pub fn evict_window(&mut self, group: usize, wanted: impl Fn(PageId) -> bool) -> Option<PageId> {
        let page = |node: NodeId| self.nodes[node].pages[group];
        let found = self
            .windows
            .iter()
            .copied()
            .find(|&(_, node, of)| of == group && page(node).is_some_and(&wanted));
        let listed @ (_, node, _) = found?;
        self.windows.remove(&listed);
        self.counters.window_evictions += 1;
        self.nodes[node].pages[group].take()
    }

    /// Pages of a group with a window in the cache.
    pub fn window_pages(&self, group: usize) -> usize {
        self.windows.iter().filter(|&&(_, _, of)| of == group).count()
    }

    /// Enters the pages of windows of a node into the order of their use, or takes them out.
    pub(super) fn list_windows(&mut self, node: NodeId, listed: bool) {
        let used = self.nodes[node].windows_used;
        for group in self.window_groups(node) {
            match listed {
                true => self.windows.insert((used, node, group)),
                false => self.windows.remove(&(used, node, group)),
            };
        }
    }

    /// The groups with windows in which a node has a page.
    fn window_groups(&self, node: NodeId) -> Vec<usize> {
        let pages = self.nodes[node].pages.iter().enumerate().skip(self.first_window);
        pages.filter(|(_, page)| page.is_some()).map(|(group, _)| group).collect()
    }
}
