//! A rank that fails, at any call of any kind: all ranks end with one typed error, soon, and nothing is left
//! on their devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_core::ExecError;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::model::ModelDevice;
use fulmen_engine::{Device, EngineOptions, Model, Session, TensorParallel, limit_memory};
use fulmen_model::ModelError;
use fulmen_testkit::inject::{Failing, Injector, Site};

use super::tiny::{Tiny, TinyShape};
use super::{DIVISIBLE, cpu, options};

/// Much longer than a step, so that a rank that is waited for in vain is noticed.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Rig {
    tiny: Arc<Tiny>,
    devices: Vec<Failing<CpuDispatcher>>,
    injectors: Vec<Injector>,
}

impl Rig {
    fn new(shape: TinyShape, ranks: usize) -> Rig {
        let injectors: Vec<Injector> = (0..ranks).map(|_| Injector::default()).collect();
        let failing = |injector: &Injector| Failing::new(CpuDispatcher::with_threads(1), injector);
        let devices = injectors.iter().map(failing).collect();
        Rig { tiny: Arc::new(Tiny::new(shape, 11)), devices, injectors }
    }

    /// Loads the model, feeds a prompt and decodes.
    fn run(&self) -> Result<Vec<Vec<u32>>, (Moment, ModelError)> {
        let at = |moment| move |error| (moment, error);
        let model = self.load(TIMEOUT).map_err(at(Moment::Load))?;
        steps(&mut model.session().map_err(at(Moment::Load))?)
    }

    fn load(&self, timeout: Duration) -> Result<Model, ModelError> {
        let devices = self.devices.iter().map(|device| Box::new(device.clone()) as Device).collect();
        let parallel = TensorParallel { timeout, ..TensorParallel::new(devices) };
        Model::from_source_sharded(self.tiny.clone(), parallel, options())
    }

    fn live(&self) -> usize {
        self.devices.iter().map(Failing::live).sum()
    }
}

/// When a rank failed: while the model or its session was made, in a prefill, in a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Moment {
    Load,
    Prefill,
    Decode,
}

/// Feeds prompts and decodes.
fn steps(session: &mut Session) -> Result<Vec<Vec<u32>>, (Moment, ModelError)> {
    let at = |moment| move |error| (moment, error);
    session.truncate(0, 0).and_then(|()| session.truncate(1, 0)).map_err(at(Moment::Prefill))?;
    session.feed(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).map_err(at(Moment::Prefill))?;
    session.feed(1, &[10]).map_err(at(Moment::Prefill))?;
    let mut drawn = session.decode(&[0, 1], 3).map_err(at(Moment::Decode))?;
    drawn.push(vec![session.draw(1, &[11, 12]).map_err(at(Moment::Decode))?]);
    Ok(drawn)
}

/// The rank that an error of a device names.
fn rank_of(error: &ModelError) -> Option<u32> {
    match error {
        ModelError::Rank { rank, source, .. } => {
            let of_device = matches!(
                **source,
                ModelError::Backend(_)
                    | ModelError::Exec(ExecError::Node { .. } | ExecError::Backend(_))
                    | ModelError::CacheMemory { .. }
            );
            assert!(of_device, "{source}");
            Some(*rank)
        }
        _ => None,
    }
}

#[test]
fn a_fault_at_any_call_of_a_rank_ends_all_of_them() {
    let mut faults: HashMap<Moment, u32> = HashMap::new();
    for (shape, ranks) in [(DIVISIBLE[0], 2), (DIVISIBLE[5], 3)] {
        let rig = Rig::new(TinyShape { layers: 1, ..shape }, ranks);
        let expected = rig.run().unwrap();
        assert_eq!(rig.live(), 0);
        for (rank, injector) in (0u32..).zip(&rig.injectors) {
            for site in Site::ALL {
                rig.injectors.iter().for_each(Injector::count);
                rig.run().unwrap();
                let calls = injector.calls(site);
                assert!(calls > 0, "{site:?}");
                // Every call at the beginning and at the end, and some in between.
                let every = (calls / 40).max(1);
                let numbers = (1..=calls).filter(|n| *n < 5 || n % every == 0 || n + 5 > calls);
                for number in numbers {
                    rig.injectors.iter().for_each(Injector::count);
                    injector.fail(site, number);
                    let began = Instant::now();
                    let result = rig.run();
                    assert!(began.elapsed() < TIMEOUT / 2, "{site:?} {number} of rank {rank}");
                    assert_eq!(rig.live(), 0, "{site:?} {number} of rank {rank}: {result:?}");
                    match result {
                        // A session gives up other steps if memory is short, and tries again.
                        Ok(drawn) => assert!(site == Site::Alloc && drawn == expected, "{site:?} {number}"),
                        Err((moment, error)) => {
                            assert_eq!(rank_of(&error), Some(rank), "{site:?} {number}: {error}");
                            *faults.entry(moment).or_default() += 1;
                        }
                    }
                }
            }
        }
        rig.injectors.iter().for_each(Injector::count);
        assert_eq!(rig.run().unwrap(), expected, "after all faults");
    }
    let of = |moment| faults.get(&moment).copied().unwrap_or(0);
    assert!(
        [Moment::Load, Moment::Prefill, Moment::Decode].map(of).iter().all(|&count| count >= 70),
        "{faults:?}"
    );
    println!("ranks: {} faults injected: {faults:?}", faults.values().sum::<u32>());
}

