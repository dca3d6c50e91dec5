//! A storm of requests with shared prefixes, cancellations and preemptions, compared with the same requests
//! alone. Other crates run it on their devices.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::model::ModelDevice;
use fulmen_engine::step::Sampled;
use fulmen_engine::{Device, LoadOptions, Model, Sampling, SessionOptions};
use fulmen_engine::{
    Driver, EngineOptions, Event, Progress, Request, RequestError, RequestId, SamplingParams, Stats,
};
use fulmen_model::gguf::GgufFile;
use fulmen_model::quantize::{QuantizePlan, quantize_to};
use fulmen_model::synth::{ModelShape, Synth};

/// A small model with random weights.
pub(crate) fn small_model(recipe: &str, device: Device) -> Model {
    Model::from_source(Arc::new(small_file(recipe)), device, LoadOptions::default()).unwrap()
}

/// Its file.
pub(crate) fn small_file(recipe: &str) -> GgufFile {
    preset_file(("tiny-qwen3", 2), recipe)
}

/// A small model with recurrent states, with random weights.
pub(crate) fn hybrid_model(preset: &str, recipe: &str, device: Device) -> Model {
    preset_model((preset, 4), recipe, device)
}

/// A small model with experts, with random weights.
pub(crate) fn expert_model(preset: &str, recipe: &str, device: Device) -> Model {
    preset_model((preset, 2), recipe, device)
}

/// A small model whose layers have sliding windows of 40 positions, but for one, with random weights.
pub(crate) fn window_model(preset: &str, recipe: &str, device: Device) -> Model {
    preset_model((preset, window_layers(preset)), recipe, device)
}

/// So many layers that one sees everything.
fn window_layers(preset: &str) -> usize {
    if preset == "tiny-gemma3" { 7 } else { 3 }
}

/// A model of a preset, but with so many layers, with random weights.
pub(crate) fn preset_model(shape: (&str, usize), recipe: &str, device: Device) -> Model {
    Model::from_source(Arc::new(preset_file(shape, recipe)), device, LoadOptions::default()).unwrap()
}

pub(crate) fn preset_file((preset, layers): (&str, usize), recipe: &str) -> GgufFile {
    let shape = ModelShape { layers, ..ModelShape::preset(preset).unwrap() };
    Synth::new(shape, recipe.parse().unwrap(), 5).file().unwrap()
}

/// A model with its weights as f32, on the CPU: no activation is rounded.
pub(crate) struct Reference(Model);

impl Reference {
    /// That of [`small_model`].
    pub(crate) fn new(recipe: &str) -> Reference {
        Reference::of(&small_file(recipe))
    }

    /// That of [`hybrid_model`].
    pub(crate) fn hybrid(preset: &str, recipe: &str) -> Reference {
        Reference::of(&preset_file((preset, 4), recipe))
    }

    /// That of [`window_model`].
    pub(crate) fn windows(preset: &str, recipe: &str) -> Reference {
        Reference::of(&preset_file((preset, window_layers(preset)), recipe))
    }

    fn of(file: &GgufFile) -> Reference {
        let plan = QuantizePlan::of(file, "f32".parse().unwrap()).unwrap();
        let bytes = quantize_to(file, &plan, Vec::new(), 1, |_| ControlFlow::Continue(())).unwrap();
        let device = Box::new(CpuDispatcher::with_threads(2));
        Reference(Model::from_bytes(Arc::new(bytes), device, LoadOptions::default()).unwrap())
    }

    /// The log-probabilities of every token, before each of the first `count` tokens of an answer.
    fn log_probabilities(&self, prompt: &[u32], answer: &[u32], count: usize) -> Vec<Vec<f64>> {
        let options = SessionOptions { cache: DType::F32, ..SessionOptions::default() };
        let mut session = self.0.session_with(options).unwrap();
        let mut tokens = prompt;
        let mut found = Vec::new();
        for at in 0..count {
            let logits: Vec<f64> = session.logits(0, tokens).unwrap().into_iter().map(f64::from).collect();
            let largest = logits.iter().copied().fold(f64::MIN, f64::max);
            let total = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
            found.push(logits.into_iter().map(|logit| logit - total).collect());
            tokens = &answer[at..=at];
        }
        found
    }

    /// How far the two best log-probabilities before each token of an answer are from the reference at most.
    fn error(&self, prompt: &[u32], answer: &Answer) -> f64 {
        let expected = self.log_probabilities(prompt, &answer.tokens, answer.tokens.len());
        let pairs = answer.top.iter().zip(&expected).flat_map(|(top, expected)| {
            top.iter().map(|&(token, found)| (f64::from(found) - expected[token as usize]).abs())
        });
        pairs.fold(0.0, f64::max)
    }
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
    prompt_logprobs: Option<u8>,
}

