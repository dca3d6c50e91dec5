//! A random Qwen3-MoE model draws the same tokens for a sequence alone and beside others. Its logits are
//! compared with llama.cpp's in `architectures.rs`.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (7 + 131 * i + i * i) % 900).collect()
}

fn model(sequences: u32) -> Model {
    let synth = Synth::new(ModelShape::preset("tiny-qwen3moe").unwrap(), "f32".parse().unwrap(), 1);
    let session = SessionOptions { context: 640, cache: DType::F32, sequences, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let device = Box::new(CpuDispatcher::with_threads(2));
    Model::from_source(Arc::new(synth.source().unwrap()), device, options).unwrap()
}

#[test]
fn sequences_of_a_batch_do_not_share_experts_results() {
    let model = model(3);
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
