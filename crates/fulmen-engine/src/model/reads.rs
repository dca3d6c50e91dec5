//! The results of a step on their way to the host.

use fulmen_core::sampling::MAX_TOP_LOGPROBS;
use fulmen_core::{Backend, BackendError, ReadTicket};

use super::programs::{Compiled, ProgramKey};

/// Log-probabilities of a row: that of its token, and those of the most likely ones.
pub(super) const LOG_PROBS_WIDTH: usize = 1 + MAX_TOP_LOGPROBS as usize;

/// The results of a step that are on their way.
pub(super) struct Reads {
    /// The drawn tokens; a word that nobody looks at if there are none.
    pub(super) drawn: ReadTicket,
    /// Log-probabilities, whose they are, and hidden states, where they are wanted.
    pub(super) beside: [Option<ReadTicket>; 3],
}

impl Reads {
    /// Starts to read the drawn tokens of `rows` output rows and what is wanted beside them; without rows a
    /// word at `anything`, which arrives when the step is done. Hidden states have `hidden` values.
    pub(super) fn start(
        device: &mut dyn Backend,
        compiled: &Compiled,
        (key, rows): (ProgramKey, usize),
        hidden: usize,
        anything: u64,
    ) -> Result<Reads, BackendError> {
        if rows == 0 {
            return Ok(Reads { drawn: device.start_read(anything, 4)?, beside: Default::default() });
        }
        let widths = [
            (key.log_probs, compiled.log_probs, LOG_PROBS_WIDTH),
            (key.log_probs, compiled.log_prob_tokens, LOG_PROBS_WIDTH),
            (key.hidden, compiled.hidden, hidden),
        ];
        let mut beside = [None, None, None];
        for (read, (wanted, at, width)) in beside.iter_mut().zip(widths) {
            if wanted {
                *read = Some(device.start_read(at, 4 * rows * width)?);
            }
        }
        Ok(Reads { drawn: device.start_read(compiled.drawn, 4 * rows)?, beside })
    }
}
