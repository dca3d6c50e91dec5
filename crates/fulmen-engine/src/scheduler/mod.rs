//! The scheduler: which rows run in the next step.
//!
//! A plain state machine without threads, I/O or a clock: time is passed in, and results are passed in.
//!
//! ```text
//! submit ─► waiting ─► prefilling ─► decoding ─► finished
//!              ▲            │            │
//!              └─ preempted ┴────────────┘        any state ─► failed, cancelled
//! ```
//!
//! [`plan`](Scheduler::plan) describes the next step, [`complete`](Scheduler::complete) takes the results of
//! the oldest step in flight. Step n + 1 may be planned and launched before step n is completed. Therefore:
//!
//! - A decode row may run a token that the host does not know yet ([`SAMPLED`](crate::step::SAMPLED)).
//! - A sequence that turns out to have ended may have a row in flight. Its result is dropped.
//! - Pages are freed while a step that reads them is in flight. This is safe because a device runs steps,
//!   with their copies and swaps, in the order of their launches: whoever gets the page writes to it in a
//!   later step.
//! - Only positions of completed steps enter the prefix cache, so a failed row leaves no trace there.

mod admission;
mod audit;
mod closing;
pub(crate) mod complete;
mod config;
mod memory;
mod plan;
mod preemption;
mod sequence;
mod sharing;
mod states;
mod stats;
mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub use config::{MANY_PROMPTS, PreemptionMode, SchedulerConfig};
pub use stats::{GroupStats, Stats};

use crate::error::{ConfigError, Leak, RequestError};
use crate::pages::GroupKind;
use crate::request::{Event, FinishReason, Request, RequestId, Usage};
use crate::step::Prologue;
use closing::Closing;
use complete::InFlight;
use memory::KvMemory;
use sequence::{Place, PromptScores, Rank, Sequence};

/// Plans in a row that may fail for lack of pages while nothing else runs.
const STALL_LIMIT: u32 = 8;

