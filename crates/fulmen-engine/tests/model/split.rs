//! Layers of a model on several devices: the logits and tokens of one device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmen_core::sampling::TokenMask;
use fulmen_core::{BackendError, DType};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::generation::ProfileRow;
use fulmen_engine::{
    Device, EngineOptions, FitFor, LayerFit, LoadOptions, Model, Request, Sampling, SamplingParams, Session,
    SessionOptions, fit_layers, limit_memory,
};
use fulmen_model::ModelError;
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_testkit::inject::{Failing, Injector};
use fulmen_wgpu::WgpuDispatcher;

use crate::compare::{logits, nmse};
use crate::scenario::{Reference, Storm, answers, driver, prefix_hits_change_nothing, small_file};
use crate::tiny::{LLAMA, QWEN3, QWEN3_MOE, SHAPES, Tiny, TinyShape};

const LAYERS: u32 = 4;

fn cpu() -> Device {
    Box::new(CpuDispatcher::with_threads(2))
}

fn wgpu() -> Device {
    Box::new(WgpuDispatcher::open(0).unwrap())
}

fn tiny(shape: TinyShape) -> Tiny {
    Tiny::new(TinyShape { layers: LAYERS, ..shape }, 11)
}

fn options(session: SessionOptions) -> LoadOptions<'static> {
    LoadOptions { session, ..LoadOptions::default() }
}

const SESSION: SessionOptions =
    SessionOptions { context: 200, sequences: 3, cache: DType::F32, chunk: 7, eager: false };

fn whole(tiny: &Tiny) -> Model {
    Model::from_source(Arc::new(tiny.clone()), cpu(), options(SESSION)).unwrap()
}

fn split(tiny: &Tiny, devices: Vec<(Device, u32)>) -> Model {
    Model::from_source_split(Arc::new(tiny.clone()), devices, options(SESSION)).unwrap()
}

#[test]
fn every_split_gives_the_logits_of_one_device() {
    for shape in SHAPES {
        let tiny = tiny(shape);
        let expected = logits(&whole(&tiny));
        for counts in [&[4][..], &[1, 3], &[2, 2], &[3, 1], &[1, 2, 1], &[1, 1, 1, 1]] {
            let model = split(&tiny, counts.iter().map(|&count| (cpu(), count)).collect());
            assert_eq!(model.placement().stages().len(), counts.len());
            let found = nmse(&logits(&model), &expected);
            assert!(found < 1e-12, "{} {counts:?}: {found}", shape.arch);
        }
    }
}

/// Whether everything is run: the software GPU takes seconds for each model.
fn full() -> bool {
    std::env::var_os("FULMEN_TEST_FULL").is_some()
}

#[test]
fn a_gpu_before_or_behind_the_cpu_gives_the_logits_of_one_device() {
    let few = [(LLAMA, 1, false), (QWEN3, 2, true), (QWEN3_MOE, 3, false)];
    let every = SHAPES.into_iter().flat_map(|shape| {
        (1..LAYERS).flat_map(move |gpu| [false, true].map(|gpu_first| (shape, gpu, gpu_first)))
    });
    let rows: Vec<_> = if full() { every.collect() } else { few.to_vec() };
    for (shape, gpu, gpu_first) in rows {
        let tiny = tiny(shape);
        let expected = logits(&whole(&tiny));
        let mut devices = vec![(cpu(), LAYERS - gpu), (wgpu(), gpu)];
        if gpu_first {
            devices.reverse();
        }
        let found = nmse(&logits(&split(&tiny, devices)), &expected);
        assert!(found < 1e-8, "{} {gpu} layers, first: {gpu_first}: {found}", shape.arch);
    }
}

