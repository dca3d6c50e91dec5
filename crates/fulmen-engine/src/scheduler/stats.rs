//! Statistics of the scheduler.

use super::Scheduler;
use super::sequence::Place;
use crate::pages::{GroupKind, Transfer};
use crate::prefix_cache::{CacheCounters, PrefixCache};
use crate::step::StepPlan;

/// The pages of a group of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// How its layers look back.
    pub kind: GroupKind,
    /// All pages.
    pub pages: u32,
    /// Pages that nothing refers to.
    pub free: u32,
    /// Pages on the host that hold swapped sequences.
    pub host_used: u32,
}

/// A snapshot of what the scheduler holds, and counters of what it has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests in the queue, with those that were preempted.
    pub waiting: usize,
    /// Sequences in slots.
    pub running: usize,
    /// Sequences in the queue whose pages are on the host.
    pub swapped: usize,
    /// Pages by group of layers.
    pub groups: Vec<GroupStats>,
    /// Pages in the prefix cache.
    pub cached_pages: usize,
    /// Recurrent states in the prefix cache.
    pub cached_states: usize,
    /// Pages of layers with a window in the prefix cache, beside `cached_pages`.
    pub cached_window_pages: usize,
    /// Counters of the prefix cache.
    pub prefix_cache: CacheCounters,
    /// Requests that were taken into the queue.
    pub submitted: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that ended with another error.
    pub failed: u64,
    /// Tokens that were delivered.
    pub generated_tokens: u64,
    /// Steps that were planned.
    pub steps: u64,
    /// Decode rows that were planned.
    pub decode_rows: u64,
    /// Prefill rows that were planned.
    pub prefill_rows: u64,
    /// Rows that had run for a sequence that had already ended.
    pub dropped_rows: u64,
    /// Preemptions by copying pages to the host.
    pub swapped_out: u64,
    /// Preemptions by dropping pages.
    pub dropped: u64,
    /// Pages that were copied: prefixes that end inside a page.
    pub copied_pages: u64,
    /// Launches that failed.
    pub failed_launches: u64,
    /// Whether the device was lost and not replaced: every request ends with an error.
    pub device_lost: bool,
}

impl Stats {
    /// The pages of layers with a sliding window, if they have pages of their own.
    pub fn window_group(&self) -> Option<GroupStats> {
        self.groups.iter().find(|group| matches!(group.kind, GroupKind::Window { .. })).copied()
    }

    pub(super) fn count_step(&mut self, plan: &StepPlan) {
        self.steps += 1;
        self.decode_rows += u64::from(plan.decode_rows);
        let copies = plan.prologue.transfers.iter().filter(|t| matches!(t, Transfer::Copy { .. }));
        self.copied_pages += copies.count() as u64;
        self.prefill_rows += u64::from(plan.rows.active - plan.decode_rows);
    }
}

impl Scheduler {
    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        let allocator = &self.memory.allocator;
        let group = |group: usize| GroupStats {
            kind: allocator.kind(group),
            pages: allocator.pages(group),
            free: allocator.free(group),
            host_used: allocator.host_pages(group) - allocator.host_free(group),
        };
        let swapped = self.sequences.values().filter(|s| matches!(s.place, Place::Swapped(_))).count();
        Stats {
            waiting: self.waiting.len(),
            running: self.running.len(),
            swapped,
            groups: self.memory.groups().map(group).collect(),
            cached_pages: self.memory.cache.as_ref().map_or(0, PrefixCache::pages),
            cached_states: self.memory.cache.as_ref().map_or(0, PrefixCache::states),
            cached_window_pages: self.memory.cached_window_pages(),
            prefix_cache: self.memory.cache.as_ref().map_or_else(CacheCounters::default, |c| c.counters),
            ..self.stats.clone()
        }
    }
}
