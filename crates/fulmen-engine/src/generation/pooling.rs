//! Embeddings: the hidden states of a text, pooled as the model's file says.

use fulmen_model::ModelError;

use super::model::Model;
use super::session::Session;

/// How the hidden states of a text become its embedding, with the number in model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all tokens.
    Mean = 1,
    /// The first token.
    First = 2,
    /// The last token.
    Last = 3,
}

impl Model {
    /// The pooling that the model's file names; that of the last token if it names none. Fails if the model
    /// gives states without pooling, or ranks.
    pub fn pooling(&self) -> Result<Pooling, ModelError> {
        let key = format!("{}.pooling_type", self.config().architecture);
        let Some(number) = self.source().metadata().opt_u64(&key)? else { return Ok(Pooling::Last) };
        let known = [Pooling::Mean, Pooling::First, Pooling::Last];
        known.into_iter().find(|pooling| *pooling as u64 == number).ok_or_else(|| {
            let expected = "1 (mean), 2 (first token) or 3 (last token) for embeddings of texts".to_owned();
            ModelError::Value { key, expected, found: number.to_string() }
        })
    }
}

impl Session {
    /// Appends tokens and returns their embedding: their hidden states, after the final norm, pooled. An
    /// embedding of a whole text begins with an empty sequence.
    pub fn embed(&mut self, sequence: u32, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>, ModelError> {
        if tokens.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        match pooling {
            Pooling::Last => self.hidden(sequence, tokens),
            // Attention is causal: the state of the first token does not depend on what follows.
            Pooling::First => self.hidden(sequence, &tokens[..1]),
            Pooling::Mean => {
                let mut sum = vec![0.0; self.shared.config.hidden as usize];
                self.hidden_of_each(sequence, tokens, 0, |_, rows| {
                    for row in rows.chunks_exact(sum.len()) {
                        sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
                    }
                })?;
                let count = tokens.len() as f64;
                Ok(sum.into_iter().map(|value| (value / count) as f32).collect())
            }
        }
    }
}