/// Batches, sampling, penalties, masks, a reused prefix and single steps beside many at once.
fn story(session: &mut Session) -> Vec<Vec<u32>> {
    let warm = Sampling { temperature: 0.9, top_k: 20, seed: 5, repeat_penalty: 1.3, ..Sampling::GREEDY };
    session.set_sampling(1, warm).unwrap();
    session.feed(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    session.feed(1, &[10, 20]).unwrap();
    session.feed(2, &[30]).unwrap();
    let mut found = session.decode(&[0, 1, 2], 6).unwrap();
    found.extend(session.decode(&[2, 0], 1).unwrap());
    found.extend(session.decode(&[2, 0], 4).unwrap());
    session.truncate(0, 5).unwrap();
    found.push(vec![session.draw(0, &[40, 41, 42]).unwrap()]);
    found.extend(session.decode(&[0], 3).unwrap());
    session.set_mask(2, Some(TokenMask(Arc::from(vec![0x0000_0f00; 4])))).unwrap();
    found.extend(session.decode(&[2, 1], 5).unwrap());
    found.extend((0..3).map(|sequence| session.tokens(sequence).unwrap().to_vec()));
    found
}

#[test]
fn sessions_draw_the_tokens_of_one_device() {
    let tiny = tiny(QWEN3);
    let expected = story(&mut whole(&tiny).session().unwrap());
    assert!(expected[expected.len() - 5].iter().all(|token| token % 32 / 4 == 2), "the mask: {expected:?}");
    for devices in [
        vec![(cpu(), 1), (cpu(), 3)],
        vec![(cpu(), 2), (cpu(), 1), (cpu(), 1)],
        vec![(cpu(), 2), (wgpu(), 2)],
    ] {
        let model = split(&tiny, devices);
        let mut session = model.session().unwrap();
        assert_eq!(story(&mut session), expected);
        let launches = session.step_launches().unwrap();
        assert!(launches.launches >= 2 && launches.kernels >= launches.launches, "{launches:?}");
        let mut eager = SESSION;
        eager.eager = true;
        assert_eq!(story(&mut model.session_with(eager).unwrap()), expected);
    }
}

#[test]
fn a_cancelled_prefill_leaves_a_session_as_it_was() {
    let model = split(&tiny(LLAMA), vec![(cpu(), 2), (cpu(), 2)]);
    let mut session = model.session().unwrap();
    session.feed(0, &[1, 2, 3]).unwrap();
    session.cancel_flag().store(true, Ordering::Relaxed);
    assert!(matches!(session.draw(0, &[4, 5]), Err(ModelError::Cancelled)));
    assert!(matches!(session.decode(&[0], 2), Err(ModelError::Cancelled)));
    session.cancel_flag().store(false, Ordering::Relaxed);
    assert_eq!(session.tokens(0).unwrap(), [1, 2, 3]);
    let mut fresh = model.session().unwrap();
    assert_eq!(session.draw(0, &[4, 5]).unwrap(), fresh.draw(0, &[1, 2, 3, 4, 5]).unwrap());
}

#[test]
fn a_profile_has_the_ops_of_every_device() {
    let count = |model: &Model| {
        let mut session = model.session().unwrap();
        session.feed(0, &[1]).unwrap();
        session.start_profile();
        session.decode(&[0], 2).unwrap();
        let rows = session.stop_profile().unwrap().rows();
        let attention = |row: &&ProfileRow| row.name.to_lowercase().contains("attention");
        rows.iter().filter(attention).map(|row| row.count).sum::<u64>()
    };
    let tiny = tiny(LLAMA);
    let expected = count(&whole(&tiny));
    assert!(expected > 0);
    assert_eq!(count(&split(&tiny, vec![(cpu(), 1), (cpu(), 3)])), expected);
}

fn few_pages() -> EngineOptions {
    EngineOptions { context: 512, max_sequences: 8, pages: 14, max_rows: 192, ..EngineOptions::default() }
}

/// A model of four layers with random weights.
fn small(recipe: &str, devices: Vec<(Device, u32)>) -> Model {
    let shape = ModelShape { layers: LAYERS as usize, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, recipe.parse().unwrap(), 5).file().unwrap();
    Model::from_source_split(Arc::new(file), devices, LoadOptions::default()).unwrap()
}

#[test]
fn a_storm_gives_equal_bits_on_two_devices() {
    let model = small("q8_0", vec![(cpu(), 1), (cpu(), 3)]);
    let options = EngineOptions { batch_invariant: true, ..few_pages() };
    let storm = Storm { requests: 24, max_tokens: 12, sampled: true, options, seed: 3 };
    let stats = storm.equal_bits(&model);
    assert!(stats.dropped > 0 && stats.cancelled > 0 && stats.prefix_cache.hits > 5, "{stats:?}");
}

#[test]
fn a_storm_swaps_the_pages_of_every_device() {
    let model = small("q4_k_m", vec![(cpu(), 2), (cpu(), 1), (cpu(), 1)]);
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, ..few_pages() };
    let storm = Storm { requests: 24, max_tokens: 16, sampled: true, options, seed: 4 };
    let stats = storm.equal_bits(&model);
    assert!(stats.swapped_out > 0 && stats.cancelled > 0, "{stats:?}");
}

