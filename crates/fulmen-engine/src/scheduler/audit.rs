//! Double-entry bookkeeping: what is counted against who holds it.

use std::collections::{BTreeMap, BTreeSet};

use super::Scheduler;
use super::sequence::{Place, Sequence};
use crate::error::AuditError;
use crate::pages::{PageId, SequencePages};
use crate::prefix_cache::NodeId;

impl Scheduler {
    /// Compares every count with who holds what: references to pages, users of cached pages, slots, lists.
    /// It takes time in proportion to all pages and sequences: for tests.
    pub fn audit(&self) -> Result<(), AuditError> {
        for group in self.memory.groups() {
            self.audit_references(group)?;
        }
        self.audit_cache()?;
        self.audit_lists()
    }

    fn pages(&self) -> impl Iterator<Item = &SequencePages> {
        let running = self.sequences.values().filter_map(|sequence| match &sequence.place {
            Place::Running { pages, .. } => Some(pages),
            _ => None,
        });
        running.chain(self.closing.values().map(|closing| &closing.pages))
    }

    fn audit_references(&self, group: usize) -> Result<(), AuditError> {
        let pool = self.memory.allocator.pool(group);
        let mut held = vec![0; pool.pages() as usize];
        let of_sequences = self.pages().flat_map(|pages| pages.list(group).iter().map(|(_, entry)| entry.id));
        let cache = self.memory.cache.iter();
        let of_nodes =
            cache.clone().flat_map(|cache| cache.nodes().filter_map(|node| cache.page(node).0.get(group)));
        let of_cache = of_nodes.flatten().copied().filter(|_| self.memory.states != Some(group));
        let states = cache.flat_map(|cache| cache.state_pages());
        let states = states.chain(self.memory.frozen.values().copied());
        let states = states.filter(|_| self.memory.states == Some(group));
        of_sequences.chain(of_cache).chain(states).for_each(|page| held[page.0 as usize] += 1);
        for (page, found) in (0..).map(PageId).zip(held) {
            let counted = pool.references(page);
            let what = || format!("references to page {} of group {group}", page.0);
            AuditError::check(what, counted, found)?;
        }
        self.audit_windows(group)?;
        let swapped = self.sequences.values().filter_map(|sequence| match &sequence.place {
            Place::Swapped(pages) => Some(pages.held(group)),
            _ => None,
        });
        let allocator = &self.memory.allocator;
        let counted = allocator.host_pages(group) - allocator.host_free(group);
        AuditError::check(|| format!("host pages of group {group}"), counted, swapped.sum())
    }

    /// What of a group with a window can be evicted, against the nodes that have pages of it.
    fn audit_windows(&self, group: usize) -> Result<(), AuditError> {
        let Some(cache) = self.memory.cache.as_ref().filter(|_| self.memory.has_window(group)) else {
            return Ok(());
        };
        let pool = self.memory.allocator.pool(group);
        let cached = || cache.nodes().filter_map(|node| cache.page(node).0.get(group).copied().flatten());
        let unused = cached().filter(|&page| pool.references(page) == 1).count();
        AuditError::check(|| format!("unused pages of group {group}"), pool.unused(), unused as u32)?;
        let (listed, found) = (cache.window_pages(group) as u32, cached().count() as u32);
        AuditError::check(|| format!("cached pages of group {group}"), listed, found)
    }

    fn audit_cache(&self) -> Result<(), AuditError> {
        let Some(cache) = &self.memory.cache else { return Ok(()) };
        let mut users: BTreeMap<NodeId, u32> = BTreeMap::new();
        for pages in self.pages() {
            let nodes = pages.list(0).iter().filter_map(|(_, entry)| entry.node);
            nodes.for_each(|node| *users.entry(node).or_default() += 1);
        }
        for node in cache.nodes() {
            let found = users.get(&node).copied().unwrap_or(0);
            AuditError::check(|| format!("users of {node:?}"), cache.users(node), found)?;
        }
        let unused = cache.nodes().filter(|&node| cache.is_unused(node)).count();
        AuditError::check(|| "unused cached pages".to_owned(), cache.evictable() as u32, unused as u32)?;
        // Whoever uses a page uses the one before it, so all unused pages can be evicted.
        let above = |node| cache.parent(node).is_none_or(|parent| !cache.is_unused(parent));
        let orphans = cache.nodes().filter(|&node| !cache.is_unused(node) && !above(node)).count();
        AuditError::check(|| "pages in use after an unused one".to_owned(), 0, orphans as u32)
    }

    fn audit_lists(&self) -> Result<(), AuditError> {
        let running = |sequence: &&Sequence| matches!(sequence.place, Place::Running { .. });
        let count = self.sequences.values().filter(running).count();
        AuditError::check(|| "running sequences".to_owned(), self.running.len() as u32, count as u32)?;
        let waiting = self.sequences.len() - count;
        AuditError::check(|| "waiting sequences".to_owned(), self.waiting.len() as u32, waiting as u32)?;
        let slots: BTreeSet<u32> = self
            .sequences
            .values()
            .filter_map(|sequence| match sequence.place {
                Place::Running { slot, .. } => Some(slot),
                _ => None,
            })
            .chain(self.free_slots.iter().copied())
            .collect();
        AuditError::check(|| "slots".to_owned(), self.config.max_sequences, slots.len() as u32)?;
        let pending: u32 = self.sequences.values().map(|sequence| sequence.pending).sum();
        let sampling = self.in_flight.iter().flat_map(|step| step.sampling());
        let sampling = sampling.filter(|id| self.sequences.contains_key(id)).count();
        AuditError::check(|| "tokens in flight".to_owned(), pending, sampling as u32)
    }
}
