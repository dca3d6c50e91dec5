//! Runs a scenario and checks what every schedule must keep.

use std::collections::BTreeMap;
use std::time::Duration;

use fulmen_engine::mock::{MockDevice, MockModel};
use fulmen_engine::step::Sampled;
use fulmen_engine::{Driver, Event, LaunchError, Progress, RequestError, RequestId};

use super::scenario::{Flavor, Scenario};

/// What the schedules of a test have done, so that one sees what was tested.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: u64,
    refused: u64,
    finished: u64,
    cancelled: u64,
    expired: u64,
    failed: u64,
    steps: u64,
    rows: u64,
    tokens: u64,
    dropped_rows: u64,
    swapped_out: u64,
    dropped: u64,
    hits: u64,
    tokens_hit: u64,
    copied_pages: u64,
    evictions: u64,
    state_evictions: u64,
    window_evictions: u64,
    failed_launches: u64,
    devices_lost: u64,
    longest_wait_in_steps: u64,
    scored_prompts: u64,
}

impl Counts {
    /// Whether the schedules did what they are there for.
    pub(crate) fn check(&self, flavor: Flavor) {
        let preempted = self.dropped > 0 && self.swapped_out > 0;
        assert!(self.scored_prompts > 0, "{self:?}");
        assert!(preempted && self.cancelled > 0 && self.expired > 0 && self.dropped_rows > 0, "{self:?}");
        assert!(flavor == Flavor::Groups || self.hits > 0 && self.evictions > 0, "{self:?}");
        assert!(flavor != Flavor::Hybrid || self.state_evictions > 0 && self.swapped_out > 0, "{self:?}");
        assert!(flavor != Flavor::Windows || self.window_evictions > 0 && self.copied_pages > 0, "{self:?}");
        assert!(flavor != Flavor::Faults || self.failed_launches > 0 && self.devices_lost > 0, "{self:?}");
    }
}

struct Running {
    arrival: usize,
    expected: Vec<u32>,
    tokens: Vec<u32>,
    /// The tokens of the prompt with their log-probabilities.
    expected_prompt: Option<Vec<Sampled>>,
    prompt: Option<Vec<Sampled>>,
    submitted_at: u64,
    cancelled: bool,
}

pub(crate) struct Simulation<'a> {
    scenario: &'a Scenario,
    driver: Driver<MockDevice>,
    model: MockModel,
    now: Duration,
    iterations: u64,
    running: BTreeMap<RequestId, Running>,
    next_arrival: usize,
    failing_allocations: std::vec::IntoIter<u64>,
    /// The first request in line, and since when it is.
    first: Option<(RequestId, u64)>,
    faulty: bool,
    /// Requests that may still end with each kind of error.
    may_fail: MayFail,
}

/// How many requests a scenario's faults may hit.
struct MayFail {
    rejected: usize,
    out_of_memory: usize,
    row: usize,
}

impl MayFail {
    fn new(scenario: &Scenario) -> MayFail {
        let launches = || scenario.faults.launches.values();
        let rejected = launches().filter(|error| matches!(error, LaunchError::Rejected { .. })).count();
        let out_of_memory = launches().filter(|error| matches!(error, LaunchError::OutOfMemory(_))).count();
        // In batch-invariant mode a step cannot be smaller than a page.
        let too_large = scenario.config.batch_invariant && scenario.faults.max_rows.is_some();
        MayFail {
            rejected,
            out_of_memory: if too_large { usize::MAX } else { out_of_memory },
            row: usize::from(scenario.faults.row.is_some()),
        }
    }

