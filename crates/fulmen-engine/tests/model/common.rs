//! Requests, and what they give alone.

use fulmen_engine::model::ModelDevice;
use fulmen_engine::{Driver, EngineOptions, Event, Progress, Request, RequestId, SamplingParams};
use fulmen_model::{LoadOptions, Model, Sampling};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

static STORY: &[u8] = include_bytes!("../../../fulmen-cli/assets/story.gguf");

pub(crate) fn story(device: fulmen_model::Device) -> Model {
    Model::from_bytes(Arc::new(STORY), device, LoadOptions::default()).unwrap()
}

/// What a request gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) end: Option<Event>,
}

/// Runs requests that are all submitted at once; returns their answers in order.
pub(crate) fn run(driver: &mut Driver<ModelDevice>, requests: Vec<Request>) -> Vec<Answer> {
    let ids: Vec<RequestId> =
        requests.into_iter().map(|request| driver.submit(request, Duration::ZERO).unwrap()).collect();
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    loop {
        let progress = driver.step(Duration::ZERO);
        collect(driver, &mut answers);
        if progress != Progress::Busy {
            break;
        }
    }
    driver.scheduler().counted_back().unwrap();
    ids.iter().map(|id| answers.remove(id).unwrap_or_default()).collect()
}

pub(crate) fn collect(driver: &mut Driver<ModelDevice>, answers: &mut BTreeMap<RequestId, Answer>) {
    for (id, event) in driver.take_events() {
        let answer = answers.entry(id).or_default();
        match event {
            Event::Token(sampled) => {
                answer.tokens.push(sampled.token);
                answer.logprobs.extend(sampled.logprob);
            }
            end => answer.end = Some(end),
        }
    }
}

pub(crate) fn driver(model: &Model, options: &EngineOptions) -> Driver<ModelDevice> {
    let (config, device) = ModelDevice::open(model, options).unwrap();
    Driver::new(config, device).unwrap()
}

pub(crate) fn sampled(prompt: Vec<u32>, max_tokens: u32, sampling: Sampling) -> Request {
    Request { sampling: SamplingParams::new(sampling), ..Request::new(prompt, max_tokens) }
}
