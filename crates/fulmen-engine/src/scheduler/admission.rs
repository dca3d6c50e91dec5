//! Admission: who leaves the queue.
//!
//! Requests are admitted in the order of their ranks, and nobody overtakes the first one. It is admitted if a
//! slot is free and if its tokens fit into pages that are free or can be evicted, so that a reserve is left
//! for the sequences that run.

use super::Scheduler;
use super::preemption::Victims;
use super::sequence::{Place, Sequence};
use super::sharing::{PartialSource, PrefixHit, page_ids};
use crate::pages::{GroupKind, OutOfPages, SequencePages};
use crate::request::RequestId;
use crate::step::SlotSetup;

impl Scheduler {
    /// Moves requests from the queue to the running sequences while they fit.
    pub(super) fn admit(&mut self) {
        while let Some(&rank) = self.waiting.first() {
            let sequence = &self.sequences[&rank.id];
            // Preempted with a token in flight: with it, all its tokens are known.
            if sequence.pending > 0 {
                return;
            }
            if !self.try_admit(rank.id) && !self.preempt_for(rank.id) {
                return;
            }
        }
    }

    /// Preempts one running sequence of lower priority, if that may make room for a request.
    fn preempt_for(&mut self, id: RequestId) -> bool {
        let (rank, priority) = (self.sequences[&id].rank, self.sequences[&id].priority);
        let victim = self.victim(Victims::After(rank));
        let Some(victim) = victim.filter(|victim| self.sequences[victim].priority < priority) else {
            return false;
        };
        if !self.could_fit(&self.sequences[&id]) {
            return false;
        }
        if !self.abandon_any() {
            self.preempt(victim);
        }
        true
    }

    /// Whether a request would fit if all running sequences of lower priority were preempted.
    fn could_fit(&self, sequence: &Sequence) -> bool {
        let others = || self.running.range(sequence.rank..).map(|rank| &self.sequences[&rank.id]);
        let lower = || others().filter(|other| other.priority < sequence.priority);
        let stays = |other: &Sequence| other.rank < sequence.rank || other.priority >= sequence.priority;
        self.memory.groups().all(|group| {
            if self.memory.has_window(group) {
                return self.window_fits(sequence, group, stays);
            }
            let held = |other: &Sequence| match &other.place {
                Place::Running { pages, .. } => pages.list(group).held(),
                _ => 0,
            };
            self.demand(sequence, group) <= self.memory.available(group) + lower().map(held).sum::<u32>()
        })
    }

    /// Pages that the tokens of a sequence and one more need.
    fn demand(&self, sequence: &Sequence, group: usize) -> u32 {
        let positions = (sequence.len() + 1).min(self.context);
        self.memory.allocator.demand(group, positions, self.config.max_rows())
    }

    /// Whether the windows of the running sequences that `stays` accepts and of one more fit into a group,
    /// with a prefill chunk of the largest step. Pages behind windows come back and those in the prefix cache
    /// can be evicted, so what counts is what sequences may hold at most, not what is free.
    fn window_fits(&self, sequence: &Sequence, group: usize, stays: impl Fn(&Sequence) -> bool) -> bool {
        let allocator = &self.memory.allocator;
        let window = |sequence: &Sequence| {
            let positions = sequence.max_len.0.min(self.context);
            let decoding = allocator.demand(group, positions, 1);
            // What a chunk takes beside it.
            (decoding, allocator.demand(group, positions, self.config.max_rows()) - decoding)
        };
        let running = self.running.iter().map(|rank| &self.sequences[&rank.id]);
        let (mut windows, mut chunk) = window(sequence);
        let mut alone = true;
        for other in running.filter(|other| stays(other)) {
            let (decoding, beside) = window(other);
            windows = windows.saturating_add(decoding);
            if other.is_prefilling() {
                chunk = chunk.max(beside);
            }
            alone = false;
        }
        // A sequence alone fits into all pages.
        alone || windows.saturating_add(chunk) <= allocator.pages(group)
    }

    fn try_admit(&mut self, id: RequestId) -> bool {
        let Some(&slot) = self.free_slots.last() else { return false };
        let Some(mut sequence) = self.sequences.remove(&id) else { return false };
        let pages = match &sequence.place {
            Place::Swapped(_) => self.swap_in(&mut sequence),
            _ => self.start(&mut sequence),
        };
        let admitted = pages.is_ok();
        if let Ok(pages) = pages {
            self.free_slots.pop();
            let history = sequence.tokens.clone();
            self.prologue.slots.push(SlotSetup { slot, sampling: sequence.sampling.clone(), history });
            sequence.place = Place::Running { slot, pages };
            self.waiting.remove(&sequence.rank);
            self.running.insert(sequence.rank);
        }
        self.sequences.insert(id, sequence);
        admitted
    }

    fn swap_in(&mut self, sequence: &mut Sequence) -> Result<SequencePages, OutOfPages> {
        if !self.fits(sequence, (0, 0)) {
            return Err(OutOfPages);
        }
        let Place::Swapped(swapped) = &mut sequence.place else { return Err(OutOfPages) };
        self.memory.swap_in(swapped)
    }

