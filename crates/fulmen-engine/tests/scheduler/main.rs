//! The scheduler's decisions, one at a time, in simulated time.

mod admission;
mod caching;
mod faults;
mod order;
mod steps;
mod windows;

use std::collections::BTreeMap;
use std::time::Duration;

use fulmen_engine::mock::{MockDevice, MockModel};
use fulmen_engine::step::{Sampled, StepOutput, StepPlan};
use fulmen_engine::{
    Driver, Event, MANY_PROMPTS, Progress, Request, RequestError, RequestId, Scheduler, SchedulerConfig,
};

/// Pages of 4 positions, 8 slots, up to 32 rows.
fn config(pages: u32) -> SchedulerConfig {
    SchedulerConfig {
        page_size: 4,
        max_sequences: 8,
        buckets: vec![1, 2, 4, 8, 16, 32],
        prefill_rows: 8,
        reserve_pages: 0,
        ..SchedulerConfig::new(100, 64, pages)
    }
}

fn scheduler(config: SchedulerConfig) -> Scheduler {
    Scheduler::new(config).expect("the configuration is valid")
}

fn driver(config: &SchedulerConfig) -> Driver<MockDevice> {
    Driver::new(config.clone(), MockDevice::new(config)).expect("the configuration is valid")
}

/// A prompt of different tokens.
fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| at % 100).collect()
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Answers the oldest step with the same token for every row.
fn answer(scheduler: &mut Scheduler, plan: &StepPlan, token: u32) {
    let sampled = plan.logits.iter().map(|_| Sampled::token(token)).collect();
    scheduler.complete(StepOutput { sampled, ..StepOutput::default() }).expect("a token for each row");
}

fn token_of(event: Event) -> Option<u32> {
    match event {
        Event::Token(sampled) => Some(sampled.token),
        _ => None,
    }
}

/// What a request got: its tokens, and the error if there was one.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    error: Option<RequestError>,
}

/// Runs all requests to their end.
fn finish(driver: &mut Driver<MockDevice>) -> BTreeMap<RequestId, Answer> {
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    for _ in 0..100_000 {
        let progress = driver.step(Duration::ZERO);
        for (id, event) in driver.take_events() {
            let answer = answers.entry(id).or_default();
            match event {
                Event::Token(sampled) => answer.tokens.push(sampled.token),
                Event::Prompt(_) | Event::Finished { .. } => {}
                Event::Failed(error) => answer.error = Some(error),
            }
        }
        if progress != Progress::Busy {
            return answers;
        }
    }
    panic!("the requests do not end");
}

/// Submits requests, runs them, and compares the tokens with those that each has alone.
fn check_answers(driver: &mut Driver<MockDevice>, requests: Vec<Request>) {
    let model = MockModel::new(driver.scheduler().config());
    let context = driver.scheduler().context();
    let expected: BTreeMap<RequestId, Answer> = requests
        .into_iter()
        .map(|request| {
            let tokens = model.answer(&request, context);
            let id = driver.submit(request, Duration::ZERO).expect("the request fits");
            (id, Answer { tokens, error: None })
        })
        .collect();
    assert_eq!(finish(driver), expected);
    driver.scheduler().counted_back().expect("nothing leaks");
}
