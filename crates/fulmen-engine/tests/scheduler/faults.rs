//! Faults of the device and of allocations, one at every place.

use super::*;
use fulmen_engine::mock::MockFaults;
use fulmen_engine::pages::{GroupConfig, GroupKind};
use fulmen_engine::{DeviceLost, LaunchError, PreemptionMode, StepDevice, Ticket};

/// Preemptions, swaps, shared prefixes and several chunks.
fn workload() -> (SchedulerConfig, Vec<Request>) {
    let groups = vec![GroupConfig { kind: GroupKind::Full, pages: 12, host_pages: 4 }];
    let config = SchedulerConfig { groups, preemption: PreemptionMode::Swap, ..config(12) };
    let requests = [(20, 6), (20, 8), (7, 12), (13, 10), (3, 5)];
    (config, requests.map(|(len, max_tokens)| Request::new(prompt(len), max_tokens)).into())
}

fn faulty(config: &SchedulerConfig, faults: MockFaults) -> Driver<MockDevice> {
    let mut device = MockDevice::new(config);
    device.faults = faults;
    Driver::new(config.clone(), device).unwrap()
}

fn submit_all(driver: &mut Driver<MockDevice>, requests: Vec<Request>) {
    for request in requests {
        driver.submit(request, ms(0)).expect("the request fits");
    }
}

fn launches_of_a_run() -> u64 {
    let (config, requests) = workload();
    let mut driver = driver(&config);
    check_answers(&mut driver, requests);
    let stats = driver.scheduler().stats();
    assert!(stats.swapped_out > 0 && stats.prefix_cache.hits > 0, "{stats:?}");
    driver.device().unwrap().launches()
}

#[test]
fn any_allocation_may_fail() {
    for n in 1..=80 {
        let (config, requests) = workload();
        let mut driver = driver(&config);
        driver.scheduler_mut().fail_allocation(0, n);
        check_answers(&mut driver, requests);
    }
}

#[test]
fn any_launch_may_be_out_of_memory() {
    for n in 0..launches_of_a_run() {
        let (config, requests) = workload();
        let out_of_memory = LaunchError::OutOfMemory("no room".to_owned());
        let launches = (n..n + 2).map(|n| (n, out_of_memory.clone())).collect();
        let mut driver = faulty(&config, MockFaults { launches, ..MockFaults::default() });
        let expected: Vec<Vec<u32>> =
            requests.iter().map(|request| MockModel::new(&config).answer(request, 48)).collect();
        submit_all(&mut driver, requests);
        let answers = finish(&mut driver);
        // A step of one row cannot be smaller: its request fails, alone.
        assert!(answers.values().filter(|answer| answer.error.is_some()).count() <= 2);
        for (answer, expected) in answers.values().zip(expected) {
            assert!(expected.starts_with(&answer.tokens));
            assert!(answer.error.is_some() || answer.tokens == expected);
        }
        driver.scheduler().counted_back().unwrap();
    }
}

#[test]
fn steps_shrink_until_they_fit_the_device() {
    for max_rows in 1..=20 {
        let (config, requests) = workload();
        let mut driver = faulty(&config, MockFaults { max_rows: Some(max_rows), ..MockFaults::default() });
        check_answers(&mut driver, requests);
        assert!(driver.scheduler().stats().failed_launches > 0);
    }
}

#[test]
fn steps_grow_again_after_the_device_was_out_of_memory() {
    let mut scheduler = scheduler(config(64));
    let mut rows = Vec::new();
    let mut failures = 0;
    for _ in 0..400 {
        if scheduler.unfinished() == 0 {
            let request = Request { use_prefix_cache: false, ..Request::new(prompt(63), 1) };
            scheduler.submit(request, ms(0)).unwrap();
        }
        let plan = scheduler.plan(ms(0)).unwrap();
        rows.push(plan.rows.active);
        // Memory is short for good: no step can have more than 16 rows.
        if plan.rows.active > 16 {
            failures += 1;
            scheduler.launch_failed(plan, LaunchError::OutOfMemory("no room".to_owned()));
        } else {
            answer(&mut scheduler, &plan, 1);
        }
    }
    assert_eq!(rows[..5], [32, 16, 32, 16, 16]);
    // Twice as many steps as the last time succeed before a larger one is tried.
    assert!((6..=9).contains(&failures), "{failures}: {rows:?}");
}

#[test]
fn a_request_without_the_prefix_cache_leaves_nothing_there() {
    let mut scheduler = scheduler(config(64));
    for use_prefix_cache in [false, true, true] {
        let request = Request { use_prefix_cache, ..Request::new(prompt(20), 1) };
        scheduler.submit(request, ms(0)).unwrap();
        let mut ran = 0;
        while scheduler.unfinished() > 0 {
            let plan = scheduler.plan(ms(0)).unwrap();
            ran += plan.rows.active;
            answer(&mut scheduler, &plan, 1);
        }
        let cached = scheduler.stats().prefix_cache.hits;
        assert_eq!((ran, cached), if cached == 0 { (20, 0) } else { (1, 1) });
    }
    assert_eq!(scheduler.stats().prefix_cache.hits, 1);
}

