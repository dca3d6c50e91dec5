//! The engine's thread, its consumers and its ends.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use fulmen_engine::mock::{MockDevice, MockFaults, MockModel, MockSampling};
use fulmen_engine::step::{StepOutput, StepPlan};
use fulmen_engine::{
    DeviceLost, Engine, EngineError, Event, LaunchError, Request, RequestError, RequestHandle,
    SamplingParams, SchedulerConfig, Shutdown, StepDevice, Ticket,
};

fn config() -> SchedulerConfig {
    SchedulerConfig {
        page_size: 8,
        max_sequences: 8,
        buckets: vec![1, 2, 4, 8, 16, 32, 64],
        ..SchedulerConfig::new(100, 256, 60)
    }
}

fn engine() -> Engine {
    Engine::start(config(), Box::new(MockDevice::new(&config()))).expect("the engine starts")
}

fn faulty(faults: MockFaults) -> Engine {
    let mut device = MockDevice::new(&config());
    device.faults = faults;
    Engine::start(config(), Box::new(device)).expect("the engine starts")
}

fn request(seed: u64, max_tokens: u32) -> Request {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut prompt = vec![1; rng.usize(1..40)];
    prompt.extend((0..rng.usize(..20)).map(|_| rng.u32(..100)));
    Request { sampling: SamplingParams::new(MockSampling { seed }), ..Request::new(prompt, max_tokens) }
}

fn expected(request: &Request) -> Vec<u32> {
    MockModel::new(&config()).answer(request, config().context)
}

/// The tokens of a request, and its error.
fn collect(handle: impl Iterator<Item = Event>) -> (Vec<u32>, Option<RequestError>) {
    let (mut tokens, mut error) = (Vec::new(), None);
    for event in handle {
        match event {
            Event::Token(sampled) => tokens.push(sampled.token),
            Event::Prompt(_) | Event::Finished { .. } => {}
            Event::Failed(failed) => error = Some(failed),
        }
    }
    (tokens, error)
}

#[test]
fn callers_in_many_threads_get_their_own_tokens() {
    let engine = engine();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let engine = &engine;
            scope.spawn(move || {
                for turn in 0..20 {
                    let request = request(thread * 100 + turn, 20);
                    let expected = expected(&request);
                    assert_eq!(collect(engine.submit(request)), (expected, None));
                }
            });
        }
    });
    let stats = engine.shutdown(Shutdown::Drain).unwrap();
    assert_eq!((stats.finished, stats.waiting, stats.running), (160, 0, 0));
}

#[test]
fn asynchronous_callers_are_woken() {
    let engine = engine();
    let request = request(3, 30);
    let expected = expected(&request);
    let mut handle = engine.submit(request);
    let tokens = pollster::block_on(async {
        let mut tokens = Vec::new();
        while let Some(event) = handle.event().await {
            tokens.extend(match event {
                Event::Token(sampled) => Some(sampled.token),
                _ => None,
            });
        }
        tokens
    });
    assert_eq!(tokens, expected);
}

#[test]
fn refusals_are_the_only_event() {
    let engine = engine();
    let refused = collect(engine.submit(Request::new(vec![], 1)));
    assert_eq!(refused, (vec![], Some(RequestError::EmptyPrompt)));
    let refused = collect(engine.submit(Request::new(vec![1; 256], 1)));
    assert_eq!(refused.1, Some(RequestError::PromptTooLong { prompt: 256, context: 256 }));
}

#[test]
fn cancelling_and_dropping_and_panicking_harm_nobody_else() {
    let engine = engine();
    let others: Vec<(RequestHandle, Vec<u32>)> = (0..6)
        .map(|seed| {
            let request = request(seed, 200);
            let expected = expected(&request);
            (engine.submit(request), expected)
        })
        .collect();
    let cancelled = engine.submit(request(10, 200));
    cancelled.cancel();
    drop(engine.submit(request(11, 200)));
    let mut panicking = engine.submit(request(12, 200));
    let panicked = std::thread::spawn(move || {
        panicking.next();
        resume_unwind(Box::new("a consumer"));
    });
    assert!(panicked.join().is_err());
    for (handle, expected) in others {
        assert_eq!(collect(handle), (expected, None));
    }
    let (tokens, error) = collect(cancelled);
    assert!(error == Some(RequestError::Cancelled) || tokens.len() == 200, "{error:?}");
    engine.shutdown(Shutdown::Drain).unwrap();
}

