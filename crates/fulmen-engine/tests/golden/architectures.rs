//! Logits of llama.cpp for small random models of the architectures that deviate from the plain transformer:
//! `architectures.json`, written by `scripts/golden-architectures`. Tests of every backend include this file by
//! its path.

use std::sync::Arc;

use fulmen_core::{Backend, DType};
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};
use serde_json::Value;

/// Logits of the token behind a prompt, of every eighth token of the vocabulary.
pub(crate) struct Golden {
    pub(crate) preset: String,
    pub(crate) context: u32,
    pub(crate) length: usize,
    logits: Vec<f64>,
}

const STRIDE: usize = 8;

pub(crate) fn goldens() -> Vec<Golden> {
    let set: Value = serde_json::from_str(include_str!("architectures.json")).unwrap();
    let golden = |entry: &Value| Golden {
        preset: entry["preset"].as_str().unwrap().to_owned(),
        context: entry["context"].as_u64().unwrap() as u32,
        length: entry["length"].as_u64().unwrap() as usize,
        logits: entry["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
    };
    set.as_array().unwrap().iter().map(golden).collect()
}

/// The prompt of a length; the script has the same.
pub(crate) fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|at| ((100 + 7919 * at + 31 * length) % 500) as u32).collect()
}

pub(crate) fn load(golden: &Golden, device: Box<dyn Backend + Send>, cache: DType, chunk: u32) -> Model {
    let shape = ModelShape::preset(&golden.preset).unwrap();
    let source = Synth::new(shape, "f32".parse().unwrap(), 1).source().unwrap();
    let session = SessionOptions { context: golden.context, sequences: 2, cache, chunk, eager: false };
    let options = LoadOptions { session, ..LoadOptions::default() };
    Model::from_source(Arc::new(source), device, options).unwrap()
}

/// The normalized mean-square error, less the means: llama.cpp gives log-probabilities.
#[track_caller]
pub(crate) fn close(got: &[f32], golden: &Golden, bound: f64, how: &str) {
    let got: Vec<f64> = got.iter().step_by(STRIDE).map(|x| f64::from(*x)).collect();
    assert_eq!(got.len(), golden.logits.len());
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (a, b) = (mean(&got), mean(&golden.logits));
    let error: f64 = got.iter().zip(&golden.logits).map(|(x, y)| (x - a - (y - b)).powi(2)).sum();
    let error = error / golden.logits.iter().map(|y| (y - b).powi(2)).sum::<f64>();
    let Golden { preset, length, context, .. } = golden;
    assert!(error <= bound, "{preset}, {length} tokens of {context}, {how}: {error:e}");
}

/// Compares the logits of a prompt in one chunk, in chunks of an odd size, and with its last tokens one at a
/// time, beside another sequence.
pub(crate) fn compare_chunks(golden: &Golden, device: impl Fn() -> Box<dyn Backend + Send>) {
    let prompt = prompt(golden.length);
    for (chunk, alone) in [(0, 0), (37, 0), (0, 7)] {
        let mut session = load(golden, device(), DType::F32, chunk).session().unwrap();
        let (whole, single) = prompt.split_at(prompt.len().saturating_sub(alone).max(1));
        let mut got = session.logits(1, whole).unwrap();
        for (at, token) in single.iter().enumerate() {
            session.logits(0, &[at as u32]).unwrap();
            got = session.logits(1, &[*token]).unwrap();
        }
        close(&got, golden, 1e-6, &format!("chunk {chunk}, {alone} alone"));
    }
}
