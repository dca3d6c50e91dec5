//! The steps of a session on all ranks of its model.
//!
//! The session of rank 0 is the caller's. Those of the other ranks follow it: each step begins with the
//! tokens, the sampling and the masks of the sequences that take part, as rank 0 has them.
//!
//! Where devices run collectives, a rank that stopped midway would leave the others waiting on their devices.
//! Then rank 0 decides for all before a step whether it is canceled, and no rank stops within it.

use std::sync::Arc;

use fulmen_model::ModelError;
use fulmen_model::arch::Results;

use super::sequence::Sequence;
use super::session::Session;
use crate::ranks::{Workers, same_on_all_ranks};

/// What rank 0 knows of the sequences of a step.
#[derive(Clone)]
struct Known {
    sequences: Arc<[(u32, Sequence)]>,
    rows: Option<Vec<u32>>,
}

impl Session {
    /// Sessions of the other ranks, if this is that of rank 0; made between steps.
    pub(super) fn start_followers(&self) -> Result<Option<Workers<Session>>, ModelError> {
        let Some(ranks) = &self.shared.ranks else { return Ok(None) };
        if ranks.group.has_other_nodes() {
            return Err(ModelError::Without {
                what: "sessions: it is on several nodes, which an engine runs",
            });
        }
        let mut sessions = Vec::new();
        for (rank, shared) in (1..).zip(&ranks.followers) {
            let session = Session::new(Arc::clone(shared), self.options);
            let mut session = session.map_err(|error| ranks.group.of_rank(rank, error))?;
            if !ranks.group.is_on_devices() {
                session.cancel = Arc::clone(&self.cancel);
            }
            sessions.push((rank, session));
        }
        Workers::start(&ranks.group, sessions).map(Some)
    }

    /// Whether no rank may stop within a step.
    fn runs_whole_steps(&self) -> bool {
        self.shared.ranks.as_ref().is_some_and(|ranks| ranks.group.is_on_devices())
    }

    /// Runs a step of rank 0, which is not canceled midway if the others could not notice.
    fn own_step<R>(&mut self, step: impl FnOnce(&mut Session) -> R) -> R {
        if !self.runs_whole_steps() {
            return step(self);
        }
        let cancel = std::mem::take(&mut self.cancel);
        let result = step(self);
        self.cancel = cancel;
        result
    }

    fn known(&self, sequences: &[u32]) -> Known {
        let sequences = sequences.iter().map(|&s| (s, self.sequences[s as usize].clone())).collect();
        Known { sequences, rows: self.rows.clone() }
    }

    fn follow(&mut self, known: Known) {
        for (sequence, state) in known.sequences.iter() {
            self.sequences[*sequence as usize] = state.clone();
        }
        self.rows = known.rows;
    }

    /// Feeds the pending tokens up to `end` in one step. `results` says what to return, and from which row
    /// on.
    pub(super) fn run_chunk(
        &mut self,
        sequence: u32,
        end: usize,
        results: Option<(Results, usize)>,
    ) -> Result<Vec<f32>, ModelError> {
        let Some(followers) = self.followers.take() else {
            return self.run_chunk_on_rank(sequence, end, results);
        };
        if self.runs_whole_steps() && self.is_cancelled() {
            self.followers = Some(followers);
            return Err(ModelError::Cancelled);
        }
        let known = self.known(&[sequence]);
        let mut output = Vec::new();
        let ran = followers.run(
            move |session: &mut Session| {
                session.follow(known.clone());
                session.run_chunk_on_rank(sequence, end, results)?;
                Ok(session.last_token(sequence))
            },
            || {
                output = self.own_step(|session| session.run_chunk_on_rank(sequence, end, results))?;
                Ok(self.last_token(sequence))
            },
        );
        self.followers = Some(followers);
        same_on_all_ranks(&ran?)?;
        Ok(output)
    }

    /// Feeds the pending token of each of several sequences in one step and returns the logits after each of
    /// them.
    pub(super) fn run_batch(&mut self, sequences: &[u32]) -> Result<Vec<f32>, ModelError> {
        let Some(followers) = self.followers.take() else { return self.run_batch_on_rank(sequences) };
        if self.runs_whole_steps() && self.is_cancelled() {
            self.followers = Some(followers);
            return Err(ModelError::Cancelled);
        }
        let (known, list) = (self.known(sequences), sequences.to_vec());
        let mut output = Vec::new();
        let ran = followers.run(
            move |session: &mut Session| {
                session.follow(known.clone());
                session.run_batch_on_rank(&list).map(drop)
            },
            || {
                output = self.own_step(|session| session.run_batch_on_rank(sequences))?;
                Ok(())
            },
        );
        self.followers = Some(followers);
        ran.map(|_| output)
    }

    fn last_token(&self, sequence: u32) -> Option<u32> {
        self.sequences[sequence as usize].tokens.last().copied()
    }

    /// Decodes sequences that have exactly one token not yet in the KV cache.
    pub(super) fn decode_pending(
        &mut self,
        sequences: &[u32],
        steps: usize,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        let Some(followers) = self.followers.take() else { return self.decode_or_reason(sequences, steps) };
        if self.runs_whole_steps() && self.is_cancelled() {
            self.followers = Some(followers);
            return Err(ModelError::Cancelled);
        }
        let (known, list) = (self.known(sequences), sequences.to_vec());
        let ran = followers.run(
            move |session: &mut Session| {
                session.follow(known.clone());
                session.decode_or_reason(&list, steps)
            },
            || self.own_step(|session| session.decode_or_reason(sequences, steps)),
        );
        self.followers = Some(followers);
        let mut ran = ran?;
        same_on_all_ranks(&ran)?;
        Ok(ran.swap_remove(0))
    }

    fn decode_or_reason(&mut self, sequences: &[u32], steps: usize) -> Result<Vec<Vec<u32>>, ModelError> {
        let decoded = self.decode_on_rank(sequences, steps);
        decoded.map_err(|error| self.reason(error, sequences, steps))
    }
}
