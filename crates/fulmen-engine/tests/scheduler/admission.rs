//! Who is admitted, who is refused.

use super::*;
use fulmen_engine::pages::{GroupConfig, GroupKind};

#[test]
fn what_can_never_run_is_refused_by_name() {
    let mut scheduler = scheduler(SchedulerConfig { queue_limit: 2, ..config(5) });
    assert_eq!(scheduler.context(), 20, "5 pages of 4 positions");
    let mut refused = |request| scheduler.submit(request, ms(0)).unwrap_err().to_string();
    let limited = |context, len| Request { context: Some(context), ..Request::new(prompt(len), 1) };
    assert_eq!(refused(Request::new(vec![], 1)), "the prompt is empty; expected at least 1 token");
    assert_eq!(refused(Request::new(prompt(1), 0)), "max_tokens of the request: expected at least 1, got 0");
    assert_eq!(
        refused(Request::new(vec![1, 100, 2], 1)),
        "token 100 at position 1 of the prompt is outside the vocabulary of 100"
    );
    let too_long = "a prompt of 64 tokens leaves no room in a context of 64";
    assert_eq!(refused(Request::new(prompt(64), 1)), too_long);
    assert!(refused(Request::new(prompt(1_000_000), 1)).starts_with("a prompt of 1000000 tokens"));
    assert_eq!(refused(limited(8, 8)), "a prompt of 8 tokens leaves no room in a context of 8");
    assert_eq!(
        refused(Request::new(prompt(20), 1)),
        "a prompt of 20 tokens needs 6 KV pages, and the pool has 5"
    );
    scheduler.submit(Request::new(prompt(19), u32::MAX), ms(0)).unwrap();
    scheduler.submit(limited(8, 7), ms(0)).unwrap();
    let full = scheduler.submit(Request::new(prompt(1), 1), ms(0)).unwrap_err();
    assert_eq!(full, RequestError::QueueFull { limit: 2 });
}

#[test]
fn a_full_context_ends_a_request_with_its_reason() {
    use fulmen_engine::FinishReason;
    let config = config(5);
    let mut driver = driver(&config);
    driver.submit(Request::new(prompt(18), 100), ms(0)).unwrap();
    while driver.step(ms(0)) == Progress::Busy {}
    let events = driver.take_events();
    assert_eq!(events.len(), 3, "2 tokens and the end");
    assert!(matches!(events[2].1, Event::Finished { reason: FinishReason::ContextFull, .. }));
}

#[test]
fn admission_waits_for_pages_and_leaves_a_reserve() {
    let mut scheduler = scheduler(SchedulerConfig { reserve_pages: 2, prefix_cache: false, ..config(6) });
    scheduler.submit(Request::new(prompt(8), 1), ms(0)).unwrap(); // 3 pages with the next token
    let second = scheduler.submit(Request::new(prompt(4), 1), ms(1)).unwrap(); // 2 pages, and 2 in reserve
    let first = scheduler.plan(ms(2)).unwrap();
    assert_eq!((first.rows.active, scheduler.stats().waiting), (12, 0));
    // 3 of 6 pages are taken (2 and 1), and 2 pages for each of 2 sequences stay free.
    scheduler.submit(Request::new(prompt(1), 1), ms(3)).unwrap();
    assert!(scheduler.plan(ms(4)).is_none());
    assert_eq!(scheduler.stats().waiting, 1);
    answer(&mut scheduler, &first, 1);
    assert!(scheduler.take_events().iter().any(|(id, event)| *id == second && event.is_last()));
    assert_eq!(scheduler.plan(ms(5)).unwrap().rows.active, 1);
}

#[test]
fn nobody_overtakes_the_first_in_line() {
    let mut scheduler = scheduler(SchedulerConfig { prefix_cache: false, ..config(6) });
    scheduler.submit(Request::new(prompt(15), 1), ms(0)).unwrap();
    scheduler.submit(Request::new(prompt(15), 1), ms(1)).unwrap();
    scheduler.submit(Request::new(prompt(1), 1), ms(2)).unwrap();
    let plan = scheduler.plan(ms(3)).unwrap();
    assert_eq!((plan.rows.active, scheduler.stats().waiting), (15, 2), "the small one waits, too");
}

