//! Prompts and answers of a session, timed; what every benchmark of models says of them.

use std::time::{Duration, Instant};

use fulmen_core::BackendKind;
use fulmen_model::{Model, ModelError, Session};
use serde_json::{Value, json};

use crate::model::load::{Loaded, summary};

/// Tokens that say nothing; what they say does not change the time.
pub(super) fn random_tokens(model: &Model, count: usize) -> Vec<u32> {
    let vocabulary = u64::from(model.config().vocabulary);
    // A multiplicative walk over the vocabulary: no tokens in a row are alike.
    (0..count as u64)
        .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33).wrapping_rem(vocabulary) as u32)
        .collect()
}

/// Tokens per second of some runs.
pub(super) struct Rates(pub(super) Vec<f64>);

impl Rates {
    /// A run that is not counted, and some that are.
    fn of(
        tokens: usize,
        repeat: u16,
        mut once: impl FnMut(bool) -> Result<Duration, ModelError>,
    ) -> Result<Rates, ModelError> {
        once(true)?;
        let rate = |time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        let rates = (0..repeat).map(|_| once(false).map(rate)).collect::<Result<_, _>>()?;
        Ok(Rates(rates))
    }

    pub(super) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    pub(super) fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|rate| (rate - mean).powi(2)).sum();
        (squares / self.0.len().saturating_sub(1).max(1) as f64).sqrt()
    }
}

/// A prompt of the first sequence behind `depth` tokens; the logits of its last token and the draw are part of it.
pub(super) struct Prompt {
    tokens: Vec<u32>,
    depth: usize,
}

impl Prompt {
    /// Brings what comes before the prompt into the cache.
    pub(super) fn new(
        model: &Model,
        session: &mut Session,
        depth: usize,
        tokens: usize,
    ) -> Result<Prompt, ModelError> {
        let tokens = random_tokens(model, depth + tokens);
        session.truncate(0, 0)?;
        session.feed(0, &tokens[..depth])?;
        Ok(Prompt { tokens, depth })
    }

    pub(super) fn run(&self, session: &mut Session) -> Result<Duration, ModelError> {
        session.truncate(0, self.depth)?;
        let start = Instant::now();
        session.draw(0, &self.tokens[self.depth..])?;
        Ok(start.elapsed())
    }

    pub(super) fn rates(&self, session: &mut Session, repeat: u16) -> Result<Rates, ModelError> {
        Rates::of(self.tokens.len() - self.depth, repeat, |_| self.run(session))
    }
}

/// Sequences that decode together behind `depth` tokens each.
pub(super) struct Answer {
    sequences: Vec<u32>,
    depth: usize,
    /// Steps that the device runs before the host looks.
    ahead: u16,
}

impl Answer {
    /// Brings what comes before the answers into the caches: at least one token, to go on from.
    pub(super) fn new(
        model: &Model,
        session: &mut Session,
        batch: u32,
        depth: usize,
        ahead: u16,
    ) -> Result<Answer, ModelError> {
        let (sequences, depth): (Vec<u32>, usize) = ((0..batch).collect(), depth.max(1));
        let before = random_tokens(model, depth);
        for &sequence in &sequences {
            session.truncate(sequence, 0)?;
            session.feed(sequence, &before)?;
        }
        Ok(Answer { sequences, depth, ahead })
    }

    pub(super) fn run(&self, session: &mut Session, steps: usize) -> Result<Duration, ModelError> {
        for &sequence in &self.sequences {
            session.truncate(sequence, self.depth)?;
        }
        let (start, mut left) = (Instant::now(), steps);
        while left > 0 {
            let steps = left.min(self.ahead.into());
            session.decode(&self.sequences, steps)?;
            left -= steps;
        }
        Ok(start.elapsed())
    }

    pub(super) fn rates(
        &self,
        session: &mut Session,
        steps: usize,
        repeat: u16,
    ) -> Result<Rates, ModelError> {
        let count = steps * self.sequences.len();
        Rates::of(count, repeat, |warm_up| self.run(session, if warm_up { steps.min(16) } else { steps }))
    }
}

/// Model, device and the speed of its memory, as a line.
pub(super) fn footer(loaded: &Loaded, memory: Option<f64>, threads: usize) -> String {
    let mut out =
        format!("{} on {} ({})", summary(&loaded.model), loaded.device.selector(), loaded.device.name);
    if loaded.device.backend == BackendKind::Cpu {
        out += &format!(", {threads} threads");
    }
    if let Some(memory) = memory {
        out += &format!(", memory {:.1} GB/s", memory / 1e9);
    }
    out + "\n"
}

/// The same for programs, and the tests. Field names here are an interface: add, do not rename.
pub(super) fn as_json(loaded: &Loaded, memory: Option<f64>, tests: Vec<Value>) -> Value {
    json!({
        "device": loaded.device.selector().to_string(),
        "name": loaded.device.name,
        "architecture": loaded.model.config().architecture.name(),
        "weight_bytes": loaded.model.weight_bytes(),
        "memory_bytes_per_second": memory,
        "load_seconds": loaded.time.as_secs_f64(),
        "tests": tests,
    })
}
