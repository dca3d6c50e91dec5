//! Experts of a mixture on the CPU and everything else on another device: the logits and tokens of one
//! device.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmen_core::{BackendError, DType};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::generation::ProfileRow;
use fulmen_engine::{
    Device, EngineOptions, Event, ExpertFit, FitFor, LoadOptions, LoadProgress, Model, Request, Sampling,
    SamplingParams, Session, SessionOptions, fit_experts, limit_memory,
};
use fulmen_model::ModelError;
use fulmen_model::gguf::GgufFile;
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_testkit::inject::{Failing, Injector};
use fulmen_wgpu::WgpuDispatcher;

use crate::compare::{logits, nmse};
use crate::scenario::{Reference, Storm, answers, driver, expert_model, prefix_hits_change_nothing};
use crate::tiny::{LLAMA, QWEN3_MOE, Tiny, TinyShape};

/// Mixtures of every kind: with biases, shared experts, leading dense layers, in groups, beside a dense
/// layer, gated shared experts.
const PRESETS: [&str; 8] = [
    "tiny-qwen3moe",
    "tiny-gpt-oss",
    "tiny-glm4moe",
    "tiny-glm4moe-groups",
    "tiny-olmoe",
    "tiny-gemma4moe",
    "tiny-qwen35moe",
    "tiny-qwen3next",
];

const SESSION: SessionOptions =
    SessionOptions { context: 200, sequences: 3, cache: DType::F32, chunk: 7, eager: false };

fn cpu() -> Device {
    Box::new(CpuDispatcher::with_threads(2))
}

fn wgpu() -> Device {
    Box::new(WgpuDispatcher::open(0).unwrap())
}

fn options(session: SessionOptions) -> LoadOptions<'static> {
    LoadOptions { session, ..LoadOptions::default() }
}

fn file(preset: &str, recipe: &str) -> Arc<GgufFile> {
    let shape = ModelShape::preset(preset).unwrap();
    Arc::new(Synth::new(shape, recipe.parse().unwrap(), 5).file().unwrap())
}

fn whole(source: Arc<dyn ModelSource>) -> Model {
    Model::from_source(source, cpu(), options(SESSION)).unwrap()
}

fn cut(source: Arc<dyn ModelSource>, device: Device, count: u32) -> Model {
    Model::from_source_experts_on(source, device, (cpu(), count), options(SESSION)).unwrap()
}

#[test]
fn the_experts_of_any_layers_on_the_host_give_the_logits_of_one_device() {
    for preset in PRESETS {
        let file = file(preset, "f32");
        let model = whole(file.clone());
        let (expected, mixtures) = (logits(&model), model.config().expert_layers().len() as u32);
        for count in [0, 1, mixtures - 1, mixtures, 99] {
            let model = cut(file.clone(), cpu(), count);
            assert_eq!(model.placement().is_divided(), count > 0);
            let found = nmse(&logits(&model), &expected);
            assert!(found < 1e-12, "{preset}, {count} of {mixtures}: {found}");
        }
    }
}

/// On one device the sum of the experts begins with the residual, unless a norm is between them, as in Gemma
/// 4.
#[test]
fn bits_are_equal_where_one_device_adds_the_same_values() {
    for recipe in ["f32", "q8_0", "q4_k_m"] {
        let file = file("tiny-gemma4moe", recipe);
        let bits = |model: &Model| logits(model).into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let expected = bits(&whole(file.clone()));
        for count in [1, 3] {
            assert_eq!(bits(&cut(file.clone(), cpu(), count)), expected, "{recipe} {count}");
        }
    }
}

/// Whether everything is run: the software GPU takes seconds for each model.
fn full() -> bool {
    std::env::var_os("FULMEN_TEST_FULL").is_some()
}

