//! What the prefix cache saves.

use fulmen_engine::mock::{MockFaults, MockSampling};
use fulmen_engine::pages::{GroupConfig, GroupKind};
use fulmen_engine::{SamplingParams, Stop};

use super::*;

/// Runs one request and returns the prompt tokens that were cached, and its tokens.
pub(crate) fn run(driver: &mut Driver<MockDevice>, request: Request) -> (usize, Vec<u32>) {
    let model = MockModel::new(driver.scheduler().config());
    let expected = model.answer(&request, driver.scheduler().context());
    let expected_prompt = request.prompt_logprobs.map(|_| model.prompt_logprobs(&request.prompt, 0));
    driver.submit(request, ms(0)).unwrap();
    while driver.step(ms(0)) == Progress::Busy {}
    let (mut tokens, mut prompt, mut cached) = (Vec::new(), None, None);
    for (_, event) in driver.take_events() {
        match event {
            Event::Prompt(scored) => prompt = Some(scored),
            Event::Token(sampled) => tokens.push(sampled.token),
            Event::Finished { usage, .. } => cached = Some(usage.cached_tokens),
            Event::Failed(error) => panic!("{error}"),
        }
    }
    assert_eq!(tokens, expected, "as a cold run");
    assert_eq!(prompt, expected_prompt);
    driver.scheduler().counted_back().unwrap();
    (cached.unwrap(), tokens)
}

#[test]
fn wanted_log_probabilities_of_a_prompt_are_computed_and_not_looked_up() {
    let mut driver = driver(&config(64));
    let scored = || Request { prompt_logprobs: Some(0), ..Request::new(prompt(18), 3) };
    assert_eq!(run(&mut driver, Request::new(prompt(18), 3)).0, 0);
    assert_eq!(run(&mut driver, scored()).0, 0);
    assert_eq!(run(&mut driver, scored()).0, 0);
    assert_eq!(run(&mut driver, Request::new(prompt(18), 3)).0, 17, "its pages serve others");
    assert_eq!(run(&mut driver, Request { prompt_logprobs: Some(0), ..Request::new(vec![5], 2) }).0, 0);
}

