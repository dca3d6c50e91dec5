//! What a device with little memory does, and one that cannot do everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmen_core::*;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::model::ModelDevice;
use fulmen_engine::{Driver, Engine, EngineOptions, LoadOptions, Model, Progress, Request, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::arch::{GraphSpec, Step};

use crate::tiny::{QWEN3, Tiny};

/// A CPU device with little memory that counts leaks and fails on demand.
struct Small {
    cpu: CpuDispatcher,
    available: Option<u64>,
    prefill_chunk: u32,
    /// Allocations that still succeed.
    left: usize,
    /// Maximum number of live allocations.
    at_once: usize,
    alive: Arc<AtomicUsize>,
    captures: bool,
    /// What was captured and not released, by its number.
    programs: HashMap<u64, Program>,
    captured: Arc<AtomicUsize>,
    replays: Arc<AtomicUsize>,
}

impl Small {
    fn new() -> Small {
        Small {
            cpu: CpuDispatcher::with_threads(1),
            available: None,
            prefill_chunk: 512,
            left: usize::MAX,
            at_once: usize::MAX,
            alive: Arc::default(),
            captures: false,
            programs: HashMap::new(),
            captured: Arc::default(),
            replays: Arc::default(),
        }
    }

    fn got(&mut self, result: Result<u64, BackendError>) -> Result<u64, BackendError> {
        let none = BackendError::OutOfMemory { needed: 1, available: Some(0) };
        self.left = self.left.checked_sub(1).ok_or(none)?;
        self.alive.fetch_add(1, Ordering::Relaxed);
        result
    }
}

impl DeviceMemory for Small {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        if self.left == 0 || self.alive.load(Ordering::Relaxed) >= self.at_once {
            return Err(BackendError::OutOfMemory { needed: bytes as u64, available: Some(0) });
        }
        let got = self.cpu.alloc(bytes);
        self.got(got)
    }
    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        if self.left == 0 {
            return Err(BackendError::OutOfMemory { needed: 1, available: Some(0) });
        }
        let got = self.cpu.import(bytes);
        self.got(got)
    }
    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.alive.fetch_sub(1, Ordering::Relaxed);
        self.cpu.free(ptr)
    }
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.cpu.write(ptr, data)
    }
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.cpu.start_read(ptr, bytes)
    }
    fn available_bytes(&self) -> Option<u64> {
        self.available
    }
}

impl KernelDispatch for Small {
    fn backend(&self) -> &'static str {
        "small"
    }
    fn prefill_chunk(&self) -> u32 {
        self.prefill_chunk
    }
    fn dispatch_mul_mat(&mut self, call: &MulMatCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_mul_mat(call)
    }
    fn dispatch_rms_norm(&mut self, call: &RmsNormCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_rms_norm(call)
    }
    fn dispatch_add(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_add(call)
    }
    fn dispatch_rope(&mut self, call: &RopeCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_rope(call)
    }
    fn dispatch_attention(&mut self, call: &AttentionCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_attention(call)
    }
    fn dispatch_copy(&mut self, call: &CopyCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_copy(call)
    }
    fn dispatch_mul(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_mul(call)
    }
    fn dispatch_silu(&mut self, call: &UnaryCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_silu(call)
    }
    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        self.cpu.dispatch(call)
    }
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        if !self.captures {
            return Ok(None);
        }
        let id = self.captured.fetch_add(1, Ordering::Relaxed) as u64;
        self.programs.insert(id, program.clone());
        Ok(Some(ReplayId(id)))
    }
    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        let program = self.programs.get(&id.0).cloned().expect("it was captured");
        self.replays.fetch_add(1, Ordering::Relaxed);
        for step in program.calls() {
            self.cpu.dispatch(&step.call)?;
        }
        Ok(1)
    }
    fn release(&mut self, id: ReplayId) {
        assert!(self.programs.remove(&id.0).is_some(), "released twice");
    }
}

