//! An engine under load: many requests at once, or arriving at a rate.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fulmen_engine::model::ModelDevice;
use fulmen_engine::{Driver, EngineOptions, Event, Progress as Driven, Request, RequestId, Stats};
use fulmen_engine::{Model, SessionOptions};
use serde::Serialize;

use super::runs::{DecodeRun, PrefillRun, random_tokens};
use super::{LoadedModel, ModelReport, largest};
use crate::BenchError;
use crate::progress::{Progress, Steps};

/// Which loads are timed.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineBenchOptions {
    /// Requests that run at the same time, one test each.
    pub concurrency: Vec<u32>,
    /// Tokens of a prompt.
    pub input: u32,
    /// Tokens that a request generates.
    pub output: u32,
    /// Requests of a test; 0 for three times the concurrency.
    pub requests: u32,
    /// Requests per second that arrive, whether or not others have ended; 0 for a new one whenever one ends.
    pub rate: f64,
    /// Prompts beside them that are only prefilled: their tokens, and how many arrive per second.
    pub extra: Option<(u32, f64)>,
    /// Tokens of the prefill that the bound is measured with; 0 for the device's prefill chunk.
    pub prefill: u32,
    /// Whether the bound is measured.
    pub bound: bool,
    /// Whether the cost of inactive rows is measured.
    pub inactive_rows: bool,
    /// How the engine runs. Its context, sequences and pages are chosen here where they are 0.
    pub engine: EngineOptions,
    /// The type of the KV cache, the prefill chunk and eager mode of the runs of the bound.
    pub session: SessionOptions,
}

/// Percentiles of times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half of the times are below it.
    pub p50: f64,
    /// 95 % are.
    pub p95: f64,
    /// 99 % are.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// The percentiles of some times.
    pub fn of(times: &[Duration]) -> Latency {
        let mut ms: Vec<f64> = times.iter().map(|time| 1e3 * time.as_secs_f64()).collect();
        ms.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * ms.len() as f64).ceil() as usize;
            ms.get(rank.clamp(1, ms.len().max(1)) - 1).copied().unwrap_or(0.0)
        };
        Latency { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

/// One load. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineTimes {
    /// Requests that ran at the same time.
    pub concurrency: u32,
    /// Tokens of a prompt.
    pub input: u32,
    /// Tokens that a request generated.
    pub output: u32,
    /// Requests.
    pub requests: u32,
    /// Requests per second that arrived; 0 if a new one came whenever one had ended.
    pub rate: f64,
    /// From the first request to the last token.
    pub seconds: f64,
    /// Generated tokens per second.
    pub output_tokens_per_second: f64,
    /// Tokens of prompts and generated ones per second.
    pub total_tokens_per_second: f64,
    /// From a request to its first token, in milliseconds.
    pub time_to_first_token_ms: Latency,
    /// Between two tokens of a request, in milliseconds.
    pub inter_token_ms: Latency,
    /// Prompts beside the requests, and the time to the token after them.
    pub extra_prompts: u32,
    /// From an extra prompt to its token, in milliseconds.
    pub extra_first_token_ms: Latency,
    /// KV pages of the pool.
    pub pages: u32,
    /// The most pages that were in use, with those that the prefix cache kept.
    pub pages_used: u32,
    /// KV pages of layers with a sliding window, if they have pages of their own.
    pub window_pages: Option<u32>,
    /// The most of them that were in use.
    pub window_pages_used: Option<u32>,
    /// Tokens of prompts that came from the prefix cache.
    pub cached_tokens: u64,
    /// Sequences that were preempted.
    pub preemptions: u64,
    /// Steps of the engine.
    pub steps: u64,
    /// Rows per step.
    pub rows_per_step: f64,
    /// Programs that steps had to wait for, because none had been made before.
    pub programs_made: u64,
    /// Tokens per second of a prefill alone, by which the bound is computed.
    pub prefill_tokens_per_second: Option<f64>,
    /// A decode step alone of as many sequences in the middle of the output, by which the bound is computed.
    pub decode_step_us: Option<f64>,
    /// What prefill and decode would take one after the other, without an engine.
    pub bound_seconds: Option<f64>,
    /// `bound_seconds` over `seconds`.
    pub share_of_bound: Option<f64>,
    /// What the inactive rows of a bucket cost; `None` if no bucket up to this concurrency has any.
    pub inactive_rows: Option<InactiveRows>,
}

/// Decode steps whose bucket has more rows than are active, against programs of exactly the active rows: of
/// all buckets up to a concurrency, the one with the largest share of inactive rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InactiveRows {
    /// Active rows.
    pub active: u32,
    /// Rows of the bucket.
    pub bucket: u32,
    /// The median time between two tokens in the bucket, in microseconds.
    pub bucket_step_us: f64,
    /// The same with a program of the active rows.
    pub exact_step_us: f64,
    /// How much longer the first is: 0.05 for 5 %.
    pub cost: f64,
}

