//! The programs of buckets, bound to one arena and one block of rows.

use std::collections::HashMap;

use fulmen_core::sampling::MAX_TOP_LOGPROBS;
use fulmen_core::{Backend, BackendError, Bindings, BoundGraph, ExecError, Plan, ReplayId, timeline};
use fulmen_model::ModelError;
use fulmen_model::arch::{Beside, GraphSpec, Results, Stage, Step, names};

use super::row_block::RowBlock;
use crate::Model;

/// Programs that are kept; the least recently used is dropped first.
const MAX_PROGRAMS: usize = 96;

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
    /// Whether log-probabilities and hidden states are outputs.
    pub(super) log_probs: bool,
    pub(super) hidden: bool,
}

/// What the output rows of a step need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutputNeeds {
    pub(super) penalize: bool,
    pub(super) edited: bool,
    pub(super) log_probs: bool,
    pub(super) hidden: bool,
}

impl OutputNeeds {
    /// Everything: what takes the most memory.
    const ALL: OutputNeeds = OutputNeeds { penalize: true, edited: true, log_probs: true, hidden: true };
}

impl ProgramKey {
    /// The program for `rows` rows, `chunks` of them prefill chunks, of which `outputs` have results: at most
    /// twice as many output rows.
    pub(super) fn new(rows: u32, chunks: u32, outputs: u32, needs: OutputNeeds) -> ProgramKey {
        let chunks = match chunks {
            0 => 0,
            1..=FEW_CHUNKS => FEW_CHUNKS.min(rows),
            _ => rows,
        };
        let outputs = match outputs {
            0 => 0,
            wanted => wanted.next_power_of_two().min(rows),
        };
        let needs = if outputs > 0 { needs } else { OutputNeeds::default() };
        ProgramKey::exactly(rows, chunks, outputs, needs)
    }

    /// The key of a program without results: that of a stage that does not end with the last layer.
    fn without_outputs(self) -> ProgramKey {
        ProgramKey::exactly(self.rows, self.chunks, 0, OutputNeeds::default())
    }

    fn exactly(rows: u32, chunks: u32, outputs: u32, needs: OutputNeeds) -> ProgramKey {
        let OutputNeeds { penalize, edited, log_probs, hidden } = needs;
        ProgramKey { rows, chunks, outputs, penalize, edited, log_probs, hidden }
    }

    fn step(self) -> Step {
        let ProgramKey { rows, chunks, outputs, penalize, edited: mask, log_probs, hidden } = self;
        let beside = Beside { log_probs: log_probs.then_some(MAX_TOP_LOGPROBS), hidden };
        let results = (outputs > 0).then_some((outputs, Results::Draw { penalize, mask, beside }));
        Step::Mixed { rows, chunks, results }
    }
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
        Programs { stage, spec, bindings, arena, rows, modes, compiled: HashMap::new(), clock: 0 }
    }

    /// How programs are made.
    pub(super) fn modes(&self) -> ProgramModes {
        self.modes
    }

    /// The stage that they are for.
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// KV pages of the pool.
    pub(super) fn pages(&self) -> u32 {
        self.spec.pages
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
