//! Priorities, aging, tenants and preemption.

use super::*;
use fulmen_engine::PreemptionMode;
use fulmen_engine::pages::{GroupConfig, GroupKind};

fn with_priority(priority: i8, len: u32, max_tokens: u32) -> Request {
    Request { priority, ..Request::new(prompt(len), max_tokens) }
}

/// The order in which requests get their last event, one slot at a time.
fn order(config: SchedulerConfig, requests: Vec<(u64, Request)>) -> Vec<usize> {
    let mut driver = driver(&SchedulerConfig { max_sequences: 1, ..config });
    let ids: Vec<RequestId> =
        requests.into_iter().map(|(at, request)| driver.submit(request, ms(at)).unwrap()).collect();
    while driver.step(ms(0)) == Progress::Busy {}
    let ended = driver.take_events().into_iter().filter(|(_, event)| event.is_last());
    ended.map(|(id, _)| ids.iter().position(|&other| other == id).unwrap()).collect()
}

#[test]
fn priorities_come_first_and_age() {
    let config = SchedulerConfig { aging: ms(10), ..config(64) };
    let requests = vec![
        (0, with_priority(0, 3, 2)),
        (1, with_priority(-1, 3, 2)),
        (2, with_priority(2, 3, 2)),
        (15, with_priority(1, 3, 2)),
        (22, with_priority(2, 3, 2)),
    ];
    // Ranks: 0, 11, -18, 5, 2.
    assert_eq!(order(config, requests), [2, 0, 4, 3, 1]);
}

#[test]
fn a_tenant_with_many_requests_does_not_keep_others_out() {
    let of = |tenant: &str| Request { tenant: tenant.into(), ..Request::new(prompt(3), 2) };
    let mut requests: Vec<(u64, Request)> = (0..20).map(|_| (0, of("busy"))).collect();
    requests.push((10, of("quiet")));
    let fair = SchedulerConfig { tenant_spacing: ms(5), ..config(64) };
    let place = order(fair, requests).iter().position(|&at| at == 20).unwrap();
    assert_eq!(place, 3, "after the requests ranked 0, 5 and 10 ms");
}

#[test]
fn requests_of_a_tenant_keep_their_order_when_it_has_fewer() {
    let config = SchedulerConfig { max_sequences: 1, tenant_spacing: ms(100), ..config(64) };
    let mut driver = driver(&config);
    let submit = |driver: &mut Driver<_>, at| driver.submit(Request::new(prompt(3), 2), ms(at)).unwrap();
    let mut ids: Vec<RequestId> = (0..10).map(|_| submit(&mut driver, 0)).collect();
    let mut ended = Vec::new();
    let mut run = |driver: &mut Driver<MockDevice>, until| {
        while ended.len() < until && driver.step(ms(50)) == Progress::Busy {
            let events = driver.take_events().into_iter();
            ended.extend(events.filter_map(|(id, event)| event.is_last().then_some(id)));
        }
        ended.extend(driver.take_events().into_iter().filter_map(|(id, e)| e.is_last().then_some(id)));
        ended.clone()
    };
    run(&mut driver, 7);
    // Those that wait were ranked behind nine others, these behind three.
    ids.extend((0..3).map(|_| submit(&mut driver, 50)));
    assert_eq!(run(&mut driver, 13), ids);
}

#[test]
fn a_stream_of_high_priorities_cannot_starve_a_low_one() {
    let config = SchedulerConfig { max_sequences: 2, aging: ms(20), ..config(64) };
    let mut driver = driver(&config);
    let low = driver.submit(with_priority(-3, 8, 4), ms(0)).unwrap();
    let mut ended_at = None;
    // Twice as many requests arrive as can run.
    for time in 0..2000 {
        driver.submit(with_priority(3, 4, 8), ms(time)).unwrap();
        driver.step(ms(time));
        let ended = driver.take_events().iter().any(|(id, event)| *id == low && event.is_last());
        if ended {
            ended_at = Some(time);
            break;
        }
    }
    // 6 priorities are 120 ms; what arrived before that is served first, at 4 ms a request.
    let ended_at = ended_at.expect("the low priority is served");
    assert!((120..700).contains(&ended_at), "{ended_at} ms");
}

