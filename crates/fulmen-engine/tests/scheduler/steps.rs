//! What is in a step.

use std::panic::resume_unwind;

use fulmen_engine::step::{NO_SLOT, NextToken, RowToken, TokenMask};
use fulmen_engine::{Constraint, DeviceLost, LaunchError, StepDevice, Stop, Ticket};

use super::*;

#[test]
fn decode_rows_come_first_and_prefill_keeps_to_its_budget() {
    let mut scheduler = scheduler(config(64));
    scheduler.submit(Request::new(prompt(3), 10), ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    assert_eq!((first.decode_rows, first.rows.active, first.bucket), (0, 3, 4));
    assert_eq!(first.rows.slots, [0, 0, 0, NO_SLOT]);
    assert_eq!(first.rows.sampling, [NO_SLOT, NO_SLOT, 0, NO_SLOT]);

    scheduler.submit(Request::new(prompt(20), 10), ms(0)).unwrap();
    let second = scheduler.plan(ms(0)).unwrap();
    // One decode row, whose token is still on the device, and a chunk of 8 rows without results.
    assert_eq!((second.decode_rows, second.rows.active, second.bucket), (1, 9, 16));
    assert_eq!(second.rows.get(0).unwrap().token, RowToken::Sampled);
    assert_eq!((second.chunks[0].position, second.chunks[0].rows.clone()), (0, 1..9));
    assert_eq!(second.logits.iter().map(|logits| logits.row).collect::<Vec<_>>(), [0]);
    assert_eq!(scheduler.in_flight(), 2);
}

#[test]
fn prompts_alone_fill_the_largest_bucket() {
    let mut scheduler = scheduler(config(64));
    scheduler.submit(Request::new(prompt(40), 10), ms(0)).unwrap();
    scheduler.submit(Request::new(prompt(10), 10), ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    assert_eq!((first.rows.active, first.chunks.len()), (32, 1));
    let second = scheduler.plan(ms(0)).unwrap();
    assert_eq!((second.chunks[0].rows.clone(), second.chunks[1].rows.clone()), (0..8, 8..18));
    assert_eq!((second.chunks[0].position, second.logits.len()), (32, 2));
}

#[test]
fn short_prompts_do_not_wait_for_the_end_of_a_long_one() {
    let mut scheduler = scheduler(SchedulerConfig { context: 2000, prefix_cache: false, ..config(500) });
    scheduler.submit(Request::new(prompt(1000), 1), ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    assert_eq!(first.rows.active, 32, "alone it gets all rows");
    let short = scheduler.submit(Request::new(prompt(10), 1), ms(1)).unwrap();
    scheduler.submit(Request::new(prompt(500), 1), ms(1)).unwrap();
    let second = scheduler.plan(ms(1)).unwrap();
    let rows: Vec<usize> = second.chunks.iter().map(|chunk| chunk.rows.len()).collect();
    assert_eq!(rows, [16, 10, 6], "half, the whole short prompt, and what is left");
    answer(&mut scheduler, &first, 1);
    answer(&mut scheduler, &second, 1);
    assert!(scheduler.take_events().iter().any(|(id, event)| *id == short && event.is_last()));
}

#[test]
fn prompts_with_log_probabilities_run_in_chunks_that_have_room_for_them() {
    let mut scheduler = scheduler(SchedulerConfig { prompt_outputs: 6, ..config(64) });
    let scored = |len| Request { prompt_logprobs: Some(4), ..Request::new(prompt(len), 1) };
    let long = scheduler.submit(scored(9), ms(0)).unwrap();
    let second = scheduler.submit(scored(3), ms(0)).unwrap();
    let plain = scheduler.submit(Request::new(prompt(5), 1), ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    // The second prompt waits for room, and does not hold up the third, which needs none.
    assert_eq!(first.chunks.iter().map(|chunk| chunk.rows.clone()).collect::<Vec<_>>(), [0..6, 6..11]);
    let next: Vec<NextToken> = first.logits.iter().map(|logits| logits.next).collect();
    let known = |tokens: std::ops::Range<u32>| tokens.map(NextToken::Known).collect::<Vec<_>>();
    assert_eq!(next, [known(1..7), vec![NextToken::Sample]].concat());
    assert!(first.logits[..6].iter().all(|logits| logits.logprobs == Some(4)));
    assert_eq!(first.logits[6].logprobs, None);
    assert_eq!(first.rows.sampling.iter().filter(|&&slot| slot != NO_SLOT).count(), 1);

    let rest = scheduler.plan(ms(0)).unwrap();
    assert_eq!(rest.chunks.iter().map(|chunk| chunk.rows.clone()).collect::<Vec<_>>(), [0..3, 3..6]);
    let next: Vec<NextToken> = rest.logits.iter().map(|logits| logits.next).collect();
    let sample = vec![NextToken::Sample];
    assert_eq!(next, [known(7..9), sample.clone(), known(1..3), sample].concat());
    answer(&mut scheduler, &first, 7);
    let events = scheduler.take_events();
    assert!(events.iter().all(|(id, _)| *id == plain), "a prompt is told with its first token: {events:?}");
    answer(&mut scheduler, &rest, 7);
    let events = scheduler.take_events();
    let prompts = events.iter().filter_map(|(id, event)| match event {
        Event::Prompt(tokens) => Some((*id, tokens.len())),
        _ => None,
    });
    assert_eq!(prompts.collect::<Vec<_>>(), [(long, 9), (second, 3)]);
    scheduler.counted_back().unwrap();
}

#[test]
fn prompts_delay_the_tokens_of_others_by_their_budget_at_most() {
    let config = SchedulerConfig { context: 500, prefix_cache: false, ..config(1000) };
    let mut driver = driver(&config);
    let (mut now, mut decoding) = (ms(0), BTreeMap::new());
    for _ in 0..3 {
        decoding.insert(driver.submit(Request::new(prompt(4), 200), now).unwrap(), None);
    }
    let mut longest = ms(0);
    for step in 0..150 {
        if step % 10 == 5 {
            driver.submit(Request::new(prompt(100), 1), now).unwrap();
        }
        driver.step(now);
        now = driver.device().unwrap().busy();
        for (id, event) in driver.take_events() {
            if let (Event::Token(_), Some(last)) = (event, decoding.get_mut(&id)) {
                longest = longest.max(now - last.replace(now).unwrap_or(now));
            }
        }
    }
    assert!(driver.scheduler().stats().prefill_rows > 1000, "{:?}", driver.scheduler().stats());
    // A step takes 1 ms and 10 µs for each of 3 decode rows and at most 8 prefill rows.
    assert_eq!(longest, Duration::from_micros(1000 + 10 * (3 + 8)));
}

#[test]
fn many_prompts_at_once_take_whole_steps() {
    let config = SchedulerConfig { decode_rows_per_prompt: 2, max_sequences: 16, ..config(1000) };
    let longest = config.max_rows();
    let prefill_rows = |decoding: u32, prompts: u32| {
        let mut scheduler = scheduler(config.clone());
        for _ in 0..decoding {
            scheduler.submit(Request::new(prompt(1), 50), ms(0)).unwrap();
        }
        let plan = scheduler.plan(ms(0)).unwrap();
        answer(&mut scheduler, &plan, 7);
        for number in 0..prompts {
            // Different from the first token on: nothing is cached.
            let tokens = (0..longest).map(|at| (number + at) % 10 + 10).collect();
            scheduler.submit(Request::new(tokens, 1), ms(0)).unwrap();
        }
        let plan = scheduler.plan(ms(0)).unwrap();
        assert_eq!(plan.decode_rows, decoding);
        plan.rows.active - decoding
    };
    let few = config.prefill_rows;
    assert!(few < longest - 8, "{few} of {longest}");
    assert_eq!(prefill_rows(1, MANY_PROMPTS - 1), few, "a few long prompts");
    assert_eq!(prefill_rows(1, MANY_PROMPTS), longest - 1);
    assert_eq!(prefill_rows(2 * MANY_PROMPTS, MANY_PROMPTS), longest - 2 * MANY_PROMPTS);
    assert_eq!(prefill_rows(2 * MANY_PROMPTS + 1, MANY_PROMPTS), few, "too many that wait for their tokens");
}

#[test]
fn a_sequence_that_has_ended_is_dropped_one_step_later() {
    let mut scheduler = scheduler(config(64));
    let stop = Stop { tokens: vec![7], ..Stop::default() };
    let id = scheduler.submit(Request { stop, ..Request::new(prompt(3), 10) }, ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    let second = scheduler.plan(ms(0)).unwrap();
    answer(&mut scheduler, &first, 7);
    let events = scheduler.take_events();
    assert!(matches!(events[..], [(a, Event::Token(_)), (b, Event::Finished { .. })] if a == id && b == id));
    assert!(scheduler.plan(ms(0)).is_none());
    answer(&mut scheduler, &second, 8);
    assert!(scheduler.take_events().is_empty(), "the token of the row too many is dropped");
    assert_eq!(scheduler.stats().dropped_rows, 1);
    scheduler.counted_back().unwrap();
}

#[test]
fn no_row_is_run_beyond_the_last_token() {
    let mut scheduler = scheduler(config(64));
    scheduler.submit(Request::new(prompt(3), 1), ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    assert!(scheduler.plan(ms(0)).is_none());
    answer(&mut scheduler, &first, 7);
    assert_eq!(scheduler.unfinished(), 0);
}

/// Allows only the token after the last one.
struct CountUp(u32);

impl Constraint for CountUp {
    fn mask(&mut self) -> Result<TokenMask, String> {
        Ok(TokenMask::new(100, |token| token == self.0))
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0 = token + 1;
        if token < 90 { Ok(()) } else { Err("too far".to_owned()) }
    }
}

#[test]
fn constrained_rows_wait_for_their_token_and_delay_nobody() {
    let mut scheduler = scheduler(config(64));
    let constrained = Request { constraint: Some(Box::new(CountUp(5))), ..Request::new(prompt(3), 10) };
    scheduler.submit(constrained, ms(0)).unwrap();
    scheduler.submit(Request::new(prompt(3), 10), ms(0)).unwrap();
    let first = scheduler.plan(ms(0)).unwrap();
    let mask = first.logits[0].mask.clone().unwrap();
    assert_eq!((0..100).filter(|&token| mask.allows(token)).collect::<Vec<_>>(), [5]);
    assert_eq!(first.logits[1].mask, None);

    let second = scheduler.plan(ms(0)).unwrap();
    assert_eq!(second.rows.slots[..second.rows.active as usize], [1], "only the other one has a row");
    answer(&mut scheduler, &first, 5);
    let third = scheduler.plan(ms(0)).unwrap();
    assert_eq!(third.rows.slots[..2], [0, 1]);
    assert_eq!(third.rows.get(0).unwrap().token, RowToken::Known(5));
    assert!(third.logits[0].mask.as_ref().unwrap().allows(6));
}

#[test]
fn a_constraint_that_fails_or_panics_ends_its_request_alone() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            resume_unwind(Box::new("not even dropped"));
        }
    }
    impl Constraint for Panics {
        fn mask(&mut self) -> Result<TokenMask, String> {
            // Without the hook of the test runner: nothing is printed.
            resume_unwind(Box::new("no grammar"))
        }

        fn accept(&mut self, _: u32) -> Result<(), String> {
            Ok(())
        }
    }
    let config = config(64);
    let mut driver = driver(&config);
    let constrained = |constraint: Box<dyn Constraint>| Request {
        constraint: Some(constraint),
        ..Request::new(prompt(3), 10)
    };
    let panics = driver.submit(constrained(Box::new(Panics)), ms(0)).unwrap();
    let too_far = driver.submit(constrained(Box::new(CountUp(88))), ms(0)).unwrap();
    let plain = Request::new(prompt(3), 10);
    let expected = MockModel::new(&config).answer(&plain, 64);
    let plain = driver.submit(plain, ms(0)).unwrap();
    let answers = finish(&mut driver);
    let reason = |id| match &answers[&id].error {
        Some(RequestError::Constraint { reason }) => reason.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((reason(panics), reason(too_far)), ("panicked: no grammar".to_owned(), "too far".to_owned()));
    assert_eq!(answers[&too_far].tokens, [88, 89, 90]);
    assert_eq!(answers[&plain], Answer { tokens: expected, error: None });
    driver.scheduler().counted_back().unwrap();
}

/// A device whose results are not there at once.
struct Late(MockDevice, u32);

impl StepDevice for Late {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        self.0.launch(plan)
    }

    fn wait(&mut self, _: Ticket) -> Result<StepOutput, DeviceLost> {
        Err(DeviceLost("nobody may wait here".to_owned()))
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, DeviceLost> {
        self.1 += 1;
        if self.1.is_multiple_of(3) { self.0.wait(ticket).map(Some) } else { Ok(None) }
    }
}

#[test]
fn a_host_that_must_not_block_polls() {
    let config = config(64);
    let mut driver = Driver::new(config.clone(), Late(MockDevice::new(&config), 0)).unwrap();
    let request = Request::new(prompt(9), 12);
    let expected = MockModel::new(&config).answer(&request, 64);
    driver.submit(request, ms(0)).unwrap();
    while driver.poll_step(ms(0)) == Progress::Busy {}
    let tokens: Vec<u32> =
        driver.take_events().into_iter().filter_map(|(_, event)| token_of(event)).collect();
    assert_eq!(tokens, expected);
    driver.scheduler().counted_back().unwrap();
}

#[test]
fn batch_invariant_chunks_begin_at_page_borders_and_decoded_tokens_are_replayed() {
    let config = SchedulerConfig { batch_invariant: true, prefix_cache: false, ..config(6) };
    let mut scheduler = scheduler(config);
    // 6 pages: the second sequence must go when the first one needs its third page.
    scheduler.submit(Request::new(prompt(7), 12), ms(0)).unwrap();
    let second = scheduler.submit(Request::new(prompt(14), 9), ms(1)).unwrap();
    let (mut plans, mut replayed) = (Vec::new(), 0);
    while scheduler.unfinished() > 0 {
        let plan = scheduler.plan(ms(2)).unwrap();
        assert!(plan.chunks.iter().all(|chunk| chunk.position % 4 == 0), "{plan:?}");
        assert!(plan.chunks.iter().all(|chunk| chunk.position + chunk.rows.len() as u32 <= 14), "{plan:?}");
        let known = |row: u32| matches!(plan.rows.get(row).unwrap().token, RowToken::Known(_));
        let sampled = |row: u32| plan.logits.iter().any(|logits| logits.row == row);
        replayed += (0..plan.decode_rows).filter(|&row| known(row) && !sampled(row)).count();
        answer(&mut scheduler, &plan, 1);
        plans.push(plan);
    }
    assert!(scheduler.stats().dropped > 0, "the second sequence was preempted");
    assert!(replayed > 0, "its tokens ran again as decode rows");
    assert!(scheduler.take_events().iter().any(|(id, event)| *id == second && event.is_last()));
    scheduler.counted_back().unwrap();
}
