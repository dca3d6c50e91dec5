//! Token masks of sequences.

use fulmen_core::Backend;
use fulmen_core::sampling::TokenMask;
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, names};

use super::session::{Session, address};

/// What drawing for some sequences needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adjustments {
    /// Whether any of them has penalties.
    pub(super) penalize: bool,
    /// Whether any of them has a mask.
    pub(super) mask: bool,
    /// How many of the most likely tokens are enough, if ranks make use of it.
    pub(super) candidates: Option<u32>,
}

/// Words of a token mask.
pub(super) fn mask_words(config: &Config) -> usize {
    config.vocabulary.div_ceil(32) as usize
}

impl Session {
    /// Restricts the tokens that are drawn for a sequence from now on; `None` allows all. A mask has a bit
    /// for each token of the vocabulary.
    pub fn set_mask(&mut self, sequence: u32, mask: Option<TokenMask>) -> Result<(), ModelError> {
        let (expected, entry) = (mask_words(&self.shared.config), self.sequence(sequence)?);
        if let Some(found) = mask.as_ref().map(|mask| mask.0.len()).filter(|&words| words != expected) {
            let (expected, found) = (format!("{expected} words of 32 bits"), format!("{found} words"));
            return Err(ModelError::Option { what: "the token mask", expected, found });
        }
        entry.mask = mask;
        self.rows = None;
        Ok(())
    }

    /// What drawing for these sequences needs.
    pub(super) fn adjustments(&self, sequences: &[u32]) -> Adjustments {
        let sequences = || sequences.iter().map(|&s| &self.sequences[s as usize]);
        let penalize = sequences().any(|sequence| sequence.sampling.penalizes());
        let mask = sequences().any(|sequence| sequence.mask.is_some());
        let candidates = match penalize || mask {
            true => None,
            false => self.shared.config.candidates(sequences().map(|sequence| sequence.sampling.state(0, 0))),
        };
        Adjustments { penalize, mask, candidates }
    }

    /// Writes the masks of these sequences to the device's rows, if there are any.
    pub(super) fn write_masks(&self, device: &mut dyn Backend, sequences: &[u32]) -> Result<(), ModelError> {
        let masks = sequences.iter().map(|&s| self.sequences[s as usize].mask.as_ref());
        if masks.clone().all(|mask| mask.is_none()) {
            return Ok(());
        }
        // Whether the row has a mask, and no biases.
        let edits: Vec<u32> = masks.clone().flat_map(|mask| [u32::from(mask.is_some()), 0]).collect();
        device.write(address(self.bindings(), names::STEP_EDITS)?, bytemuck::cast_slice(&edits))?;
        let first = address(self.bindings(), names::STEP_MASKS)?;
        let bytes = 4 * mask_words(&self.shared.config) as u64;
        for (row, mask) in (0u64..).zip(masks) {
            let Some(mask) = mask else { continue };
            device.write(first + row * bytes, bytemuck::cast_slice(&mask.0))?;
        }
        Ok(())
    }
}