/// The scheduler of one model on one device.
///
/// ```
/// use std::time::Duration;
/// use fulmen_engine::step::{Sampled, StepOutput};
/// use fulmen_engine::{Event, Request, Scheduler, SchedulerConfig};
///
/// let mut scheduler = Scheduler::new(SchedulerConfig::new(1000, 4096, 64))?;
/// let id = scheduler.submit(Request::new(vec![1, 2, 3], 2), Duration::ZERO)?;
///
/// let step = scheduler.plan(Duration::ZERO).expect("a prefill chunk");
/// assert_eq!((step.rows.active, step.bucket, step.logits.len()), (3, 4, 1));
/// // The next step is planned before the token of the first is read.
/// let next = scheduler.plan(Duration::ZERO).expect("a decode row");
/// assert_eq!((next.rows.active, next.decode_rows), (1, 1));
///
/// scheduler.complete(StepOutput { sampled: vec![Sampled::token(7)], ..StepOutput::default() })?;
/// assert_eq!(scheduler.take_events(), [(id, Event::Token(Sampled::token(7)))]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scheduler {
    config: SchedulerConfig,
    /// Positions that a sequence can have: those of the context that fit into all pages.
    context: u32,
    memory: KvMemory,
    sequences: BTreeMap<RequestId, Sequence>,
    waiting: BTreeSet<Rank>,
    running: BTreeSet<Rank>,
    /// Requests that have ended and whose last rows are in flight.
    closing: BTreeMap<RequestId, Closing>,
    deadlines: BTreeSet<(Duration, RequestId)>,
    /// Tenants with unfinished requests.
    tenants: HashMap<Arc<str>, Tenant>,
    free_slots: Vec<u32>,
    /// What the next step does before its rows, but for the transfers that `memory` collects.
    prologue: Prologue,
    in_flight: VecDeque<InFlight>,
    events: Vec<(RequestId, Event)>,
    next_id: u64,
    /// The number of the newest step.
    step: u64,
    /// Rows that a step may have: fewer than the largest bucket after the device was out of memory.
    row_limit: u32,
    /// Steps to complete before `row_limit` grows again, and how many there were the last time.
    steps_before_growth: u32,
    growth_pause: u32,
    stalled: u32,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(config: SchedulerConfig) -> Result<Scheduler, ConfigError> {
        config.check()?;
        let memory = KvMemory::new(&config)?;
        let context = memory.groups().map(|group| capacity(&memory, group, config.max_rows())).min();
        Ok(Scheduler {
            context: context.unwrap_or(0).min(config.context),
            memory,
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            closing: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tenants: HashMap::new(),
            free_slots: (0..config.max_sequences).rev().collect(),
            prologue: Prologue::default(),
            in_flight: VecDeque::new(),
            events: Vec::new(),
            next_id: 0,
            step: 0,
            row_limit: config.max_rows(),
            steps_before_growth: 0,
            growth_pause: 0,
            stalled: 0,
            stats: Stats::default(),
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// How many tokens of the prompt of a request that has not ended came from the prefix cache. It is final
    /// when the first token has been sampled.
    pub fn cached_tokens(&self, id: RequestId) -> Option<usize> {
        self.sequences.get(&id).map(|sequence| sequence.cached_tokens.unwrap_or(0))
    }

    /// Positions that a sequence can have: those of the context that fit into all pages.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Queues a request, or refuses what can never run.
    pub fn submit(&mut self, request: Request, now: Duration) -> Result<RequestId, RequestError> {
        self.check(&request)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let rank = self.rank(&request, id, now);
        let prompt = request.prompt.len() as u32;
        let context = request.context.unwrap_or(u32::MAX).min(self.context);
        let max_len = match prompt.saturating_add(request.max_tokens) {
            len if len <= context => (len, FinishReason::MaxTokens),
            _ => (context, FinishReason::ContextFull),
        };
        let deadline = request.timeout.map(|timeout| (now.saturating_add(timeout), timeout));
        self.deadlines.extend(deadline.map(|(at, _)| (at, id)));
        self.waiting.insert(rank);
        let sequence = Sequence {
            id,
            rank,
            priority: request.priority,
            tenant: request.tenant,
            deadline,
            sampling: request.sampling,
            logprobs: request.logprobs,
            hidden: request.hidden,
            prompt_scores: request.prompt_logprobs.map(|top| PromptScores::new(request.prompt[0], top)),
            stop: request.stop,
            constraint: request.constraint,
            use_prefix_cache: request.use_prefix_cache,
            tokens: request.prompt,
            prompt_tokens: prompt as usize,
            max_len,
            place: Place::Waiting,
            pending: 0,
            planned: 0,
            completed: 0,
            prefill_end: 0,
            computed_from: 0,
            epoch: 0,
            last_step: 0,
            cached_tokens: None,
            preemptions: 0,
        };
        self.sequences.insert(id, sequence);
        self.stats.submitted += 1;
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), RequestError> {
        let (prompt, vocabulary) = (request.prompt.len(), self.config.vocabulary);
        if prompt == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(RequestError::Limit { limit: "max_tokens", expected: "at least 1", got: 0 });
        }
        let context = request.context.unwrap_or(u32::MAX).min(self.config.context);
        if prompt >= context as usize {
            return Err(RequestError::PromptTooLong { prompt, context });
        }
        for group in self.memory.groups() {
            let pages = self.memory.allocator.pages(group);
            let needed = self.memory.allocator.demand(group, prompt as u32 + 1, self.config.max_rows());
            if needed > pages {
                return Err(RequestError::PoolTooSmall { prompt, needed, pages });
            }
        }
        if let Some(position) = request.prompt.iter().position(|&token| token >= vocabulary) {
            return Err(RequestError::Token { token: request.prompt[position], position, vocabulary });
        }
        if self.waiting.len() >= self.config.queue_limit {
            return Err(RequestError::QueueFull { limit: self.config.queue_limit });
        }
        Ok(())
    }

    /// The rank of a new request, which counts as one of its tenant from now on. Requests of a tenant keep
    /// their order, also when the tenant has fewer of them than before.
    fn rank(&mut self, request: &Request, id: RequestId, now: Duration) -> Rank {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let tenant = self.tenants.entry(Arc::clone(&request.tenant)).or_default();
        let spacing = micros(self.config.tenant_spacing).saturating_mul(tenant.unfinished.into());
        tenant.last = micros(now).saturating_add(spacing).max(tenant.last);
        tenant.unfinished += 1;
        let head_start = micros(self.config.aging).saturating_mul(request.priority.into());
        Rank { at: tenant.last.saturating_sub(head_start), id }
    }

    /// Ends a request that has not ended. `false` if it has.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.fail(id, RequestError::Cancelled)
    }

    /// Ends all requests with an error each.
    pub fn fail_all(&mut self, error: &RequestError) {
        while let Some((&id, _)) = self.sequences.first_key_value() {
            self.fail(id, error.clone());
        }
    }

    /// Starts over after the device was lost: all requests end with this error, all pages are free, and
    /// nothing is cached or in flight.
    pub fn device_lost(&mut self, reason: &str) {
        self.fail_all(&RequestError::DeviceLost { reason: reason.to_owned() });
        while self.abandon_any() {}
        self.in_flight.clear();
        self.prologue = Prologue::default();
        self.memory.transfers.clear();
        self.memory.drop_cache();
        self.row_limit = self.config.max_rows();
        self.stats.device_lost = true;
        (self.steps_before_growth, self.growth_pause) = (0, 0);
    }

    /// There is another device.
    pub(crate) fn device_replaced(&mut self) {
        self.stats.device_lost = false;
    }

    /// Requests that have not ended.
    pub fn unfinished(&self) -> usize {
        self.sequences.len()
    }

    /// The unfinished request that comes before all others. It is never preempted for another.
    pub fn first(&self) -> Option<RequestId> {
        self.running.first().into_iter().chain(self.waiting.first()).min().map(|rank| rank.id)
    }

    /// Steps that were planned and not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The earliest deadline of a request that has not ended.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// The events since the last call, in their order.
    pub fn take_events(&mut self) -> Vec<(RequestId, Event)> {
        std::mem::take(&mut self.events)
    }

    /// Drops all cached prefixes that no sequence uses.
    pub fn clear_prefix_cache(&mut self) {
        self.memory.drop_cache();
    }

    /// Lets the `n`-th allocation of a page from now on fail, for tests.
    pub fn fail_allocation(&mut self, group: usize, n: u64) {
        self.memory.allocator.pool_mut(group).fail_allocation(n);
    }

    /// Whether all requests have ended and all pages, slots and tenants were given back. Cached pages that
    /// nobody uses count as free.
    pub fn counted_back(&self) -> Result<(), Leak> {
        let requests = self.sequences.len() + self.closing.len();
        Leak::check("requests", requests, self.next_id as usize)?;
        Leak::check("queue entries", self.waiting.len() + self.running.len(), self.config.queue_limit)?;
        Leak::check("deadlines", self.deadlines.len(), self.next_id as usize)?;
        Leak::check("tenants", self.tenants.len(), self.next_id as usize)?;
        let slots = self.config.max_sequences as usize;
        Leak::check("slots", slots - self.free_slots.len(), slots)?;
        self.memory.counted_back()
    }

    /// Ends requests whose deadline has passed.
    fn expire(&mut self, now: Duration) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            let sequence = &self.sequences[&id];
            let timeout = sequence.deadline.map_or(Duration::ZERO, |(_, timeout)| timeout);
            let generated = sequence.generated().len();
            self.fail(id, RequestError::DeadlineExceeded { timeout, generated });
        }
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        let Some(sequence) = self.retire(id, Keep::All) else { return };
        self.stats.finished += 1;
        let usage = Usage {
            prompt_tokens: sequence.prompt_tokens,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
            generated_tokens: sequence.generated().len(),
            preemptions: sequence.preemptions,
        };
        self.events.push((id, Event::Finished { reason, usage }));
    }

    /// Ends a request with an error. `false` if it has ended already.
    pub(crate) fn fail(&mut self, id: RequestId, error: RequestError) -> bool {
        let keep = match error {
            RequestError::Row { .. } => Keep::Nothing,
            RequestError::Cancelled => Keep::All,
            _ => Keep::Pages,
        };
        if self.retire(id, keep).is_none() {
            return false;
        }
        match error {
            RequestError::Cancelled => self.stats.cancelled += 1,
            _ => self.stats.failed += 1,
        }
        self.events.push((id, Event::Failed(error)));
        true
    }

    /// Takes a request out of all lists and gives back what it holds.
    fn retire(&mut self, id: RequestId, keep: Keep) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.waiting.remove(&sequence.rank);
        self.running.remove(&sequence.rank);
        if let Some((at, _)) = sequence.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Some(tenant) = self.tenants.get_mut(&sequence.tenant) {
            tenant.unfinished -= 1;
            if tenant.unfinished == 0 {
                self.tenants.remove(&sequence.tenant);
            }
        }
        let constraint = sequence.constraint.take();
        // Foreign code: its panic must not reach the other requests.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(constraint)));
        match std::mem::replace(&mut sequence.place, Place::Waiting) {
            Place::Waiting => {}
            Place::Swapped(pages) => self.memory.allocator.release_swapped(pages),
            Place::Running { slot, pages } => {
                self.free_slots.push(slot);
                match keep != Keep::Nothing && sequence.use_prefix_cache {
                    true => self.close(&mut sequence, pages, keep == Keep::All),
                    false => self.give_back(id, pages),
                }
            }
        }
        Some(sequence)
    }
}

/// What the prefix cache keeps of a sequence that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// Nothing: a row has failed.
    Nothing,
    /// What completed steps have written: a launch may have failed midway.
    Pages,
    /// That, and the recurrent state behind its last row.
    All,
}

/// Who sends requests.
#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    unfinished: u32,
    /// The time by which its newest request is ranked, but for its priority.
    last: i64,
}

/// Positions of one sequence that fit into all pages of a group.
fn capacity(memory: &KvMemory, group: usize, chunk: u32) -> u32 {
    let allocator = &memory.allocator;
    let all = allocator.pages(group).saturating_mul(allocator.page_size());
    match allocator.kind(group) {
        GroupKind::Full => all,
        GroupKind::Window { .. } if allocator.demand(group, u32::MAX, chunk) > allocator.pages(group) => all,
        GroupKind::Window { .. } | GroupKind::Recurrent => u32::MAX,
    }
}
