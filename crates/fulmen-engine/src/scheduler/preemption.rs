//! Preemption: who gives its pages to others.
//!
//! The victim is the running sequence with the last rank: the lowest priority, then the most recent. The
//! sequence with the first rank is never preempted for another, so it finishes, then the next one, and so
//! every request ends.

use super::Scheduler;
use super::config::PreemptionMode;
use super::sequence::{Place, Rank};
use crate::pages::OutOfPages;
use crate::request::RequestId;

/// Which running sequences may be preempted.
pub(super) enum Victims {
    /// Those that come after this one.
    After(Rank),
    /// Any.
    All,
}

impl Scheduler {
    /// The running sequence with the last rank, unless it has rows in the step that is being planned.
    pub(super) fn victim(&self, victims: Victims) -> Option<RequestId> {
        let last = self.running.last().filter(|&last| match victims {
            Victims::After(rank) => *last > rank,
            Victims::All => true,
        });
        last.map(|rank| rank.id).filter(|id| self.sequences[id].last_step != self.step)
    }

    /// Takes the pages and the slot of a running sequence and puts it back into the queue.
    pub(super) fn preempt(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Place::Running { slot, mut pages } = std::mem::replace(&mut sequence.place, Place::Waiting)
        else {
            return;
        };
        self.free_slots.push(slot);
        self.memory.drop_frozen(id);
        self.running.remove(&sequence.rank);
        self.waiting.insert(sequence.rank);
        sequence.preemptions += 1;
        self.memory.free_behind(&mut pages, sequence.planned);
        let swapped = match self.config.preemption {
            PreemptionMode::Swap if sequence.planned > 0 => {
                self.memory.swap_out(&mut pages, sequence.planned)
            }
            _ => None,
        };
        match swapped {
            Some(swapped) => {
                self.stats.swapped_out += 1;
                sequence.place = Place::Swapped(swapped);
            }
            None => {
                self.stats.dropped += 1;
                self.memory.release(&mut pages);
                sequence.reset();
            }
        }
    }

    /// Frees the pages behind the windows of running sequences, also those that the prefix cache would get.
    /// Those with rows in the step that is being planned need what their rows see.
    fn trim_windows(&mut self) {
        let step = self.step;
        for rank in &self.running {
            if let Some(sequence) = self.sequences.get_mut(&rank.id).filter(|s| s.last_step != step)
                && let Place::Running { pages, .. } = &mut sequence.place
            {
                self.memory.free_behind(pages, sequence.planned);
            }
        }
    }

    /// Makes positions up to `to` of a running sequence writable, and preempts others, or itself, where pages
    /// are missing.
    pub(super) fn prepare_rows(&mut self, id: RequestId, to: u32) -> Result<(), OutOfPages> {
        self.keep_state(id);
        let mut trimmed = false;
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return Err(OutOfPages) };
            let (from, completed) = (sequence.planned, sequence.completed);
            // Pages behind a window that the prefix cache may get are kept until their step is read.
            let seen =
                if self.memory.caches_windows() && sequence.use_prefix_cache { completed } else { from };
            let Place::Running { pages, .. } = &mut sequence.place else { return Err(OutOfPages) };
            // What the newest launched row sees is kept until the next plan: a launch may have to be undone.
            self.memory.free_behind(pages, seen.min(from));
            if self.memory.prepare(pages, from, to).is_ok() {
                return Ok(());
            }
            if !std::mem::replace(&mut trimmed, true) && self.memory.caches_windows() {
                self.trim_windows();
                continue;
            }
            if self.abandon_any() {
                continue;
            }
            match self.victim(Victims::All) {
                Some(victim) => self.preempt(victim),
                None => return Err(OutOfPages),
            }
        }
    }
}