#[test]
fn a_gpu_with_experts_on_the_cpu_gives_the_logits_of_the_cpu() {
    let few = [("tiny-gpt-oss", 2), ("tiny-glm4moe", 99)];
    let every = PRESETS.into_iter().flat_map(|preset| [1, 99].map(|count| (preset, count)));
    let rows: Vec<_> = if full() { every.collect() } else { few.to_vec() };
    for (preset, count) in rows {
        let file = file(preset, "f32");
        let found = nmse(&logits(&cut(file.clone(), wgpu(), count)), &logits(&whole(file)));
        assert!(found < 1e-8, "{preset}, {count}: {found}");
    }
}

#[test]
fn what_is_on_the_host_is_not_on_the_device() {
    let file = file("tiny-glm4moe", "q8_0");
    let all = whole(file.clone()).weight_bytes();
    let experts = |layers: std::ops::Range<u32>| -> u64 {
        let of_layer = |name: &str, layer: u32| name.starts_with(&format!("blk.{layer}.ffn_"));
        let mine = |name: &str| layers.clone().any(|layer| of_layer(name, layer)) && name.contains("_exps.");
        file.tensors().iter().filter(|info| mine(info.name())).map(|info| info.bytes() as u64).sum()
    };
    let mixtures = whole(file.clone()).config().expert_layers();
    assert!(mixtures.start > 0, "the first layer is dense");
    for count in 0..=mixtures.len() as u32 {
        let model = cut(file.clone(), cpu(), count);
        let on_host = experts(mixtures.start..mixtures.start + count);
        assert_eq!(model.host_weight_bytes(), on_host);
        assert_eq!((model.stage_weight_bytes(), model.weight_bytes()), (vec![all - on_host], all));
    }
}