impl EngineBenchOptions {
    /// Positions of the longest sequence.
    pub fn context(&self) -> u32 {
        let extra = self.extra.map_or(0, |(tokens, _)| tokens.saturating_add(2));
        self.input.saturating_add(self.output).saturating_add(1).max(extra)
    }

    /// What a model must be loaded with: the engine's memory is apart.
    pub fn session_options(&self) -> SessionOptions {
        SessionOptions { context: self.context(), sequences: 1, ..self.session }
    }

    fn engine(&self, concurrency: u32) -> EngineOptions {
        let context = if self.engine.context == 0 { self.context() } else { self.engine.context };
        let sequences = concurrency.saturating_add(if self.extra.is_some() { 8 } else { 0 });
        EngineOptions { context, max_sequences: sequences, queue_limit: usize::MAX, ..self.engine.clone() }
    }
}

/// Runs an engine with each concurrency. Requests are greedy and have different prompts of random tokens.
///
/// The bound is the time that the prompts take at the rate of a prefill alone, and the output in decode steps
/// alone of as many sequences, both measured in the same run.
///
/// # Errors
/// What the model or the engine reports.
pub fn bench_engine(
    loaded: &LoadedModel,
    options: &EngineBenchOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelReport<EngineTimes>, BenchError> {
    if options.input == 0 || options.output == 0 || largest(&options.concurrency) == 0 {
        return Err(BenchError::InvalidOption("an engine needs requests of at least 1 token".to_owned()));
    }
    let parts = 1 + usize::from(options.bound) + usize::from(options.inactive_rows);
    let mut steps = Steps::new(parts * options.concurrency.len(), progress);
    let mut tests = Vec::new();
    for &concurrency in &options.concurrency {
        steps.start(&format!("{concurrency} requests at once"));
        let mut test = Load::new(&loaded.model, options, concurrency, None)?.measure()?;
        steps.finish(1);
        if options.bound {
            steps.start(&format!("the bound of {concurrency} requests at once"));
            add_bound(&mut test, &loaded.model, options)?;
            steps.finish(1);
        }
        if options.inactive_rows {
            steps.start(&format!("inactive rows up to {concurrency} requests"));
            test.inactive_rows = inactive_rows(&loaded.model, options, concurrency)?;
            steps.finish(1);
        }
        tests.push(test);
    }
    Ok(ModelReport::new(loaded, None, tests))
}

/// A request as the client sees it.
struct Client {
    sent: Duration,
    last: Option<Duration>,
    extra: bool,
}

/// What clients have seen.
#[derive(Default)]
struct Seen {
    first: Vec<Duration>,
    between: Vec<Duration>,
    extra: Vec<Duration>,
    generated: u64,
    cached: u64,
    finished: u32,
    pages_used: u32,
    window_pages_used: Option<u32>,
    end: Duration,
}

/// One test.
struct Load<'a> {
    model: &'a Model,
    options: &'a EngineBenchOptions,
    concurrency: u32,
    requests: u32,
    driver: Driver<ModelDevice>,
    clients: HashMap<RequestId, Client>,
    /// Counts prompts, so that no two are alike.
    prompts: u32,
}

