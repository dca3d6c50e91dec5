//! The state of one request.
//!
//! ```text
//! tokens:    | prompt ............ | generated ... | pending |
//! positions: 0        prefill_end                  len     total
//!            | completed ..............| in flight .| planned
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::pages::{SequencePages, SwappedPages};
use crate::request::{Constraint, FinishReason, RequestId, SamplingParams, Stop};
use crate::step::{NextToken, Row, RowToken, Sampled};

/// The order of requests: the earlier rank is admitted first and preempted last.
///
/// A rank is the time of arrival, moved by priority and by what else the tenant has asked for. All requests
/// age at the same rate, so the order of two requests never changes, and whoever arrives late enough comes
/// after a request of any priority: nobody starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Microseconds.
    pub(super) at: i64,
    pub(super) id: RequestId,
}

/// Where the keys and values of a sequence are.
#[derive(Debug)]
pub(super) enum Place {
    /// Nowhere: the sequence is in the queue.
    Waiting,
    /// On the host: the sequence is in the queue.
    Swapped(SwappedPages),
    /// In pages of the device.
    Running { slot: u32, pages: SequencePages },
}

/// The log-probabilities of the tokens of a prompt.
pub(super) struct PromptScores {
    /// How many of the most likely tokens are wanted at each position.
    pub(super) top: u8,
    /// Positions whose rows were asked for the token after them: those that have answered, and those of steps
    /// in flight.
    pub(super) asked: u32,
    /// The prompt's tokens so far: the first one, and one for each row that has answered.
    pub(super) tokens: Vec<Sampled>,
}

impl PromptScores {
    pub(super) fn new(first: u32, top: u8) -> PromptScores {
        PromptScores { top, asked: 0, tokens: vec![Sampled::token(first)] }
    }
}

pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) rank: Rank,
    pub(super) priority: i8,
    pub(super) tenant: Arc<str>,
    pub(super) deadline: Option<(Duration, Duration)>,
    pub(super) sampling: SamplingParams,
    pub(super) logprobs: Option<u8>,
    pub(super) hidden: bool,
    /// What is known of the log-probabilities of the prompt's tokens, if they are wanted.
    pub(super) prompt_scores: Option<PromptScores>,
    pub(super) stop: Stop,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    pub(super) use_prefix_cache: bool,
    /// Prompt and generated tokens that the host knows.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_tokens: usize,
    /// The length at which the sequence ends, and the reason.
    pub(super) max_len: (u32, FinishReason),
    pub(super) place: Place,
    /// Tokens that steps in flight sample.
    pub(super) pending: u32,
    /// Positions whose rows have been launched or are in the plan.
    pub(super) planned: u32,
    /// Positions whose step has been read without a fault.
    pub(super) completed: u32,
    /// Positions below it run in prefill chunks, the others as decode rows.
    pub(super) prefill_end: u32,
    /// Positions below it came from the prefix cache.
    pub(super) computed_from: u32,
    /// Counts how often the pages were dropped: results of earlier rows say nothing of the pages held now.
    pub(super) epoch: u32,
    /// The step that has, or will have, the newest rows of this sequence.
    pub(super) last_step: u64,
    pub(super) cached_tokens: Option<usize>,
    pub(super) preemptions: u32,
}

impl Sequence {
    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// The length with the tokens that are being sampled.
    pub(super) fn total(&self) -> u32 {
        self.len() + self.pending
    }

    pub(super) fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Tokens that may come from the prefix cache. The last token always runs, because its logits are needed,
    /// and so do those of the prompt whose logits are wanted; decoded positions of a batch-invariant sequence
    /// are not replaced by prefilled ones.
    pub(super) fn prefill_limit(&self) -> usize {
        let scored = self.scored_positions();
        let first_wanted = if scored.is_empty() { u32::MAX } else { scored.start };
        (self.len() - 1).min(self.prefill_end).min(first_wanted) as usize
    }

    /// Positions of the prompt whose rows have still to be asked for the log-probability of the token after
    /// them.
    pub(super) fn scored_positions(&self) -> Range<u32> {
        let end = self.prompt_tokens as u32 - 1;
        self.prompt_scores.as_ref().map_or(end..end, |scores| scores.asked.min(end)..end)
    }

    /// The token after the row at `position`, if its logits are wanted.
    pub(super) fn next_token(&self, position: u32) -> Option<NextToken> {
        if self.samples_at(position) {
            return Some(NextToken::Sample);
        }
        let wanted = self.scored_positions().contains(&position);
        let next = self.tokens.get(position as usize + 1).filter(|_| wanted)?;
        Some(NextToken::Known(*next))
    }

    pub(super) fn is_prefilling(&self) -> bool {
        self.planned < self.prefill_end
    }

    /// Rows that prefill has still to run.
    pub(super) fn prefill_rows(&self) -> u32 {
        self.prefill_end.saturating_sub(self.planned)
    }

    /// Whether a row can be planned: there is a token to run, more tokens are wanted, and the mask of a
    /// constrained sequence does not depend on a token that is being sampled.
    pub(super) fn has_row(&self) -> bool {
        let waits_for_token = self.constraint.is_some() && self.pending > 0;
        self.planned < self.total() && self.total() < self.max_len.0 && !waits_for_token
    }

    /// Whether the row at `position` samples: the token after it is not known or being sampled.
    pub(super) fn samples_at(&self, position: u32) -> bool {
        position + 1 == self.total()
    }

    pub(super) fn row(&self, position: u32, slot: u32) -> Row {
        let token = self.tokens.get(position as usize);
        Row { token: token.map_or(RowToken::Sampled, |&token| RowToken::Known(token)), position, slot }
    }

    /// Forgets what was computed.
    pub(super) fn reset(&mut self) {
        (self.planned, self.completed) = (0, 0);
        self.epoch += 1;
        self.place = Place::Waiting;
    }
}
