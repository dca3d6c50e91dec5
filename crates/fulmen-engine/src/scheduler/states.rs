//! Snapshots of recurrent states, from which later requests with the same first tokens start.
//!
//! ```text
//! positions: 0 ......... 2048 ......... 4096 ...... border ── prefill_end ── decoded ...
//!                          ▲              ▲           ▲            ▲
//! ```
//!
//! A state cannot go back, so the prefix cache keeps it at some positions: at multiples of
//! [`snapshot_interval`](super::SchedulerConfig::snapshot_interval), at the last page border of a prompt,
//! which serves the same prompt again, at the end of a prompt, and at the end of a turn, which serves the
//! next one (see [`closing`](super::closing)).
//!
//! A snapshot is one more reference to the page of the state, taken when the row behind it is planned: that
//! row copies the page first. It is *frozen* until the step that has computed it is read and the page of its
//! last token is in the cache; then it belongs to that node. A page of states has at most one snapshot.

use super::Scheduler;
use super::memory::KvMemory;
use super::sequence::{Place, Sequence};
use super::sharing::{PartialSource, PrefixHit};
use crate::pages::{PageEntry, PageId, SequencePages, Writer};
use crate::prefix_cache::{NodeId, StateHit};
use crate::request::RequestId;

/// A prompt is divided at its last page border if so many pages of it are computed before: a step more.
const LEAST_PAGES: u32 = 4;

impl Scheduler {
    /// The next position at which a prefill stops, so that its state can be kept.
    pub(super) fn next_snapshot(&self, sequence: &Sequence) -> Option<u32> {
        self.memory.states.filter(|_| sequence.use_prefix_cache)?;
        let interval = self.config.snapshot_interval;
        let next = (sequence.planned / interval).saturating_add(1).saturating_mul(interval);
        let border = self.last_border(sequence).filter(|&border| border > sequence.planned);
        Some(border.map_or(next, |border| border.min(next)))
    }

    /// The last page border of a prompt before its last token, if enough of the prompt is computed.
    fn last_border(&self, sequence: &Sequence) -> Option<u32> {
        let page = self.config.page_size;
        let border = sequence.prefill_end.saturating_sub(1) / page * page;
        // In batch-invariant mode prompts are divided at page borders anyway.
        let least = if self.config.batch_invariant { page } else { LEAST_PAGES.saturating_mul(page) };
        (border >= sequence.computed_from.saturating_add(least)).then_some(border)
    }

    /// Keeps the state of a sequence if it is wanted at the position of its next row.
    pub(super) fn keep_state(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get(&id) else { return };
        let (at, interval) = (sequence.planned, self.config.snapshot_interval);
        let wanted = at.is_multiple_of(interval)
            || at == sequence.prefill_end
            || self.last_border(sequence) == Some(at);
        let Place::Running { pages, .. } = &sequence.place else { return };
        if wanted && self.may_keep(sequence) && self.memory.make_state_room(pages) {
            self.memory.freeze(id, at, pages);
        }
    }

    /// Whether the state at the position of the next row may be used by others: in batch-invariant mode only
    /// what prefill has written, at page borders.
    pub(super) fn may_keep(&self, sequence: &Sequence) -> bool {
        let at = sequence.planned;
        let exact = at <= sequence.prefill_end && at.is_multiple_of(self.config.page_size);
        sequence.use_prefix_cache && at > 0 && (exact || !self.config.batch_invariant)
    }
}

impl KvMemory {
    /// Pages of states that can be freed: those that only a snapshot refers to.
    pub(super) fn evictable_states(&self) -> u32 {
        let Some(group) = self.states else { return 0 };
        let cached = self.cache.iter().flat_map(|cache| cache.state_pages());
        let pages = cached.chain(self.frozen.values().copied());
        pages.filter(|&page| self.allocator.pool(group).references(page) == 1).count() as u32
    }

    /// Frees a page of a state: the least recently used one of the cache, else one that is frozen.
    pub(super) fn evict_state(&mut self) -> bool {
        let Some(group) = self.states else { return false };
        let pool = self.allocator.pool(group);
        let alone = |page: PageId| pool.references(page) == 1;
        let mut evicted = self.cache.as_mut().and_then(|cache| cache.evict_state(alone));
        if evicted.is_none() {
            let frozen = self.frozen.iter().find(|(_, page)| alone(**page)).map(|(&key, _)| key);
            evicted = frozen.and_then(|key| self.frozen.remove(&key));
        }
        if let Some(page) = evicted {
            self.allocator.pool_mut(group).release(page);
        }
        evicted.is_some()
    }

    /// Makes room for a copy of a state that has no snapshot. `false` if there is none, or if it has one.
    fn make_state_room(&mut self, pages: &SequencePages) -> bool {
        let Some(group) = self.states else { return false };
        let Some(state) = pages.list(group).get(0) else { return false };
        if self.allocator.pool(group).references(state.id) > 1 {
            return false;
        }
        self.make_room(group, 1);
        self.allocator.free(group) > 0
    }

