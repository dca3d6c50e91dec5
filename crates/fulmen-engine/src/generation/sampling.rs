//! Sampling parameters.

use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_model::ModelError;
use serde::{Deserialize, Serialize};

/// How tokens are drawn. The default is greedy: always the most likely token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0 selects the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens considered; 0 for all.
    pub top_k: u32,
    /// Probability mass considered; 1 for all.
    pub top_p: f32,
    /// Smallest probability considered, relative to the largest; 0 for any.
    pub min_p: f32,
    /// Divisor of the positive logits, and factor of the negative ones, of tokens within the window; 1 for
    /// none.
    pub repeat_penalty: f32,
    /// Subtracted from a logit for each occurrence of the token within the window.
    pub frequency_penalty: f32,
    /// Subtracted once from a logit if the token occurs within the window.
    pub presence_penalty: f32,
    /// Number of most recent tokens that the penalties consider.
    pub repeat_window: u32,
    /// The same seed draws the same tokens on the same device.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling::GREEDY
    }
}

impl Sampling {
    /// Greedy decoding: always the most likely token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        repeat_window: 64,
        seed: 0,
    };

    /// Checks that every parameter is in its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.state(0, 0).validate()?;
        self.penalties().validate()?;
        Ok(())
    }

    /// Whether any penalty has an effect.
    pub fn penalizes(&self) -> bool {
        let neutral =
            self.repeat_penalty == 1.0 && self.frequency_penalty == 0.0 && self.presence_penalty == 0.0;
        self.repeat_window > 0 && !neutral
    }

    /// The state of sequence `row` after `step` draws, as kernels read it.
    pub fn state(&self, step: u32, row: u32) -> SampleState {
        SampleState {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed_lo: self.seed as u32,
            seed_hi: (self.seed >> 32) as u32,
            step,
            row,
        }
    }

    /// The penalties, as kernels read them.
    pub fn penalties(&self) -> Penalties {
        Penalties {
            repeat: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            window: if self.penalizes() { self.repeat_window } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parameters_are_rejected_by_name() {
        let good = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::GREEDY };
        assert!(good.validate().is_ok() && Sampling::GREEDY.validate().is_ok());
        for (bad, word) in [
            (Sampling { temperature: f32::NAN, ..good }, "temperature"),
            (Sampling { temperature: -1.0, ..good }, "temperature"),
            (Sampling { top_p: f32::NAN, ..good }, "top_p"),
            (Sampling { min_p: 1.5, ..good }, "min_p"),
            (Sampling { repeat_penalty: 0.0, ..good }, "repetition penalty"),
            (Sampling { repeat_penalty: f32::NAN, ..good }, "repetition penalty"),
            (Sampling { frequency_penalty: f32::INFINITY, ..good }, "frequency penalty"),
            (Sampling { presence_penalty: f32::NAN, ..good }, "presence penalty"),
        ] {
            let message = bad.validate().unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        // A top_k above the vocabulary size keeps all tokens, and top_p 0 the first.
        assert!(Sampling { top_k: u32::MAX, top_p: 0.0, ..good }.validate().is_ok());
    }
}