fn load(device: Small) -> Result<Model, ModelError> {
    Model::from_source(Arc::new(Tiny::new(QWEN3, 1)), Box::new(device), LoadOptions::default())
}

#[test]
fn too_little_memory_is_seen_before_anything_is_loaded() {
    let small = Small { available: Some(100_000), ..Small::new() };
    let alive = Arc::clone(&small.alive);
    let error = load(small).map(drop).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, ModelError::Memory { available: 100_000, .. }), "{message}");
    assert!(
        message.starts_with("not enough memory (") && message.contains("97.7 KiB available"),
        "{message}"
    );
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    load(Small { available: Some(100 << 20), ..Small::new() }).unwrap();
}

#[test]
fn a_device_without_batch_invariant_kernels_says_so() {
    let model = load(Small::new()).unwrap();
    let options = EngineOptions { batch_invariant: true, ..EngineOptions::default() };
    let error = Engine::for_model(&model, &options).map(drop).unwrap_err().to_string();
    assert!(error.contains("batch_invariant") && error.contains("small"), "{error}");
    // A plan that asks for it is refused as well.
    let step = Step::Prefill { rows: 2, results: None };
    let plan = model.plan(&GraphSpec::contiguous(step, DType::F16, 1, 128)).unwrap();
    let plan = Plan { batch_invariant: true, ..plan };
    let mut bindings = model.weights().clone();
    for tensor in plan.graph.tensors.iter().filter(|tensor| tensor.role == Role::State) {
        bindings.set(tensor.name.as_deref().unwrap(), 1 << 20);
    }
    let error = model.with_device(|device| plan.bind(device, &bindings).map(drop)).unwrap_err();
    assert!(error.to_string().contains("batch_invariant"), "{error}");
}

#[test]
fn a_chunk_is_as_large_as_pays_and_as_memory_allows() {
    let chunk = |available: Option<u64>, prefill_chunk: u32, asked: u32| {
        let mut tiny = Tiny::new(QWEN3, 1);
        tiny.metadata.set("qwen3.context_length", 3000u32);
        let small = Small { available, prefill_chunk, ..Small::new() };
        let session = SessionOptions { chunk: asked, ..SessionOptions::default() };
        let options = LoadOptions { session, ..LoadOptions::default() };
        let model = Model::from_source(Arc::new(tiny), Box::new(small), options).unwrap();
        let planned = model.session_options().chunk;
        assert_eq!(model.session().unwrap().options().chunk, planned);
        planned
    };
    let much = Some(1 << 40);
    assert_eq!(chunk(much, 512, 0), 512);
    assert_eq!(chunk(much, 2048, 0), 2048);
    assert_eq!(chunk(much, 100, 0), 100);
    assert_eq!(chunk(None, 2048, 0), 512);
    // Weights and caches take less than 10 MiB; a row of activations takes a few KiB.
    assert_eq!(chunk(Some(10 << 20), 2048, 0), 512);
    assert_eq!(chunk(Some(10 << 20), 2048, 100), 100);
    assert_eq!(chunk(None, 512, 4096), 4096);
}

#[test]
fn nothing_is_leaked_wherever_memory_ends() {
    let whole = Small::new();
    let alive = Arc::clone(&whole.alive);
    let model = load(whole).unwrap();
    let mut session = model.session().unwrap();
    session.draw(0, &[1, 2]).unwrap();
    session.decode(&[0], 2).unwrap();
    let all = alive.load(Ordering::Relaxed);
    drop(session);
    drop(model);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    for left in 0..all {
        let small = Small { left, ..Small::new() };
        let alive = Arc::clone(&small.alive);
        let run = || -> Result<(), ModelError> {
            let model = load(small)?;
            let mut session = model.session()?;
            session.draw(0, &[1, 2])?;
            session.decode(&[0], 2)?;
            Ok(())
        };
        let error = run().expect_err("memory ended");
        assert!(error.to_string().contains("out of memory"), "{error}");
        assert_eq!(alive.load(Ordering::Relaxed), 0, "after {left} allocations");
    }
}

