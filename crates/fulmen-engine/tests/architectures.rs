//! Small random models of the architectures that deviate from the plain transformer give llama.cpp's logits,
//! across windows and contexts: `golden/architectures.json`, written by `scripts/golden-architectures`.

use std::sync::Arc;

use fulmen_core::{Backend, DType};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};
use serde_json::Value;

/// Logits of the token behind a prompt, of every eighth token of the vocabulary.
struct Golden {
    preset: String,
    context: u32,
    length: usize,
    logits: Vec<f64>,
}

const STRIDE: usize = 8;

fn goldens() -> Vec<Golden> {
    let set: Value = serde_json::from_str(include_str!("golden/architectures.json")).unwrap();
    let golden = |entry: &Value| Golden {
        preset: entry["preset"].as_str().unwrap().to_owned(),
        context: entry["context"].as_u64().unwrap() as u32,
        length: entry["length"].as_u64().unwrap() as usize,
        logits: entry["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
    };
    set.as_array().unwrap().iter().map(golden).collect()
}

/// The prompt of a length; the script has the same.
fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|at| ((100 + 7919 * at + 31 * length) % 500) as u32).collect()
}

fn load(golden: &Golden, device: Box<dyn Backend + Send>, cache: DType, chunk: u32) -> Model {
    let shape = ModelShape::preset(&golden.preset).unwrap();
    let source = Synth::new(shape, "f32".parse().unwrap(), 1).source().unwrap();
    let session = SessionOptions { context: golden.context, sequences: 2, cache, chunk, eager: false };
    let options = LoadOptions { session, ..LoadOptions::default() };
    Model::from_source(Arc::new(source), device, options).unwrap()
}

/// The normalized mean-square error, less the means: llama.cpp gives log-probabilities.
#[track_caller]
fn close(got: &[f32], golden: &Golden, bound: f64, how: &str) {
    let got: Vec<f64> = got.iter().step_by(STRIDE).map(|x| f64::from(*x)).collect();
    assert_eq!(got.len(), golden.logits.len());
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (a, b) = (mean(&got), mean(&golden.logits));
    let error: f64 = got.iter().zip(&golden.logits).map(|(x, y)| (x - a - (y - b)).powi(2)).sum();
    let error = error / golden.logits.iter().map(|y| (y - b).powi(2)).sum::<f64>();
    let Golden { preset, length, context, .. } = golden;
    assert!(error <= bound, "{preset}, {length} tokens of {context}, {how}: {error:e}");
}

#[test]
fn logits_are_those_of_llama_cpp() {
    for golden in goldens() {
        let prompt = prompt(golden.length);
        // In one chunk, in chunks of an odd size, and the last tokens one at a time, beside another sequence.
        for (chunk, alone) in [(0, 0), (37, 0), (0, 7)] {
            let device = Box::new(CpuDispatcher::with_threads(2));
            let mut session = load(&golden, device, DType::F32, chunk).session().unwrap();
            let (whole, single) = prompt.split_at(prompt.len().saturating_sub(alone).max(1));
            let mut got = session.logits(1, whole).unwrap();
            for (at, token) in single.iter().enumerate() {
                session.logits(0, &[at as u32]).unwrap();
                got = session.logits(1, &[*token]).unwrap();
            }
            close(&got, &golden, 1e-6, &format!("chunk {chunk}, {alone} alone"));
        }
    }
}

#[test]
fn decoded_tokens_do_not_depend_on_the_batch() {
    for golden in goldens().iter().filter(|golden| golden.length == 41) {
        let device = Box::new(CpuDispatcher::with_threads(2));
        let mut session = load(golden, device, DType::F32, 0).session().unwrap();
        let greedy = fulmen_engine::Sampling { temperature: 0.0, ..Default::default() };
        let mut answers = Vec::new();
        for sequence in [0, 1] {
            session.set_sampling(sequence, greedy).unwrap();
            session.logits(sequence, &prompt(30 + 11 * sequence as usize)).unwrap();
            answers.push(session.decode(&[sequence], 20).unwrap().remove(0));
            session.truncate(sequence, 30 + 11 * sequence as usize).unwrap();
        }
        assert_eq!(session.decode(&[0, 1], 20).unwrap(), answers, "{}", golden.preset);
    }
}

#[test]
fn wgpu_gives_the_same_logits() {
    for golden in goldens().iter().filter(|golden| matches!(golden.length, 1 | 100)) {
        let device = fulmen_wgpu::WgpuDispatcher::open(0).unwrap();
        let mut session = load(golden, Box::new(device), DType::F32, 64).session().unwrap();
        let prompt = prompt(golden.length);
        let (whole, last) = prompt.split_at(golden.length - 1);
        if !whole.is_empty() {
            session.logits(0, whole).unwrap();
        }
        close(&session.logits(0, last).unwrap(), golden, 1e-6, "wgpu");
    }
}
