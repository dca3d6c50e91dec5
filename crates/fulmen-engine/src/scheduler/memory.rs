//! Pages and prefix cache together: pages of the cache that nobody uses count as free.

use std::collections::BTreeMap;

use super::config::SchedulerConfig;
use crate::error::{ConfigError, Leak};
use crate::pages::{
    GroupKind, OutOfPages, PageAllocator, PageId, SequencePages, SwappedPages, Transfer, Writer,
};
use crate::prefix_cache::{NodeId, PrefixCache, Removed};
use crate::request::RequestId;

pub(super) struct KvMemory {
    pub(super) allocator: PageAllocator,
    pub(super) cache: Option<PrefixCache>,
    /// The group of recurrent states, if the cache has snapshots of them.
    pub(super) states: Option<usize>,
    /// Snapshots that are not in the cache yet, by sequence and position.
    pub(super) frozen: BTreeMap<(RequestId, u32), PageId>,
    /// Work for the device that the next step does first.
    pub(super) transfers: Vec<Transfer>,
}

impl KvMemory {
    pub(super) fn new(config: &SchedulerConfig) -> Result<KvMemory, ConfigError> {
        let allocator = PageAllocator::new(config.page_size, &config.groups)?;
        let attention = allocator.reusable().filter(|_| config.prefix_cache);
        let is_window = |group: &usize| matches!(allocator.kind(*group), GroupKind::Window { .. });
        let first_window = (0..allocator.groups()).find(is_window).unwrap_or(usize::MAX);
        // About twice as long as it takes to fill the pool once more: a page that is added is also acquired
        // and released.
        let bonus = config.groups.get(first_window).map_or(0, |group| 8 * u64::from(group.pages));
        let cache = attention.map(|_| {
            PrefixCache::new(config.page_size, &config.namespace, config.batch_invariant)
                .with_windows_from(first_window, bonus)
        });
        let states = attention.filter(|&attention| attention < allocator.groups());
        if states.is_some() {
            let interval = config.snapshot_interval;
            let holds = interval > 0 && interval.is_multiple_of(config.page_size);
            let expected = format!("a multiple of the page size ({})", config.page_size);
            ConfigError::check(holds, "snapshot_interval", &expected, interval)?;
        }
        Ok(KvMemory { allocator, cache, states, frozen: BTreeMap::new(), transfers: Vec::new() })
    }

    pub(super) fn page_size(&self) -> u32 {
        self.allocator.page_size()
    }

    pub(super) fn groups(&self) -> std::ops::Range<usize> {
        0..self.allocator.groups()
    }

    /// Pages of a group that are free or can be made free by eviction.
    pub(super) fn available(&self, group: usize) -> u32 {
        let evictable = match &self.cache {
            _ if self.states == Some(group) => self.evictable_states(),
            Some(_) if self.has_window(group) => self.allocator.pool(group).unused(),
            Some(cache) => cache.evictable() as u32,
            None => 0,
        };
        self.allocator.free(group) + evictable
    }

    /// Evicts pages of the cache until `pages` pages of a group are free, or nothing is left to evict.
    pub(super) fn make_room(&mut self, group: usize, pages: u32) {
        if self.states == Some(group) {
            while self.allocator.free(group) < pages && self.evict_state() {}
            return;
        }
        if self.has_window(group) {
            while self.allocator.free(group) < pages && self.evict_window(group) {}
            return;
        }
        while self.allocator.free(group) < pages
            && let Some(evicted) = self.cache.as_mut().and_then(PrefixCache::evict)
        {
            self.release_removed(&evicted);
        }
    }

    fn release_removed(&mut self, removed: &Removed) {
        self.leave_cache(&removed.pages);
        self.release_ids(&removed.pages);
        if let Some(group) = self.states {
            removed.states.iter().for_each(|&(_, page)| self.allocator.pool_mut(group).release(page));
        }
    }

    pub(super) fn release_ids(&mut self, ids: &[Option<PageId>]) {
        for (group, id) in ids.iter().enumerate() {
            id.iter().for_each(|&id| self.allocator.pool_mut(group).release(id));
        }
    }

    pub(super) fn retain_ids(&mut self, ids: &[Option<PageId>]) {
        for (group, id) in ids.iter().enumerate() {
            id.iter().for_each(|&id| self.allocator.pool_mut(group).retain(id));
        }
    }

