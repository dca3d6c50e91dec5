//! A storm of requests with shared prefixes, cancellations and preemptions, compared with the same requests
//! alone. Other crates run it on their devices.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fulmen_engine::model::ModelDevice;
use fulmen_engine::{
    Driver, EngineOptions, Event, Progress, Request, RequestError, RequestId, SamplingParams, Stats,
};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::{Device, LoadOptions, Model, Sampling};

/// A small model with random weights.
pub(crate) fn small_model(recipe: &str, device: Device) -> Model {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, recipe.parse().unwrap(), 5).file().unwrap();
    Model::from_source(Arc::new(file), device, LoadOptions::default()).unwrap()
}

/// How large a storm is, and how its requests sample.
#[derive(Clone, Debug)]
pub(crate) struct Storm {
    pub(crate) requests: usize,
    pub(crate) max_tokens: u32,
    /// Whether some requests have a temperature and penalties.
    pub(crate) sampled: bool,
    pub(crate) options: EngineOptions,
    pub(crate) seed: u64,
    /// Tokens may differ where the log-probabilities of the two best are at most this far apart; 0 for equal
    /// bits.
    pub(crate) near_tie: f32,
}

/// A request that can be sent several times.
#[derive(Clone, Debug)]
struct Planned {
    prompt: Vec<u32>,
    max_tokens: u32,
    sampling: Sampling,
    priority: i8,
    /// Cancelled after so many tokens.
    cancel_after: Option<usize>,
}

impl Planned {
    fn request(&self, use_prefix_cache: bool) -> Request {
        Request {
            sampling: SamplingParams::new(self.sampling),
            logprobs: Some(2),
            priority: self.priority,
            use_prefix_cache,
            ..Request::new(self.prompt.clone(), self.max_tokens)
        }
    }
}

/// What a request gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) top: Vec<Vec<(u32, f32)>>,
    pub(crate) end: Option<Event>,
}

/// Numbers that only depend on the seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

impl Storm {
    fn plan(&self, vocabulary: u32) -> Vec<Planned> {
        let mut numbers = Numbers(self.seed);
        let tokens = |numbers: &mut Numbers, count: u64| -> Vec<u32> {
            (0..count).map(|_| numbers.below(vocabulary.into()) as u32).collect()
        };
        let prefixes = [0, 140, 261, 300].map(|count| tokens(&mut numbers, count));
        (0..self.requests)
            .map(|_| {
                let mut prompt = prefixes[numbers.below(4) as usize].clone();
                let tail = 1 + numbers.below(30);
                prompt.extend(tokens(&mut numbers, tail));
                let warm = self.sampled && numbers.below(2) == 0;
                let sampling = match warm {
                    true => Sampling {
                        temperature: 0.8,
                        top_k: 40,
                        seed: numbers.below(1 << 30),
                        repeat_penalty: if numbers.below(2) == 0 { 1.2 } else { 1.0 },
                        ..Sampling::GREEDY
                    },
                    false => Sampling::GREEDY,
                };
                Planned {
                    prompt,
                    max_tokens: 1 + numbers.below(self.max_tokens.into()) as u32,
                    sampling,
                    priority: numbers.below(3) as i8 - 1,
                    cancel_after: (numbers.below(6) == 0).then(|| numbers.below(8) as usize),
                }
            })
            .collect()
    }

    /// Runs the requests one after the other, and then all of them together, and compares.
    pub(crate) fn run(&self, model: &Model) -> Stats {
        let planned = self.plan(model.config().vocabulary);
        let mut alone = driver(model, &EngineOptions { pages: 0, ..self.options.clone() });
        let expected: Vec<Answer> = planned
            .iter()
            .map(|planned| answers(&mut alone, vec![planned.request(false)]).remove(0))
            .collect();
        drop(alone);
        let (found, stats) = self.together(model, &planned);
        let mut ties = 0;
        for (number, (planned, (found, expected))) in
            planned.iter().zip(found.iter().zip(&expected)).enumerate()
        {
            let cancelled = matches!(found.end, Some(Event::Failed(RequestError::Cancelled)));
            assert!(cancelled || matches!(found.end, Some(Event::Finished { .. })), "{number}: {found:?}");
            assert!(!cancelled || planned.cancel_after.is_some(), "{number} was not cancelled");
            ties += usize::from(!self.same(number, found, expected, cancelled));
        }
        assert!(ties * 5 <= self.requests, "{ties} of {} requests had near ties", self.requests);
        stats
    }

