//! A server under load over HTTP: `/v1/completions`, streamed, with many requests at once or arriving at a
//! rate.
//!
//! - **The figures are those of a client**, and have the names of the engine's own
//!   ([`EngineTimes`](crate::model::EngineTimes)), so that both can be compared.
//! - **Any server of the OpenAI API** can be measured. What only Fulmen tells (pages, steps, preemptions) is
//!   read from its `/metrics`, and is missing for others.
//! - **Prompts are random tokens**, so their lengths are exact; beginnings are shared only where that is
//!   asked for.

mod chart;
mod client;
mod lengths;
mod load;
mod metrics;

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

pub use chart::draw as draw_latency;
pub use lengths::Lengths;

use crate::BenchError;
use crate::model::Latency;
use crate::progress::{Progress, Steps};
use client::Target;
use load::Load;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// So many run at the same time: a new one is sent whenever one ends.
    Concurrency(u32),
    /// So many arrive per second, at random times, whether or not others have ended.
    Rate(f64),
}

/// When the token with this text was drawn, if the device is in this process and knows it.
pub type TokenClock = Arc<dyn Fn(&str) -> Option<Instant> + Send + Sync>;

/// Which loads are timed, and where.
#[derive(Clone)]
pub struct ServeBenchOptions {
    /// The server, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// Its API key.
    pub api_key: Option<String>,
    /// The name of the model; the server's first one without it.
    pub model: Option<String>,
    /// The loads, one test each.
    pub arrivals: Vec<Arrival>,
    /// Tokens of a prompt.
    pub input: Lengths,
    /// Tokens that a request generates.
    pub output: Lengths,
    /// Requests of a test; 0 for three times the concurrency, or what arrives in 20 s.
    pub requests: u32,
    /// Tokens at the beginning of a prompt that it shares with others, as a part of its input.
    pub shared_prefix: u32,
    /// How many different beginnings are shared.
    pub prefixes: u32,
    /// Prompts have tokens below this number.
    pub vocabulary: u32,
    /// The seed of prompts, lengths and times.
    pub seed: u64,
    /// Threads of the load generator.
    pub threads: usize,
    /// Tells when tokens were drawn, to measure what the server adds.
    pub clock: Option<TokenClock>,
}

/// One load. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServeTimes {
    /// Requests that ran at the same time; 0 if they arrived at a rate.
    pub concurrency: u32,
    /// Mean number of tokens of a prompt.
    pub input: f64,
    /// Mean number of tokens that a request generated.
    pub output: f64,
    /// Requests that were answered.
    pub requests: u32,
    /// Requests that were refused or failed.
    pub failed: u32,
    /// Requests per second that arrived; 0 if a new one came whenever one had ended.
    pub rate: f64,
    /// From the first request to the last token.
    pub seconds: f64,
    /// Generated tokens per second.
    pub output_tokens_per_second: f64,
    /// Tokens of prompts and generated ones per second.
    pub total_tokens_per_second: f64,
    /// From a request to its first text, in milliseconds.
    pub time_to_first_token_ms: Latency,
    /// Between two events of a stream, in milliseconds.
    pub inter_token_ms: Latency,
    /// From a request to its end, in milliseconds.
    pub request_ms: Latency,
    /// From the device to the client, in milliseconds, if the device is in this process and computes nothing.
    pub added_ms: Option<Latency>,
    /// Tokens of prompts that came from the prefix cache.
    pub cached_tokens: u64,
    /// KV pages of the pool.
    pub pages: Option<u32>,
    /// The most pages that were seen in use, with those that the prefix cache kept.
    pub pages_used: Option<u32>,
    /// Sequences that were preempted.
    pub preemptions: Option<u64>,
    /// Steps of the engine.
    pub steps: Option<u64>,
    /// Rows per step.
    pub rows_per_step: Option<f64>,
    /// Generated tokens per second of the engine alone under the same load.
    pub engine_tokens_per_second: Option<f64>,
    /// `output_tokens_per_second` over `engine_tokens_per_second`.
    pub share_of_engine: Option<f64>,
}

/// The tests of a server. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServeReport {
    /// The server.
    pub url: String,
    /// The name of the model.
    pub model: String,
    /// The device, where it is known.
    pub device: Option<String>,
    /// The tests.
    pub tests: Vec<ServeTimes>,
}

/// Sends each load to a server. Requests are greedy and go on to their last token (`ignore_eos`).
///
/// # Errors
/// The server cannot be reached, or no request of a load was answered.
pub fn bench_serve(
    options: &ServeBenchOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ServeReport, BenchError> {
    check(options)?;
    let target = Arc::new(Target::new(&options.url, options.api_key.as_deref())?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads.max(1))
        .enable_all()
        .build()
        .map_err(|error| target.failed(format!("no threads for the load generator: {error}")))?;
    let mut steps = Steps::new(options.arrivals.len(), progress);
    let model = match &options.model {
        Some(model) => model.clone(),
        None => runtime.block_on(client::first_model(&target))?,
    };
    let mut tests = Vec::new();
    for &arrival in &options.arrivals {
        steps.start(&match arrival {
            Arrival::Concurrency(count) => format!("{count} requests at once"),
            Arrival::Rate(rate) => format!("{rate} requests per second"),
        });
        let load = Load::new(options, arrival, &model, &target);
        tests.push(runtime.block_on(load.measure())?);
        steps.finish(1);
    }
    Ok(ServeReport { url: options.url.clone(), model, device: None, tests })
}

fn check(options: &ServeBenchOptions) -> Result<(), BenchError> {
    let wrong = |message: &str| Err(BenchError::InvalidOption(message.to_owned()));
    let idle = |arrival: &Arrival| match *arrival {
        Arrival::Concurrency(count) => count == 0,
        Arrival::Rate(rate) => !(rate.is_finite() && rate > 0.0),
    };
    if options.arrivals.is_empty() || options.arrivals.iter().any(idle) {
        return wrong("a load needs at least 1 request at once, or a rate above 0");
    }
    if options.vocabulary < 2 {
        return wrong("prompts need a vocabulary of at least 2 tokens");
    }
    if options.shared_prefix >= options.input.most() && options.shared_prefix > 0 {
        return wrong("the shared prefix must be shorter than the longest prompt");
    }
    if options.shared_prefix > 0 && options.prefixes == 0 {
        return wrong("a shared prefix needs at least 1 prefix");
    }
    Ok(())
}
