//! An engine on ranks: batches, pages, prefix cache, cancellation, and faults.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{
    Device, EngineOptions, Event, LoadOptions, Model, Request, RequestError, Sampling, SamplingParams,
    TensorParallel,
};
use fulmen_testkit::inject::{Failing, Injector, Site};
use fulmen_wgpu::WgpuDispatcher;

use super::cpu;
use super::scenario::{
    Answer, Reference, Storm, answers, driver, prefix_hits_change_nothing, preset_file, small_file,
};

fn small(recipe: &str, devices: Vec<Device>) -> Model {
    let file = Arc::new(small_file(recipe));
    Model::from_source_sharded(file, TensorParallel::new(devices), LoadOptions::default()).unwrap()
}

pub(crate) fn cpus(ranks: usize) -> Vec<Device> {
    (0..ranks).map(|_| cpu()).collect()
}

pub(crate) fn few_pages() -> EngineOptions {
    EngineOptions { context: 512, max_sequences: 8, pages: 14, max_rows: 192, ..EngineOptions::default() }
}

#[test]
fn a_storm_gives_equal_bits_on_ranks() {
    let options = EngineOptions { batch_invariant: true, ..few_pages() };
    let storm = Storm { requests: 24, max_tokens: 12, sampled: true, options, seed: 3 };
    let stats = storm.equal_bits(&small("q8_0", cpus(2)));
    assert!(stats.dropped > 0 && stats.cancelled > 0 && stats.prefix_cache.hits > 5, "{stats:?}");
}

#[test]
fn a_storm_swaps_the_pages_of_every_rank() {
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, ..few_pages() };
    let storm = Storm { requests: 24, max_tokens: 16, sampled: true, options, seed: 4 };
    let stats = storm.equal_bits(&small("f16", cpus(4)));
    assert!(stats.swapped_out > 0 && stats.cancelled > 0, "{stats:?}");
}

#[test]
fn a_storm_of_layers_with_windows_gives_equal_bits_on_ranks() {
    let file = Arc::new(preset_file(("tiny-gemma3", 7), "q8_0"));
    let model =
        Model::from_source_sharded(file, TensorParallel::new(cpus(2)), LoadOptions::default()).unwrap();
    let options = EngineOptions { batch_invariant: true, window_pages: 8, ..few_pages() };
    let storm = Storm { requests: 24, max_tokens: 20, sampled: true, options, seed: 3 };
    let stats = storm.equal_bits(&model);
    assert!(stats.window_group().is_some() && stats.prefix_cache.hits > 5, "{stats:?}");
}

#[test]
fn a_storm_on_two_gpus_gives_the_tokens_of_running_alone() {
    let options =
        EngineOptions { context: 384, max_sequences: 4, pages: 9, max_rows: 320, ..EngineOptions::default() };
    let devices = (0..2).map(|_| Box::new(WgpuDispatcher::open(0).unwrap()) as Device).collect();
    let storm = Storm { requests: 5, max_tokens: 4, sampled: false, options, seed: 6 };
    let stats = storm.near(&small("f32", devices), &Reference::new("f32"));
    assert!(stats.prefix_cache.hits > 0, "{stats:?}");
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let options =
        EngineOptions { batch_invariant: true, context: 512, max_sequences: 4, ..EngineOptions::default() };
    prefix_hits_change_nothing(&small("q8_0", cpus(2)), &options, 0.0);
}

pub(crate) fn requests() -> Vec<Request> {
    let sampling = |temperature, repeat_penalty| {
        SamplingParams::new(Sampling { temperature, repeat_penalty, seed: 8, ..Sampling::GREEDY })
    };
    let prompt = |n: u32| (0..n).map(|i| (i * 31 + n) % 300).collect::<Vec<u32>>();
    vec![
        Request { logprobs: Some(3), hidden: true, ..Request::new(prompt(150), 12) },
        Request { prompt_logprobs: Some(2), ..Request::new(prompt(70), 4) },
        Request { sampling: sampling(0.8, 1.2), ..Request::new(prompt(3), 20) },
        Request { sampling: sampling(0.0, 1.5), logprobs: Some(1), ..Request::new(prompt(40), 9) },
        Request::new(prompt(1), 15),
    ]
}

#[test]
fn an_engine_on_ranks_gives_the_tokens_of_one_device() {
    let expected = answers(&mut driver(&small("f32", cpus(1)), &few_pages()), requests());
    for ranks in [2, 4] {
        let found = answers(&mut driver(&small("f32", cpus(ranks)), &few_pages()), requests());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.tokens, expected.tokens, "{ranks} ranks");
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
            assert!(found.logprobs.iter().zip(&expected.logprobs).all(near), "{ranks} ranks");
            let prompt = found.prompt.iter().zip(&expected.prompt);
            assert_eq!(found.prompt.len(), expected.prompt.len(), "{ranks} ranks");
            for (a, b) in prompt.filter_map(|(a, b)| Some((a.logprob?, b.logprob?))) {
                assert!(near((&a, &b)), "{ranks} ranks: {a}, expected {b}");
            }
            assert_eq!(found.hidden.len(), expected.hidden.len());
        }
    }
}

