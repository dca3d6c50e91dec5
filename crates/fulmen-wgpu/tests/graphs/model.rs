//! Small models: what the processor computes, the device computes, launched and replayed.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, LoadOptions, Model, Sampling, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_wgpu::{GpuDevice, WgpuDispatcher};

use crate::common::gpu;
use crate::greedy::compare;

fn load(preset: &str, recipe: &str, cache: DType, device: Device, eager: bool) -> Model {
    load_layers(2, preset, recipe, cache, device, eager)
}

fn load_layers(
    layers: usize,
    preset: &str,
    recipe: &str,
    cache: DType,
    device: Device,
    eager: bool,
) -> Model {
    let shape = ModelShape { layers, ..ModelShape::preset(preset).unwrap() };
    let file = Synth::new(shape, recipe.parse().unwrap(), 11).file().unwrap();
    let session = SessionOptions { context: 96, chunk: 16, sequences: 2, eager, cache };
    Model::from_source(Arc::new(file), device, LoadOptions { session, ..LoadOptions::default() }).unwrap()
}

fn on(gpu: &GpuDevice) -> Device {
    Box::new(WgpuDispatcher::on(gpu).unwrap())
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_processor() {
    let gpu = gpu();
    let prompt: Vec<u32> = (0..21).map(|i| i * 37 % 1000).collect();
    for (preset, recipe, cache) in [
        ("tiny-qwen3", "f32", DType::F16),
        ("tiny-qwen2", "f16", DType::F16),
        ("tiny-llama", "f16", DType::Q8_0),
        ("tiny-qwen3-untied", "f32", DType::Q8_0),
        ("tiny-qwen3", "q4_k_m", DType::F16),
    ] {
        let cpu = load(preset, recipe, cache, Box::new(CpuDispatcher::with_threads(2)), false);
        let wgpu = load(preset, recipe, cache, on(&gpu), false);
        let (mut cpu, mut wgpu) = (cpu.session().unwrap(), wgpu.session().unwrap());
        // Beside quantized weights both round activations to 8 bits, each in its own way.
        let (bound, steps) = if recipe.starts_with('f') { (1e-4, 24) } else { (2e-3, 0) };
        compare(&mut cpu, &mut wgpu, &prompt, steps, bound, &format!("{preset} {recipe} {cache}"));
    }
}

#[test]
fn replayed_steps_draw_what_launched_ones_draw() {
    let gpu = gpu();
    for (recipe, cache) in [("f16", DType::F16), ("q4_k_m", DType::Q8_0)] {
        let draw = |eager: bool| {
            let model = load("tiny-qwen3", recipe, cache, on(&gpu), eager);
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
    // The compared runs were replays of recorded command buffers, where Vulkan supports it.
    if gpu.can_record() && gpu.caps().immediate_bytes > 0 {
        assert!(gpu.stats().replays > 60, "{:?}", gpu.stats());
    }
}

/// Norm + quantize; Q, K and V; RoPE + KV store + attention chunks; split-KV reduce + quantize; output
/// projection; norm + quantize; gate-up + quantize; down projection.
#[test]
fn a_layer_of_a_decode_step_is_eight_dispatches() {
    let gpu = gpu();
    for preset in ["tiny-qwen3", "tiny-llama"] {
        let dispatches = |layers| {
            let model = load_layers(layers, preset, "q8_0", DType::F16, on(&gpu), false);
            let mut session = model.session().unwrap();
            session.feed(0, &[1, 2, 3]).unwrap();
            session.decode(&[0], 1).unwrap();
            let before = gpu.stats();
            session.decode(&[0], 5).unwrap();
            gpu.stats().since(&before).dispatches
        };
        let five_steps = dispatches(3) - dispatches(2);
        assert_eq!(five_steps, 5 * 8, "{preset}");
    }
}