#[test]
fn a_storm_on_a_gpu_and_the_cpu_gives_the_tokens_of_running_alone() {
    let options =
        EngineOptions { context: 384, max_sequences: 4, pages: 9, max_rows: 320, ..EngineOptions::default() };
    for gpu_first in [false, true].into_iter().take(if full() { 2 } else { 1 }) {
        let mut devices = vec![(cpu(), 1), (wgpu(), 1)];
        if gpu_first {
            devices.reverse();
        }
        let (file, options) = (Arc::new(small_file("f32")), options.clone());
        let model = Model::from_source_split(file, devices, LoadOptions::default()).unwrap();
        let storm = Storm { requests: 5, max_tokens: 4, sampled: false, options, seed: 6 };
        let stats = storm.near(&model, &Reference::new("f32"));
        assert!(stats.prefix_cache.hits > 0, "{stats:?}");
    }
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let model = small("q4_k_m", vec![(cpu(), 2), (cpu(), 2)]);
    let options = EngineOptions { context: 512, max_sequences: 4, ..EngineOptions::default() };
    prefix_hits_change_nothing(&model, &options, 1e-2);
    let options = EngineOptions { batch_invariant: true, ..options };
    prefix_hits_change_nothing(&model, &options, 0.0);
}

#[test]
fn an_engine_on_two_devices_gives_the_answers_of_one() {
    let requests = || -> Vec<Request> {
        let sampling = |temperature, repeat_penalty| {
            SamplingParams::new(Sampling { temperature, repeat_penalty, seed: 8, ..Sampling::GREEDY })
        };
        let prompt = |n: u32| (0..n).map(|i| (i * 31 + n) % 300).collect::<Vec<u32>>();
        vec![
            Request { logprobs: Some(3), hidden: true, ..Request::new(prompt(150), 12) },
            Request { prompt_logprobs: Some(2), ..Request::new(prompt(140), 6) },
            Request { sampling: sampling(0.8, 1.2), ..Request::new(prompt(3), 20) },
            Request { sampling: sampling(0.0, 1.5), logprobs: Some(1), ..Request::new(prompt(40), 9) },
            Request::new(prompt(1), 15),
        ]
    };
    let options = EngineOptions { batch_invariant: true, ..few_pages() };
    let expected = answers(&mut driver(&small("q8_0", vec![(cpu(), 4)]), &options), requests());
    for counts in [&[1, 3][..], &[3, 1], &[1, 2, 1]] {
        let model = small("q8_0", counts.iter().map(|&count| (cpu(), count)).collect());
        let found = answers(&mut driver(&model, &options), requests());
        assert_eq!(found, expected, "{counts:?}");
    }
}

