//! One load: requests, and what their clients see.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::client::{Chunk, Connection, Events, Target, Usage};
use super::metrics::{Figures, most_pages};
use super::{Arrival, ServeBenchOptions, ServeTimes, TokenClock};
use crate::BenchError;
use crate::model::Latency;

/// What arrives at a rate is sent for this time, unless the number of requests is given.
const RATE_SECONDS: f64 = 20.0;
/// Tokens that requests generate to warm the server up.
const WARM_TOKENS: u32 = 8;

/// A request that waits to be sent.
struct Planned {
    body: Bytes,
    /// When it is sent, after the start; only for arrivals at a rate.
    at: Duration,
}

/// What clients have seen.
#[derive(Default)]
struct Seen {
    first: Vec<Duration>,
    between: Vec<Duration>,
    whole: Vec<Duration>,
    added: Vec<Duration>,
    prompt_tokens: u64,
    generated: u64,
    cached: u64,
    answered: u32,
    failed: u32,
    error: Option<BenchError>,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.first.extend(other.first);
        self.between.extend(other.between);
        self.whole.extend(other.whole);
        self.added.extend(other.added);
        self.prompt_tokens += other.prompt_tokens;
        self.generated += other.generated;
        self.cached += other.cached;
        self.answered += other.answered;
        self.failed += other.failed;
        self.error = self.error.take().or(other.error);
    }
}

/// One test.
pub(super) struct Load<'a> {
    options: &'a ServeBenchOptions,
    arrival: Arrival,
    model: &'a str,
    target: &'a Arc<Target>,
    random: fastrand::Rng,
}

impl<'a> Load<'a> {
    pub(super) fn new(
        options: &'a ServeBenchOptions,
        arrival: Arrival,
        model: &'a str,
        target: &'a Arc<Target>,
    ) -> Load<'a> {
        let kind = match arrival {
            Arrival::Concurrency(count) => u64::from(count),
            Arrival::Rate(rate) => rate.to_bits(),
        };
        let random = fastrand::Rng::with_seed(options.seed ^ kind.rotate_left(20));
        Load { options, arrival, model, target, random }
    }

    fn requests(&self) -> u32 {
        match (self.options.requests, self.arrival) {
            (0, Arrival::Concurrency(count)) => 3 * count,
            (0, Arrival::Rate(rate)) => (rate * RATE_SECONDS).ceil() as u32,
            (count, _) => count,
        }
    }

    /// Requests with random prompts, and their times.
    fn plan(&mut self, count: u32, most_output: u32) -> Vec<Planned> {
        let options = self.options;
        let mut at = 0.0;
        let planned = (0..count).map(|_| {
            let random = &mut self.random;
            let input = options.input.draw(random);
            let mut prompt = Vec::with_capacity(input as usize);
            if options.shared_prefix > 0 {
                let seed = options.seed.wrapping_add(1 + u64::from(random.u32(0..options.prefixes)));
                let mut shared = fastrand::Rng::with_seed(seed);
                let length = options.shared_prefix.min(input);
                prompt.extend((0..length).map(|_| shared.u32(1..options.vocabulary)));
            }
            let rest = input as usize - prompt.len();
            prompt.extend((0..rest).map(|_| random.u32(1..options.vocabulary)));
            let body = json!({
                "model": self.model,
                "prompt": prompt,
                "max_tokens": options.output.draw(random).min(most_output),
                "temperature": 0,
                "ignore_eos": true,
                "stream": true,
                "stream_options": { "include_usage": true },
            });
            let sent = Duration::from_secs_f64(at);
            if let Arrival::Rate(rate) = self.arrival {
                at += -(1.0 - random.f64()).ln() / rate;
            }
            Planned { body: Bytes::from(body.to_string()), at: sent }
        });
        planned.collect()
    }

    pub(super) async fn measure(mut self) -> Result<ServeTimes, BenchError> {
        let requests = self.requests();
        let at_once = match self.arrival {
            Arrival::Concurrency(count) => count.min(requests),
            Arrival::Rate(_) => 1,
        };
        // The server makes and captures the programs of all row counts that occur.
        for _ in 0..2 {
            let plan = self.plan(at_once, WARM_TOKENS);
            let seen = self.closed(plan, at_once).await;
            if let Some(error) = seen.error {
                return Err(error);
            }
        }
        let plan = self.plan(requests, u32::MAX);
        let before = Figures::read(self.target).await;
        let (end, ended) = oneshot::channel();
        let pages = before.map(|_| tokio::spawn(most_pages(Arc::clone(self.target), ended)));
        let start = Instant::now();
        let seen = match self.arrival {
            Arrival::Concurrency(_) => self.closed(plan, at_once).await,
            Arrival::Rate(_) => self.open(plan).await,
        };
        let time = start.elapsed();
        drop(end);
        let pages_used = match pages {
            Some(pages) => pages.await.ok(),
            None => None,
        };
        let after = Figures::read(self.target).await;
        if seen.answered == 0 {
            return Err(seen.error.unwrap_or_else(|| self.target.failed("no request was answered")));
        }
        let mut times = self.report(&seen, time);
        if let (Some(before), Some(after)) = (before, after) {
            let steps = after.steps.saturating_sub(before.steps);
            times.pages = Some(after.pages);
            times.pages_used = pages_used;
            times.preemptions = Some(after.preemptions.saturating_sub(before.preemptions));
            times.steps = Some(steps);
            times.rows_per_step = Some(after.rows.saturating_sub(before.rows) as f64 / steps.max(1) as f64);
        }
        Ok(times)
    }

    fn report(&self, seen: &Seen, time: Duration) -> ServeTimes {
        let seconds = time.as_secs_f64().max(1e-9);
        let mean = |tokens: u64| tokens as f64 / f64::from(seen.answered.max(1));
        let (concurrency, rate) = match self.arrival {
            Arrival::Concurrency(count) => (count, 0.0),
            Arrival::Rate(rate) => (0, rate),
        };
        ServeTimes {
            concurrency,
            input: mean(seen.prompt_tokens),
            output: mean(seen.generated),
            requests: seen.answered,
            failed: seen.failed,
            rate,
            seconds,
            output_tokens_per_second: seen.generated as f64 / seconds,
            total_tokens_per_second: (seen.generated + seen.prompt_tokens) as f64 / seconds,
            time_to_first_token_ms: Latency::of(&seen.first),
            inter_token_ms: Latency::of(&seen.between),
            request_ms: Latency::of(&seen.whole),
            added_ms: (!seen.added.is_empty()).then(|| Latency::of(&seen.added)),
            cached_tokens: seen.cached,
            pages: None,
            pages_used: None,
            preemptions: None,
            steps: None,
            rows_per_step: None,
            engine_tokens_per_second: None,
            share_of_engine: None,
        }
    }

    /// Clients that each send a request whenever their last one has ended.
    async fn closed(&self, plan: Vec<Planned>, clients: u32) -> Seen {
        let plan = Arc::new(Mutex::new(plan.into_iter()));
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (plan, target, clock) =
                (Arc::clone(&plan), Arc::clone(self.target), self.options.clock.clone());
            tasks.spawn(async move {
                let (mut seen, mut connection) = (Seen::default(), None);
                loop {
                    let next = plan.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(Planned { body, .. }) = next else { return seen };
                    one(&target, &mut connection, body, clock.as_ref(), &mut seen).await;
                }
            });
        }
        collect(tasks).await
    }

    /// Requests at their times.
    async fn open(&self, plan: Vec<Planned>) -> Seen {
        let idle: Arc<Mutex<Vec<Connection>>> = Arc::default();
        let start = tokio::time::Instant::now();
        let mut tasks = JoinSet::new();
        for Planned { body, at } in plan {
            tokio::time::sleep_until(start + at).await;
            let (idle, target, clock) =
                (Arc::clone(&idle), Arc::clone(self.target), self.options.clock.clone());
            tasks.spawn(async move {
                let take = || idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let (mut seen, mut connection) = (Seen::default(), take());
                one(&target, &mut connection, body, clock.as_ref(), &mut seen).await;
                idle.lock().unwrap_or_else(PoisonError::into_inner).extend(connection);
                seen
            });
        }
        collect(tasks).await
    }
}

