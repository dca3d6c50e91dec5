//! The tokens that a device has drawn, and steps whose logits had no finite maximum.

use fulmen_core::sampling::NO_TOKEN;
use fulmen_core::{Backend, BackendError, ExecError};
use fulmen_model::ModelError;
use fulmen_model::arch::names;

use super::session::{Session, address};

impl Session {
    /// Reads the last `steps` tokens that were drawn for each sequence, from its history on the device.
    pub(super) fn read_history(
        &self,
        device: &mut dyn Backend,
        sequences: &[u32],
        steps: usize,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        let history = address(self.bindings(), names::HISTORY)?;
        let mut drawn = Vec::with_capacity(sequences.len());
        for &sequence in sequences {
            let first = sequence as usize * self.options.context as usize;
            let first = first + self.sequences[sequence as usize].tokens.len();
            let mut words = vec![0u8; 4 * steps];
            device.read(history + 4 * first as u64, &mut words)?;
            drawn.push(words.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect());
        }
        Ok(drawn)
    }

    /// Fails if a step drew no token: names the first such step, or the file if its weights were changed.
    pub(super) fn check_drawn(&self, sequences: &[u32], drawn: &[Vec<u32>]) -> Result<(), ModelError> {
        let failed = sequences.iter().zip(drawn).filter_map(|(&sequence, tokens)| {
            Some((tokens.iter().position(|&token| token == NO_TOKEN)?, sequence, tokens))
        });
        let Some((step, sequence, tokens)) = failed.min_by_key(|(step, ..)| *step) else { return Ok(()) };
        let before = &self.sequences[sequence as usize].tokens;
        let token = match step.checked_sub(1) {
            Some(last) => tokens.get(last),
            None => before.last(),
        };
        let position = (before.len() + step).saturating_sub(1);
        // Weights of a file that was overwritten are no numbers either.
        self.shared.check_weights()?;
        Err(ModelError::LogitsNotFinite { token: token.copied().unwrap_or(NO_TOKEN), position, sequence })
    }

    /// The reason of an error of several steps: a step that drew no token makes the next fail, because there
    /// is nothing to embed.
    pub(super) fn reason(&self, error: ModelError, sequences: &[u32], steps: usize) -> ModelError {
        use BackendError::Index;
        let (ModelError::Backend(source)
        | ModelError::Exec(ExecError::Backend(source) | ExecError::Node { source, .. })) = &error
        else {
            return error;
        };
        if !matches!(source, Index { value: NO_TOKEN, .. }) {
            return error;
        }
        let mut device = self.shared.last().device();
        let drawn = self.read_history(device.as_mut(), sequences, steps);
        drawn.and_then(|drawn| self.check_drawn(sequences, &drawn)).err().unwrap_or(error)
    }
}