/// Loads a model, lets a call of a rank take much longer than the time-out, at random, and goes on to use the
/// model while the rank is there.
fn stall(seed: u64, timeout: Duration, time: Duration) -> (Rig, Moment) {
    let rig = Rig::new(TinyShape { layers: 1, ..DIVISIBLE[0] }, 3);
    let model = rig.load(timeout).unwrap();
    let mut session = model.session().unwrap();
    let (rank, site) = (1 + seed as usize % 2, [Site::Launch, Site::Read, Site::Write][seed as usize % 3]);
    let injector = &rig.injectors[rank];
    steps(&mut session).unwrap();
    injector.count();
    let expected = steps(&mut session).unwrap();
    // A multiplicative hash.
    let at = 1 + (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % injector.calls(site);
    injector.stall(site, at, time);
    let began = Instant::now();
    let (moment, error) = steps(&mut session).unwrap_err();
    let (took, what) = (began.elapsed(), format!("{site:?} {at} of rank {rank}, {moment:?}: {error}"));
    assert!(injector.fired() && took < time / 2, "{took:?}: {what}");
    assert!(matches!(error, ModelError::Rank { rank: named, .. } if named as usize == rank), "{what}");
    let (_, again) = steps(&mut session).unwrap_err();
    let new = model.session().unwrap_err();
    let options = EngineOptions { context: 128, ..EngineOptions::default() };
    let engine = ModelDevice::open(&model, &options).unwrap_err();
    for error in [again, new, engine] {
        assert!(matches!(error, ModelError::Without { .. }), "{error}");
    }
    drop((session, model));
    assert!(began.elapsed() < time * 3 / 4, "nothing waits for the rank: {what}");
    let again = Rig::new(TinyShape { layers: 1, ..DIVISIBLE[0] }, 3);
    assert_eq!(again.run().unwrap().len(), expected.len(), "a model that is loaded again");
    (rig, moment)
}

#[test]
fn a_rank_that_stalls_in_a_step_is_named_within_the_timeout() {
    let (timeout, time) = (Duration::from_secs(2), Duration::from_secs(12));
    let stalled: Vec<(Rig, Moment)> = thread::scope(|scope| {
        let stalls = |at: u64| scope.spawn(move || [0, 8, 16].map(|more| stall(at + more, timeout, time)));
        let stalls: Vec<_> = (0..8).map(stalls).collect();
        stalls.into_iter().flat_map(|stalls| stalls.join().unwrap()).collect()
    });
    for moment in [Moment::Prefill, Moment::Decode] {
        assert!(stalled.iter().any(|(_, found)| *found == moment), "{moment:?}");
    }
    // When the device returns, the rank gives back what it has.
    let began = Instant::now();
    while stalled.iter().any(|(rig, _)| rig.live() > 0) {
        assert!(began.elapsed() < 3 * time);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_session_goes_on_after_a_fault() {
    let rig = Rig::new(DIVISIBLE[3], 2);
    let devices = rig.devices.iter().map(|device| Box::new(device.clone()) as Device).collect();
    let parallel = TensorParallel { timeout: TIMEOUT, ..TensorParallel::new(devices) };
    let model = Model::from_source_sharded(rig.tiny.clone(), parallel, options()).unwrap();
    let prompt = [1, 2, 3, 4, 5];
    let expected = model.session().unwrap().decode_after(&prompt);
    let mut session = model.session().unwrap();
    for rank in [1, 0] {
        rig.injectors[rank].fail(Site::Launch, 7);
        let error = session.feed(0, &prompt).unwrap_err();
        assert_eq!(rank_of(&error), Some(rank as u32), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("rank {rank} of 2: node ")), "{text}");
        assert!(text.contains("injected fault: Launch number 7"), "{text}");
        assert!(session.tokens(0).unwrap().is_empty());
    }
    assert_eq!(session.decode_after(&prompt), expected);
}

/// Feeds a prompt and decodes some tokens.
trait DecodeAfter {
    fn decode_after(&mut self, prompt: &[u32]) -> Vec<Vec<u32>>;
}

impl DecodeAfter for fulmen_engine::Session {
    fn decode_after(&mut self, prompt: &[u32]) -> Vec<Vec<u32>> {
        self.feed(0, prompt).unwrap();
        self.decode(&[0], 5).unwrap()
    }
}

#[test]
fn a_rank_without_room_is_named_and_leaves_nothing_behind() {
    let watched = Failing::new(CpuDispatcher::with_threads(1), &Injector::default());
    let load = |bytes| {
        let devices = vec![Box::new(watched.clone()) as Device, limit_memory(cpu(), bytes)];
        let tiny = Arc::new(Tiny::new(DIVISIBLE[0], 11));
        Model::from_source_sharded(tiny, TensorParallel::new(devices), options())
    };
    let refused = load(10_000);
    let Err(ModelError::Rank { rank: 1, ranks: 2, source }) = &refused else { panic!("{refused:?}") };
    assert!(matches!(**source, ModelError::Memory { available: 10_000, .. }), "{source}");
    assert_eq!(watched.live(), 0);
    let model = load(10 << 20).unwrap();
    let before = watched.live();
    let large = fulmen_engine::SessionOptions { sequences: 3000, ..super::SESSION };
    let refused = model.session_with(large);
    let Err(ModelError::Rank { rank: 1, source, .. }) = &refused else { panic!("{refused:?}") };
    assert!(matches!(**source, ModelError::CacheMemory { .. }), "{source}");
    assert_eq!(watched.live(), before);
    drop(model);
    assert_eq!(watched.live(), 0);
}