    fn take(left: &mut usize) -> bool {
        let any = *left > 0;
        *left = left.saturating_sub(1);
        any
    }
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Simulation<'a> {
        let mut device = MockDevice::new(&scenario.config);
        device.faults = scenario.faults.clone();
        let driver = Driver::new(scenario.config.clone(), device).expect("the configuration is valid");
        let faults = &scenario.faults;
        let device_faults = !faults.launches.is_empty() || faults.lost_at.is_some() || faults.row.is_some();
        Simulation {
            model: MockModel::new(&scenario.config),
            faulty: device_faults || faults.max_rows.is_some() || !scenario.failing_allocations.is_empty(),
            failing_allocations: scenario.failing_allocations.clone().into_iter(),
            scenario,
            driver,
            now: Duration::ZERO,
            iterations: 0,
            running: BTreeMap::new(),
            next_arrival: 0,
            first: None,
            may_fail: MayFail::new(scenario),
        }
    }

    pub(crate) fn run(mut self, counts: &mut Counts) -> Result<(), String> {
        let first = self.failing_allocations.next();
        self.fail_next_allocation(first);
        loop {
            self.submit_arrivals(counts)?;
            self.cancel_due();
            let busy = self.driver.device().map_or(Duration::ZERO, MockDevice::busy);
            let progress = self.driver.step(self.now);
            let took = self.driver.device().map_or(Duration::ZERO, MockDevice::busy).saturating_sub(busy);
            self.now += took.max(Duration::from_micros(50));
            self.iterations += 1;
            if self.iterations.is_multiple_of(16) {
                let next = self.failing_allocations.next();
                self.fail_next_allocation(next);
            }
            self.take_events(counts)?;
            self.check_progress()?;
            if self.iterations.is_multiple_of(4) {
                self.driver.scheduler().audit().map_err(|error| error.to_string())?;
            }
            let arrival = self.scenario.arrivals.get(self.next_arrival).map(|arrival| arrival.at);
            match (progress, arrival) {
                (Progress::Lost, _) => self.reopen(counts)?,
                (Progress::Idle, Some(at)) => self.now = self.now.max(at),
                (Progress::Idle, None) => break,
                _ => {}
            }
        }
        if !self.running.is_empty() {
            return Err(format!("{} requests have not ended", self.running.len()));
        }
        self.driver.scheduler().counted_back().map_err(|leak| leak.to_string())?;
        self.driver.scheduler_mut().clear_prefix_cache();
        let stats = self.driver.scheduler().stats();
        if let Some(group) =
            stats.groups.iter().find(|group| group.free != group.pages || group.host_used != 0)
        {
            return Err(format!("pages are missing after the cache was emptied: {group:?}"));
        }
        self.count(counts);
        Ok(())
    }

    fn fail_next_allocation(&mut self, n: Option<u64>) {
        if let Some(n) = n {
            // Sometimes of a recurrent state.
            let groups = self.scenario.config.groups.len() as u64;
            self.driver.scheduler_mut().fail_allocation((n % groups) as usize, n);
        }
    }

    fn submit_arrivals(&mut self, counts: &mut Counts) -> Result<(), String> {
        let scenario = self.scenario;
        while let Some(arrival) = scenario.arrivals.get(self.next_arrival).filter(|a| a.at <= self.now) {
            counts.requests += 1;
            let vocabulary = scenario.config.vocabulary;
            let context = self.driver.scheduler().context();
            match self.driver.submit(arrival.request(vocabulary), self.now) {
                Ok(id) => {
                    let running = Running {
                        arrival: self.next_arrival,
                        expected: arrival.expected(&self.model, vocabulary, context),
                        tokens: Vec::new(),
                        expected_prompt: arrival.expected_prompt(&self.model),
                        prompt: None,
                        submitted_at: self.iterations,
                        cancelled: false,
                    };
                    self.running.insert(id, running);
                }
                Err(error) => {
                    counts.refused += 1;
                    let (limit, prompt) = (arrival.context.unwrap_or(u32::MAX), arrival.prompt.len());
                    let right = match error {
                        RequestError::EmptyPrompt => prompt == 0,
                        RequestError::PromptTooLong { context, .. } => {
                            context == limit.min(scenario.config.context) && prompt >= context as usize
                        }
                        RequestError::PoolTooSmall { needed, pages, .. } => needed > pages,
                        RequestError::QueueFull { limit } => limit == scenario.config.queue_limit,
                        _ => false,
                    };
                    if !right {
                        return Err(format!("request {} was refused: {error}", self.next_arrival));
                    }
                }
            }
            self.next_arrival += 1;
        }
        Ok(())
    }

    fn cancel_due(&mut self) {
        for (&id, running) in &mut self.running {
            let due = self.scenario.arrivals[running.arrival].cancel_at.is_some_and(|at| at <= self.now);
            if due && !running.cancelled {
                running.cancelled = true;
                self.driver.cancel(id);
            }
        }
    }

    fn take_events(&mut self, counts: &mut Counts) -> Result<(), String> {
        for (id, event) in self.driver.take_events() {
            let Some(running) = self.running.get_mut(&id) else {
                return Err(format!("{event:?} of a request that has ended"));
            };
            let arrival = running.arrival;
            match &event {
                Event::Prompt(tokens) if running.prompt.is_none() && running.tokens.is_empty() => {
                    counts.scored_prompts += 1;
                    running.prompt = Some(tokens.clone());
                }
                Event::Prompt(_) => return Err(format!("{arrival}: the prompt once more, or too late")),
                Event::Token(_) if running.prompt != running.expected_prompt => {
                    let (found, alone) = (&running.prompt, &running.expected_prompt);
                    return Err(format!("the prompt of {arrival}: {found:?}, alone {alone:?}"));
                }
                Event::Token(sampled) => running.tokens.push(sampled.token),
                Event::Finished { usage, .. } => {
                    if running.tokens != running.expected || usage.generated_tokens != running.tokens.len() {
                        return Err(format!("{arrival}: {:?}, alone {:?}", running.tokens, running.expected));
                    }
                    counts.finished += 1;
                }
                Event::Failed(error) => self.check_error(id, error, counts)?,
            }
            let running = &self.running[&id];
            if !running.expected.starts_with(&running.tokens) {
                return Err(format!("{arrival}: {:?}, alone {:?}", running.tokens, running.expected));
            }
            if event.is_last() {
                let waited = self.iterations - running.submitted_at;
                counts.longest_wait_in_steps = counts.longest_wait_in_steps.max(waited);
                self.running.remove(&id);
            }
        }
        Ok(())
    }

    fn check_error(
        &mut self,
        id: RequestId,
        error: &RequestError,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let running = &self.running[&id];
        let arrival = &self.scenario.arrivals[running.arrival];
        let allowed = match error {
            RequestError::Cancelled => {
                counts.cancelled += 1;
                running.cancelled
            }
            RequestError::DeadlineExceeded { timeout, generated } => {
                counts.expired += 1;
                Some(*timeout) == arrival.timeout && *generated == running.tokens.len()
            }
            RequestError::Rejected { .. } => MayFail::take(&mut self.may_fail.rejected),
            RequestError::DeviceOutOfMemory { .. } => MayFail::take(&mut self.may_fail.out_of_memory),
            RequestError::Row { .. } => MayFail::take(&mut self.may_fail.row),
            RequestError::LaunchFailed { reason, .. } => reason == "no" || reason.contains("has no rows"),
            RequestError::DeviceLost { reason } => {
                reason == "at a launch" || reason.contains("was told to lose")
            }
            _ => false,
        };
        let ended_by_itself =
            !matches!(error, RequestError::Cancelled | RequestError::DeadlineExceeded { .. });
        counts.failed += u64::from(ended_by_itself);
        if allowed { Ok(()) } else { Err(format!("request {} failed: {error}", running.arrival)) }
    }

    /// The first request in line is never held up by the others: it ends within a number of steps that
    /// depends on its own length.
    fn check_progress(&mut self) -> Result<(), String> {
        let Some(id) = self.driver.scheduler().first() else {
            self.first = None;
            return Ok(());
        };
        let since = match self.first {
            Some((first, since)) if first == id => since,
            _ => self.iterations,
        };
        self.first = Some((id, since));
        let arrival = &self.scenario.arrivals[self.running[&id].arrival];
        let length = (arrival.prompt.len() + self.running[&id].expected.len()) as u64;
        let bound = 3 * length + if self.faulty { 400 } else { 30 };
        let waited = self.iterations - since;
        if waited > bound {
            return Err(format!("the first request of {length} tokens has not ended in {waited} steps"));
        }
        Ok(())
    }

    fn reopen(&mut self, counts: &mut Counts) -> Result<(), String> {
        counts.devices_lost += 1;
        if !self.running.is_empty() {
            return Err("requests are left after the device was lost".to_owned());
        }
        self.driver.scheduler().counted_back().map_err(|leak| leak.to_string())?;
        let reopened = self.driver.reopen(MockDevice::new(&self.scenario.config));
        reopened.map_err(|_| "a lost device could not be replaced".to_owned())
    }

    fn count(&self, counts: &mut Counts) {
        let stats = self.driver.scheduler().stats();
        counts.steps += stats.steps;
        counts.rows += stats.decode_rows + stats.prefill_rows;
        counts.tokens += stats.generated_tokens;
        counts.dropped_rows += stats.dropped_rows;
        counts.swapped_out += stats.swapped_out;
        counts.dropped += stats.dropped;
        counts.hits += stats.prefix_cache.hits;
        counts.tokens_hit += stats.prefix_cache.tokens_hit;
        counts.copied_pages += stats.copied_pages;
        counts.evictions += stats.prefix_cache.evictions;
        counts.state_evictions += stats.prefix_cache.state_evictions;
        counts.window_evictions += stats.prefix_cache.window_evictions;
        counts.failed_launches += stats.failed_launches;
    }
}
