//! Timed prefill and decode runs of a session.

use std::time::{Duration, Instant};

use fulmen_engine::{Model, Session};
use fulmen_model::ModelError;
use serde::Serialize;

/// Random tokens, others for each sequence: rows that are equal would choose the same experts of a mixture.
pub(super) fn random_tokens(model: &Model, sequence: u32, count: usize) -> Vec<u32> {
    tokens_of_sequence(model.config().vocabulary, sequence, count)
}

fn tokens_of_sequence(vocabulary: u32, sequence: u32, count: usize) -> Vec<u32> {
    let first = u64::from(sequence) << 32;
    // A multiplicative hash, so that neighboring tokens differ.
    (first..first + count as u64)
        .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33).wrapping_rem(vocabulary.into()) as u32)
        .collect()
}

/// Tokens per second over several runs. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenRate {
    /// The mean.
    #[serde(rename = "tokens_per_second")]
    pub mean: f64,
    /// The standard deviation of the runs.
    pub spread: f64,
    /// Each run.
    pub runs: Vec<f64>,
}

impl TokenRate {
    /// From the rate of each run.
    pub fn new(runs: Vec<f64>) -> TokenRate {
        let mean = runs.iter().sum::<f64>() / runs.len().max(1) as f64;
        let squares: f64 = runs.iter().map(|rate| (rate - mean).powi(2)).sum();
        let spread = (squares / runs.len().saturating_sub(1).max(1) as f64).sqrt();
        TokenRate { mean, spread, runs }
    }

    /// Seconds that `tokens` take at the mean rate.
    pub fn seconds(&self, tokens: f64) -> f64 {
        tokens / self.mean.max(1e-9)
    }

    /// One run to warm up, and `repeat` runs that count.
    fn measure(
        tokens: usize,
        repeat: u16,
        mut once: impl FnMut(bool) -> Result<Duration, ModelError>,
    ) -> Result<TokenRate, ModelError> {
        once(true)?;
        let rate = |time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        let runs = (0..repeat).map(|_| once(false).map(rate)).collect::<Result<_, _>>()?;
        Ok(TokenRate::new(runs))
    }
}

/// Prefill of the first sequence behind `depth` tokens, with the logits of its last token and the sampling.
pub(super) struct PrefillRun {
    tokens: Vec<u32>,
    depth: usize,
}

impl PrefillRun {
    /// Fills the KV cache up to `depth`.
    pub(super) fn new(
        model: &Model,
        session: &mut Session,
        depth: usize,
        tokens: usize,
    ) -> Result<PrefillRun, ModelError> {
        let tokens = random_tokens(model, 0, depth + tokens);
        session.truncate(0, 0)?;
        session.feed(0, &tokens[..depth])?;
        Ok(PrefillRun { tokens, depth })
    }

    pub(super) fn run(&self, session: &mut Session) -> Result<Duration, ModelError> {
        session.truncate(0, self.depth)?;
        let start = Instant::now();
        session.draw(0, &self.tokens[self.depth..])?;
        Ok(start.elapsed())
    }

    pub(super) fn rate(&self, session: &mut Session, repeat: u16) -> Result<TokenRate, ModelError> {
        TokenRate::measure(self.tokens.len() - self.depth, repeat, |_| self.run(session))
    }
}

/// Sequences that decode together behind `depth` tokens each.
pub(super) struct DecodeRun {
    sequences: Vec<u32>,
    depth: usize,
    /// Steps that the device runs before the host reads a token.
    steps_ahead: u16,
}

impl DecodeRun {
    /// Fills the KV caches up to `depth`, at least with one token to decode from.
    pub(super) fn new(
        model: &Model,
        session: &mut Session,
        batch: u32,
        depth: usize,
        steps_ahead: u16,
    ) -> Result<DecodeRun, ModelError> {
        let (sequences, depth): (Vec<u32>, usize) = ((0..batch).collect(), depth.max(1));
        for &sequence in &sequences {
            session.truncate(sequence, 0)?;
            session.feed(sequence, &random_tokens(model, sequence, depth))?;
        }
        Ok(DecodeRun { sequences, depth, steps_ahead })
    }

    /// Brings all sequences back to `depth`. The last token is decoded here: the first step behind a
    /// truncation also computes the state of recurrent layers anew, from the first token on.
    pub(super) fn rewind(&self, session: &mut Session) -> Result<(), ModelError> {
        let decoded = usize::from(self.depth > 1);
        for &sequence in &self.sequences {
            session.truncate(sequence, self.depth - decoded)?;
        }
        if decoded > 0 {
            session.decode(&self.sequences, decoded)?;
        }
        Ok(())
    }

    /// Decodes from `depth` on; call [`rewind`](DecodeRun::rewind) first.
    pub(super) fn run(&self, session: &mut Session, steps: usize) -> Result<Duration, ModelError> {
        let (start, mut left) = (Instant::now(), steps);
        while left > 0 {
            let steps = left.min(self.steps_ahead.into());
            session.decode(&self.sequences, steps)?;
            left -= steps;
        }
        Ok(start.elapsed())
    }

    pub(super) fn rate(
        &self,
        session: &mut Session,
        steps: usize,
        repeat: u16,
    ) -> Result<TokenRate, ModelError> {
        let count = steps * self.sequences.len();
        TokenRate::measure(count, repeat, |warm_up| {
            self.rewind(session)?;
            self.run(session, if warm_up { steps.min(16) } else { steps })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_have_different_tokens() {
        let tokens: Vec<Vec<u32>> =
            (0..64).map(|sequence| tokens_of_sequence(151_936, sequence, 100)).collect();
        for at in 0..100 {
            let column: std::collections::HashSet<u32> = tokens.iter().map(|tokens| tokens[at]).collect();
            assert!(column.len() > 60, "{} of 64 tokens at {at}", column.len());
        }
        assert!(tokens.iter().flatten().all(|&token| token < 151_936));
    }

    #[test]
    fn a_rate_has_mean_and_standard_deviation() {
        let rate = TokenRate::new(vec![9.0, 10.0, 11.0]);
        assert_eq!((rate.mean, rate.spread), (10.0, 1.0));
        assert_eq!(rate.seconds(5.0), 0.5);
        assert_eq!(TokenRate::new(vec![7.0]).spread, 0.0);
    }
}