    /// Whether the tokens are equal; panics if they differ without a near tie.
    fn same(&self, number: usize, found: &Answer, expected: &Answer, cancelled: bool) -> bool {
        let pairs = found.tokens.iter().zip(&expected.tokens);
        let equal = pairs.take_while(|(a, b)| a == b).count();
        if self.near_tie == 0.0 {
            assert_eq!(found.tokens[..], expected.tokens[..found.tokens.len()], "request {number}");
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let count = found.logprobs.len();
            assert_eq!(bits(&found.logprobs), bits(&expected.logprobs[..count]), "request {number}");
            assert!(cancelled || found.tokens.len() == expected.tokens.len(), "request {number}");
            return true;
        }
        if equal == found.tokens.len() {
            assert!(cancelled || equal == expected.tokens.len(), "request {number}: {found:?}");
            return true;
        }
        let top = &expected.top[equal];
        let gap = top[0].1 - top[1].1;
        assert!(gap <= self.near_tie, "request {number} differs at token {equal}, where the gap is {gap}");
        false
    }

    /// Sends the requests while earlier ones run.
    fn together(&self, model: &Model, planned: &[Planned]) -> (Vec<Answer>, Stats) {
        let mut driver = driver(model, &self.options);
        let mut numbers = Numbers(self.seed ^ 0x5555);
        let mut sent: BTreeMap<RequestId, usize> = BTreeMap::new();
        let mut ids: BTreeMap<usize, RequestId> = BTreeMap::new();
        let mut found = vec![Answer::default(); planned.len()];
        let mut step = 0;
        loop {
            step += 1;
            let now = Duration::from_millis(step);
            for _ in 0..numbers.below(4) {
                let next = ids.len();
                if let Some(planned) = planned.get(next) {
                    let id = driver.submit(planned.request(true), now).unwrap();
                    sent.insert(id, next);
                    ids.insert(next, id);
                }
            }
            let progress = driver.step(now);
            assert_ne!(progress, Progress::Lost, "{:?}", found.iter().rev().find_map(|f| f.end.clone()));
            collect(driver.take_events(), &sent, &mut found);
            for (number, &id) in &ids {
                if planned[*number].cancel_after.is_some_and(|count| found[*number].tokens.len() >= count) {
                    driver.cancel(id);
                }
            }
            if progress == Progress::Idle && ids.len() == planned.len() {
                break;
            }
        }
        collect(driver.take_events(), &sent, &mut found);
        driver.scheduler().counted_back().unwrap();
        (found, driver.scheduler().stats())
    }
}

/// The log-probabilities after a long prompt are the same when its pages come from the prefix cache.
pub(crate) fn prefix_hits_change_nothing(model: &Model, options: &EngineOptions, tolerance: f32) {
    let mut numbers = Numbers(9);
    let vocabulary = u64::from(model.config().vocabulary);
    let prompt: Vec<u32> = (0..290).map(|_| numbers.below(vocabulary) as u32).collect();
    let mut driver = driver(model, options);
    let request = || Request { logprobs: Some(20), ..Request::new(prompt.clone(), 4) };
    let cold = answers(&mut driver, vec![request()]).remove(0);
    let warm = answers(&mut driver, vec![request()]).remove(0);
    let Some(Event::Finished { usage, .. }) = &warm.end else { panic!("{warm:?}") };
    assert!(usage.cached_tokens >= 256, "{usage:?}");
    for (cold, warm) in cold.top.iter().zip(&warm.top) {
        for (a, b) in cold.iter().zip(warm) {
            let equal = match tolerance == 0.0 {
                true => (a.0, a.1.to_bits()) == (b.0, b.1.to_bits()),
                false => (a.1 - b.1).abs() <= tolerance,
            };
            assert!(equal, "{cold:?}\n{warm:?}");
        }
    }
}

pub(crate) fn driver(model: &Model, options: &EngineOptions) -> Driver<ModelDevice> {
    let (config, device) = ModelDevice::open(model, options).unwrap();
    Driver::new(config, device).unwrap()
}

/// Runs requests that are all sent at once.
pub(crate) fn answers(driver: &mut Driver<ModelDevice>, requests: Vec<Request>) -> Vec<Answer> {
    let sent: BTreeMap<RequestId, usize> = requests
        .into_iter()
        .enumerate()
        .map(|(number, request)| (driver.submit(request, Duration::ZERO).unwrap(), number))
        .collect();
    let mut found = vec![Answer::default(); sent.len()];
    while driver.step(Duration::ZERO) == Progress::Busy {
        collect(driver.take_events(), &sent, &mut found);
    }
    collect(driver.take_events(), &sent, &mut found);
    driver.scheduler().counted_back().unwrap();
    found
}

fn collect(events: Vec<(RequestId, Event)>, sent: &BTreeMap<RequestId, usize>, found: &mut [Answer]) {
    for (id, event) in events {
        let answer = &mut found[sent[&id]];
        match event {
            Event::Token(sampled) => {
                answer.tokens.push(sampled.token);
                answer.logprobs.extend(sampled.logprob);
                answer.top.push(sampled.top);
            }
            end => answer.end = Some(end),
        }
    }
}
