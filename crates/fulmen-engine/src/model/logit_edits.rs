//! Logit biases and token masks of output rows in device memory.
//!
//! Two arrays with a line per output row, which programs of rows with biases or masks read
//! ([`ProgramKey::edited`](super::programs::ProgramKey)): the edits, and the masks. All edits of a step are
//! one upload; a mask is uploaded only for the rows that have one.

use fulmen_core::sampling::LogitEdits;
use fulmen_core::{Backend, BackendError, Bindings};
use fulmen_model::arch::{MIXED_LOGIT_BIASES, names};

use crate::step::TokenMask;

/// Words of a row: whether it has a mask, the number of biases, and two for each.
const EDIT_WORDS: usize = 2 + 2 * MIXED_LOGIT_BIASES as usize;

/// What changes the logits of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct RowEdits {
    pub(super) biases: Vec<(u32, f32)>,
    pub(super) mask: Option<TokenMask>,
}

/// The arrays in device memory.
#[derive(Debug, Default)]
pub(super) struct EditBuffers {
    edits: u64,
    masks: u64,
    mask_words: usize,
}

impl EditBuffers {
    /// The bytes of both arrays for so many output rows.
    pub(super) fn bytes(outputs: u32, vocabulary: u32) -> [usize; 2] {
        let (rows, mask_words) = (outputs as usize, vocabulary.div_ceil(32) as usize);
        [4 * rows * EDIT_WORDS, 4 * rows * mask_words]
    }

    pub(super) fn new([edits, masks]: [u64; 2], vocabulary: u32) -> EditBuffers {
        EditBuffers { edits, masks, mask_words: vocabulary.div_ceil(32) as usize }
    }

    pub(super) fn bind(&self, bindings: &mut Bindings) {
        bindings.set(names::STEP_EDITS, self.edits);
        bindings.set(names::STEP_MASKS, self.masks);
    }

    /// Uploads the edits of a program's output rows.
    pub(super) fn write(&self, device: &mut dyn Backend, rows: &[RowEdits]) -> Result<(), BackendError> {
        device.write(self.edits, bytemuck::cast_slice(&words(rows)))?;
        for (row, mask) in
            rows.iter().enumerate().filter_map(|(row, edits)| Some((row, edits.mask.as_ref()?)))
        {
            device.write(self.masks + (4 * row * self.mask_words) as u64, bytemuck::cast_slice(&mask.0))?;
        }
        Ok(())
    }
}

/// The edits of all rows as they lie in device memory.
fn words(rows: &[RowEdits]) -> Vec<u32> {
    let mut words = Vec::with_capacity(rows.len() * EDIT_WORDS);
    for (row, RowEdits { biases, mask }) in rows.iter().enumerate() {
        let edits = LogitEdits { masked: mask.is_some(), biases: biases.clone() };
        words.extend(edits.words());
        words.resize((row + 1) * EDIT_WORDS, 0);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_lines_of_one_length() {
        let mask = Some(TokenMask::new(5, |token| token == 3));
        let rows = [RowEdits { biases: vec![(4, 0.5)], mask: None }, RowEdits { biases: Vec::new(), mask }];
        let words = words(&rows);
        assert_eq!(words.len(), 2 * EDIT_WORDS);
        assert_eq!(words[..5], [0, 1, 4, 0.5f32.to_bits(), 0]);
        assert_eq!(words[EDIT_WORDS..][..3], [1, 0, 0]);
        assert_eq!(EditBuffers::bytes(2, 33), [8 * EDIT_WORDS, 16]);
    }
}
