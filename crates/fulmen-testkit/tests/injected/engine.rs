//! An engine: every request ends, those that are not hit give their tokens, and everything is counted back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fulmen_core::Backend;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::model::ModelDevice;
use fulmen_engine::{Device, LoadOptions, Model};
use fulmen_engine::{Driver, EngineOptions, Event, Progress, Request, RequestId};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_testkit::inject::{Failing, Injector, Site};

use crate::{numbers, report};

/// A model with a layer on each of two backends, or with both on one.
fn model<B: Backend + Send + 'static>(backends: &[Failing<B>]) -> Model {
    let shape = ModelShape {
        layers: 2,
        embedding: 64,
        heads: 2,
        kv_heads: 1,
        head_size: 32,
        feed_forward: 96,
        vocabulary: 512,
        ..ModelShape::preset("tiny-qwen3").unwrap()
    };
    let file = Synth::new(shape, "q8_0".parse().unwrap(), 1).file().unwrap();
    let layers = 2 / backends.len() as u32;
    let devices = backends.iter().map(|backend| (Box::new(backend.clone()) as Device, layers)).collect();
    Model::from_source_split(Arc::new(file), devices, LoadOptions::default()).unwrap()
}

/// A mixture of experts with everything on the first backend but the experts of all layers, which are on the
/// second.
fn mixture<B: Backend + Send + 'static>(preset: &str, [device, host]: &[Failing<B>; 2]) -> Model {
    let shape = ModelShape { vocabulary: 512, ..ModelShape::preset(preset).unwrap() };
    let file = Synth::new(shape, "q8_0".parse().unwrap(), 1).file().unwrap();
    let [device, host] = [device, host].map(|backend| Box::new(backend.clone()) as Device);
    Model::from_source_experts_on(Arc::new(file), device, (host, 99), LoadOptions::default()).unwrap()
}

/// A model with recurrent states on one backend.
fn hybrid<B: Backend + Send + 'static>(backend: &Failing<B>) -> Model {
    let shape = ModelShape { vocabulary: 512, ..ModelShape::preset("tiny-qwen35").unwrap() };
    let file = Synth::new(shape, "q8_0".parse().unwrap(), 1).file().unwrap();
    Model::from_source(Arc::new(file), Box::new(backend.clone()), LoadOptions::default()).unwrap()
}

/// What a request gave: its tokens, and whether it finished.
type Answers = Vec<(Vec<u32>, bool)>;

/// Runs requests that share a beginning and have to be preempted. `None` if the engine did not start.
fn run<B: Backend + Send + 'static>(model: &Model, backends: &[Failing<B>]) -> Option<Answers> {
    let live = || -> Vec<usize> { backends.iter().map(Failing::live).collect() };
    let held = live();
    let options = EngineOptions {
        context: 384,
        max_sequences: 3,
        pages: 4,
        max_rows: 64,
        // So states are kept at page borders of short prompts.
        batch_invariant: model.config().delta_net.is_some(),
        host_memory: 1 << 20,
        ..EngineOptions::default()
    };
    let opened = ModelDevice::open(model, &options);
    let Ok((config, device)) = opened else {
        assert_eq!(live(), held, "an engine that was not started holds no memory");
        return None;
    };
    let mut driver = Driver::new(config, device).unwrap();
    let shared: Vec<u32> = (0..130).map(|at| at * 7 % 512).collect();
    let request = |number: u32| {
        let prompt = shared.iter().copied().chain([number, 100 + number]).collect();
        Request {
            logprobs: (number == 1).then_some(2),
            prompt_logprobs: (number == 2).then_some(1),
            ..Request::new(prompt, 3 + number)
        }
    };
    let ids: Vec<RequestId> =
        (0..4).map(|number| driver.submit(request(number), Duration::ZERO).unwrap()).collect();
    let mut answers: BTreeMap<RequestId, (Vec<u32>, bool)> =
        ids.iter().map(|&id| (id, (Vec::new(), false))).collect();
    let mut ended = 0;
    loop {
        let progress = driver.step(Duration::ZERO);
        for (id, event) in driver.take_events() {
            let answer = answers.get_mut(&id).unwrap();
            ended += usize::from(event.is_last());
            match event {
                Event::Token(sampled) => answer.0.push(sampled.token),
                Event::Finished { .. } => answer.1 = true,
                Event::Prompt(_) | Event::Failed(_) => {}
            }
        }
        if progress != Progress::Busy {
            break;
        }
    }
    assert_eq!(ended, ids.len(), "every request ends once");
    driver.scheduler().counted_back().unwrap();
    drop(driver);
    assert_eq!(live(), held, "nothing is leaked");
    Some(answers.into_values().collect())
}

#[test]
fn the_processor() {
    report("an engine on the cpu", fail_calls(1, 40));
}

#[test]
fn recurrent_states() {
    let injector = Injector::default();
    let backends = [Failing::new(CpuDispatcher::with_threads(1), &injector)];
    report("an engine with recurrent states", fail_calls_of(&hybrid(&backends[0]), &backends, &injector, 12));
}

#[test]
fn layers_on_two_devices() {
    report("an engine on two devices", fail_calls(2, 30));
}

#[test]
fn experts_on_another_device() {
    let injector = Injector::default();
    for (preset, most) in [("tiny-gpt-oss", 16), ("tiny-qwen35moe", 8)] {
        let backends = [(); 2].map(|()| Failing::new(CpuDispatcher::with_threads(1), &injector));
        let model = mixture(preset, &backends);
        report("an engine with experts on the host", fail_calls_of(&model, &backends, &injector, most));
    }
}

/// Lets calls of an engine on so many devices fail, up to `most` of each kind; returns how many did.
fn fail_calls(devices: usize, most: u64) -> u64 {
    let injector = Injector::default();
    let failing = |_| Failing::new(CpuDispatcher::with_threads(1), &injector);
    let backends: Vec<Failing<CpuDispatcher>> = (0..devices).map(failing).collect();
    fail_calls_of(&model(&backends), &backends, &injector, most)
}

fn fail_calls_of(model: &Model, backends: &[Failing<CpuDispatcher>], injector: &Injector, most: u64) -> u64 {
    injector.count();
    let expected = run(model, backends).expect("no fault");
    assert!(expected.iter().all(|(_, finished)| *finished));
    let calls = Site::ALL.map(|site| (site, injector.calls(site)));
    let (mut injected, mut survived) = (0, 0);
    for (site, count) in calls {
        for number in numbers(count, most) {
            injector.fail(site, number);
            let found = run(model, backends);
            assert!(injector.fired(), "{site:?} {number} of {count} was not reached");
            injected += 1;
            let Some(found) = found else { continue };
            for (found, expected) in found.iter().zip(&expected) {
                let tokens = found.0.len();
                assert!(found.0[..] == expected.0[..tokens], "{site:?} {number}: {found:?} {expected:?}");
                assert!(!found.1 || tokens == expected.0.len(), "{site:?} {number}: {found:?}");
                survived += usize::from(found.1);
            }
        }
    }
    assert!(survived > 0, "requests that were not hit go on");
    injected
}
