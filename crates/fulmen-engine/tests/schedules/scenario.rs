//! Random scenarios.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use fulmen_engine::mock::{MockFaults, MockModel, MockSampling};
use fulmen_engine::pages::{GroupConfig, GroupKind};
use fulmen_engine::step::{Sampled, TokenMask};
use fulmen_engine::{
    Constraint, DeviceLost, LaunchError, PreemptionMode, Request, SamplingParams, SchedulerConfig, Stop,
};

/// What the schedules of a test have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    Plain,
    Faults,
    BatchInvariant,
    Groups,
    /// Full attention and windows, both in the prefix cache.
    Windows,
    /// Attention and recurrent states, with snapshots.
    Hybrid,
}

/// A request of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) cancel_at: Option<Duration>,
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: u32,
    pub(crate) context: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: i8,
    pub(crate) tenant: Arc<str>,
    pub(crate) seed: u64,
    pub(crate) stop: Stop,
    pub(crate) constrained: bool,
    pub(crate) use_prefix_cache: bool,
    pub(crate) prompt_logprobs: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) config: SchedulerConfig,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) faults: MockFaults,
    /// The n-th allocation of a page fails, counted from the first one and then again from there.
    pub(crate) failing_allocations: Vec<u64>,
}

/// Tokens whose parity differs from that of the token before.
struct Alternating {
    vocabulary: u32,
    generated: Vec<u32>,
}

/// The mask of [`Alternating`].
pub(crate) fn alternating(vocabulary: u32, generated: &[u32]) -> TokenMask {
    TokenMask::new(vocabulary, |token| generated.last().is_none_or(|last| (last ^ token) & 1 == 1))
}

impl Constraint for Alternating {
    fn mask(&mut self) -> Result<TokenMask, String> {
        Ok(alternating(self.vocabulary, &self.generated))
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let allowed = alternating(self.vocabulary, &self.generated).allows(token);
        self.generated.push(token);
        if allowed { Ok(()) } else { Err(format!("token {token} was masked")) }
    }
}

impl Arrival {
    pub(crate) fn request(&self, vocabulary: u32) -> Request {
        let constraint = || Box::new(Alternating { vocabulary, generated: Vec::new() });
        Request {
            context: self.context,
            timeout: self.timeout,
            priority: self.priority,
            tenant: Arc::clone(&self.tenant),
            sampling: SamplingParams::new(MockSampling { seed: self.seed }),
            stop: self.stop.clone(),
            constraint: self.constrained.then(|| constraint() as Box<dyn Constraint>),
            use_prefix_cache: self.use_prefix_cache,
            prompt_logprobs: self.prompt_logprobs.then_some(0),
            ..Request::new(self.prompt.clone(), self.max_tokens)
        }
    }

    /// The tokens of this request run alone.
    pub(crate) fn expected(&self, model: &MockModel, vocabulary: u32, context: u32) -> Vec<u32> {
        let context = self.context.unwrap_or(u32::MAX).min(context) as usize;
        let len = (self.prompt.len() + self.max_tokens as usize).min(context);
        let mask = |generated: &[u32]| self.constrained.then(|| alternating(vocabulary, generated));
        model.generate(&self.prompt, len, self.seed, &self.stop, mask)
    }

    /// The tokens of the prompt with their log-probabilities, if they are wanted.
    pub(crate) fn expected_prompt(&self, model: &MockModel) -> Option<Vec<Sampled>> {
        self.prompt_logprobs.then(|| model.prompt_logprobs(&self.prompt, self.seed))
    }
}

impl Scenario {
    pub(crate) fn draw(flavor: Flavor, seed: u64) -> Scenario {
        let mut rng = Rng::with_seed(seed);
        let config = draw_config(flavor, &mut rng);
        let arrivals = draw_arrivals(&config, &mut rng);
        let mut scenario =
            Scenario { config, arrivals, faults: MockFaults::default(), failing_allocations: Vec::new() };
        if flavor == Flavor::Faults {
            draw_faults(&mut scenario, &mut rng);
        }
        scenario
    }
}

fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(..100) < percent
}

