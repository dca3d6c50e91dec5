//! Logits and hidden states of every token, not just the last one, and of several sequences in one step.

use std::sync::atomic::Ordering;

use fulmen_model::ModelError;
use fulmen_model::arch::Results;

use super::session::Session;

/// Limit for the results of one chunk: the logits of 512 tokens with a large vocabulary would take 300 MiB.
const MAX_ROW_BYTES: usize = 128 << 20;

impl Session {
    /// Appends tokens and returns the logits after each of them, starting at index `first`, chunk by chunk:
    /// `rows` is called with the index in `tokens` of the chunk's first token and the logits of the chunk,
    /// row by row. Chunks have the session's chunk size, or less if their logits would take more than 128
    /// MiB.
    pub fn logits_of_each(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        first: usize,
        rows: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.results_of_each(sequence, tokens, first, Results::Logits, rows)
    }

    /// Appends tokens and returns the hidden state of each of them after the final norm, chunk by chunk, as
    /// [`logits_of_each`](Session::logits_of_each) returns logits.
    pub fn hidden_of_each(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        first: usize,
        rows: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.results_of_each(sequence, tokens, first, Results::Hidden, rows)
    }

    /// Appends a token to each of several sequences, runs them as one batch, as a decode step does, and
    /// returns the logits after each token, row by row: for programs that choose tokens themselves.
    ///
    /// If it fails, no sequence has got its token.
    pub fn logits_of_batch(&mut self, rows: &[(u32, u32)]) -> Result<Vec<f32>, ModelError> {
        let sequences: Vec<u32> = rows.iter().map(|&(sequence, _)| sequence).collect();
        for (at, &sequence) in sequences.iter().enumerate() {
            self.check_sequence(sequence)?;
            if sequences[..at].contains(&sequence) {
                return Err(self.wrong_sequence(sequence, "was passed twice"));
            }
            // What earlier calls drew, or a failed step left, is fed first.
            if self.sequences[sequence as usize].fed < self.sequences[sequence as usize].tokens.len() {
                self.run_pending(sequence, None)?;
            }
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        self.rows = None;
        let lengths: Vec<usize> =
            sequences.iter().map(|&s| self.sequences[s as usize].tokens.len()).collect();
        let appended = rows.iter().try_for_each(|&(sequence, token)| self.append(sequence, &[token]));
        let done = appended.and_then(|()| self.run_batch(&sequences));
        if done.is_err() {
            for (&sequence, len) in sequences.iter().zip(lengths) {
                self.sequences[sequence as usize].failed();
                self.sequences[sequence as usize].truncate(len);
            }
        }
        done
    }

    fn results_of_each(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        first: usize,
        results: Results,
        mut rows: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.with_appended(sequence, tokens, |session| {
            session.rows = None;
            let at = sequence as usize;
            let end = session.sequences[at].tokens.len();
            let base = end - tokens.len();
            // Earlier tokens are fed without results; so is a pending token drawn before this call.
            let start = base.saturating_add(first).min(end);
            let chunk = session.options.chunk as usize;
            let config = &session.shared.config;
            let width = if results == Results::Hidden { config.hidden } else { config.vocabulary };
            let chunk_with_rows = chunk.min(MAX_ROW_BYTES / (4 * width as usize).max(1)).max(1);
            while session.sequences[at].fed < end {
                if session.cancel.load(Ordering::Relaxed) {
                    return Err(ModelError::Cancelled);
                }
                let fed = session.sequences[at].fed;
                if fed < start {
                    session.run_chunk(sequence, start.min(fed + chunk), None)?;
                } else {
                    let to = end.min(fed + chunk_with_rows);
                    let values = session.run_chunk(sequence, to, Some((results, 0)))?;
                    rows(fed - base, &values);
                }
            }
            Ok(())
        })
    }
}