#[test]
fn a_higher_priority_preempts_a_lower_one_to_be_admitted() {
    for slots in [1, 8] {
        let mut scheduler =
            scheduler(SchedulerConfig { max_sequences: slots, prefix_cache: false, ..config(6) });
        let low = scheduler.submit(with_priority(0, 15, 5), ms(0)).unwrap();
        let first = scheduler.plan(ms(0)).unwrap();
        scheduler.submit(with_priority(0, 15, 5), ms(1)).unwrap();
        assert_eq!(scheduler.plan(ms(1)).unwrap().rows.active, 1, "an equal priority waits");
        scheduler.submit(with_priority(1, 15, 5), ms(2)).unwrap();
        let third = scheduler.plan(ms(2)).unwrap();
        assert_eq!((third.rows.active, third.decode_rows), (15, 0));
        assert_eq!((scheduler.stats().dropped, scheduler.stats().waiting), (1, 2));
        // Tokens that the preempted sequence had in flight still arrive.
        answer(&mut scheduler, &first, 9);
        assert_eq!(scheduler.take_events(), [(low, Event::Token(Sampled::token(9)))]);
    }
}

#[test]
fn nobody_is_preempted_in_vain() {
    let mut scheduler = scheduler(SchedulerConfig { prefix_cache: false, ..config(8) });
    scheduler.submit(with_priority(1, 15, 5), ms(0)).unwrap(); // 4 pages
    scheduler.submit(with_priority(0, 7, 5), ms(0)).unwrap(); // 2 pages
    scheduler.plan(ms(0)).unwrap();
    scheduler.submit(with_priority(1, 17, 5), ms(1)).unwrap(); // 5 pages: not even with those of the second
    scheduler.plan(ms(1)).unwrap();
    assert_eq!((scheduler.stats().dropped, scheduler.stats().running), (0, 2));
}

#[test]
fn the_last_rank_is_preempted_when_pages_run_out() {
    for (mode, host_pages) in
        [(PreemptionMode::Recompute, 0), (PreemptionMode::Swap, 9), (PreemptionMode::Swap, 1)]
    {
        let groups = vec![GroupConfig { kind: GroupKind::Full, pages: 6, host_pages }];
        let config = SchedulerConfig { groups, preemption: mode, prefix_cache: false, ..config(6) };
        let mut driver = driver(&config);
        let model = MockModel::new(&config);
        let requests = || [with_priority(0, 6, 12), with_priority(0, 6, 10), with_priority(-1, 5, 8)];
        let expected = requests().map(|request| model.answer(&request, 24));
        let ids = requests().map(|request| driver.submit(request, ms(0)).unwrap());
        let mut preempted = Vec::new();
        while driver.step(ms(0)) == Progress::Busy {
            let stats = driver.scheduler().stats();
            preempted.push((stats.dropped + stats.swapped_out, stats.swapped));
        }
        let stats = driver.scheduler().stats();
        assert!(stats.dropped + stats.swapped_out > 0, "{mode:?}");
        let swaps = mode == PreemptionMode::Swap && host_pages > 1;
        assert_eq!((stats.swapped_out > 0, stats.dropped > 0), (swaps, !swaps), "{mode:?} {host_pages}");
        let events = driver.take_events();
        for (id, expected) in ids.iter().zip(expected) {
            let tokens =
                events.iter().filter(|(other, _)| other == id).filter_map(|(_, event)| match event {
                    Event::Token(sampled) => Some(sampled.token),
                    _ => None,
                });
            assert_eq!(tokens.collect::<Vec<_>>(), expected, "{mode:?}");
        }
        // The first in line is never preempted.
        let usage = |id| {
            events.iter().find_map(|(other, event)| match event {
                Event::Finished { usage, .. } if *other == id => Some(*usage),
                _ => None,
            })
        };
        assert_eq!(usage(ids[0]).unwrap().preemptions, 0);
        assert!(usage(ids[2]).unwrap().preemptions > 0);
        driver.scheduler().counted_back().unwrap();
    }
}
