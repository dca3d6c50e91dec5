//! A random Qwen3-MoE model has the log-probabilities that llama.cpp computes for it: prompts of 1 to 600
//! tokens, in chunks, one token at a time, and several sequences at once.
//!
//! `golden/qwen3moe.json` was written with the package `xllamacpp` (f32 weights and cache, no flash
//! attention): of every 16th token, after the first tokens of [`prompt`]. No router of the model is within
//! 9e-4 of a tie there.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};

struct Golden {
    tokens: u32,
    logprobs: Vec<f64>,
}

fn golden() -> Vec<Golden> {
    let rows: Vec<serde_json::Value> = serde_json::from_str(include_str!("golden/qwen3moe.json")).unwrap();
    let golden = |row: &serde_json::Value| Golden {
        tokens: row["tokens"].as_u64().unwrap() as u32,
        logprobs: row["logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
    };
    rows.iter().map(golden).collect()
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (7 + 131 * i + i * i) % 900).collect()
}

fn model(chunk: u32, sequences: u32) -> Model {
    let synth = Synth::new(ModelShape::preset("tiny-qwen3moe").unwrap(), "f32".parse().unwrap(), 1);
    let session =
        SessionOptions { context: 640, cache: DType::F32, chunk, sequences, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let device = Box::new(CpuDispatcher::with_threads(2));
    Model::from_source(Arc::new(synth.source().unwrap()), device, options).unwrap()
}

#[track_caller]
fn close(logits: &[f32], golden: &Golden, what: &str) {
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let got: Vec<f64> = logits.iter().step_by(16).map(|&x| f64::from(x) - total.ln()).collect();
    assert_eq!(got.len(), golden.logprobs.len());
    let mean = golden.logprobs.iter().sum::<f64>() / got.len() as f64;
    let error: f64 = got.iter().zip(&golden.logprobs).map(|(a, b)| (a - b).powi(2)).sum();
    let nmse = error / golden.logprobs.iter().map(|b| (b - mean).powi(2)).sum::<f64>();
    assert!(nmse < 1e-9, "{what} of {} tokens: error {nmse:e}", golden.tokens);
}

#[test]
fn prompts_have_the_logits_of_llama_cpp() {
    for chunk in [512, 100] {
        let model = model(chunk, 1);
        let mut session = model.session().unwrap();
        for golden in golden() {
            session.truncate(0, 0).unwrap();
            let logits = session.logits(0, &prompt(golden.tokens)).unwrap();
            close(&logits, &golden, &format!("chunks of {chunk}"));
        }
    }
}

#[test]
fn decoding_has_the_logits_of_llama_cpp() {
    let mut session = model(512, 1).session().unwrap();
    let golden = golden();
    for (at, token) in prompt(17).into_iter().enumerate() {
        let logits = session.logits(0, &[token]).unwrap();
        if let Some(golden) = golden.iter().find(|golden| golden.tokens as usize == at + 1) {
            close(&logits, golden, "single tokens");
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_share_experts_results() {
    let model = model(512, 3);
    let (mut together, mut alone) = (model.session().unwrap(), model.session().unwrap());
    let prompts = [prompt(17), prompt(129), prompt(2)];
    for (sequence, prompt) in (0..).zip(&prompts) {
        together.feed(sequence, prompt).unwrap();
    }
    let drawn = together.decode(&[0, 1, 2], 6).unwrap();
    for (prompt, drawn) in prompts.iter().zip(drawn) {
        alone.truncate(0, 0).unwrap();
        alone.feed(0, prompt).unwrap();
        assert_eq!(alone.decode(&[0], 6).unwrap().remove(0), drawn, "{} tokens", prompt.len());
    }
}
