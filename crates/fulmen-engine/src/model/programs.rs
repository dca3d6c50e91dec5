//! The programs of buckets, bound to one arena and one block of rows.

use std::collections::HashMap;

use fulmen_core::sampling::MAX_TOP_LOGPROBS;
use fulmen_core::{Backend, BackendError, Bindings, BoundGraph, ExecError, Plan, ReplayId, timeline};
use fulmen_model::ModelError;
use fulmen_model::arch::{Beside, GraphSpec, Results, Stage, Step, names};

use super::row_block::RowBlock;
use crate::Model;
use crate::scheduler::SchedulerConfig;

/// Programs that are kept; the least recently used is dropped first. More than [`warm_up_keys`] has.
const MAX_PROGRAMS: usize = 352;

/// A program is captured when it is used for this time, unless capturing costs nothing.
const CAPTURE_AT: u64 = 2;

/// Prefill chunks of most steps. A step with more has a program for as many as it has rows.
const FEW_CHUNKS: u32 = 32;

/// What a program is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProgramKey {
    pub(super) rows: u32,
    /// The most prefill chunks; 0 for decode rows alone.
    pub(super) chunks: u32,
    /// Output rows; 0 for a step without results.
    pub(super) outputs: u32,
    pub(super) penalize: bool,
    /// Whether logits have biases or token masks.
    pub(super) edited: bool,
    /// How many of the most likely tokens rows draw from, where ranks make use of it.
    pub(super) candidates: Option<u32>,
    /// Whether log-probabilities and hidden states are outputs.
    pub(super) log_probs: bool,
    pub(super) hidden: bool,
}

/// What the output rows of a step need.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputNeeds {
    pub(super) penalize: bool,
    pub(super) edited: bool,
    /// Of all logits, if none of the others needs them all; see [`Results::Draw`].
    pub(super) candidates: Option<u32>,
    pub(super) log_probs: bool,
    pub(super) hidden: bool,
}

impl OutputNeeds {
    /// Everything: what takes the most memory.
    const ALL: OutputNeeds =
        OutputNeeds { penalize: true, edited: true, candidates: None, log_probs: true, hidden: true };
    pub(super) const NONE: OutputNeeds =
        OutputNeeds { penalize: false, edited: false, candidates: None, log_probs: false, hidden: false };
    /// One thing at a time.
    const ONE_EACH: [OutputNeeds; 4] = [
        OutputNeeds { penalize: true, ..OutputNeeds::NONE },
        OutputNeeds { edited: true, ..OutputNeeds::NONE },
        OutputNeeds { log_probs: true, ..OutputNeeds::NONE },
        OutputNeeds { hidden: true, ..OutputNeeds::NONE },
    ];
}

impl ProgramKey {
    /// The program for `rows` rows with `chunks` prefill chunks, of which `outputs` have results; no step
    /// like it has more than `max_outputs`. Decode rows alone have an output row each. A step with prefill
    /// chunks takes longer than its output rows, so that few programs are better than few rows: powers of
    /// four.
    pub(super) fn new(
        rows: u32,
        chunks: u32,
        outputs: u32,
        max_outputs: u32,
        needs: OutputNeeds,
    ) -> ProgramKey {
        let rounded = match (outputs, chunks) {
            (0, _) => 0,
            (wanted, 0) => wanted.next_power_of_two(),
            (wanted, _) => next_power_of_four(wanted),
        };
        let chunks = match chunks {
            0 => 0,
            1..=FEW_CHUNKS => FEW_CHUNKS.min(rows),
            _ => rows,
        };
        let outputs = rounded.min(rows).min(max_outputs.max(outputs));
        let needs = if outputs > 0 { needs } else { OutputNeeds::NONE };
        ProgramKey::exactly(rows, chunks, outputs, needs)
    }

    /// The key of a program without results: that of a stage that does not end with the last layer.
    fn without_outputs(self) -> ProgramKey {
        ProgramKey::exactly(self.rows, self.chunks, 0, OutputNeeds::NONE)
    }

