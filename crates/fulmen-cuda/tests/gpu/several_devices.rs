//! A model on two ranks of one GPU, whose collectives pass through the host, and with layers on the GPU and
//! on the CPU: the logits and the tokens of one device.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, EngineOptions, LoadOptions, Model, SessionOptions, TensorParallel};
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};

use crate::engine_scenario::{Reference, Storm, prefix_hits_change_nothing, small_file};
use crate::greedy::compare;
use crate::{Gpu, gpu};

const PRESETS: [&str; 8] = [
    "tiny-llama",
    "tiny-qwen3",
    "tiny-qwen3moe",
    "tiny-gpt-oss",
    "tiny-glm4moe-groups",
    "tiny-olmo2",
    "tiny-olmo3",
    "tiny-olmoe",
];

fn file(preset: &str) -> Arc<dyn ModelSource> {
    let shape = ModelShape { layers: 2, ..ModelShape::preset(preset).unwrap() };
    Arc::new(Synth::new(shape, "f32".parse().unwrap(), 11).file().unwrap())
}

fn options(eager: bool) -> LoadOptions<'static> {
    let session = SessionOptions { context: 200, chunk: 16, sequences: 2, cache: DType::F32, eager };
    LoadOptions { session, ..LoadOptions::default() }
}

fn cuda(gpu: &Gpu) -> Device {
    Box::new(gpu.dispatcher())
}

fn cpu() -> Device {
    Box::new(CpuDispatcher::with_threads(2))
}

fn prompt() -> Vec<u32> {
    (0..150).map(|i| i * 37 % 500).collect()
}

#[test]
fn two_ranks_give_the_logits_and_tokens_of_one_device() {
    let Some(gpu) = gpu() else { return };
    for preset in PRESETS {
        for eager in [false, true] {
            let one = Model::from_source(file(preset), cuda(&gpu), options(eager)).unwrap();
            let ranks = TensorParallel::new(vec![cuda(&gpu), cuda(&gpu)]);
            let two = Model::from_source_sharded(file(preset), ranks, options(eager)).unwrap();
            let (mut one, mut two) = (one.session().unwrap(), two.session().unwrap());
            compare(
                &mut one,
                &mut two,
                &prompt(),
                24,
                1e-6,
                &format!("{preset} on two ranks, eager: {eager}"),
            );
        }
    }
}

#[test]
fn a_storm_on_two_ranks_gives_the_tokens_of_running_alone() {
    let Some(gpu) = gpu() else { return };
    let ranks = TensorParallel::new(vec![cuda(&gpu), cuda(&gpu)]);
    let model =
        Model::from_source_sharded(Arc::new(small_file("f32")), ranks, LoadOptions::default()).unwrap();
    let options = EngineOptions { context: 512, max_sequences: 8, pages: 14, ..EngineOptions::default() };
    prefix_hits_change_nothing(&model, &options, 1e-3);
    let storm = Storm { requests: 60, max_tokens: 24, sampled: false, options, seed: 8 };
    let stats = storm.near(&model, &Reference::new("f32"));
    assert!(stats.cancelled > 0 && stats.prefix_cache.hits > 5, "{stats:?}");
}

#[test]
fn layers_on_the_gpu_and_on_the_cpu_give_the_logits_and_tokens_of_one_device() {
    let Some(gpu) = gpu() else { return };
    for preset in PRESETS {
        let one = Model::from_source(file(preset), cpu(), options(false)).unwrap();
        let stages = vec![(cpu(), 1), (cuda(&gpu), 1)];
        let two = Model::from_source_split(file(preset), stages, options(false)).unwrap();
        let (mut one, mut two) = (one.session().unwrap(), two.session().unwrap());
        compare(&mut one, &mut two, &prompt(), 24, 1e-6, &format!("{preset} on CPU and GPU"));
    }
}
