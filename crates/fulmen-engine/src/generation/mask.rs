//! Token masks of sequences.

use fulmen_core::Backend;
use fulmen_core::sampling::TokenMask;
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, names};

use super::sequence::Sequence;
use super::session::{Session, address};

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

    /// Whether any of these sequences has penalties, and whether one has a mask.
    pub(super) fn adjustments(&self, sequences: &[u32]) -> [bool; 2] {
        let any = |f: fn(&Sequence) -> bool| sequences.iter().any(|&s| f(&self.sequences[s as usize]));
        [any(|sequence| sequence.sampling.penalizes()), any(|sequence| sequence.mask.is_some())]
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
