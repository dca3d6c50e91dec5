//! Logits that another implementation computed, and how ours are compared with them.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::fmt;

use fulmen_core::DType;
use fulmen_engine::{Model, SessionOptions};
use serde_json::Value;

/// Of the vocabulary, logits of every eighth token are stored.
const STRIDE: usize = 8;
/// The normalized mean-square error that is allowed.
pub(crate) const BOUND: f64 = 1e-6;

/// Logits of the token behind a prompt.
pub(crate) struct Case {
    /// The model.
    pub(crate) model: String,
    /// The context of the session.
    pub(crate) context: u32,
    /// Tokens of the prompt.
    pub(crate) length: usize,
    logits: Vec<f64>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens for {}", self.length, self.model)
    }
}

impl Case {
    pub(crate) fn new(model: &str, entry: &Value) -> Case {
        Case {
            model: model.to_owned(),
            context: entry["context"].as_u64().unwrap() as u32,
            length: entry["length"].as_u64().unwrap() as usize,
            logits: entry["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
        }
    }

    /// Options of a session for it: two sequences, an f32 cache.
    pub(crate) fn session(&self, chunk: u32) -> SessionOptions {
        SessionOptions { context: self.context, sequences: 2, cache: DType::F32, chunk, eager: false }
    }

    /// Fails if logits deviate. Means are taken off first: llama.cpp gives log-probabilities.
    #[track_caller]
    pub(crate) fn close(&self, got: &[f32], how: &str) {
        let got: Vec<f64> = got.iter().step_by(STRIDE).map(|x| f64::from(*x)).collect();
        assert_eq!(got.len(), self.logits.len());
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (a, b) = (mean(&got), mean(&self.logits));
        let error: f64 = got.iter().zip(&self.logits).map(|(x, y)| (x - a - (y - b)).powi(2)).sum();
        let error = error / self.logits.iter().map(|y| (y - b).powi(2)).sum::<f64>();
        let Case { model, length, context, .. } = self;
        assert!(error <= BOUND, "{model}, {length} tokens of {context}, {how}: {error:e}");
    }

    /// Compares the logits of the prompt in one chunk, in chunks of an odd size, and with its last tokens one
    /// at a time, beside another sequence. `load` makes the model with chunks of a size.
    pub(crate) fn compare_chunks(&self, load: impl Fn(u32) -> Model) {
        let prompt = prompt(self.length);
        for (chunk, alone) in [(0, 0), (37, 0), (0, 7)] {
            let mut session = load(chunk).session().unwrap();
            let (whole, single) = prompt.split_at(prompt.len().saturating_sub(alone).max(1));
            let mut got = session.logits(1, whole).unwrap();
            for (at, token) in single.iter().enumerate() {
                session.logits(0, &[at as u32]).unwrap();
                got = session.logits(1, &[*token]).unwrap();
            }
            self.close(&got, &format!("chunk {chunk}, {alone} alone"));
        }
    }

    /// Compares the logits of the prompt, its last token alone.
    pub(crate) fn compare_last(&self, model: &Model, how: &str) {
        let mut session = model.session().unwrap();
        let prompt = prompt(self.length);
        let (whole, last) = prompt.split_at(self.length - 1);
        if !whole.is_empty() {
            session.logits(0, whole).unwrap();
        }
        self.close(&session.logits(0, last).unwrap(), how);
    }
}

/// The prompt of a length; the scripts have the same.
pub(crate) fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|at| ((100 + 7919 * at + 31 * length) % 500) as u32).collect()
}