    /// Pages for a sequence that starts, or starts again, with what the prefix cache has.
    fn start(&mut self, sequence: &mut Sequence) -> Result<SequencePages, OutOfPages> {
        let prefill_end =
            if self.config.batch_invariant { sequence.prompt_tokens as u32 } else { sequence.len() };
        sequence.prefill_end = prefill_end;
        let hit = self.find_hit(sequence).ok_or(OutOfPages)?;
        let looked_up = sequence.use_prefix_cache && self.memory.cache.is_some();
        let (mut pages, tokens) = self.memory.adopt(sequence.id, hit);
        if let Err(error) = self.memory.reserve(&mut pages, prefill_end) {
            self.memory.drop_frozen(sequence.id);
            self.memory.release(&mut pages);
            return Err(error);
        }
        if let Some(cache) = self.memory.cache.as_mut().filter(|_| looked_up) {
            cache.counters.lookups += 1;
            cache.counters.hits += u64::from(tokens > 0);
            cache.counters.tokens_hit += u64::from(tokens);
        }
        sequence.cached_tokens.get_or_insert(tokens as usize);
        (sequence.planned, sequence.completed, sequence.computed_from) = (tokens, tokens, tokens);
        Ok(pages)
    }

    /// What the cache has of a sequence; `None` if the sequence does not fit.
    fn find_hit(&self, sequence: &Sequence) -> Option<PrefixHit> {
        let mut hit = PrefixHit::default();
        let tokens = &sequence.tokens[..sequence.prefill_limit()];
        if sequence.use_prefix_cache {
            hit = self.memory.find_prefix(&sequence.tenant, tokens, self.config.batch_invariant);
            // The state of a sequence that runs is ahead of its pages.
            let live = self.memory.cache.is_some() && self.memory.states.is_none();
            if live && !self.config.batch_invariant {
                self.find_live(sequence, tokens, &mut hit);
            }
            hit = self.memory.cut_to_windows(hit);
        }
        if self.fits(sequence, self.memory.hit_pages(&hit)) {
            return Some(hit);
        }
        // A copy needs one page more than none.
        hit = match hit.state {
            Some(_) => self.memory.find_prefix(&sequence.tenant, tokens, true),
            None => self.memory.cut_to_windows(PrefixHit { partial: None, ..hit }),
        };
        self.fits(sequence, self.memory.hit_pages(&hit)).then_some(hit)
    }

    /// Skips what another sequence has computed since this one was admitted, so that of many requests with
    /// the same prompt that arrive together few compute it.
    pub(super) fn skip_cached(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let limit = sequence.prefill_limit();
        let Place::Running { pages, .. } = &mut sequence.place else { return };
        let all_cached = pages.list(0).cached_pages() * self.config.page_size == sequence.planned;
        if !sequence.use_prefix_cache || self.memory.cache.is_none() || !all_cached {
            return;
        }
        let end = self.memory.extend_prefix(&sequence.tenant, &sequence.tokens[..limit], pages);
        let skipped = end - sequence.planned;
        if let Some(cache) = &mut self.memory.cache {
            cache.counters.hits += u64::from(skipped > 0 && sequence.planned == 0);
            cache.counters.tokens_hit += u64::from(skipped);
        }
        if sequence.preemptions == 0 {
            sequence.cached_tokens = sequence.cached_tokens.map(|tokens| tokens + skipped as usize);
        }
        (sequence.planned, sequence.completed, sequence.computed_from) = (end, end, end);
    }

    /// Looks for a running sequence that shares more tokens of the next page.
    fn find_live(&self, sequence: &Sequence, tokens: &[u32], hit: &mut PrefixHit) {
        let (size, index) = (self.config.page_size, hit.nodes.len() as u32);
        let rest = &tokens[(index * size) as usize..];
        for rank in &self.running {
            let live = &self.sequences[&rank.id];
            let Place::Running { pages, .. } = &live.place else { continue };
            let parent = index.checked_sub(1).and_then(|index| pages.list(0).get(index)?.node);
            let (Some(entry), true) = (pages.list(0).get(index), parent == hit.nodes.last().copied()) else {
                continue;
            };
            if live.tenant != sequence.tenant || live.completed <= index * size {
                continue;
            }
            let theirs =
                &live.tokens[(index * size) as usize..live.completed.min((index + 1) * size) as usize];
            let shared = theirs.iter().zip(rest).take_while(|(a, b)| a == b).count() as u32;
            if shared > hit.partial.as_ref().map_or(0, PartialSource::tokens)
                && let Some(pages) = page_ids(pages, index, None).into_iter().collect()
            {
                hit.partial = Some(PartialSource::Live { pages, writer: entry.writer, tokens: shared });
            }
        }
    }

    /// Whether the tokens of a sequence and one more fit into the available pages, of which a hit brings
    /// some and occupies some, and the reserve is left. States do not grow: they need no reserve, and that of
    /// a hit is copied.
    fn fits(&self, sequence: &Sequence, (brought, occupied): (u32, u32)) -> bool {
        let reserve = self.config.reserve_pages.saturating_mul(self.running.len() as u32);
        self.memory.groups().all(|group| {
            if self.memory.has_window(group) {
                return self.window_fits(sequence, group, |_| true);
            }
            if self.memory.allocator.kind(group) == GroupKind::Recurrent {
                return self.demand(sequence, group) <= self.memory.available(group);
            }
            let available = self.memory.available(group).saturating_sub(occupied);
            self.demand(sequence, group).saturating_sub(brought) + reserve <= available
        })
    }
}