    fn exactly(rows: u32, chunks: u32, outputs: u32, needs: OutputNeeds) -> ProgramKey {
        let OutputNeeds { penalize, edited, candidates, log_probs, hidden } = needs;
        let candidates = candidates.filter(|_| !penalize && !edited && !log_probs);
        ProgramKey { rows, chunks, outputs, penalize, edited, candidates, log_probs, hidden }
    }

    fn step(self) -> Step {
        let ProgramKey { rows, chunks, outputs, penalize, edited: mask, candidates, log_probs, hidden } =
            self;
        let beside = Beside { log_probs: log_probs.then_some(MAX_TOP_LOGPROBS), hidden };
        let draw = Results::Draw { penalize, mask, candidates, beside };
        let results = (outputs > 0).then_some((outputs, draw));
        Step::Mixed { rows, chunks, results }
    }
}

/// 1, 4, 16, …: the first that is not below `wanted`.
fn next_power_of_four(wanted: u32) -> u32 {
    let power = wanted.next_power_of_two();
    if power.trailing_zeros().is_multiple_of(2) { power } else { power.saturating_mul(2) }
}

/// The programs of steps with greedy or plainly sampled rows, those that single requests need first, and of
/// some steps with each of the other needs, so that their kernels are there.
pub(super) fn warm_up_keys(config: &SchedulerConfig) -> Vec<ProgramKey> {
    let (buckets, sequences) = (&config.buckets, config.max_sequences);
    let mut keys = Vec::new();
    let mut add = |rows: u32, chunks: u32, outputs: u32, needs: OutputNeeds| {
        let chunks = if config.batch_invariant { 1 } else { chunks };
        let key = ProgramKey::new(rows, chunks, outputs, sequences, needs);
        if outputs <= rows && !keys.contains(&key) {
            keys.push(key);
        }
    };
    let decode = buckets.iter().take_while(|&&rows| rows < config.bucket(sequences));
    let decode: Vec<u32> = decode.copied().chain([config.bucket(sequences)]).collect();
    buckets.iter().for_each(|&rows| add(rows, 1, 1, OutputNeeds::NONE));
    decode.iter().for_each(|&rows| add(rows, 0, rows.min(sequences), OutputNeeds::NONE));
    // The chunks of a long prompt but for the last.
    add(config.max_rows(), 1, 0, OutputNeeds::NONE);
    for needs in OutputNeeds::ONE_EACH {
        add(1, 0, 1, needs);
        add(config.bucket(sequences), 0, sequences, needs);
        add(config.max_rows(), 1, 1, needs);
    }
    let mut outputs = 4;
    while outputs < 4 * u64::from(sequences) {
        let least = outputs as u32 / 4 + 1;
        for &rows in buckets.iter().filter(|&&rows| rows >= least) {
            add(rows, 1, least, OutputNeeds::NONE);
        }
        outputs *= 4;
    }
    keys.truncate(MAX_PROGRAMS / 4 * 3);
    keys
}

/// How all programs of a device are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramModes {
    /// Whether programs are never captured.
    pub(super) eager: bool,
    /// Whether a row gets the same bits in any program.
    pub(super) batch_invariant: bool,
}

/// A program of a bucket.
pub(super) struct Compiled {
    bound: BoundGraph,
    own_arena: bool,
    pub(super) block: RowBlock,
    replay: Option<ReplayId>,
    /// Whether capturing was tried.
    captured: bool,
    /// Where the results lie.
    pub(super) drawn: u64,
    pub(super) log_probs: u64,
    pub(super) log_prob_tokens: u64,
    pub(super) hidden: u64,
    /// Where the hidden states come in and go out, if the program is that of one stage of several.
    pub(super) stage_input: u64,
    pub(super) stage_output: u64,
    uses: u64,
    last_use: u64,
}