    /// Makes positions `from..to` writable: allocates missing pages, and copies the first page if somebody
    /// else refers to it.
    pub(super) fn prepare(
        &mut self,
        pages: &mut SequencePages,
        from: u32,
        to: u32,
    ) -> Result<(), OutOfPages> {
        for group in self.groups() {
            let missing = self.allocator.missing(pages, group, to);
            if missing > 0 {
                self.make_room(group, missing);
                self.allocator.grow(pages, group, to)?;
            }
            let recurrent = self.allocator.kind(group) == GroupKind::Recurrent;
            if recurrent {
                self.own_state(pages);
            }
            let index = if recurrent { 0 } else { from / self.page_size() };
            let copy = self.allocator.make_writable(pages, group, index)?;
            self.transfers.extend(copy);
        }
        Ok(())
    }

    /// Allocates the pages of a whole prompt, except those of windows, which follow chunk by chunk.
    pub(super) fn reserve(&mut self, pages: &mut SequencePages, positions: u32) -> Result<(), OutOfPages> {
        for group in self.groups() {
            if matches!(self.allocator.kind(group), GroupKind::Window { .. }) {
                continue;
            }
            let missing = self.allocator.missing(pages, group, positions);
            self.make_room(group, missing);
            self.allocator.grow(pages, group, positions)?;
        }
        Ok(())
    }

    /// Notes what writes positions `from..to`.
    pub(super) fn note_writer(&self, pages: &mut SequencePages, from: u32, to: u32, writer: Writer) {
        let size = self.page_size();
        for (group, list) in pages.lists_mut() {
            let recurrent = self.allocator.kind(group as usize) == GroupKind::Recurrent;
            for index in if recurrent { 0..1 } else { from / size..to.div_ceil(size) } {
                if let Some(entry) = list.get_mut(index) {
                    entry.writer = entry.writer.max(writer);
                }
            }
        }
    }

    /// Frees the pages that a row at `position`, and any later one, does not see.
    pub(super) fn free_behind(&mut self, pages: &mut SequencePages, position: u32) {
        self.allocator.free_behind(pages, position);
    }

    /// Gives back the pages of a sequence.
    pub(super) fn release(&mut self, pages: &mut SequencePages) {
        if let Some(cache) = &mut self.cache {
            // Children before their parents.
            let nodes: Vec<NodeId> = pages.list(0).iter().filter_map(|(_, entry)| entry.node).collect();
            nodes.into_iter().rev().for_each(|node| cache.release(node));
        }
        self.allocator.release(pages);
    }

    /// Copies a sequence to the host and gives back its pages. `None` if the host has too few pages.
    pub(super) fn swap_out(&mut self, pages: &mut SequencePages, positions: u32) -> Option<SwappedPages> {
        let (swapped, transfers) = self.allocator.swap_out(pages, positions).ok()?;
        self.transfers.extend(transfers);
        self.release(pages);
        Some(swapped)
    }

    /// Copies a sequence back from the host. Where it fails, nothing has changed.
    pub(super) fn swap_in(&mut self, swapped: &mut SwappedPages) -> Result<SequencePages, OutOfPages> {
        for group in self.groups() {
            self.make_room(group, swapped.held(group));
        }
        let (pages, transfers) = self.allocator.swap_in(swapped)?;
        self.transfers.extend(transfers);
        Ok(pages)
    }

    /// Empties the cache.
    pub(super) fn drop_cache(&mut self) {
        while let Some(removed) = self.cache.as_mut().and_then(PrefixCache::pop) {
            self.release_removed(&removed);
        }
    }

    /// Whether all pages are free or in the cache and unused.
    pub(super) fn counted_back(&self) -> Result<(), Leak> {
        let cached = self.cache.as_ref().map_or(0, PrefixCache::pages);
        let evictable = self.cache.as_ref().map_or(0, PrefixCache::evictable);
        Leak::check("pages of the prefix cache", cached - evictable, cached)?;
        Leak::check("frozen states", self.frozen.len(), self.frozen.len())?;
        for group in self.groups() {
            let (all, free) = (self.allocator.pages(group), self.available(group));
            Leak::check(format!("KV pages of group {group}"), (all - free) as usize, all as usize)?;
            let (all, free) = (self.allocator.host_pages(group), self.allocator.host_free(group));
            Leak::check(format!("host pages of group {group}"), (all - free) as usize, all as usize)?;
        }
        Ok(())
    }
}