#[test]
fn a_consumer_that_does_not_read_is_ended() {
    let engine = engine().with_event_capacity(10);
    let slow = engine.submit(request(1, 100));
    let quick = engine.submit(request(2, 100));
    let mut tokens = Vec::new();
    for event in quick {
        match event {
            Event::Token(sampled) => tokens.push(sampled.token),
            // Scheduling of threads may make any consumer slow.
            Event::Failed(error) => assert_eq!(error, RequestError::ConsumerTooSlow { buffered: 10 }),
            Event::Prompt(_) | Event::Finished { .. } => {}
        }
    }
    assert!(expected(&request(2, 100)).starts_with(&tokens));
    let began = Instant::now();
    while engine.stats().failed == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the slow consumer is not ended");
        std::thread::yield_now();
    }
    let (tokens, error) = collect(slow);
    assert_eq!(error, Some(RequestError::ConsumerTooSlow { buffered: 10 }));
    assert_eq!(tokens, expected(&request(1, 100))[..10]);
    engine.shutdown(Shutdown::Drain).unwrap();
}

/// A device whose steps take a while.
struct Slow(MockDevice);

impl StepDevice for Slow {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        self.0.launch(plan)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        std::thread::sleep(Duration::from_millis(2));
        self.0.wait(ticket)
    }
}

#[test]
fn a_panicking_waker_does_not_reach_the_driver() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new("a waker"));
        }
    }
    let engine = Engine::start(config(), Box::new(Slow(MockDevice::new(&config())))).unwrap();
    let mut handle = engine.submit(request(1, 20));
    let waker = Waker::from(Arc::new(Panics));
    assert!(matches!(handle.poll_event(&mut Context::from_waker(&waker)), Poll::Pending));
    assert_eq!(collect(handle).0, expected(&request(1, 20)));
}

#[test]
fn timeouts_and_waits_are_bounded() {
    let engine = Engine::start(config(), Box::new(Slow(MockDevice::new(&config())))).unwrap();
    let timeout = Some(Duration::from_millis(30));
    let limited = engine.submit(Request { timeout, ..request(1, 200) });
    let mut other = engine.submit(request(2, 50));
    let began = Instant::now();
    assert_eq!(other.next_timeout(Duration::ZERO), None);
    assert!(began.elapsed() < Duration::from_secs(5));
    let (tokens, error) = collect(limited);
    let expected_error =
        RequestError::DeadlineExceeded { timeout: Duration::from_millis(30), generated: tokens.len() };
    assert_eq!(error, Some(expected_error));
    assert_eq!(collect(other).0, expected(&request(2, 50)));
}

/// A device with parts to prepare, the last of which may panic.
struct Cold {
    device: MockDevice,
    left: Arc<AtomicU32>,
    panics: bool,
}

impl StepDevice for Cold {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        self.device.launch(plan)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        self.device.wait(ticket)
    }

    fn warm_up(&mut self) -> Result<bool, DeviceLost> {
        std::thread::sleep(Duration::from_millis(2));
        let left = self.left.fetch_sub(1, Ordering::Relaxed) - 1;
        assert!(left > 0 || !self.panics, "the last part is missing");
        Ok(left > 0)
    }
}