impl<'a> Load<'a> {
    fn new(
        model: &'a Model,
        options: &'a EngineBenchOptions,
        concurrency: u32,
        buckets: Option<Vec<u32>>,
    ) -> Result<Load<'a>, BenchError> {
        let engine = options.engine(concurrency);
        let mut config = engine.scheduler(model)?;
        config.buckets = buckets.unwrap_or(config.buckets);
        let device = ModelDevice::new(model, &engine, &config)?;
        let driver = Driver::new(config, device).map_err(fulmen_engine::EngineError::from)?;
        let requests = if options.requests == 0 { 3 * concurrency } else { options.requests };
        Ok(Load { model, options, concurrency, requests, driver, clients: HashMap::new(), prompts: 0 })
    }

    fn measure(mut self) -> Result<EngineTimes, BenchError> {
        // The programs of all row counts that occur are made and captured, as by an idle engine; so are those
        // of devices that make them at the first use.
        while self.driver.warm_up() {}
        for _ in 0..2 {
            self.run(self.concurrency.min(self.requests), self.options.output.min(8), None)?;
        }
        let (before, made) = (self.driver.scheduler().stats(), self.programs_made());
        let seen = self.run(self.requests, self.options.output, Some(self.options.rate))?;
        let after = self.driver.scheduler().stats();
        let times = self.report(&seen, &before, &after);
        Ok(EngineTimes { programs_made: self.programs_made() - made, ..times })
    }

    fn programs_made(&self) -> u64 {
        self.driver.device().map_or(0, ModelDevice::programs_made)
    }

    fn report(&self, seen: &Seen, before: &Stats, after: &Stats) -> EngineTimes {
        let &EngineBenchOptions { input, output, rate, .. } = self.options;
        let seconds = seen.end.as_secs_f64().max(1e-9);
        let prompts = u64::from(self.requests) * u64::from(input);
        let steps = after.steps - before.steps;
        let rows = after.decode_rows + after.prefill_rows - before.decode_rows - before.prefill_rows;
        let preempted = |stats: &Stats| stats.swapped_out + stats.dropped;
        EngineTimes {
            concurrency: self.concurrency,
            input,
            output,
            requests: self.requests,
            rate,
            seconds,
            output_tokens_per_second: seen.generated as f64 / seconds,
            total_tokens_per_second: (seen.generated + prompts) as f64 / seconds,
            time_to_first_token_ms: Latency::of(&seen.first),
            inter_token_ms: Latency::of(&seen.between),
            extra_prompts: seen.extra.len() as u32,
            extra_first_token_ms: Latency::of(&seen.extra),
            pages: after.groups.first().map_or(0, |group| group.pages),
            pages_used: seen.pages_used,
            window_pages: after.window_group().map(|group| group.pages),
            window_pages_used: seen.window_pages_used,
            cached_tokens: seen.cached,
            preemptions: preempted(after) - preempted(before),
            steps,
            rows_per_step: rows as f64 / steps.max(1) as f64,
            programs_made: 0,
            prefill_tokens_per_second: None,
            decode_step_us: None,
            bound_seconds: None,
            share_of_bound: None,
            inactive_rows: None,
        }
    }

    /// Sends `requests` requests and waits for all of them; without a rate to warm up.
    fn run(&mut self, requests: u32, output: u32, rate: Option<f64>) -> Result<Seen, BenchError> {
        let extra_prompts = self.options.extra.filter(|_| rate.is_some());
        let rate = rate.unwrap_or(0.0);
        let (start, mut seen, mut sent, mut extra) = (Instant::now(), Seen::default(), 0, 0);
        while seen.finished < requests {
            let now = start.elapsed();
            while sent < requests && self.may_send(sent, seen.finished, rate, now) {
                self.send(self.options.input, output, false, now)?;
                sent += 1;
            }
            if let Some((tokens, rate)) = extra_prompts
                && now.as_secs_f64() * rate >= f64::from(extra)
            {
                self.send(tokens, 1, true, now)?;
                extra += 1;
            }
            let driven = self.driver.step(now);
            self.collect(start.elapsed(), &mut seen)?;
            match driven {
                Driven::Busy => {}
                // Between two requests that arrive at a rate.
                Driven::Idle => std::thread::sleep(Duration::from_micros(100)),
                Driven::Lost => return Err(BenchError::Request("the device was lost".to_owned())),
            }
        }
        // Prompts that are still running are not waited for.
        let left: Vec<RequestId> = self.clients.keys().copied().collect();
        for id in left {
            self.driver.cancel(id);
        }
        self.driver.settle();
        self.driver.take_events();
        self.clients.clear();
        Ok(seen)
    }

    fn may_send(&self, sent: u32, finished: u32, rate: f64, now: Duration) -> bool {
        match rate > 0.0 {
            true => now.as_secs_f64() * rate >= f64::from(sent),
            false => sent - finished < self.concurrency,
        }
    }

    fn send(&mut self, tokens: u32, output: u32, extra: bool, now: Duration) -> Result<(), BenchError> {
        self.prompts += 1;
        let prompt = random_tokens(self.model, self.prompts, tokens as usize);
        let request = Request { priority: 0, ..Request::new(prompt, output) };
        let id = self.driver.submit(request, now).map_err(|error| BenchError::Request(error.to_string()))?;
        self.clients.insert(id, Client { sent: now, last: None, extra });
        Ok(())
    }

    fn collect(&mut self, now: Duration, seen: &mut Seen) -> Result<(), BenchError> {
        let stats = self.driver.scheduler().stats();
        if let Some(group) = stats.groups.first() {
            seen.pages_used = seen.pages_used.max(group.pages - group.free);
        }
        if let Some(group) = stats.window_group() {
            let used = group.pages - group.free;
            seen.window_pages_used = seen.window_pages_used.max(Some(used));
        }
        for (id, event) in self.driver.take_events() {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            match event {
                Event::Token(_) => {
                    let times = match (client.extra, client.last) {
                        (true, _) => &mut seen.extra,
                        (false, None) => &mut seen.first,
                        (false, Some(_)) => &mut seen.between,
                    };
                    times.push(now.saturating_sub(client.last.unwrap_or(client.sent)));
                    client.last = Some(now);
                    seen.generated += u64::from(!client.extra);
                }
                Event::Finished { usage, .. } => {
                    seen.cached += usage.cached_tokens as u64;
                    seen.finished += u32::from(!client.extra);
                    seen.end = now;
                    self.clients.remove(&id);
                }
                Event::Prompt(_) => {}
                Event::Failed(error) => return Err(BenchError::Request(error.to_string())),
            }
        }
        Ok(())
    }
}