impl Compiled {
    /// Runs it. Does not wait for the device.
    pub(super) fn run(&self, device: &mut dyn Backend) -> Result<(), ExecError> {
        match self.replay {
            Some(id) => drop(device.replay(id)?),
            None => drop(self.bound.run(device)?),
        }
        Ok(())
    }

    fn release(self, device: &mut dyn Backend) {
        if let Some(id) = self.replay {
            device.release(id);
        }
        // There is no caller to report an error to.
        let _ = match self.own_arena {
            true => self.bound.release(device),
            false => self.bound.release_calls(device),
        };
    }
}

/// The programs of a stage of a model.
pub(super) struct Programs {
    stage: Stage,
    /// That of any step, but for the step itself.
    spec: GraphSpec,
    /// Weights and states, but for the block of rows.
    bindings: Bindings,
    arena: (u64, usize),
    rows: (u64, usize),
    modes: ProgramModes,
    compiled: HashMap<ProgramKey, Compiled>,
    clock: u64,
    made: u64,
}

impl Programs {
    /// The bytes of the arena and of the block of rows that programs up to `max_rows` rows with up to
    /// `max_outputs` output rows need. `plan` is the memory plan of what the stage runs of a step.
    pub(super) fn memory(
        plan: impl Fn(&GraphSpec) -> Result<Plan, ModelError>,
        (stage, spec): (Stage, &GraphSpec),
        max_rows: u32,
        max_outputs: u32,
    ) -> Result<(usize, usize), ModelError> {
        let mut arena = 0;
        for key in [
            ProgramKey::exactly(max_rows, 1, max_outputs, OutputNeeds::ALL),
            ProgramKey::exactly(max_outputs, 0, max_outputs, OutputNeeds::ALL),
        ] {
            arena = arena.max(plan(&GraphSpec { step: key.step(), ..*spec }.on(stage))?.arena_bytes);
        }
        Ok((arena.max(1), RowBlock::new(max_rows, max_rows, max_outputs).bytes()))
    }

    /// The key of the program that the stage runs of a step.
    pub(super) fn key(&self, key: ProgramKey) -> ProgramKey {
        if self.stage.is_last() { key } else { key.without_outputs() }
    }

    pub(super) fn new(
        (stage, spec): (Stage, GraphSpec),
        bindings: Bindings,
        arena: (u64, usize),
        rows: (u64, usize),
        modes: ProgramModes,
    ) -> Programs {
        Programs { stage, spec, bindings, arena, rows, modes, compiled: HashMap::new(), clock: 0, made: 0 }
    }

    /// How programs are made.
    pub(super) fn modes(&self) -> ProgramModes {
        self.modes
    }

    /// The stage that they are for.
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// KV pages of the pools: of all layers or those without a window, and of those with one.
    pub(super) fn pages(&self) -> [u32; 2] {
        [self.spec.pages, self.spec.window_pages]
    }

    /// Where the rows of programs lie.
    pub(super) fn rows_ptr(&self) -> u64 {
        self.rows.0
    }

    /// Makes the program of a key, unless it is kept.
    pub(super) fn make(
        &mut self,
        model: &Model,
        device: &mut dyn Backend,
        key: ProgramKey,
    ) -> Result<(), ModelError> {
        self.clock += 1;
        if !self.compiled.contains_key(&key) {
            if self.compiled.len() >= MAX_PROGRAMS {
                self.drop_oldest(device);
            }
            let mut built = self.build(model, device, key);
            if is_out_of_memory(&built) && !self.compiled.is_empty() {
                self.release(device);
                built = self.build(model, device, key);
            }
            self.compiled.insert(key, built?);
            self.made += 1;
        }
        let (clock, eager) = (self.clock, self.modes.eager);
        let Some(compiled) = self.compiled.get_mut(&key) else { return Ok(()) };
        (compiled.uses, compiled.last_use) = (compiled.uses + 1, clock);
        if !compiled.captured && !eager && (compiled.uses >= CAPTURE_AT || device.captures_for_free()) {
            compiled.captured = true;
            let program = compiled.bound.program();
            compiled.replay = timeline::span("capture a step", || device.prepare(program))?;
        }
        Ok(())
    }