#[test]
fn programs_that_are_kept_give_up_their_memory_for_the_next() {
    let draw = |at_once: usize| -> Result<(Vec<u32>, usize), ModelError> {
        let small = Small { at_once, ..Small::new() };
        let alive = Arc::clone(&small.alive);
        let mut session = load(small)?.session()?;
        let mut drawn = vec![session.draw(0, &[1, 2])?];
        let with_one = alive.load(Ordering::Relaxed);
        for prompt in [&[3, 4, 5][..], &[6, 7, 8, 9], &[1, 2, 3, 4, 5]] {
            session.truncate(0, 0)?;
            drawn.push(session.draw(0, prompt)?);
        }
        Ok((drawn, with_one))
    };
    let (expected, with_one) = draw(usize::MAX).unwrap();
    assert_eq!(draw(with_one).unwrap().0, expected);
    assert!(draw(with_one - 1).unwrap_err().to_string().contains("out of memory"));
}

#[test]
fn decode_steps_are_replayed_where_the_device_can_and_eager_if_asked() {
    let decode = |captures: bool, eager: bool| {
        let small = Small { captures, ..Small::new() };
        let replays = Arc::clone(&small.replays);
        let model = load(small).unwrap();
        let mut session = model.session_with(SessionOptions { eager, ..SessionOptions::default() }).unwrap();
        let mut tokens = vec![session.draw(0, &[1, 2, 3]).unwrap()];
        tokens.extend(session.decode(&[0], 1).unwrap().remove(0));
        tokens.extend(session.decode(&[0], 4).unwrap().remove(0));
        (tokens, replays.load(Ordering::Relaxed))
    };
    let (expected, none) = decode(false, false);
    assert_eq!(none, 0);
    assert_eq!(decode(true, false), (expected.clone(), 5));
    assert_eq!(decode(true, true), (expected, 0));
}

#[test]
fn an_engine_makes_programs_before_they_are_needed() {
    let run = |captures: bool, warm_up: bool| {
        let small = Small { captures, ..Small::new() };
        let (captured, replays) = (Arc::clone(&small.captured), Arc::clone(&small.replays));
        let model = load(small).unwrap();
        let options = EngineOptions {
            context: 64,
            max_sequences: 4,
            max_rows: 32,
            warm_up,
            ..EngineOptions::default()
        };
        let (config, device) = ModelDevice::open(&model, &options).unwrap();
        let mut driver = Driver::new(config, device).unwrap();
        while driver.warm_up() {}
        let made = |driver: &Driver<ModelDevice>| driver.device().unwrap().programs_made();
        let before = made(&driver);
        for prompt in [&[1, 2, 3][..], &[4; 20], &[5, 6, 7, 8, 9, 10, 11], &[12, 13]] {
            driver.submit(Request::new(prompt.to_vec(), 6), std::time::Duration::ZERO).unwrap();
        }
        while driver.step(std::time::Duration::ZERO) == Progress::Busy {}
        let captured = captured.load(Ordering::Relaxed) as u64;
        let events = driver.take_events();
        assert_eq!(events.len(), 4 * 7, "{events:?}");
        let mut events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
        events.sort();
        (events, before, made(&driver) - before, captured, replays.load(Ordering::Relaxed))
    };
    let (expected, before, made, captured, _) = run(false, true);
    // A device that captures nothing shows it with the first program.
    assert!(before == 1 && made > 0 && captured == 0, "{before} {made} {captured}");
    let (events, before, made, ..) = run(true, false);
    assert!(before == 0 && made > 0, "{before} {made}");
    assert_eq!(events, expected);
    let (events, before, made, captured, replays) = run(true, true);
    assert!(
        before > 10 && made == 0 && captured == before && replays > 0,
        "{before} {made} {captured} {replays}"
    );
    assert_eq!(events, expected);
}