fn draw_config(flavor: Flavor, rng: &mut Rng) -> SchedulerConfig {
    let batch_invariant = match flavor {
        Flavor::BatchInvariant => true,
        Flavor::Faults => chance(rng, 20),
        Flavor::Hybrid | Flavor::Windows => chance(rng, 25),
        Flavor::Plain | Flavor::Groups => false,
    };
    let page_size = [1, 2, 3, 4, 8][rng.usize(..5)];
    let pages = rng.u32(2..=160 / page_size);
    let host_pages = if chance(rng, 70) { rng.u32(..=pages * 2) } else { 0 };
    let mut groups = vec![GroupConfig { kind: GroupKind::Full, pages, host_pages }];
    let max_sequences = rng.u32(1..=6);
    if flavor == Flavor::Groups {
        let kind = GroupKind::Window { positions: rng.u32(1..=12) };
        if chance(rng, 80) {
            groups.push(GroupConfig { kind, pages: rng.u32(2..=40), host_pages });
        }
        if chance(rng, 50) {
            groups.push(GroupConfig {
                kind: GroupKind::Recurrent,
                pages: rng.u32(1..=max_sequences + 1),
                host_pages,
            });
        }
        if chance(rng, 30) {
            groups.push(GroupConfig::full(rng.u32(2..=pages.max(3))));
        }
    }
    let windows = flavor == Flavor::Windows || flavor == Flavor::Faults && chance(rng, 30);
    if windows {
        for _ in 0..if chance(rng, 10) { 2 } else { 1 } {
            let (widest, most) = ([6, 40][rng.usize(..2)], [12, 40, 160][rng.usize(..3)]);
            let kind = GroupKind::Window { positions: rng.u32(1..=widest) };
            // From too few for some contexts to more than all cached prefixes need.
            let pages = rng.u32(2..=most);
            groups.push(GroupConfig { kind, pages, host_pages });
        }
    }
    let hybrid = flavor == Flavor::Hybrid || flavor == Flavor::Faults && chance(rng, 30);
    if hybrid && !windows {
        // From too few for all slots to more than all snapshots need.
        let pages = if rng.bool() { rng.u32(1..=max_sequences + 2) } else { max_sequences + rng.u32(2..=40) };
        groups.push(GroupConfig { kind: GroupKind::Recurrent, pages, host_pages: host_pages.min(pages) });
    }
    SchedulerConfig {
        page_size,
        groups,
        max_sequences,
        buckets: vec![1, 2, 4, 8, 16, [24, 32, 48][rng.usize(..3)]],
        prefill_rows: rng.u32(1..=16).max(if batch_invariant { page_size } else { 1 }),
        prefill_rows_per_decode_row: rng.u32(0..=4),
        decode_rows_per_prompt: rng.u32(0..=4),
        prompt_outputs: rng.u32(1..=12).max(if batch_invariant { page_size } else { 1 }),
        reserve_pages: rng.u32(..=2),
        queue_limit: if chance(rng, 10) { rng.usize(1..=3) } else { 100 },
        aging: Duration::from_millis(rng.u64(1..=20)),
        tenant_spacing: Duration::from_millis(if chance(rng, 30) { 3 } else { 0 }),
        preemption: if rng.bool() { PreemptionMode::Swap } else { PreemptionMode::Recompute },
        prefix_cache: chance(rng, 85),
        snapshot_interval: page_size * rng.u32(1..=5),
        batch_invariant,
        ..SchedulerConfig::new(rng.u32(4..=64), rng.u32(20..=120), pages)
    }
}

fn draw_arrivals(config: &SchedulerConfig, rng: &mut Rng) -> Vec<Arrival> {
    let model = MockModel::new(config);
    let token = |rng: &mut Rng| rng.u32(..config.vocabulary);
    let capacity = config.context.min(config.groups[0].pages * config.page_size) as usize;
    let longest = rng.usize(1..=capacity);
    let bases: Vec<Vec<u32>> = (0..3).map(|_| (0..longest).map(|_| token(rng)).collect()).collect();
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut at = Duration::ZERO;
    for _ in 0..rng.usize(1..=24) {
        let mut prompt = bases[rng.usize(..3)][..rng.usize(..=longest) * rng.usize(..=4) / 4].to_vec();
        if chance(rng, 30) && !arrivals.is_empty() {
            // The next turn of a conversation.
            let earlier: &Arrival = &arrivals[rng.usize(..arrivals.len())];
            prompt = earlier.prompt.clone();
            prompt.extend(earlier.expected(&model, config.vocabulary, config.context));
        }
        prompt.extend((0..rng.usize(..=5)).map(|_| token(rng)));
        let stop_tokens = (0..rng.usize(..=2)).map(|_| token(rng)).collect();
        let sequences = if chance(rng, 20) { vec![vec![token(rng), token(rng)]] } else { Vec::new() };
        at += Duration::from_micros(if chance(rng, 40) { 0 } else { rng.u64(..=8000) });
        arrivals.push(Arrival {
            at,
            cancel_at: chance(rng, 15).then(|| at + Duration::from_micros(rng.u64(..40_000))),
            prompt,
            max_tokens: if chance(rng, 5) { u32::MAX } else { rng.u32(1..=30) },
            context: chance(rng, 10).then(|| rng.u32(2..=60)),
            timeout: chance(rng, 10).then(|| Duration::from_micros(rng.u64(..40_000))),
            priority: if chance(rng, 30) { rng.i8(-2..=3) } else { 0 },
            tenant: ["", "a"][usize::from(chance(rng, 25))].into(),
            seed: if chance(rng, 60) { 0 } else { rng.u64(..) },
            stop: Stop { tokens: stop_tokens, sequences },
            constrained: chance(rng, 15),
            use_prefix_cache: chance(rng, 90),
            prompt_logprobs: chance(rng, 20),
        });
    }
    arrivals
}

fn draw_faults(scenario: &mut Scenario, rng: &mut Rng) {
    let mut launches = BTreeMap::new();
    for _ in 0..rng.usize(..=6) {
        let error = match rng.u32(..20) {
            0 => LaunchError::Lost(DeviceLost("at a launch".to_owned())),
            1..3 => LaunchError::Failed("no".to_owned()),
            3..6 => LaunchError::Rejected { slot: rng.u32(..6), reason: "no such sampling".to_owned() },
            _ => LaunchError::OutOfMemory("no room".to_owned()),
        };
        launches.insert(rng.u64(..60), error);
    }
    scenario.faults = MockFaults {
        launches,
        lost_at: chance(rng, 15).then(|| rng.u64(..40)),
        max_rows: chance(rng, 20).then(|| rng.u32(1..=12)),
        row: chance(rng, 30).then(|| rng.u64(..60)),
        panic_at: None,
    };
    scenario.failing_allocations = (0..rng.usize(..=4)).map(|_| rng.u64(1..=25)).collect();
}