    /// Keeps the state of a sequence, which is, or will be, that behind `position` tokens, unless it has a
    /// snapshot.
    pub(super) fn freeze(&mut self, id: RequestId, position: u32, pages: &SequencePages) {
        let Some(group) = self.states else { return };
        let Some(state) = pages.list(group).get(0) else { return };
        let alone = self.allocator.pool(group).references(state.id) == 1;
        if alone && !self.is_frozen(id, position) {
            self.allocator.pool_mut(group).retain(state.id);
            self.frozen.insert((id, position), state.id);
        }
    }

    pub(super) fn is_frozen(&self, id: RequestId, position: u32) -> bool {
        self.frozen.contains_key(&(id, position))
    }

    /// Makes sure that a sequence can write its state: there is room for a copy, or no snapshot of it.
    pub(super) fn own_state(&mut self, pages: &SequencePages) {
        let Some(group) = self.states else { return };
        let Some(page) = pages.list(group).get(0).map(|entry| entry.id) else { return };
        if self.allocator.pool(group).references(page) == 1 {
            return;
        }
        self.make_room(group, 1);
        if self.allocator.free(group) > 0 {
            return;
        }
        let cached = self.cache.as_mut().and_then(|cache| cache.evict_state(|state| state == page));
        let frozen = self.frozen.iter().find(|(_, state)| **state == page).map(|(&key, _)| key);
        let frozen = frozen.and_then(|key| self.frozen.remove(&key));
        for page in cached.into_iter().chain(frozen) {
            self.allocator.pool_mut(group).release(page);
        }
    }

    /// Gives the frozen states of a sequence whose steps were read to the nodes of their last tokens. `last`
    /// is the node of a partial page.
    pub(super) fn attach_states(
        &mut self,
        id: RequestId,
        completed: u32,
        pages: &SequencePages,
        last: Option<(u32, NodeId)>,
    ) {
        let (size, Some(group)) = (self.page_size(), self.states) else { return };
        let frozen: Vec<(u32, PageId)> =
            self.frozen.range((id, 0)..=(id, completed)).map(|(&(_, at), &page)| (at, page)).collect();
        for (position, page) in frozen {
            let index = (position - 1) / size;
            let cached = pages.list(0).get(index).and_then(|entry| entry.node);
            let partial = last.filter(|&(at, _)| at == index).map(|(_, node)| node);
            let (Some(node), Some(cache)) = (cached.or(partial), &mut self.cache) else { continue };
            let attached = cache.attach(node, position - index * size, page);
            self.frozen.remove(&(id, position));
            if !attached {
                self.allocator.pool_mut(group).release(page);
            }
        }
    }

    /// Whether a state of the sequence is frozen behind a token of a page, of which `completed` are read.
    pub(super) fn has_frozen(&self, id: RequestId, index: u32, completed: u32) -> bool {
        let mut frozen = self.frozen.range((id, 0)..=(id, completed));
        frozen.next_back().is_some_and(|(&(_, position), _)| position > index * self.page_size())
    }

    /// Drops what is frozen of a sequence.
    pub(super) fn drop_frozen(&mut self, id: RequestId) {
        let Some(group) = self.states else { return };
        while let Some((&key, &page)) = self.frozen.range((id, 0)..=(id, u32::MAX)).next() {
            self.frozen.remove(&key);
            self.allocator.pool_mut(group).release(page);
        }
    }

    /// What of a hit a sequence with a recurrent state can use: the tokens up to the last state.
    pub(super) fn cut_to_state(&self, hit: PrefixHit, whole_pages: bool) -> PrefixHit {
        let (Some(_), Some(cache)) = (self.states, &self.cache) else { return hit };
        let partial = hit.partial.as_ref().and_then(|source| match *source {
            PartialSource::TakeOver { node, tokens } | PartialSource::Cached { node, tokens } => {
                Some((node, tokens))
            }
            PartialSource::Live { .. } => None,
        });
        let Some(found) = cache.deepest(&hit.nodes, partial, whole_pages) else {
            return PrefixHit::default();
        };
        let (StateHit { before, node, offset, .. }, mut nodes) = (found, hit.nodes);
        let whole = offset == self.page_size();
        nodes.truncate(before + usize::from(whole));
        let partial = match hit.partial {
            _ if whole => None,
            Some(PartialSource::TakeOver { node: last, tokens }) if (last, tokens) == (node, offset) => {
                Some(PartialSource::TakeOver { node, tokens })
            }
            _ => Some(PartialSource::Cached { node, tokens: offset }),
        };
        PrefixHit { nodes, partial, state: Some(found) }
    }

    /// Puts a state of the cache in the place of a sequence's own.
    pub(super) fn put_state(&mut self, pages: &mut SequencePages, state: StateHit) {
        let (Some(group), Some(cache)) = (self.states, &mut self.cache) else { return };
        cache.use_state(state.node, state.offset);
        let pool = self.allocator.pool_mut(group);
        pool.retain(state.page);
        if let Some(own) = pages.list(group).get(0) {
            pool.release(own.id);
        }
        pages.list_mut(group).put(0, PageEntry::private(state.page, Writer::Prefill));
    }
}