#[test]
fn loading_tells_of_both_sides_and_can_be_ended() {
    let tiny = Arc::new(tiny());
    for check_weights in [false, true] {
        // Ends loading when so many bytes are done.
        let load = |limit: u64| {
            let mut told = Vec::new();
            let mut progress = |progress: LoadProgress| {
                told.push(progress);
                if progress.done < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let progress: Option<&mut dyn FnMut(LoadProgress) -> ControlFlow<()>> = Some(&mut progress);
            let options = LoadOptions { session: SESSION, check_weights, progress };
            let loaded = Model::from_source_experts_on(tiny.clone(), cpu(), (cpu(), 3), options);
            (loaded, told)
        };
        let (model, told) = load(u64::MAX);
        let bytes = model.unwrap().weight_bytes() * if check_weights { 2 } else { 1 };
        assert!(told.is_sorted_by_key(|progress| progress.done), "{told:?}");
        assert_eq!(told.last(), Some(&LoadProgress { done: bytes, total: bytes }));
        for limit in [0, bytes / 2, bytes] {
            assert!(matches!(load(limit).0, Err(ModelError::Cancelled)), "{limit} of {bytes} bytes");
        }
    }
}

/// Batches, sampling, penalties, a reused prefix and single steps beside many at once.
fn story(session: &mut Session) -> Vec<Vec<u32>> {
    let warm = Sampling { temperature: 0.9, top_k: 20, seed: 5, repeat_penalty: 1.3, ..Sampling::GREEDY };
    session.set_sampling(1, warm).unwrap();
    session.feed(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    session.feed(1, &[10, 20]).unwrap();
    session.feed(2, &[30]).unwrap();
    let mut found = session.decode(&[0, 1, 2], 6).unwrap();
    found.extend(session.decode(&[2, 0], 1).unwrap());
    session.truncate(0, 5).unwrap();
    found.push(vec![session.draw(0, &[40, 41, 42]).unwrap()]);
    found.extend(session.decode(&[0], 3).unwrap());
    found.extend((0..3).map(|sequence| session.tokens(sequence).unwrap().to_vec()));
    found
}

fn tiny() -> Tiny {
    Tiny::new(TinyShape { layers: 4, ..QWEN3_MOE }, 11)
}

#[test]
fn sessions_draw_the_tokens_of_one_device() {
    let tiny = Arc::new(tiny());
    let expected = story(&mut whole(tiny.clone()).session().unwrap());
    for (device, count) in [(cpu(), 1), (cpu(), 4), (wgpu(), 2)] {
        let model = cut(tiny.clone(), device, count);
        let mut session = model.session().unwrap();
        assert_eq!(story(&mut session), expected, "{count}");
        let launches = session.step_launches().unwrap();
        assert!(launches.launches > count as usize && launches.kernels >= launches.launches, "{launches:?}");
        let eager = SessionOptions { eager: true, ..SESSION };
        assert_eq!(story(&mut model.session_with(eager).unwrap()), expected, "{count}");
    }
}

#[test]
fn a_device_that_captures_replays_what_is_between_the_experts() {
    let launches = |model: Model| {
        let mut session = model.session().unwrap();
        session.feed(0, &[1]).unwrap();
        session.decode(&[0], 2).unwrap();
        session.step_launches().unwrap().launches
    };
    let tiny = Arc::new(tiny());
    let one = launches(Model::from_source(tiny.clone(), wgpu(), options(SESSION)).unwrap());
    for count in [1, 3] {
        // A launch for each segment, and one for what the host computes between them.
        let found = launches(cut(tiny.clone(), wgpu(), count));
        assert_eq!(found, one * (count as usize + 1) + count as usize);
    }
}

#[test]
fn a_cancelled_prefill_leaves_a_session_as_it_was() {
    let model = cut(Arc::new(tiny()), cpu(), 3);
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
fn a_profile_has_a_row_for_the_host() {
    let model = cut(Arc::new(tiny()), cpu(), 3);
    let mut session = model.session().unwrap();
    session.feed(0, &[1]).unwrap();
    session.start_profile();
    session.decode(&[0], 2).unwrap();
    let rows = session.stop_profile().unwrap().rows();
    let count = |name: &str| {
        let named = |row: &&ProfileRow| row.name.starts_with(name);
        rows.iter().filter(named).map(|row| row.count).sum::<u64>()
    };
    assert_eq!((count("HostSegment"), count("ExpertDown"), count("Route")), (2 * 3, 2, 2 * 4), "{rows:?}");
}

fn few_pages() -> EngineOptions {
    EngineOptions { context: 512, max_sequences: 8, pages: 14, max_rows: 192, ..EngineOptions::default() }
}

fn loaded(file: Arc<GgufFile>, device: Device, count: u32) -> Model {
    Model::from_source_experts_on(file, device, (cpu(), count), LoadOptions::default()).unwrap()
}

#[test]
fn a_storm_gives_equal_bits() {
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, ..few_pages() };
    for (preset, count) in [("tiny-qwen3moe", 2), ("tiny-gpt-oss", 99)] {
        let model = loaded(file(preset, "q8_0"), cpu(), count);
        let options = options.clone();
        let storm = Storm { requests: 20, max_tokens: 10, sampled: true, options, seed: 3 };
        let stats = storm.equal_bits(&model);
        assert!(stats.cancelled > 0 && stats.prefix_cache.hits > 0, "{preset}: {stats:?}");
    }
}

#[test]
fn a_storm_on_a_gpu_and_the_cpu_gives_the_tokens_of_running_alone() {
    let options =
        EngineOptions { context: 384, max_sequences: 4, pages: 9, max_rows: 320, ..EngineOptions::default() };
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-gpt-oss").unwrap() };
    let file = Arc::new(Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap());
    let model = loaded(file, wgpu(), 1);
    let storm = Storm { requests: 5, max_tokens: 4, sampled: false, options, seed: 6 };
    let stats = storm.near(&model, &Reference::hybrid("tiny-gpt-oss", "f32"));
    assert!(stats.prefix_cache.hits > 0, "{stats:?}");
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let model = loaded(file("tiny-qwen3moe", "q8_0"), cpu(), 2);
    let options = EngineOptions { context: 512, max_sequences: 4, ..EngineOptions::default() };
    prefix_hits_change_nothing(&model, &options, 1e-2);
    let options = EngineOptions { batch_invariant: true, ..options };
    prefix_hits_change_nothing(&model, &options, 0.0);
}

#[test]
fn an_engine_gives_the_answers_of_one_device() {
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
        ]
    };
    let options = EngineOptions { batch_invariant: true, ..few_pages() };
    let tokens = |model: &Model| -> Vec<Vec<u32>> {
        answers(&mut driver(model, &options), requests()).into_iter().map(|answer| answer.tokens).collect()
    };
    for preset in ["tiny-qwen3moe", "tiny-glm4moe"] {
        let expected = tokens(&expert_model(preset, "f32", cpu()));
        let shape = ModelShape { layers: 2, ..ModelShape::preset(preset).unwrap() };
        let file = Arc::new(Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap());
        for count in [1, 2] {
            assert_eq!(tokens(&loaded(file.clone(), cpu(), count)), expected, "{preset} {count}");
        }
    }
}