#[test]
fn wrong_divisions_are_refused() {
    let source = Arc::new(tiny(LLAMA));
    for (counts, found) in [(&[2, 1][..], "[2, 1]"), (&[4, 0], "[4, 0]"), (&[], "[]")] {
        let devices = counts.iter().map(|&count| (cpu(), count)).collect();
        let refused = Model::from_source_split(source.clone(), devices, options(SESSION));
        let expected = format!("the layers of each device must be at least 1 and 4 together, is {found}");
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
    let mut extra = tiny(LLAMA);
    extra.put("blk.9.mystery.weight", &[64], DType::F32, &[0.0; 64]);
    let refused = Model::from_source_split(Arc::new(extra), vec![(cpu(), 1), (cpu(), 3)], options(SESSION));
    assert!(matches!(refused, Err(ModelError::ExtraTensors { count: 1, .. })), "{refused:?}");
}

#[test]
fn a_device_without_room_is_an_error_that_leaves_nothing_behind() {
    let watched = Failing::new(CpuDispatcher::with_threads(1), &Injector::default());
    let load = |bytes| {
        let devices = vec![(Box::new(watched.clone()) as Device, 2), (limit_memory(cpu(), bytes), 2)];
        Model::from_source_split(Arc::new(tiny(LLAMA)), devices, options(SESSION))
    };
    let refused = load(100_000);
    assert!(matches!(refused, Err(ModelError::Memory { available: 100_000, .. })), "{refused:?}");
    assert_eq!(watched.live(), 0);
    let model = load(10 << 20).unwrap();
    assert!(watched.live() > 0);
    // A session and an engine that are too large for the second device leave the first as it was.
    let before = watched.live();
    let large = SessionOptions { sequences: 3000, ..SESSION };
    assert!(matches!(model.session_with(large), Err(ModelError::CacheMemory { .. })));
    let options = EngineOptions { context: 200, pages: 30_000, ..few_pages() };
    let refused = fulmen_engine::model::ModelDevice::open(&model, &options);
    assert!(matches!(refused, Err(ModelError::Backend(BackendError::OutOfMemory { .. }))), "{refused:?}");
    assert_eq!(watched.live(), before);
    drop(model);
    assert_eq!(watched.live(), 0);
}

/// Loads the layers that fit a device with a memory limit behind the rest on another.
fn fitted(tiny: &Tiny, limit: u64, demand: FitFor<'_>) -> (LayerFit, Model) {
    let source = Arc::new(tiny.clone());
    let device = limit_memory(cpu(), limit);
    let fit = fit_layers(source.clone(), device.as_ref(), demand).unwrap();
    let (FitFor::Session(session) | FitFor::Engine(session, _)) = demand;
    let options = options(session);
    let model = match fit.layers {
        0 => Model::from_source(source, cpu(), options),
        all if all == fit.of => Model::from_source(source, device, options),
        some => Model::from_source_split(source, vec![(cpu(), fit.of - some), (device, some)], options),
    };
    (fit, model.unwrap_or_else(|error| panic!("{limit} bytes, {fit}: {error}")))
}

#[test]
fn weights_that_a_device_converts_count_as_converted() {
    let shape = ModelShape { layers: 8, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file: Arc<dyn ModelSource> = Arc::new(Synth::new(shape, "q2_k".parse().unwrap(), 5).file().unwrap());
    let session = SessionOptions { context: 128, ..SessionOptions::default() };
    let needed = |device: Device| {
        let device = limit_memory(device, 1 << 40);
        fit_layers(file.clone(), device.as_ref(), FitFor::Session(session)).unwrap().needed
    };
    // wgpu has no kernels for Q2_K, and keeps such weights in F32.
    assert!(needed(wgpu()) > 3 * needed(cpu()), "{} {}", needed(wgpu()), needed(cpu()));
}

/// Limits at which no layer fits, some do, and all do.
fn limits(needed: u64) -> impl Iterator<Item = u64> {
    (0..=12).map(move |tenth| needed * tenth / 10)
}

#[test]
fn what_fits_a_session_never_runs_out_of_memory() {
    let tiny = tiny(QWEN3);
    let expected = story(&mut whole(&tiny).session().unwrap());
    let (all, _) = fitted(&tiny, 1 << 30, FitFor::Session(SESSION));
    assert_eq!((all.layers, all.available), (LAYERS, Some(1 << 30)));
    let mut layers = Vec::new();
    for limit in limits(all.needed) {
        let (fit, model) = fitted(&tiny, limit, FitFor::Session(SESSION));
        assert!(fit.needed <= limit, "{fit}");
        layers.push(fit.layers);
        assert_eq!(story(&mut model.session().unwrap()), expected, "{fit}");
    }
    assert!(layers.is_sorted(), "{layers:?}");
    assert!((1..LAYERS).all(|count| layers.contains(&count)), "{layers:?}");
    assert_eq!((layers[0], layers[12]), (0, LAYERS));
}

#[test]
fn what_fits_an_engine_never_runs_out_of_memory() {
    let tiny = tiny(LLAMA);
    let options = EngineOptions { context: 200, max_sequences: 4, max_rows: 64, ..EngineOptions::default() };
    let session = SessionOptions { sequences: 1, ..SESSION };
    let demand = FitFor::Engine(session, &options);
    let requests = || -> Vec<Request> {
        (1..=6).map(|n| Request::new((0..20 * n).map(|i| (i * 7 + n) % 101).collect(), 10)).collect()
    };
    let (all, _) = fitted(&tiny, 1 << 30, demand);
    let mut layers = Vec::new();
    for limit in limits(all.needed) {
        let (fit, model) = fitted(&tiny, limit, demand);
        layers.push(fit.layers);
        let found = answers(&mut driver(&model, &options), requests());
        assert!(found.iter().all(|answer| answer.tokens.len() == 10), "{fit}: {found:?}");
    }
    assert!(layers.is_sorted() && layers[0] == 0 && layers[12] == LAYERS, "{layers:?}");
    assert!((1..LAYERS).any(|count| layers.contains(&count)), "{layers:?}");
}