/// The active rows and the bucket with the largest share of inactive rows, of buckets up to `concurrency`.
fn most_inactive(buckets: &[u32], concurrency: u32) -> Option<(u32, u32)> {
    let pairs = buckets.windows(2).map(|pair| (pair[0] + 1, pair[1]));
    let pairs = pairs.filter(|&(active, bucket)| active < bucket && bucket <= concurrency);
    pairs.max_by_key(|&(active, bucket)| u64::from(bucket - active) * 1_000_000 / u64::from(bucket))
}

/// Measures decode steps of a bucket with inactive rows and of exactly as many rows, each twice in turn.
fn inactive_rows(
    model: &Model,
    options: &EngineBenchOptions,
    concurrency: u32,
) -> Result<Option<InactiveRows>, BenchError> {
    let buckets = options.engine(concurrency).scheduler(model)?.buckets;
    let Some((active, bucket)) = most_inactive(&buckets, concurrency) else { return Ok(None) };
    // Prompts of one token: but for the first, all steps decode only.
    let output = options.input + options.output - 1;
    let options = EngineBenchOptions { input: 1, output, ..options.clone() };
    let step = |buckets: Vec<u32>| -> Result<f64, BenchError> {
        let mut load = Load::new(model, &options, active, Some(buckets))?;
        // The programs that occur are made and captured.
        load.run(active, output.min(8), None)?;
        let seen = load.run(active, output, None)?;
        Ok(1e3 * Latency::of(&seen.between).p50)
    };
    let largest = buckets.last().copied().unwrap_or(bucket);
    let (mut in_bucket, mut exact) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..2 {
        exact = exact.min(step(vec![active, largest])?);
        in_bucket = in_bucket.min(step(vec![bucket, largest])?);
    }
    let cost = in_bucket / exact.max(1e-9) - 1.0;
    Ok(Some(InactiveRows { active, bucket, bucket_step_us: in_bucket, exact_step_us: exact, cost }))
}

/// Measures a prefill alone and decode steps alone, and compares.
fn add_bound(test: &mut EngineTimes, model: &Model, options: &EngineBenchOptions) -> Result<(), BenchError> {
    let EngineTimes { concurrency, input, output, requests, .. } = *test;
    let sequences = concurrency.min(requests);
    let one = SessionOptions { context: 0, sequences: 1, ..options.session };
    let mut session = model.session_with(one)?;
    let chunk = session.options().chunk.min(session.options().context - 1);
    let tokens = if options.prefill == 0 { chunk } else { options.prefill };
    let prefill = PrefillRun::new(model, &mut session, 0, tokens as usize)?.rate(&mut session, 3)?.mean;
    drop(session);
    let (depth, steps) = (input + output / 2, (output / 2).clamp(1, 32));
    let context = depth + steps + 1;
    let mut session = model.session_with(SessionOptions { context, sequences, ..options.session })?;
    let run = DecodeRun::new(model, &mut session, sequences, depth as usize, steps as u16)?;
    let step = run.rate(&mut session, steps as usize, 3)?.seconds(sequences.into());
    let prompts = f64::from(requests) * f64::from(input);
    let decode_steps = f64::from(requests) * f64::from(output) / f64::from(sequences);
    let bound = prompts / prefill + decode_steps * step;
    test.prefill_tokens_per_second = Some(prefill);
    test.decode_step_us = Some(1e6 * step);
    test.bound_seconds = Some(bound);
    test.share_of_bound = Some(bound / test.seconds);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_with_the_most_inactive_rows_is_taken() {
        let buckets = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64];
        assert_eq!(most_inactive(&buckets, 8), None);
        assert_eq!(most_inactive(&buckets, 16), Some((9, 10)));
        assert_eq!(most_inactive(&buckets, 64), Some((33, 40)));
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(Latency::of(&times), Latency { p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
        assert_eq!(Latency::of(&times[..1]), Latency { p50: 100.0, p95: 100.0, p99: 100.0, max: 100.0 });
        assert_eq!(Latency::of(&[]), Latency::default());
    }
}