    /// Makes and captures the program of a key before its first use. `false` if the device captures nothing.
    pub(super) fn warm_up(
        &mut self,
        model: &Model,
        device: &mut dyn Backend,
        key: ProgramKey,
    ) -> Result<bool, ModelError> {
        while !self.compiled.get(&key).is_some_and(|compiled| compiled.captured) && !self.modes.eager {
            self.make(model, device, key)?;
        }
        Ok(self.compiled.get(&key).is_some_and(|compiled| compiled.replay.is_some()))
    }

    /// Programs that were made so far.
    pub(super) fn made_so_far(&self) -> u64 {
        self.made
    }

    /// A program that [`make`](Programs::make) has made.
    pub(super) fn made(&self, key: ProgramKey) -> Result<&Compiled, ModelError> {
        self.compiled.get(&key).ok_or(ModelError::Without { what: "program for the bucket" })
    }

    fn build(
        &self,
        model: &Model,
        device: &mut dyn Backend,
        key: ProgramKey,
    ) -> Result<Compiled, ModelError> {
        let block = RowBlock::new(key.rows, key.chunks, key.outputs);
        let plan = model.plan(&GraphSpec { step: key.step(), ..self.spec }.on(self.stage))?;
        let plan = Plan { batch_invariant: self.modes.batch_invariant, ..plan };
        if block.bytes() > self.rows.1 {
            let (needed, available) = (block.bytes() as u64, Some(self.rows.1 as u64));
            return Err(BackendError::OutOfMemory { needed, available }.into());
        }
        let mut bindings = self.bindings.clone();
        block.bind(self.rows.0, &mut bindings);
        // Fewer rows may be packed less well.
        let own_arena = plan.arena_bytes > self.arena.1;
        let bound = timeline::span("bind a step", || match own_arena {
            true => plan.bind(device, &bindings),
            false => plan.bind_at(self.arena.0, &bindings).and_then(|mut bound| {
                bound.plan_calls(device)?;
                Ok(bound)
            }),
        })?;
        let address = |name| bound.find(name).map_or(0, |tensor| bound.address(tensor));
        let outputs = [names::DRAWN, names::LOG_PROBS, names::LOG_PROB_TOKENS, names::HIDDEN];
        let [drawn, log_probs, log_prob_tokens, hidden] = outputs.map(address);
        let [stage_input, stage_output] = [names::STAGE_INPUT, names::STAGE_OUTPUT].map(address);
        Ok(Compiled {
            bound,
            own_arena,
            block,
            replay: None,
            captured: false,
            drawn,
            log_probs,
            log_prob_tokens,
            hidden,
            stage_input,
            stage_output,
            uses: 0,
            last_use: 0,
        })
    }

    fn drop_oldest(&mut self, device: &mut dyn Backend) {
        let oldest = self.compiled.iter().min_by_key(|(_, compiled)| compiled.last_use).map(|(&key, _)| key);
        if let Some(compiled) = oldest.and_then(|key| self.compiled.remove(&key)) {
            compiled.release(device);
        }
    }

    /// Releases every program.
    pub(super) fn release(&mut self, device: &mut dyn Backend) {
        self.compiled.drain().for_each(|(_, compiled)| compiled.release(device));
    }
}

fn is_out_of_memory(built: &Result<Compiled, ModelError>) -> bool {
    matches!(built, Err(error) if out_of_memory(error))
}