#[test]
fn a_model_without_experts_is_refused() {
    let refused =
        Model::from_source_experts_on(Arc::new(Tiny::new(LLAMA, 1)), cpu(), (cpu(), 1), options(SESSION));
    let expected = "this llama model is not a mixture of experts: it has none to leave on the CPU";
    assert_eq!(refused.unwrap_err().to_string(), expected);
    let device = limit_memory(cpu(), 1 << 30);
    let refused = fit_experts(Arc::new(Tiny::new(LLAMA, 1)), device.as_ref(), FitFor::Session(SESSION));
    assert!(matches!(refused, Err(ModelError::NotAMixture { .. })), "{refused:?}");
    let mut extra = tiny();
    extra.put("blk.9.mystery.weight", &[64], DType::F32, &[0.0; 64]);
    let refused = Model::from_source_experts_on(Arc::new(extra), cpu(), (cpu(), 2), options(SESSION));
    assert!(matches!(refused, Err(ModelError::ExtraTensors { count: 1, .. })), "{refused:?}");
}

#[test]
fn without_room_on_either_side_nothing_is_left_behind() {
    let watched = Failing::new(CpuDispatcher::with_threads(1), &Injector::default());
    let host = Failing::new(CpuDispatcher::with_threads(1), &Injector::default());
    let load = |limits: [u64; 2]| {
        let [device, host] = [(&watched, limits[0]), (&host, limits[1])]
            .map(|(device, limit)| limit_memory(Box::new(device.clone()), limit));
        Model::from_source_experts_on(Arc::new(tiny()), device, (host, 3), options(SESSION))
    };
    for limits in [[100_000, 1 << 30], [1 << 30, 100_000]] {
        let refused = load(limits);
        assert!(matches!(refused, Err(ModelError::Memory { available: 100_000, .. })), "{refused:?}");
        assert_eq!((watched.live(), host.live()), (0, 0));
    }
    let model = load([20 << 20, 20 << 20]).unwrap();
    let before = [watched.live(), host.live()];
    assert!(before.iter().all(|&live| live > 0));
    // A step that is too large for the host fails, and the session continues.
    let large = SessionOptions { sequences: 3000, ..SESSION };
    assert!(matches!(model.session_with(large), Err(ModelError::CacheMemory { .. })));
    let engine = EngineOptions { context: 200, pages: 60_000, ..few_pages() };
    let refused = fulmen_engine::model::ModelDevice::open(&model, &engine);
    assert!(matches!(refused, Err(ModelError::Backend(BackendError::OutOfMemory { .. }))), "{refused:?}");
    assert_eq!([watched.live(), host.live()], before);
    let tokens = story(&mut model.session().unwrap());
    assert_eq!(tokens, story(&mut whole(Arc::new(tiny())).session().unwrap()));
    drop(model);
    assert_eq!((watched.live(), host.live()), (0, 0));
}