async fn collect(mut tasks: JoinSet<Seen>) -> Seen {
    let mut all = Seen::default();
    while let Some(seen) = tasks.join_next().await {
        match seen {
            Ok(seen) => all.add(seen),
            Err(_) => all.failed += 1,
        }
    }
    all
}

/// Sends a request and reads its stream. A connection that failed is not used again.
async fn one(
    target: &Arc<Target>,
    connection: &mut Option<Connection>,
    body: Bytes,
    clock: Option<&TokenClock>,
    seen: &mut Seen,
) {
    let sent = Instant::now();
    match stream(target, connection, body, clock, seen).await {
        Ok(usage) => {
            seen.whole.push(sent.elapsed());
            seen.answered += 1;
            seen.prompt_tokens += usage.prompt_tokens;
            seen.generated += usage.completion_tokens;
            seen.cached += usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        }
        Err(error) => {
            *connection = None;
            seen.failed += 1;
            seen.error.get_or_insert(error);
        }
    }
}

async fn stream(
    target: &Arc<Target>,
    connection: &mut Option<Connection>,
    body: Bytes,
    clock: Option<&TokenClock>,
    seen: &mut Seen,
) -> Result<Usage, BenchError> {
    let sent = Instant::now();
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(target).await?),
    };
    let response = open.send(Method::POST, "/v1/completions", Some(body)).await?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    if status != 200 {
        let bytes = body.collect().await.map_err(|error| target.failed(error))?.to_bytes();
        let text: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let message = text["error"]["message"].as_str().unwrap_or("no message");
        return Err(target.failed(format!("status {status}: {message}")));
    }
    let (mut events, mut last, mut end) = (Events::default(), None, Ok(None));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| target.failed(error))?;
        let Ok(bytes) = frame.into_data() else { continue };
        let now = Instant::now();
        events.push(&bytes, |data| {
            if data == b"[DONE]" {
                return;
            }
            let chunk: Chunk<'_> = match serde_json::from_slice(data) {
                Ok(chunk) => chunk,
                Err(error) => return end = Err(target.failed(format!("an event is no chunk: {error}"))),
            };
            if let Some(error) = &chunk.error {
                return end = Err(target.failed(&error.message));
            }
            if let (Some(usage), Ok(found)) = (chunk.usage, &mut end) {
                *found = Some(usage);
            }
            for choice in chunk.choices.iter().filter(|choice| !choice.text.is_empty()) {
                match last {
                    None => seen.first.push(now.saturating_duration_since(sent)),
                    Some(last) => seen.between.push(now.saturating_duration_since(last)),
                }
                last = Some(now);
                if let Some(drawn) = clock.and_then(|clock| clock(&choice.text)) {
                    seen.added.push(now.saturating_duration_since(drawn));
                }
            }
        });
    }
    end?.ok_or_else(|| target.failed("the stream ended without usage"))
}