/// A launch that fails on a rank ends requests with an error; the engine goes on, and everything is freed.
#[test]
fn an_engine_goes_on_after_a_fault_of_a_rank() {
    let injectors: Vec<Injector> = (0..2).map(|_| Injector::default()).collect();
    let devices: Vec<_> =
        injectors.iter().map(|injector| Failing::new(CpuDispatcher::with_threads(1), injector)).collect();
    let boxed = devices.iter().map(|device| Box::new(device.clone()) as Device).collect();
    let model = small("f32", boxed);
    let loaded: usize = devices.iter().map(Failing::live).sum();
    goes_on_after_faults(&model, &injectors, &EngineOptions { prefix_cache: false, ..few_pages() });
    // Pages are copied and swapped before the rows of a step run.
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, pages: 5, ..few_pages() };
    goes_on_after_faults(&model, &injectors, &options);
    assert_eq!(devices.iter().map(Failing::live).sum::<usize>(), loaded);
    drop(model);
    assert_eq!(devices.iter().map(Failing::live).sum::<usize>(), 0);
}

pub(crate) fn goes_on_after_faults(model: &Model, injectors: &[Injector], options: &EngineOptions) {
    let mut driver = driver(model, options);
    let tokens = |driver: &mut _| -> Vec<Vec<u32>> {
        answers(driver, requests()).into_iter().map(|answer| answer.tokens).collect()
    };
    let expected = tokens(&mut driver);
    for injector in injectors {
        injector.count();
        assert_eq!(tokens(&mut driver), expected);
        let launches = injector.calls(Site::Launch);
        for at in 1..=12 {
            injector.fail(Site::Launch, launches * at / 14);
            let began = Instant::now();
            let found = answers(&mut driver, requests());
            assert!(began.elapsed() < Duration::from_secs(30));
            assert!(injector.fired(), "{at}");
            let failed = |event: &Option<Event>| !matches!(event, Some(Event::Finished { .. }));
            assert!(found.iter().any(|answer| failed(&answer.end)), "fault {at}");
            injector.count();
            assert_eq!(tokens(&mut driver), expected, "after fault {at}");
        }
    }
}

/// A rank that does not return from a step: the device of the engine is lost, so that its requests end with
/// an error and a server loads the model again.
#[test]
fn an_engine_is_lost_when_a_rank_stalls() {
    let (timeout, time) = (Duration::from_secs(2), Duration::from_secs(12));
    let stalls = |at: u64| {
        let injector = Injector::default();
        let second = Failing::new(CpuDispatcher::with_threads(1), &injector);
        let devices = vec![cpu(), Box::new(second.clone()) as Device];
        let parallel = TensorParallel { timeout, ..TensorParallel::new(devices) };
        let file = Arc::new(small_file("f32"));
        let model = Model::from_source_sharded(file, parallel, LoadOptions::default()).unwrap();
        let mut driver = driver(&model, &EngineOptions { prefix_cache: false, ..few_pages() });
        answers(&mut driver, requests());
        injector.count();
        answers(&mut driver, requests());
        let site = [Site::Launch, Site::Read, Site::Write][at as usize % 3];
        injector.stall(site, 1 + injector.calls(site) * at / 7, time);
        let began = Instant::now();
        let found = answers(&mut driver, requests());
        assert!(injector.fired() && driver.device().is_none(), "{site:?} {at}");
        let reason = |answer: &Answer| match &answer.end {
            Some(Event::Failed(RequestError::DeviceLost { reason })) => reason.clone(),
            // It had come to its end.
            Some(Event::Finished { .. }) => String::new(),
            other => panic!("{site:?} {at}: {other:?}"),
        };
        let reasons: Vec<String> = found.iter().map(reason).filter(|reason| !reason.is_empty()).collect();
        assert!(
            !reasons.is_empty() && reasons.iter().all(|reason| reason.contains("rank 1 of 2")),
            "{reasons:?}"
        );
        drop((driver, model));
        assert!(began.elapsed() < time / 2, "nothing waits for the rank: {:?}", began.elapsed());
        second
    };
    let devices: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..7).map(|at| scope.spawn(move || stalls(at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let began = Instant::now();
    while devices.iter().any(|device| device.live() > 0) {
        assert!(began.elapsed() < 3 * time);
        thread::sleep(Duration::from_millis(50));
    }
}