#[test]
fn a_rejected_request_fails_alone() {
    let (config, requests) = workload();
    let rejected = LaunchError::Rejected { slot: 1, reason: "no such sampling".to_owned() };
    let mut driver =
        faulty(&config, MockFaults { launches: [(0, rejected)].into(), ..MockFaults::default() });
    submit_all(&mut driver, requests);
    let errors: Vec<_> = finish(&mut driver).into_values().map(|answer| answer.error).collect();
    let rejected = RequestError::Rejected { reason: "no such sampling".to_owned() };
    assert_eq!(errors, [None, Some(rejected), None, None, None]);
    driver.scheduler().counted_back().unwrap();
}

#[test]
fn the_device_may_be_lost_at_any_step_and_be_replaced() {
    for n in 0..launches_of_a_run() {
        for at_launch in [true, false] {
            let (config, requests) = workload();
            let lost = LaunchError::Lost(DeviceLost("unplugged".to_owned()));
            let faults = match at_launch {
                true => MockFaults { launches: [(n, lost)].into(), ..MockFaults::default() },
                false => MockFaults { lost_at: Some(n), ..MockFaults::default() },
            };
            let mut driver = faulty(&config, faults);
            let submitted = requests.len();
            submit_all(&mut driver, requests);
            let answers = finish(&mut driver);
            assert_eq!(answers.len(), submitted);
            let lost = |error: &RequestError| matches!(error, RequestError::DeviceLost { .. });
            assert!(answers.values().filter_map(|answer| answer.error.as_ref()).all(lost));
            assert!(driver.device().is_none());
            driver.scheduler().counted_back().unwrap();
            let refused = driver.submit(Request::new(prompt(3), 1), ms(0)).unwrap_err();
            assert!(lost(&refused), "{refused}");

            assert!(driver.reopen(MockDevice::new(&config)).is_ok());
            check_answers(&mut driver, workload().1);
            assert!(driver.reopen(MockDevice::new(&config)).is_err(), "there is a device");
        }
    }
}

#[test]
fn a_failed_row_leaves_nothing_in_the_cache() {
    for n in 0..30 {
        let (config, requests) = workload();
        let mut driver = faulty(&config, MockFaults { row: Some(n), ..MockFaults::default() });
        submit_all(&mut driver, requests);
        let errors: Vec<_> = finish(&mut driver).into_values().filter_map(|answer| answer.error).collect();
        assert!(matches!(errors[..], [RequestError::Row { .. }]), "{errors:?}");
        // The same requests again, from the cache.
        check_answers(&mut driver, workload().1);
    }
}

#[test]
fn what_a_step_in_flight_writes_is_not_shared() {
    let config = config(12);
    let model = MockModel::new(&config);
    let mut driver = faulty(&config, MockFaults { row: Some(1), ..MockFaults::default() });
    let fails = driver.submit(Request::new(prompt(5), 5), ms(0)).unwrap();
    // The prompt is read; the row at position 5, which fails, is in flight.
    driver.step(ms(0));
    driver.step(ms(0));
    assert_eq!(driver.scheduler().in_flight(), 1);
    // A request that begins with the token of that row is admitted before its fault is known.
    let first = model.answer(&Request::new(prompt(5), 1), 48);
    let request = Request::new([prompt(5), first, vec![9]].concat(), 5);
    let expected = model.answer(&request, 48);
    let shares = driver.submit(request, ms(0)).unwrap();
    let answers = finish(&mut driver);
    assert!(matches!(answers[&fails].error, Some(RequestError::Row { position: 5, .. })), "{answers:?}");
    assert_eq!(answers[&shares], Answer { tokens: expected, error: None });
    let counters = driver.scheduler().stats().prefix_cache;
    assert_eq!(counters.tokens_hit, 5, "only what was read");
}

/// A device that returns other results than it was asked for.
struct Liar(StepOutput);

impl StepDevice for Liar {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        Ok(Ticket(plan.number))
    }

    fn wait(&mut self, _: Ticket) -> Result<StepOutput, DeviceLost> {
        Ok(self.0.clone())
    }
}

#[test]
fn results_that_do_not_belong_to_a_step_are_refused() {
    use fulmen_engine::step::RowFault;
    let fault = RowFault { row: 3, reason: "?".to_owned() };
    let cases = [
        (StepOutput::default(), "step 1: expected 1 tokens, got 0"),
        (
            StepOutput { sampled: vec![Sampled::token(1)], faults: vec![fault] },
            "step 1 of 3 rows: a fault in row 3",
        ),
    ];
    for (output, expected) in cases {
        let mut driver = Driver::new(config(8), Liar(output)).unwrap();
        driver.submit(Request::new(prompt(3), 4), ms(0)).unwrap();
        while driver.step(ms(0)) == Progress::Busy {}
        let events = driver.take_events();
        let lost = Event::Failed(RequestError::DeviceLost { reason: expected.to_owned() });
        assert_eq!(events.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), [lost]);
    }
    let sampled = vec![Sampled::token(100)];
    let mut driver = Driver::new(config(8), Liar(StepOutput { sampled, faults: vec![] })).unwrap();
    driver.submit(Request::new(prompt(6), 4), ms(0)).unwrap();
    driver.step(ms(0));
    driver.step(ms(0));
    let events = driver.take_events();
    assert!(matches!(&events[..], [(_, Event::Failed(RequestError::Row { position: 6, .. }))]), "{events:?}");
    assert_eq!(driver.scheduler().stats().cached_pages, 0, "what led to such a token is not reused");
}
