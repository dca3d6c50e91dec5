//! Sequences that have ended and whose last rows are in flight.
//!
//! ```text
//! tokens:  | prompt ........ | generated ....... stop |
//!                                        completed ▲   ▲ planned: the row of the stop is in flight
//! ```
//!
//! Where a sequence ends by a token, the row of that token is in flight, and its recurrent state is ahead of
//! what was read. The sequence gives back its slot, and keeps its pages until that step is read: then the
//! state behind the whole turn goes to the prefix cache, where the next turn finds it.

use std::sync::Arc;

use super::Scheduler;
use super::sequence::Sequence;
use crate::pages::SequencePages;
use crate::request::RequestId;
use crate::step::Sampled;

/// What is left of a sequence that has ended.
pub(super) struct Closing {
    tenant: Arc<str>,
    tokens: Vec<u32>,
    pub(super) pages: SequencePages,
    planned: u32,
    completed: u32,
    epoch: u32,
}

impl Scheduler {
    /// Gives the pages of a sequence that ends to the prefix cache, with its state if `whole`, and to the
    /// pool what the cache does not take.
    pub(super) fn close(&mut self, sequence: &mut Sequence, mut pages: SequencePages, whole: bool) {
        let Sequence { id, planned, completed, epoch, .. } = *sequence;
        if whole && !sequence.is_prefilling() && self.may_keep(sequence) {
            self.memory.freeze(id, planned, &pages);
            if planned > completed && self.memory.is_frozen(id, planned) {
                let (tenant, tokens) = (Arc::clone(&sequence.tenant), sequence.tokens.clone());
                self.closing.insert(id, Closing { tenant, tokens, pages, planned, completed, epoch });
                return;
            }
        }
        let Sequence { tenant, tokens, .. } = &*sequence;
        self.memory.cache_full_pages(tenant, tokens, completed, &mut pages);
        let last = self.memory.cache_last_page(id, tenant, tokens, completed, &pages);
        self.memory.use_last_windows(&pages, completed, last);
        self.memory.attach_states(id, completed, &pages, last);
        self.give_back(id, pages);
    }

    /// Gives the pages of a sequence back to the pool.
    pub(super) fn give_back(&mut self, id: RequestId, mut pages: SequencePages) {
        self.memory.drop_frozen(id);
        self.memory.release(&mut pages);
    }

    /// A step was read that has rows of a sequence up to `end`, of which the last one may have drawn a token.
    pub(super) fn note_closing(&mut self, id: RequestId, epoch: u32, end: u32) {
        let Some(closing) = self.closing.get_mut(&id).filter(|closing| closing.epoch == epoch) else {
            return;
        };
        closing.completed = closing.completed.max(end);
        if closing.completed < closing.planned {
            return;
        }
        let Some(Closing { tenant, tokens, mut pages, completed, .. }) = self.closing.remove(&id) else {
            return;
        };
        // A row has run only tokens that were drawn before it.
        if tokens.len() >= completed as usize {
            self.memory.cache_full_pages(&tenant, &tokens, completed, &mut pages);
            let last = self.memory.cache_last_page(id, &tenant, &tokens, completed, &pages);
            self.memory.attach_states(id, completed, &pages, last);
        }
        self.give_back(id, pages);
    }

    /// A token that a row of a sequence which has ended has drawn: a later row may have run it.
    pub(super) fn take_closing_token(&mut self, id: RequestId, position: u32, sampled: &Sampled) {
        if let Some(closing) = self.closing.get_mut(&id)
            && closing.tokens.len() == position as usize + 1
        {
            closing.tokens.push(sampled.token);
        }
    }

    /// Gives back what a sequence that has ended still holds. `false` if it holds nothing.
    pub(super) fn abandon(&mut self, id: RequestId) -> bool {
        let Some(closing) = self.closing.remove(&id) else { return false };
        self.give_back(id, closing.pages);
        true
    }

    /// Gives back what one of the sequences that have ended still holds, to make room.
    pub(super) fn abandon_any(&mut self) -> bool {
        self.closing.keys().next().copied().is_some_and(|id| self.abandon(id))
    }
}
