//! A rank that fails, at any call of any kind: all ranks end with one typed error, soon, and nothing is left
//! on their devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_core::ExecError;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, Model, TensorParallel, limit_memory};
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
    fn run(&self) -> Result<Vec<Vec<u32>>, ModelError> {
        let devices = self.devices.iter().map(|device| Box::new(device.clone()) as Device).collect();
        let parallel = TensorParallel { timeout: TIMEOUT, ..TensorParallel::new(devices) };
        let model = Model::from_source_sharded(self.tiny.clone(), parallel, options())?;
        let mut session = model.session()?;
        session.feed(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9])?;
        session.feed(1, &[10])?;
        let mut drawn = session.decode(&[0, 1], 3)?;
        drawn.push(vec![session.draw(1, &[11, 12])?]);
        Ok(drawn)
    }

    fn live(&self) -> usize {
        self.devices.iter().map(Failing::live).sum()
    }
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
    for (shape, ranks) in [(DIVISIBLE[0], 2), (DIVISIBLE[5], 3)] {
        let rig = Rig::new(TinyShape { layers: 1, ..shape }, ranks);
        let expected = rig.run().unwrap();
        assert_eq!(rig.live(), 0);
        let mut faults = 0;
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
                    faults += 1;
                    match result {
                        // A session gives up other steps if memory is short, and tries again.
                        Ok(drawn) => assert!(site == Site::Alloc && drawn == expected, "{site:?} {number}"),
                        Err(error) => assert_eq!(rank_of(&error), Some(rank), "{site:?} {number}: {error}"),
                    }
                }
            }
        }
        assert!(faults > 100, "{faults}");
        rig.injectors.iter().for_each(Injector::count);
        assert_eq!(rig.run().unwrap(), expected, "after all faults");
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
