//! Logits of every token, not of the last alone.

use std::sync::atomic::Ordering;

use super::session::Session;
use crate::arch::Results;
use crate::error::ModelError;

/// The most that the logits of one chunk may take: those of 512 tokens of a large vocabulary would be 300 MiB.
const MOST_BYTES: usize = 128 << 20;

impl Session {
    /// Appends tokens and gives the logits that follow each of them, from the one at `first` on, chunk by chunk: `rows`
    /// gets the place among `tokens` of a chunk's first one, and its rows, one behind the other. A chunk is as large as the
    /// session's, or smaller where its logits would take more than 128 MiB.
    pub fn logits_of_each(
        &mut self,
        sequence: u32,
        tokens: &[u32],
        first: usize,
        mut rows: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.appended(sequence, tokens, |session| {
            session.rows = None;
            let at = sequence as usize;
            let end = session.sequences[at].tokens.len();
            let begin = end - tokens.len();
            // What comes before is fed and not looked at; a token that was drawn last is open, too.
            let start = begin.saturating_add(first).min(end);
            let chunk = session.options.chunk as usize;
            let row_bytes = 4 * session.shared.config.vocabulary as usize;
            let chunk_with_rows = chunk.min(MOST_BYTES / row_bytes.max(1)).max(1);
            while session.sequences[at].fed < end {
                if session.cancel.load(Ordering::Relaxed) {
                    return Err(ModelError::Cancelled);
                }
                let fed = session.sequences[at].fed;
                if fed < start {
                    session.run_chunk(sequence, start.min(fed + chunk), None)?;
                } else {
                    let to = end.min(fed + chunk_with_rows);
                    let given = session.run_chunk(sequence, to, Some((Results::Logits, 0)))?;
                    rows(fed - begin, &given);
                }
            }
            Ok(())
        })
    }
}