/// Pages of a preempted sequence come from the cache again, but for those whose rows have not run.
#[test]
fn log_probabilities_of_a_preempted_prompt_are_asked_for_once() {
    let mut scheduler = scheduler(SchedulerConfig { prompt_outputs: 8, ..config(7) });
    let scored = Request { prompt_logprobs: Some(0), ..Request::new(prompt(18), 1) };
    let low = scheduler.submit(scored, ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    assert_eq!((first.rows.active, first.logits.len()), (8, 8));
    answer(&mut scheduler, &first, 3);
    let high = Request { priority: 1, ..Request::new((40..52).collect(), 1) };
    let high = scheduler.submit(high, ms(0)).unwrap();
    let second = scheduler.plan(ms(0)).unwrap();
    assert_eq!((second.chunks.len(), second.logits.len()), (1, 1), "the other prompt alone");
    answer(&mut scheduler, &second, 4);
    assert!(scheduler.take_events().iter().all(|(id, _)| *id == high));
    let third = scheduler.plan(ms(0)).unwrap();
    let positions: Vec<u32> =
        third.logits.iter().map(|logits| third.rows.get(logits.row).unwrap().position).collect();
    assert_eq!((third.chunks[0].position, positions), (8, (8..16).collect()));
    answer(&mut scheduler, &third, 5);
    let fourth = scheduler.plan(ms(0)).unwrap();
    answer(&mut scheduler, &fourth, 6);
    let events = scheduler.take_events();
    let Event::Prompt(tokens) = &events[0].1 else { panic!("{events:?}") };
    // The answers of this test are the number of the step.
    let tokens: Vec<u32> = tokens.iter().map(|token| token.token).collect();
    assert_eq!((events[0].0, tokens), (low, [vec![0], vec![3; 8], vec![5; 8], vec![6]].concat()));
    scheduler.counted_back().unwrap();
}

#[test]
fn a_prompt_is_found_up_to_its_last_token() {
    let mut driver = driver(&config(64));
    assert_eq!(run(&mut driver, Request::new(prompt(18), 3)).0, 0);
    assert_eq!(run(&mut driver, Request::new(prompt(18), 3)).0, 17, "the last token runs for its logits");
    assert_eq!(run(&mut driver, Request::new(prompt(16), 3)).0, 15, "also at the end of a page");
    let mut other = prompt(18);
    other[10] = 99;
    assert_eq!(run(&mut driver, Request::new(other, 3)).0, 10, "2 pages and 2 tokens of the third");
    let counters = driver.scheduler().stats().prefix_cache;
    assert_eq!((counters.lookups, counters.hits, counters.tokens_hit), (4, 3, 42));
}

#[test]
fn the_next_turn_takes_over_the_last_page() {
    let mut driver = driver(&config(64));
    let mut conversation = prompt(6);
    for turn in 0..5 {
        let before = conversation.len();
        let (cached, tokens) = run(&mut driver, Request::new(conversation.clone(), 3));
        // All but the last token of the turn before was computed.
        assert_eq!(cached, if turn == 0 { 0 } else { before - 3 }, "turn {turn}");
        conversation.extend(tokens);
        conversation.extend([50, 51]);
    }
    assert_eq!(driver.scheduler().stats().copied_pages, 0, "pages were taken over, not copied");
}

#[test]
fn a_running_sequence_shares_what_it_has_computed() {
    let config = config(64);
    let mut driver = driver(&config);
    driver.submit(Request::new(prompt(10), 30), ms(0)).unwrap();
    for _ in 0..4 {
        driver.step(ms(0));
    }
    driver.take_events();
    let second = Request::new(prompt(10), 30);
    let expected = MockModel::new(&config).answer(&second, 64);
    let id = driver.submit(second, ms(0)).unwrap();
    while driver.step(ms(0)) == Progress::Busy {}
    let events: Vec<Event> =
        driver.take_events().into_iter().filter(|(other, _)| *other == id).map(|e| e.1).collect();
    let Some(Event::Finished { usage, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!((usage.cached_tokens, driver.scheduler().stats().copied_pages), (9, 1));
    assert!(events.iter().zip(expected).all(|(event, token)| *event == Event::Token(Sampled::token(token))));
}

#[test]
fn equal_prompts_at_the_same_time_end_up_in_the_same_pages() {
    // 12 tokens and the next one are 4 pages, so 6 prompts fit when nothing is shared.
    let mut driver = driver(&config(24));
    for seed in 0..8 {
        let sampling = SamplingParams::new(MockSampling { seed });
        driver.submit(Request { sampling, ..Request::new(prompt(12), 3) }, ms(0)).unwrap();
    }
    driver.step(ms(0));
    driver.step(ms(0));
    // The first step is read: of what it has computed several times, one copy is left.
    let stats = driver.scheduler().stats();
    assert_eq!((stats.cached_pages, stats.dropped), (3, 0), "{stats:?}");
    driver.step(ms(0));
    driver.step(ms(0));
    let stats = driver.scheduler().stats();
    assert_eq!((stats.running + stats.finished as usize, stats.dropped), (8, 0), "{stats:?}");
    while driver.step(ms(0)) == Progress::Busy {}
    assert_eq!(driver.scheduler().stats().finished, 8);
    driver.scheduler().counted_back().unwrap();
}

#[test]
fn of_many_equal_prompts_few_are_computed() {
    for batch_invariant in [false, true] {
        let mut driver = driver(&SchedulerConfig { batch_invariant, ..config(100) });
        let requests = (0..8).map(|last| {
            let mut prompt = prompt(41);
            prompt[40] = last;
            Request::new(prompt, 3)
        });
        check_answers(&mut driver, requests.collect());
        let stats = driver.scheduler().stats();
        // The first step is not read yet when the second one is planned.
        assert!(stats.prefill_rows <= 3 * 41, "{stats:?}");
        assert!(stats.prefix_cache.hits >= 6 && stats.prefix_cache.tokens_hit >= 200, "{stats:?}");
    }
}

#[test]
fn tenants_and_switches_keep_prefixes_apart() {
    let request = |tenant: &str| Request { tenant: tenant.into(), ..Request::new(prompt(18), 3) };
    let mut with_cache = driver(&config(64));
    assert_eq!(run(&mut with_cache, request("a")).0, 0);
    assert_eq!(run(&mut with_cache, request("b")).0, 0);
    assert_eq!(run(&mut with_cache, request("b")).0, 17);
    assert_eq!(run(&mut with_cache, Request { use_prefix_cache: false, ..request("b") }).0, 0);
    let mut without = driver(&SchedulerConfig { prefix_cache: false, ..config(64) });
    run(&mut without, request("a"));
    assert_eq!(run(&mut without, request("a")).0, 0);
    assert_eq!(without.scheduler().stats().prefix_cache.lookups, 0);
}

#[test]
fn cached_pages_make_way_for_sequences() {
    let mut driver = driver(&config(8));
    for first in 0..20 {
        let prompt: Vec<u32> = (0..20).map(|at| (first * 7 + at) % 100).collect();
        run(&mut driver, Request::new(prompt, 8));
    }
    let stats = driver.scheduler().stats();
    assert!(stats.prefix_cache.evictions > 50, "{stats:?}");
    assert_eq!(stats.dropped, 0, "nobody is preempted for the cache");
    driver.scheduler_mut().clear_prefix_cache();
    let stats = driver.scheduler().stats();
    assert_eq!((stats.groups[0].free, stats.cached_pages), (8, 0));
}

#[test]
fn batch_invariant_hits_are_whole_pages_of_prefill() {
    let mut driver = driver(&SchedulerConfig { batch_invariant: true, ..config(64) });
    let (_, tokens) = run(&mut driver, Request::new(prompt(18), 12));
    assert_eq!(run(&mut driver, Request::new(prompt(18), 3)).0, 16);
    assert_eq!(run(&mut driver, Request::new(prompt(16), 3)).0, 12);
    let turn: Vec<u32> = prompt(18).into_iter().chain(tokens).chain([1, 2]).collect();
    assert_eq!(run(&mut driver, Request::new(turn, 3)).0, 16, "decoded positions are computed by prefill");
}

/// Attention and recurrent states, of which so many are kept at least; snapshots every 8 positions.
fn hybrid(kept: u32) -> SchedulerConfig {
    let states = GroupConfig { kind: GroupKind::Recurrent, pages: 8 + kept, host_pages: 0 };
    SchedulerConfig { groups: vec![GroupConfig::full(64), states], snapshot_interval: 8, ..config(64) }
}

/// A request that stops at the fifth token that it generates, and its tokens with that one.
fn stopping(config: &SchedulerConfig, prompt: Vec<u32>) -> (Request, Vec<u32>) {
    let tokens = MockModel::new(config).answer(&Request::new(prompt.clone(), 5), config.context);
    let turn = [&prompt[..], &tokens].concat();
    let stop = Stop { tokens: Vec::new(), sequences: vec![tokens[3..].to_vec()] };
    (Request { stop, ..Request::new(prompt, 20) }, turn)
}

#[test]
fn the_next_turn_of_a_hybrid_model_begins_with_the_state_of_the_last() {
    let config = hybrid(20);
    let mut driver = driver(&config);
    let mut conversation = prompt(6);
    for turn in 0..4 {
        let before = if turn == 0 { 0 } else { conversation.len() - 2 };
        let (request, whole) = stopping(&config, conversation);
        // The row of the stop was in flight: with it the whole turn was read.
        assert_eq!(run(&mut driver, request).0, before, "turn {turn}");
        conversation = [&whole[..], &[50, 51]].concat();
    }
    // A turn that ends by its length: the last token was not run.
    let (_, tokens) = run(&mut driver, Request::new(conversation.clone(), 3));
    let next: Vec<u32> = conversation.iter().copied().chain(tokens).chain([52]).collect();
    assert_eq!(run(&mut driver, Request::new(next, 1)).0, conversation.len() + 2);
}

#[test]
fn states_are_kept_at_multiples_at_page_borders_and_at_the_ends_of_prompts() {
    let mut driver = driver(&SchedulerConfig { snapshot_interval: 12, ..hybrid(20) });
    let cached = |driver: &mut Driver<MockDevice>, len: u32| {
        let mut prompt = prompt(len);
        prompt.push(99);
        run(driver, Request { max_tokens: 1, ..Request::new(prompt, 1) }).0
    };
    // Multiples 12 and 24, the border 28, the end 30.
    driver.submit(Request::new(prompt(30), 1), ms(0)).unwrap();
    while driver.step(ms(0)) == Progress::Busy {}
    assert_eq!(driver.scheduler().stats().steps, 4, "chunks end where states are kept");
    driver.take_events();
    let request = || Request::new(prompt(30), 4);
    assert_eq!(run(&mut driver, request()).0, 28, "the same prompt again");
    assert_eq!(cached(&mut driver, 30), 30, "another prompt that goes on behind its end");
    assert_eq!(cached(&mut driver, 29), 28);
    assert_eq!(cached(&mut driver, 27), 24);
    assert_eq!(cached(&mut driver, 14), 12);
    assert_eq!(cached(&mut driver, 11), 0);
    let other = || Request { tenant: "other".into(), ..request() };
    assert_eq!(run(&mut driver, other()).0, 0, "the states of a tenant are its own");
    assert_eq!(run(&mut driver, other()).0, 28);
    assert_eq!(run(&mut driver, Request { use_prefix_cache: false, ..request() }).0, 0);
}

#[test]
fn with_few_pages_for_states_the_least_recently_used_ones_go() {
    for kept in [0, 1, 3] {
        let mut config = hybrid(0);
        config.max_sequences = 1;
        config.groups[1].pages = 1 + kept;
        let mut driver = driver(&config);
        for first in 0..6 {
            let prompt: Vec<u32> = (0..20).map(|at| (first * 7 + at) % 100).collect();
            run(&mut driver, Request::new(prompt, 4));
            let stats = driver.scheduler().stats();
            assert!(stats.cached_states as u32 <= 1 + kept, "{stats:?}");
        }
        let stats = driver.scheduler().stats();
        assert!(stats.prefix_cache.state_evictions >= 5 && stats.dropped == 0, "{stats:?}");
        // The end of the last turn is there.
        let last: Vec<u32> = (0..20).map(|at| (35 + at) % 100).collect();
        let tokens = MockModel::new(&config).answer(&Request::new(last.clone(), 4), config.context);
        let next = [&last[..], &tokens, &[1]].concat();
        assert_eq!(run(&mut driver, Request::new(next, 1)).0, 23, "{kept}");
        driver.scheduler_mut().clear_prefix_cache();
        let stats = driver.scheduler().stats();
        assert_eq!((stats.groups[1].free, stats.cached_states), (1 + kept, 0));
    }
}

#[test]
fn a_fault_in_the_row_behind_the_end_leaves_no_state_of_it() {
    let config = hybrid(20);
    for (fault, cached) in [(None, None), (Some(5), Some(8))] {
        let (request, whole) = stopping(&config, prompt(6));
        let next = Request::new([&whole[..], &[50, 51]].concat(), 3);
        let cached = cached.unwrap_or(whole.len());
        let mut device = MockDevice::new(&config);
        // Row 5 samples behind the fifth token, which ends the turn. At 8 a state was kept before.
        device.faults = MockFaults { row: fault, ..MockFaults::default() };
        let mut driver = Driver::new(config.clone(), device).unwrap();
        run(&mut driver, request);
        driver.scheduler().audit().unwrap();
        assert_eq!(run(&mut driver, next).0, cached, "{fault:?}");
    }
}

#[test]
fn a_cancelled_turn_leaves_its_state() {
    let config = hybrid(20);
    let mut driver = driver(&config);
    let request = Request::new(prompt(6), 40);
    let tokens = MockModel::new(&config).answer(&request, config.context);
    let id = driver.submit(request, ms(0)).unwrap();
    for _ in 0..9 {
        driver.step(ms(0));
    }
    driver.cancel(id);
    while driver.step(ms(0)) == Progress::Busy {}
    let known = driver.take_events().into_iter().filter_map(|(_, event)| token_of(event)).count();
    let next = [&prompt(6)[..], &tokens[..known + 1], &[50]].concat();
    let (cached, _) = run(&mut driver, Request::new(next, 3));
    assert!(cached >= 6 + known, "{cached} of {known}");
}

#[test]
fn of_many_equal_prompts_few_are_computed_by_a_hybrid_model() {
    for batch_invariant in [false, true] {
        let config = SchedulerConfig { batch_invariant, groups: hybrid(20).groups, ..hybrid(20) };
        let mut driver = driver(&config);
        let requests = (0..8).map(|last| {
            let mut prompt = prompt(41);
            prompt[40] = last;
            Request::new(prompt, 3)
        });
        check_answers(&mut driver, requests.collect());
        let stats = driver.scheduler().stats();
        assert!(stats.prefill_rows <= 6 * 41 && stats.prefix_cache.hits >= 2, "{stats:?}");
    }
}