#[test]
fn a_step_that_is_too_large_for_the_host_fails_and_the_next_one_runs() {
    let tiny = Arc::new(tiny());
    let host_bytes = cut(tiny.clone(), cpu(), 4).host_weight_bytes();
    // Room for chunks of 7 rows, not for 128.
    let host = limit_memory(cpu(), host_bytes + 60_000);
    let model = Model::from_source_experts_on(tiny.clone(), cpu(), (host, 4), options(SESSION)).unwrap();
    let options = EngineOptions { context: 200, max_sequences: 2, max_rows: 128, ..few_pages() };
    let mut engine = driver(&model, &options);
    let prompt = |n: u32| (0..n).map(|i| (i * 7 + n) % 101).collect::<Vec<u32>>();
    let failed = answers(&mut engine, vec![Request::new(prompt(130), 3)]).remove(0);
    let Some(Event::Failed(error)) = &failed.end else { panic!("{failed:?}") };
    let message = error.to_string();
    assert!(message.contains("computing experts on the host failed: out of memory"), "{message}");
    let found = answers(&mut engine, vec![Request::new(prompt(9), 3)]).remove(0);
    let expected = answers(&mut driver(&whole(tiny), &options), vec![Request::new(prompt(9), 3)]).remove(0);
    assert_eq!((found.tokens.len(), found.tokens), (3, expected.tokens));
}

/// Loads the experts that fit a device with a memory limit, and the others on the host.
fn fitted(tiny: &Tiny, limit: u64, demand: FitFor<'_>) -> (ExpertFit, Result<Model, ModelError>) {
    let source = Arc::new(tiny.clone());
    let device = limit_memory(cpu(), limit);
    let fit = fit_experts(source.clone(), device.as_ref(), demand).unwrap();
    let (FitFor::Session(session) | FitFor::Engine(session, _)) = demand;
    (fit, Model::from_source_experts_on(source, device, (cpu(), fit.on_host), options(session)))
}

#[test]
fn what_fits_a_session_never_runs_out_of_memory() {
    let tiny = tiny();
    let expected = story(&mut whole(Arc::new(tiny.clone())).session().unwrap());
    let all = fitted(&tiny, 1 << 30, FitFor::Session(SESSION)).0;
    assert_eq!((all.on_host, all.of, all.available), (0, 4, Some(1 << 30)));
    let least = fitted(&tiny, 0, FitFor::Session(SESSION)).0;
    assert_eq!(least.on_host, 4);
    assert!(least.needed < all.needed);
    let mut on_host = Vec::new();
    for step in 0..=12 {
        let limit = least.needed + (all.needed - least.needed) * step / 12;
        let (fit, model) = fitted(&tiny, limit, FitFor::Session(SESSION));
        assert!(fit.needed <= limit, "{fit}");
        on_host.push(fit.on_host);
        assert_eq!(story(&mut model.unwrap().session().unwrap()), expected, "{fit}");
    }
    assert!(on_host.is_sorted_by(|a, b| a >= b), "{on_host:?}");
    assert!((0..=4).all(|count| on_host.contains(&count)), "{on_host:?}");
    // Less than the rest of the model needs is refused when it is loaded.
    let (fit, refused) = fitted(&tiny, least.needed / 2, FitFor::Session(SESSION));
    assert!(fit.on_host == 4 && fit.needed > fit.available.unwrap(), "{fit}");
    assert!(matches!(refused, Err(ModelError::Memory { .. })), "{refused:?}");
}

#[test]
fn what_fits_an_engine_never_runs_out_of_memory() {
    let tiny = tiny();
    let options = EngineOptions { context: 200, max_sequences: 4, max_rows: 64, ..EngineOptions::default() };
    let session = SessionOptions { sequences: 1, ..SESSION };
    let demand = FitFor::Engine(session, &options);
    let (all, least) = (fitted(&tiny, 1 << 30, demand).0, fitted(&tiny, 0, demand).0);
    for step in 0..=4 {
        let limit = least.needed + (all.needed - least.needed) * step / 4;
        let (fit, model) = fitted(&tiny, limit, demand);
        let requests = (1..=6).map(|n| Request::new((0..20 * n).map(|i| (i * 7 + n) % 101).collect(), 10));
        let found = answers(&mut driver(&model.unwrap(), &options), requests.collect());
        assert!(found.iter().all(|answer| answer.tokens.len() == 10), "{fit}: {found:?}");
    }
}