#[test]
fn an_idle_engine_warms_its_device_up_and_lets_nobody_wait() {
    let left = Arc::new(AtomicU32::new(20));
    let cold =
        |panics| Box::new(Cold { device: MockDevice::new(&config()), left: Arc::clone(&left), panics });
    let engine = Engine::start(config(), cold(false)).unwrap();
    for seed in 0..5 {
        assert_eq!(collect(engine.submit(request(seed, 20))), (expected(&request(seed, 20)), None));
    }
    let began = Instant::now();
    while left.load(Ordering::Relaxed) > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "{left:?} parts are left");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Then it sleeps: nothing is prepared twice.
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(left.load(Ordering::Relaxed), 0);
    engine.shutdown(Shutdown::Drain).unwrap();

    left.store(3, Ordering::Relaxed);
    let engine = Engine::start(config(), cold(true)).unwrap();
    while left.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (_, error) = collect(engine.submit(request(1, 20)));
    let Some(RequestError::DeviceLost { reason }) = error else { panic!("{error:?}") };
    assert!(reason.contains("the last part is missing"), "{reason}");
}

#[test]
fn shutting_down_drains_or_cancels() {
    let draining = engine();
    let handles: Vec<_> =
        (0..10).map(|seed| (draining.submit(request(seed, 40)), request(seed, 40))).collect();
    assert_eq!(draining.shutdown(Shutdown::Drain).unwrap().finished, 10);
    for (handle, request) in handles {
        assert_eq!(collect(handle), (expected(&request), None), "events stay readable");
    }

    let cancelling = Engine::start(config(), Box::new(Slow(MockDevice::new(&config())))).unwrap();
    let handles: Vec<_> = (0..10).map(|seed| cancelling.submit(request(seed, 200))).collect();
    let stats = cancelling.shutdown(Shutdown::Cancel).unwrap();
    assert_eq!((stats.finished, stats.failed), (0, 10));
    for handle in handles {
        assert_eq!(collect(handle).1, Some(RequestError::ShuttingDown));
    }

    let dropped = engine();
    let handle = dropped.submit(request(1, 200));
    drop(dropped);
    let (tokens, error) = collect(handle);
    assert!(error == Some(RequestError::ShuttingDown) || tokens.len() == 200);
}

#[test]
fn a_lost_device_ends_every_request_and_can_be_replaced() {
    let lost = MockFaults { lost_at: Some(5), ..MockFaults::default() };
    let panics = MockFaults { panic_at: Some(5), ..MockFaults::default() };
    for faults in [lost, panics] {
        let engine = faulty(faults);
        let handles: Vec<_> = (0..12).map(|seed| engine.submit(request(seed, 100))).collect();
        for (seed, handle) in (0..).zip(handles) {
            let (tokens, error) = collect(handle);
            assert!(matches!(error, Some(RequestError::DeviceLost { .. })), "{error:?}");
            assert!(expected(&request(seed, 100)).starts_with(&tokens));
        }
        let (_, error) = collect(engine.submit(request(1, 1)));
        assert!(matches!(error, Some(RequestError::DeviceLost { .. })), "{error:?}");

        engine.reopen(Box::new(MockDevice::new(&config()))).unwrap();
        assert_eq!(collect(engine.submit(request(1, 50))), (expected(&request(1, 50)), None));
        let again = engine.reopen(Box::new(MockDevice::new(&config())));
        assert!(matches!(again, Err(EngineError::StillOpen)));
        engine.shutdown(Shutdown::Drain).unwrap();
    }
}

#[test]
fn a_storm_of_cancellations_is_counted_back() {
    let engine = engine();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                for turn in 0..100 {
                    let request = request(thread * 1000 + turn, rng.u32(1..60));
                    let expected = expected(&request);
                    let mut handle = engine.submit(request);
                    let read = rng.usize(..40);
                    let (tokens, error) = collect(handle.by_ref().take(read));
                    assert!(error.is_none() && expected.starts_with(&tokens));
                }
            });
        }
    });
    let stats = engine.shutdown(Shutdown::Drain).unwrap();
    assert_eq!(stats.submitted, stats.finished + stats.cancelled);
    assert!(stats.cancelled > 0);
}