impl Planned {
    /// Whether an answer ended by itself; panics if it was not cancelled either.
    fn whole(&self, answer: &Answer) -> bool {
        match &answer.end {
            Some(Event::Finished { .. }) => true,
            Some(Event::Failed(RequestError::Cancelled)) => false,
            _ => panic!("{answer:?}"),
        }
    }

    fn request(&self, use_prefix_cache: bool) -> Request {
        Request {
            sampling: SamplingParams::new(self.sampling),
            logprobs: Some(2),
            prompt_logprobs: self.prompt_logprobs,
            priority: self.priority,
            use_prefix_cache,
            ..Request::new(self.prompt.clone(), self.max_tokens)
        }
    }
}

/// What a request gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// The tokens of the prompt with their log-probabilities.
    pub(crate) prompt: Vec<Sampled>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) top: Vec<Vec<(u32, f32)>>,
    pub(crate) hidden: Vec<Vec<f32>>,
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
            .map(|number| {
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
                    prompt_logprobs: (number % 8 == 0).then_some(2),
                    cancel_after: (numbers.below(6) == 0).then(|| numbers.below(8) as usize),
                }
            })
            .collect()
    }

    /// Runs the requests one after the other, and then all of them together: the bits must be equal.
    pub(crate) fn equal_bits(&self, model: &Model) -> Stats {
        let (planned, alone, together, stats) = self.both(model);
        for (number, (together, alone)) in together.iter().zip(&alone).enumerate() {
            let count = together.tokens.len();
            assert_eq!(together.tokens[..], alone.tokens[..count], "request {number}");
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&together.logprobs), bits(&alone.logprobs[..count]), "request {number}");
            assert_eq!(together.prompt.is_empty(), planned[number].prompt_logprobs.is_none() || count == 0);
            let prompt_bits = |answer: &Answer| {
                let values = answer.prompt.iter().map(|token| token.logprob.unwrap_or(0.0));
                bits(&values.collect::<Vec<f32>>())
            };
            if !together.prompt.is_empty() {
                assert_eq!(prompt_bits(together), prompt_bits(alone), "the prompt of request {number}");
            }
            assert!(!planned[number].whole(together) || count == alone.tokens.len(), "request {number}");
        }
        stats
    }

    /// Runs the greedy requests one after the other, and then all of them together. Together they must be as
    /// near to the reference as alone, and tokens may differ only where these errors explain it: where the
    /// reference gives both tokens the same log-probability to within the error of one run plus that of the
    /// other.
    pub(crate) fn near(&self, model: &Model, reference: &Reference) -> Stats {
        self.near_but_for(self.requests / 5, model, reference)
    }

    /// The same, with at most so many requests whose tokens differ.
    pub(crate) fn near_but_for(&self, most: usize, model: &Model, reference: &Reference) -> Stats {
        assert!(!self.sampled, "a sampled token says nothing about a tie");
        let (planned, alone, together, stats) = self.both(model);
        let error = |answers: &[Answer]| {
            let pairs = planned.iter().zip(answers).step_by(3);
            pairs.map(|(planned, answer)| reference.error(&planned.prompt, answer)).fold(0.0, f64::max)
        };
        let (alone_error, together_error) = (error(&alone), error(&together));
        assert!(
            together_error <= 2.0 * alone_error,
            "log-probabilities are wrong by {together_error} together and by {alone_error} alone"
        );
        let mut ties = 0;
        for (number, (together, alone)) in together.iter().zip(&alone).enumerate() {
            let count = together.tokens.len().min(alone.tokens.len());
            let Some(at) = (0..count).find(|&at| together.tokens[at] != alone.tokens[at]) else {
                let cancelled = !planned[number].whole(together);
                assert!(cancelled || count == alone.tokens.len(), "request {number}: {together:?}");
                continue;
            };
            ties += 1;
            let prompt = &planned[number].prompt;
            let expected = reference.log_probabilities(prompt, &alone.tokens, at + 1).remove(at);
            let [a, b] = [together, alone].map(|answer| expected[answer.tokens[at] as usize]);
            assert!(
                (a - b).abs() <= alone_error + together_error,
                "request {number} differs at token {at}: log-probabilities of {a} and {b} are expected, \
                 and they are wrong by {together_error} together and by {alone_error} alone"
            );
        }
        assert!(ties <= most, "{ties} of {} requests had near ties", self.requests);
        println!("{ties} near ties; errors {alone_error:.4} alone, {together_error:.4} together");
        stats
    }

    /// The requests, their answers alone and together.
    fn both(&self, model: &Model) -> (Vec<Planned>, Vec<Answer>, Vec<Answer>, Stats) {
        let planned = self.plan(model.config().vocabulary);
        let mut driver = driver(model, &EngineOptions { pages: 0, ..self.options.clone() });
        let alone =
            planned.iter().map(|planned| answers(&mut driver, vec![planned.request(false)]).remove(0));
        let alone = alone.collect();
        drop(driver);
        let (together, stats) = self.together(model, &planned);
        for (number, (planned, answer)) in planned.iter().zip(&together).enumerate() {
            let whole = planned.whole(answer);
            assert!(whole || planned.cancel_after.is_some(), "request {number}: {answer:?}");
        }
        (planned, alone, together, stats)
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

/// Options with which rows of several prompts are in a step with decode rows.
pub(crate) fn mixed_steps() -> EngineOptions {
    EngineOptions {
        context: 512,
        max_sequences: 14,
        max_rows: 512,
        prefill_rows: 400,
        ..EngineOptions::default()
    }
}

/// Prompts of many lengths give the log-probabilities of a session where their rows are beside decode rows
/// and those of other prompts.
pub(crate) fn mixed_prompts_are_those_of_sessions(
    model: &Model,
    options: &EngineOptions,
    reference: &Reference,
    tolerance: f64,
) {
    let mut numbers = Numbers(11);
    let vocabulary = u64::from(model.config().vocabulary);
    let lengths = [5, 1, 40, 300, 1, 2, 63, 64, 65, 130, 33, 31];
    let mut prompt = |count| (0..count).map(|_| numbers.below(vocabulary) as u32).collect::<Vec<u32>>();
    let prompts = lengths.map(&mut prompt);
    let mut driver = driver(model, options);
    let (mut sent, mut found) = (BTreeMap::new(), vec![Answer::default(); prompts.len()]);
    // The first three decode until the others have ended.
    let tokens = |number: usize| if number < 3 { 40 } else { 3 };
    for step in 0.. {
        let now = Duration::from_millis(step);
        let begin = match step {
            0 => 0..3,
            4 => 3..7,
            6 => 7..prompts.len(),
            _ => 0..0,
        };
        for number in begin {
            let request = Request::new(prompts[number].clone(), tokens(number));
            let request = Request { logprobs: Some(20), use_prefix_cache: false, ..request };
            sent.insert(driver.submit(request, now).unwrap(), number);
        }
        if driver.step(now) != Progress::Busy {
            break;
        }
        collect(driver.take_events(), &sent, &mut found);
    }
    collect(driver.take_events(), &sent, &mut found);
    let stats = driver.scheduler().stats();
    assert!(stats.steps < 50, "prompts were not in steps with decode rows: {stats:?}");
    for (number, (prompt, answer)) in prompts.iter().zip(&found).enumerate() {
        assert_eq!(answer.tokens.len(), tokens(number) as usize, "{answer:?}");
        let error = reference.error(prompt, answer);
        assert!(error <= tolerance, "request {number}, {} tokens: wrong by {error}", prompt.len());
    }
}

/// The log-probabilities after a long prompt are the same when its pages come from the prefix cache.
pub(crate) fn prefix_hits_change_nothing(model: &Model, options: &EngineOptions, tolerance: f32) {
    hits_change_nothing(model, options, (290, 256), tolerance);
}

/// The same of a model with recurrent states, which are kept in long prompts.
pub(crate) fn hybrid_hits_change_nothing(model: &Model, options: &EngineOptions, tolerance: f32) {
    hits_change_nothing(model, options, (600, 512), tolerance);
}

/// The same of a model with sliding windows.
pub(crate) fn window_hits_change_nothing(model: &Model, options: &EngineOptions, tolerance: f32) {
    hits_change_nothing(model, options, (600, 512), tolerance);
}

/// With prompts of so many tokens, of which the second time at least so many are cached.
fn hits_change_nothing(
    model: &Model,
    options: &EngineOptions,
    (tokens, least): (u32, usize),
    tolerance: f32,
) {
    let mut numbers = Numbers(9);
    let vocabulary = u64::from(model.config().vocabulary);
    let prompt: Vec<u32> = (0..tokens).map(|_| numbers.below(vocabulary) as u32).collect();
    let mut driver = driver(model, options);
    let request = || Request { logprobs: Some(20), ..Request::new(prompt.clone(), 4) };
    let cold = answers(&mut driver, vec![request()]).remove(0);
    let warm = answers(&mut driver, vec![request()]).remove(0);
    let Some(Event::Finished { usage, .. }) = &warm.end else { panic!("{warm:?}") };
    assert!(usage.cached_tokens >= least, "{usage:?}");
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
            Event::Prompt(tokens) => answer.prompt = tokens,
            Event::Token(sampled) => {
                answer.tokens.push(sampled.token);
                answer.logprobs.extend(sampled.logprob);
                answer.top.push(sampled.top);
                answer.hidden.push(sampled.hidden);
            }
            end => answer.end = Some(end),
        }
    }
}