/// Whether an error says that memory is short.
pub(super) fn out_of_memory(error: &ModelError) -> bool {
    use BackendError::OutOfMemory;
    if let ModelError::Rank { source, .. } = error {
        return out_of_memory(source);
    }
    matches!(
        error,
        ModelError::Backend(OutOfMemory { .. })
            | ModelError::Exec(
                ExecError::Backend(OutOfMemory { .. }) | ExecError::Node { source: OutOfMemory { .. }, .. }
            )
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::mock::MockDevice;
    use crate::step::{StepOutput, StepPlan};
    use crate::{DeviceLost, Driver, LaunchError, Progress, Request, RequestId, StepDevice, Ticket};

    /// A device that notes which programs a model would need.
    struct Noting {
        device: MockDevice,
        sequences: u32,
        batch_invariant: bool,
        keys: HashSet<ProgramKey>,
    }

    impl StepDevice for Noting {
        fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
            let chunks = (plan.chunks.len() as u32).max(self.batch_invariant.into());
            let (outputs, needs) = (plan.logits.len() as u32, OutputNeeds::NONE);
            self.keys.insert(ProgramKey::new(plan.bucket, chunks, outputs, self.sequences, needs));
            self.device.launch(plan)
        }

        fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
            self.device.wait(ticket)
        }
    }

    /// The programs of a load of random requests, with up to `sequences` of them at a time.
    fn used(config: &SchedulerConfig, seed: u64) -> HashSet<ProgramKey> {
        let sequences = config.max_sequences;
        let (device, keys) = (MockDevice::new(config), HashSet::new());
        let noting = Noting { device, sequences, batch_invariant: config.batch_invariant, keys };
        let mut driver = Driver::new(config.clone(), noting).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut sent, mut step) = (0, Duration::ZERO);
        while sent < 6 * sequences || driver.scheduler().unfinished() > 0 {
            let wanted = rng.u32(1..=sequences) as usize;
            while sent < 6 * sequences && driver.scheduler().unfinished() < wanted {
                let prompt = (0..rng.usize(64..900)).map(|_| rng.u32(..100)).collect();
                let _: RequestId = driver.submit(Request::new(prompt, rng.u32(1..80)), step).unwrap();
                sent += 1;
            }
            step += Duration::from_millis(1);
            assert_ne!(driver.step(step), Progress::Lost);
            driver.take_events();
        }
        driver.device().unwrap().keys.clone()
    }

    #[test]
    fn an_idle_engine_makes_the_programs_that_loads_need() {
        for (sequences, batch_invariant) in [(1, false), (16, false), (64, false), (100, true), (256, false)]
        {
            let rows = if batch_invariant { 512 } else { 2048 };
            let config = SchedulerConfig {
                max_sequences: sequences,
                buckets: super::super::options::buckets(rows, 132),
                prefill_rows: 410,
                prefill_rows_per_decode_row: 4,
                decode_rows_per_prompt: 4,
                batch_invariant,
                ..SchedulerConfig::new(100, 2048, 16 * sequences)
            };
            let made = warm_up_keys(&config);
            let distinct: HashSet<ProgramKey> = made.iter().copied().collect();
            assert!(distinct.len() == made.len() && made.len() < MAX_PROGRAMS, "{}", made.len());
            for seed in 0..3 {
                let missing: Vec<ProgramKey> = used(&config, seed).difference(&distinct).copied().collect();
                assert!(missing.is_empty(), "{sequences} sequences, seed {seed}: {missing:?}");
            }
        }
    }

    #[test]
    fn steps_with_prefill_chunks_have_powers_of_four_of_output_rows() {
        let outputs =
            |rows, chunks, outputs| ProgramKey::new(rows, chunks, outputs, 100, OutputNeeds::NONE).outputs;
        assert_eq!(
            [1, 2, 4, 5, 16, 17, 64, 65, 100].map(|wanted| outputs(512, 3, wanted)),
            [1, 4, 4, 16, 16, 64, 64, 100, 100]
        );
        assert_eq!([1, 3, 33].map(|wanted| outputs(40, 0, wanted)), [1, 4, 40]);
        assert_eq!((outputs(512, 3, 0), outputs(2, 1, 2)), (0, 2));
    }
}