#[test]
fn cancelling_works_in_every_state() {
    let config = config(6);
    let requests = || [15, 15, 3].map(|len| Request::new(prompt(len), 8));
    for steps in 0..40 {
        for victim in 0..3 {
            let mut driver = driver(&config);
            let model = MockModel::new(&config);
            let expected = requests().map(|request| model.answer(&request, driver.scheduler().context()));
            let ids = requests().map(|request| driver.submit(request, ms(0)).unwrap());
            for _ in 0..steps {
                driver.step(ms(0));
            }
            let before = driver.take_events();
            let cancelled = driver.cancel(ids[victim]);
            assert!(!driver.cancel(ids[victim]), "once");
            let after = finish(&mut driver);
            for (at, id) in ids.iter().enumerate() {
                let early =
                    before.iter().filter(|(other, _)| other == id).filter_map(|(_, event)| match event {
                        Event::Token(sampled) => Some(sampled.token),
                        _ => None,
                    });
                let mut tokens: Vec<u32> = early.collect();
                let rest = after.get(id).cloned().unwrap_or_default();
                tokens.extend(rest.tokens);
                let error = (cancelled && at == victim).then_some(RequestError::Cancelled);
                assert_eq!(rest.error, error);
                assert!(expected[at].starts_with(&tokens) && (error.is_some() || tokens == expected[at]));
            }
            driver.scheduler().counted_back().unwrap();
        }
    }
}

#[test]
fn deadlines_end_waiting_and_running_requests() {
    let mut scheduler = scheduler(SchedulerConfig { max_sequences: 1, ..config(6) });
    let limited = |timeout| Request { timeout: Some(ms(timeout)), ..Request::new(prompt(3), 8) };
    let running = scheduler.submit(limited(10), ms(0)).unwrap();
    let waiting = scheduler.submit(limited(5), ms(1)).unwrap();
    let at_once = scheduler.submit(limited(0), ms(1)).unwrap();
    assert_eq!(scheduler.next_deadline(), Some(ms(1)));
    let first = scheduler.plan(ms(2)).unwrap();
    answer(&mut scheduler, &first, 1);
    let second = scheduler.plan(ms(10)).is_none();
    assert!(second, "all have ended");
    let failed: Vec<_> = scheduler.take_events().into_iter().filter(|(_, event)| event.is_last()).collect();
    let exceeded = |timeout, generated| {
        Event::Failed(RequestError::DeadlineExceeded { timeout: ms(timeout), generated })
    };
    assert_eq!(failed, [(at_once, exceeded(0, 0)), (waiting, exceeded(5, 0)), (running, exceeded(10, 1))]);
    scheduler.counted_back().unwrap();
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let refused = |config| Scheduler::new(config).err().expect("an error").to_string();
    let base = || config(6);
    let states = GroupConfig { kind: GroupKind::Recurrent, pages: 9, host_pages: 0 };
    let cases = [
        (SchedulerConfig { vocabulary: 0, ..base() }, "vocabulary: expected 1 to 2^32 - 2 tokens, got 0"),
        (SchedulerConfig { context: 1, ..base() }, "context: expected 2 to 2^32 - 2 positions, got 1"),
        (
            SchedulerConfig { buckets: vec![1, 4, 4], ..base() },
            "buckets: expected increasing row counts from 1 on, got [1, 4, 4]",
        ),
        (
            SchedulerConfig { buckets: vec![], ..base() },
            "buckets: expected increasing row counts from 1 on, got []",
        ),
        (
            SchedulerConfig { max_sequences: 33, ..base() },
            "max_sequences: expected 1 to 32, the largest bucket, got 33",
        ),
        (SchedulerConfig { prefill_rows: 0, ..base() }, "prefill_rows: expected at least 1, got 0"),
        (
            SchedulerConfig { batch_invariant: true, prefill_rows: 3, ..base() },
            "prefill_rows: expected at least a page (4) in batch-invariant mode, got 3",
        ),
        (
            SchedulerConfig { batch_invariant: true, max_sequences: 30, ..base() },
            "the largest bucket: expected at least 33 (max_sequences - 1 + page) in batch-invariant mode, \
             got 32",
        ),
        (
            SchedulerConfig { snapshot_interval: 6, groups: vec![GroupConfig::full(6), states], ..base() },
            "snapshot_interval: expected a multiple of the page size (4), got 6",
        ),
        (
            SchedulerConfig { groups: vec![GroupConfig::full(0)], ..base() },
            "KV pages of a group: expected at least 1, got 0",
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(refused(config), expected);
    }
}
