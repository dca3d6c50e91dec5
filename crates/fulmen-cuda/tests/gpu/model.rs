//! Small models: what the processor computes, the device computes, launched and replayed.

use std::sync::Arc;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, LoadOptions, Model, Sampling, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};

use crate::gpu;
use crate::greedy::compare;

fn load(preset: &str, recipe: &str, device: Device, eager: bool) -> Model {
    let shape = ModelShape { layers: 2, ..ModelShape::preset(preset).unwrap() };
    let file = Synth::new(shape, recipe.parse().unwrap(), 11).file().unwrap();
    let session = SessionOptions { context: 96, chunk: 16, sequences: 2, eager, ..SessionOptions::default() };
    Model::from_source(Arc::new(file), device, LoadOptions { session, ..LoadOptions::default() }).unwrap()
}

#[test]
fn logits_and_greedy_tokens_match_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let prompt: Vec<u32> = (0..21).map(|i| i * 37 % 1000).collect();
    for preset in ["tiny-qwen3", "tiny-llama", "tiny-qwen2", "tiny-qwen3-untied"] {
        // The CPU quantizes activations to 8 bits for quantized weights.
        for (recipe, bound) in [("f32", 1e-6), ("f16", 1e-6), ("q8_0", 2e-3), ("q4_k_m", 2e-3)] {
            let cpu = load(preset, recipe, Box::new(CpuDispatcher::with_threads(2)), false);
            let cuda = load(preset, recipe, Box::new(gpu.dispatcher()), false);
            let (mut cpu, mut cuda) = (cpu.session().unwrap(), cuda.session().unwrap());
            let steps = if bound < 1e-5 { 24 } else { 0 };
            compare(&mut cpu, &mut cuda, &prompt, steps, bound, &format!("{preset} {recipe}"));
        }
    }
}

#[test]
fn replayed_steps_sample_the_same_tokens_as_launched_ones() {
    let Some(gpu) = gpu() else { return };
    for recipe in ["f16", "q4_k_m"] {
        let draw = |eager: bool| {
            let model = load("tiny-qwen3", recipe, Box::new(gpu.dispatcher()), eager);
            let mut session = model.session().unwrap();
            let sampling = Sampling { temperature: 0.9, top_k: 40, seed: 5, ..Sampling::GREEDY };
            session.set_sampling(0, sampling).unwrap();
            session.set_sampling(1, Sampling { repeat_penalty: 1.3, ..sampling }).unwrap();
            session.feed(0, &[1, 2, 3, 4]).unwrap();
            session.feed(1, &[9, 8, 7]).unwrap();
            let together = session.decode(&[1, 0], 20).unwrap();
            let alone = session.decode(&[0], 20).unwrap();
            (together, alone, session.logits(0, &[]).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        assert_eq!(draw(false), draw(true), "{recipe}");
    }
}
