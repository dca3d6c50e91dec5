//! The device of an engine that runs a model.

use std::collections::VecDeque;

use fulmen_core::{BackendError, NO_STATE, ReadTicket};
use fulmen_model::ModelError;
use fulmen_model::arch::Config;

use super::logit_edits::RowEdits;
use super::options::{EngineOptions, Slots, graph_spec};
use super::page_groups::KvPages;
use super::programs::{OutputNeeds, ProgramKey, ProgramModes, out_of_memory, warm_up_keys};
use super::ranks::Follower;
use super::reads::{LOG_PROBS_WIDTH, Reads};
use super::row_arrays::row_arrays;
use super::sampling::{KNOWN_TOKEN_BIAS, RowResults, SlotSampling, refused, sampled};
use super::stage::{DeviceStage, DrawnToken, StageRun, StageSizes};
use super::state_positions::{self, StatePositions};
use crate::Model;
use crate::driver::{StepDevice, Ticket};
use crate::error::{DeviceLost, LaunchError};
use crate::pages::{GroupConfig, GroupKind};
use crate::ranks::Workers;
use crate::scheduler::SchedulerConfig;
use crate::step::{LogitsRow, NextToken, Row, StepOutput, StepPlan, TableEdit};

/// A step whose results were not read.
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    logits: Vec<LogitsRow>,
    /// Where the tokens that it draws belong. Empty when the first of several devices has them.
    drawn_at: Vec<DrawnAt>,
    reads: Reads,
}

/// The place of a token that a step draws.
#[derive(Clone, Copy, Debug)]
struct DrawnAt {
    /// The output row.
    output: usize,
    slot: u32,
    position: u32,
}

/// Runs the steps of an engine on the devices of a model.
///
/// All memory is allocated when it is made: KV pages, page tables, histories, the arena of the largest
/// program. Programs are made when they are first needed. With several devices, the rows of a step run on one
/// after the other.
pub struct ModelDevice {
    pub(super) model: Model,
    slots: Slots,
    context: u32,
    vocabulary: u32,
    /// Output rows of a step at most.
    max_outputs: u32,
    /// One for each stage of the model's placement.
    stages: Vec<DeviceStage>,
    sampling: Vec<SlotSampling>,
    /// The pages of the slots' recurrent states, [`NO_STATE`] of inactive rows, and what they hold, if the
    /// model has some.
    state_of_slot: Vec<u32>,
    states: Option<StatePositions>,
    pub(super) pending: VecDeque<Pending>,
    launches: u64,
    /// Whether the last launch failed on a rank: the next one gets its transfers again.
    pub(super) launch_failed: bool,
    /// The programs that are made before they are needed.
    cold: VecDeque<ProgramKey>,
    /// The devices of the other ranks, if this is that of the first of its process.
    pub(super) followers: Option<Workers<Follower>>,
}

impl ModelDevice {
    /// A device for a model, and the configuration of the scheduler that it needs.
    pub fn open(
        model: &Model,
        options: &EngineOptions,
    ) -> Result<(SchedulerConfig, ModelDevice), ModelError> {
        let config = options.scheduler(model)?;
        let device = ModelDevice::new(model, options, &config)?;
        Ok((config, device))
    }

    /// A device with the pages, slots and buckets of a configuration of
    /// [`EngineOptions::scheduler`]: to replace one that was lost.
    pub fn new(
        model: &Model,
        options: &EngineOptions,
        config: &SchedulerConfig,
    ) -> Result<ModelDevice, ModelError> {
        let device = ModelDevice::on_rank(model, options, config);
        let mut device = device.map_err(|error| model.error_of_first_rank(error))?;
        device.followers = device.start_followers(options, config)?;
        Ok(device)
    }

    /// The device of one rank.
    pub(super) fn on_rank(
        model: &Model,
        options: &EngineOptions,
        config: &SchedulerConfig,
    ) -> Result<ModelDevice, ModelError> {
        let (slots, context, vocabulary) = (config.max_sequences, config.context, config.vocabulary);
        let Groups { full, window, states } = groups(model.config(), config)?;
        let slots = Slots::new(slots);
        let pages = KvPages { full: full.pages, window: window.map_or(0, |group| group.pages) };
        let spec = graph_spec(options.cache, slots, context, pages, states.map_or(0, |group| group.pages));
        let modes = ProgramModes { eager: options.eager, batch_invariant: config.batch_invariant };
        let (max_rows, max_outputs) = (config.max_rows(), config.max_outputs());
        let host_pages =
            [Some(full), window.or(states)].map(|group| group.map_or(0, |group| group.host_pages));
        let sizes = StageSizes { slots, context, vocabulary, max_rows, max_outputs, host_pages };
        let stages = 0..model.placement().stages().len();
        let mut device = ModelDevice {
            model: model.clone(),
            slots,
            context,
            vocabulary,
            max_outputs,
            stages: stages.map(|stage| DeviceStage::new(model, stage, spec, sizes, modes)).collect(),
            sampling: vec![SlotSampling::default(); slots.sequences as usize],
            state_of_slot: vec![NO_STATE; slots.all() as usize],
            states: states.map(|states| StatePositions::new(slots.sequences, states)),
            pending: VecDeque::new(),
            launches: 0,
            launch_failed: false,
            cold: VecDeque::new(),
            followers: None,
        };
        // On failure the device is dropped, which frees what was allocated.
        for stage in &mut device.stages {
            stage.allocate(model, &spec, options)?;
            if modes.batch_invariant {
                // Not every backend can: better an error now than one of each request.
                stage.make(model, ProgramKey::new(1, 1, 1, 1, OutputNeeds::NONE))?;
            }
        }
        // Other devices capture at the first use, and ranks capture together.
        let warm = options.warm_up && model.followers().is_none();
        if warm && !device.stages.iter().any(|stage| stage.captures_for_free(model)) {
            device.cold = warm_up_keys(config).into();
        }
        Ok(device)
    }

    /// Bytes of the KV pages of all layers; of several ranks, on rank 0.
    pub fn cache_bytes(&self) -> u64 {
        self.stages.iter().map(DeviceStage::cache_bytes).sum()
    }

    /// Programs that were made so far, on all devices of this rank. One that a step needs delays that step.
    pub fn programs_made(&self) -> u64 {
        self.stages.iter().map(DeviceStage::programs_made).sum()
    }

    /// What is wrong with a plan that this device cannot run.
    fn check(&self, plan: &StepPlan) -> Result<(), LaunchError> {
        let rows = &plan.rows;
        let sizes = [rows.tokens.len(), rows.positions.len(), rows.slots.len(), rows.sampling.len()];
        if sizes != [plan.bucket as usize; 4] || rows.active > plan.bucket {
            let active = rows.active;
            return Err(failed(format!("arrays of {sizes:?} for {active} rows of {}", plan.bucket)));
        }
        for row in rows.iter() {
            if row.slot >= self.slots.sequences || row.position >= self.context {
                return Err(failed(format!("{row:?} of {} slots of {}", self.slots.sequences, self.context)));
            }
        }
        if let Some(states) = &self.states {
            states.check(plan)?;
        }
        let outside = |setup: &&crate::step::SlotSetup| setup.history.len() > self.context as usize;
        if let Some(setup) = plan.prologue.slots.iter().find(outside) {
            let (slot, tokens) = (setup.slot, setup.history.len());
            let reason = format!("{tokens} tokens in a context of {}", self.context);
            return Err(LaunchError::Rejected { slot, reason });
        }
        if plan.logits.len() > self.max_outputs as usize {
            let (rows, most) = (plan.logits.len(), self.max_outputs);
            return Err(failed(format!("logits of {rows} rows; at most {most} of a step")));
        }
        for logits in &plan.logits {
            let Some(row) = rows.get(logits.row) else {
                return Err(failed(format!("logits of row {} of {}", logits.row, rows.active)));
            };
            let setups = plan.prologue.slots.iter().rev();
            let setup = setups.into_iter().find(|setup| setup.slot == row.slot);
            let sampling = setup.map(|setup| SlotSampling::new(&setup.sampling, self.vocabulary));
            let wrong = sampling.unwrap_or_else(|| self.sampling[row.slot as usize].clone()).refused;
            if let Some(reason) = wrong.or_else(|| refused(logits, self.vocabulary)) {
                return Err(LaunchError::Rejected { slot: row.slot, reason });
            }
        }
        Ok(())
    }

    /// The logit biases and token masks of the output rows, if a row has some.
    fn row_edits(&self, plan: &StepPlan) -> Option<Vec<RowEdits>> {
        let row_edits = |logits: &LogitsRow| {
            if let NextToken::Known(token) = logits.next {
                return RowEdits { biases: vec![(token, KNOWN_TOKEN_BIAS)], mask: None };
            }
            let slot = plan.rows.get(logits.row).map(|row| &self.sampling[row.slot as usize]);
            let biases = slot.map_or_else(Vec::new, |slot| slot.biases.clone());
            RowEdits { biases, mask: logits.mask.clone() }
        };
        let rows: Vec<RowEdits> = plan.logits.iter().map(row_edits).collect();
        rows.iter().any(|row| row.mask.is_some() || !row.biases.is_empty()).then_some(rows)
    }

    /// Starts a step. `again`: the last launch failed on this rank or another, and its transfers come again.
    pub(super) fn start(&mut self, plan: &StepPlan, again: bool) -> Result<Pending, ModelError> {
        if !again {
            self.stages.iter_mut().for_each(DeviceStage::new_transfers);
        }
        for setup in &plan.prologue.slots {
            if let Some(slot) = self.sampling.get_mut(setup.slot as usize) {
                *slot = SlotSampling::new(&setup.sampling, self.vocabulary);
            }
        }
        let places = || {
            let sampled = plan.logits.iter().enumerate().filter(|(_, row)| row.next == NextToken::Sample);
            sampled.filter_map(|(output, logits)| Some((output, plan.rows.get(logits.row)?)))
        };
        let edits = self.row_edits(plan);
        let states = places().map(|(_, row)| self.sampling[row.slot as usize].state(row.position));
        let needs = OutputNeeds {
            penalize: places().any(|(_, row)| self.sampling[row.slot as usize].penalizes()),
            edited: edits.is_some(),
            candidates: self.model.rank_config().candidates(states),
            log_probs: plan.logits.iter().any(|logits| logits.logprobs.is_some()),
            hidden: plan.logits.iter().any(|logits| logits.hidden),
        };
        let (mut chunks, outputs) = (plan.chunks.len() as u32, plan.logits.len() as u32);
        if self.stages.iter().any(|stage| stage.modes().batch_invariant) {
            // Decode rows run by the same kernels with chunks and without.
            chunks = chunks.max(1);
        }
        let sequences = self.slots.sequences;
        let most = if outputs > sequences { self.max_outputs } else { sequences };
        let key = ProgramKey::new(plan.bucket, chunks, outputs, most, needs);
        let model = self.model.clone();
        // First what needs memory, so that nothing has run if there is none.
        for stage in &mut self.stages {
            stage.make(&model, key)?;
        }
        self.append_drawn()?;
        for stage in &mut self.stages {
            stage.run_prologue(&model, &plan.prologue)?;
        }
        let of_states = |edit: &&TableEdit| self.states.is_some() && edit.group == state_positions::GROUP;
        for edit in plan.prologue.table.iter().filter(of_states) {
            if let Some(state) = self.state_of_slot.get_mut(edit.slot as usize) {
                *state = edit.page.map_or(NO_STATE, |page| page.0);
            }
        }
        let reads = self.run(plan, key, edits)?;
        self.launches += 1;
        let last = self.context.saturating_sub(1);
        let next = |position: u32| position.saturating_add(1).min(last);
        let place =
            |(output, row): (usize, Row)| DrawnAt { output, slot: row.slot, position: next(row.position) };
        let drawn_at = places().map(place).collect();
        Ok(Pending { ticket: Ticket(self.launches), logits: plan.logits.clone(), drawn_at, reads })
    }

    /// Runs the rows of a step on each device, and starts to read the results.
    fn run(
        &mut self,
        plan: &StepPlan,
        key: ProgramKey,
        mut edits: Option<Vec<RowEdits>>,
    ) -> Result<Reads, ModelError> {
        let ModelDevice { model, stages, sampling, slots, state_of_slot, .. } = self;
        let width = model.config().hidden as usize;
        let mut hidden: Option<Vec<u8>> = None;
        for stage in stages {
            let run = StageRun { key, hidden: hidden.as_deref(), edits: None };
            let arrays = |key| row_arrays(plan, key, *slots, state_of_slot, sampling);
            if stage.stage().is_last() {
                let (run, anything) = (StageRun { edits: edits.take(), ..run }, stage.table());
                return stage.run(model, run, arrays, |device, compiled| {
                    Reads::start(device, compiled, (key, plan.logits.len()), width, anything)
                });
            }
            let output = stage.run(model, run, arrays, |device, compiled| {
                device.start_read(compiled.stage_output, 4 * width * key.rows as usize)
            })?;
            hidden = Some(output.wait()?);
        }
        Err(ModelError::Without { what: "stage that computes results" })
    }

    /// With several devices: gives the first one the tokens that steps in flight have drawn, because it
    /// embeds them. A single device has them already.
    fn append_drawn(&mut self) -> Result<(), BackendError> {
        if self.stages.len() < 2 {
            return Ok(());
        }
        for pending in self.pending.iter_mut().filter(|pending| !pending.drawn_at.is_empty()) {
            let ticket = std::mem::replace(&mut pending.reads.drawn, ReadTicket::ready(Vec::new()));
            let drawn = ticket.wait()?;
            let tokens = drawn_tokens(&pending.drawn_at, &drawn);
            pending.reads.drawn = ReadTicket::ready(drawn);
            self.stages.iter().try_for_each(|stage| stage.append(&self.model, &tokens))?;
            pending.drawn_at.clear();
        }
        Ok(())
    }

    /// Waits for all devices of this rank.
    pub(super) fn synchronize_rank(&self) -> Result<(), BackendError> {
        let stages = 0..self.stages.len();
        stages.into_iter().try_for_each(|stage| self.model.with_stage(stage, |device| device.synchronize()))
    }

    fn take(&mut self, ticket: Ticket) -> Result<Pending, DeviceLost> {
        match self.pending.pop_front() {
            Some(pending) if pending.ticket == ticket => Ok(pending),
            other => {
                let oldest = other.map(|pending| pending.ticket);
                Err(DeviceLost(format!("{ticket:?} is waited for, the oldest step is {oldest:?}")))
            }
        }
    }

    /// Waits for the results of a step on this rank.
    pub(super) fn complete(&mut self, pending: Pending) -> Result<StepOutput, ModelError> {
        let Pending { logits, drawn_at, reads: Reads { drawn, beside }, .. } = pending;
        // Without the lock: other threads may use the device meanwhile.
        let drawn = drawn.wait()?;
        if self.stages.len() > 1 {
            let tokens = drawn_tokens(&drawn_at, &drawn);
            self.stages.iter().try_for_each(|stage| stage.append(&self.model, &tokens))?;
        }
        let mut results = [const { Vec::new() }; 3];
        for (result, read) in results.iter_mut().zip(beside) {
            if let Some(read) = read {
                *result = read.wait()?;
            }
        }
        self.finish(&logits, &drawn, results)
    }

    fn finish(
        &mut self,
        logits: &[LogitsRow],
        drawn: &[u8],
        beside: [Vec<u8>; 3],
    ) -> Result<StepOutput, ModelError> {
        self.stages.iter_mut().try_for_each(DeviceStage::settle)?;
        self.model.check_unchanged()?;
        let tokens: Vec<u32> = bytemuck::pod_collect_to_vec(drawn);
        if tokens.len() < logits.len() {
            // They were on their way when a launch failed.
            return Err(ModelError::Without { what: "drawn tokens any more" });
        }
        let [log_probs, log_prob_tokens, hidden] = beside;
        let log_probs: Vec<f32> = bytemuck::pod_collect_to_vec(&log_probs);
        let log_prob_tokens: Vec<u32> = bytemuck::pod_collect_to_vec(&log_prob_tokens);
        let hidden: Vec<f32> = bytemuck::pod_collect_to_vec(&hidden);
        let width = self.model.config().hidden as usize;
        let mut output = StepOutput::default();
        for (number, (row, &token)) in logits.iter().zip(&tokens).enumerate() {
            let results = RowResults {
                log_probs: row_of(&log_probs, number, LOG_PROBS_WIDTH),
                tokens: row_of(&log_prob_tokens, number, LOG_PROBS_WIDTH),
                hidden: row_of(&hidden, number, width),
            };
            output.sampled.push(sampled(row, token, results).unwrap_or_else(|fault| {
                output.faults.push(fault);
                crate::step::Sampled::token(token)
            }));
        }
        Ok(output)
    }
}

/// The groups of layers of a model.
struct Groups {
    full: GroupConfig,
    /// Of layers with a window, if they have pages of their own.
    window: Option<GroupConfig>,
    states: Option<GroupConfig>,
}

/// The groups of KV pages and of recurrent states that a model needs.
fn groups(model: &Config, config: &SchedulerConfig) -> Result<Groups, ModelError> {
    let kinds: Vec<GroupKind> = config.groups.iter().map(|group| group.kind).collect();
    let size = model.variant.window.map(|window| window.size);
    let expected = match (&config.groups[..], &kinds[..], model.delta_net) {
        (&[full], [GroupKind::Full], None) => return Ok(Groups { full, window: None, states: None }),
        (&[full, window], &[GroupKind::Full, GroupKind::Window { positions }], None)
            if size.is_some_and(|size| size <= positions) =>
        {
            return Ok(Groups { full, window: Some(window), states: None });
        }
        (&[full, states], [GroupKind::Full, GroupKind::Recurrent], Some(_)) => {
            return Ok(Groups { full, window: None, states: Some(states) });
        }
        (_, _, None) => match size {
            None => "one of full attention".to_owned(),
            Some(size) => format!("one of full attention, and perhaps one of a window of {size} positions"),
        },
        (_, _, Some(_)) => "one of full attention and one of recurrent states".to_owned(),
    };
    Err(ModelError::Option { what: "the groups of layers", expected, found: format!("{kinds:?}") })
}

/// The tokens that a step has drawn, with their slots and positions.
fn drawn_tokens(places: &[DrawnAt], drawn: &[u8]) -> Vec<DrawnToken> {
    let tokens: Vec<u32> = bytemuck::pod_collect_to_vec(drawn);
    let of = |&DrawnAt { output, slot, position }: &DrawnAt| {
        Some(DrawnToken { slot, position, token: *tokens.get(output)? })
    };
    places.iter().filter_map(of).collect()
}

/// A row of a matrix; empty if the matrix is.
fn row_of<T>(values: &[T], row: usize, width: usize) -> &[T] {
    values.get(row * width..(row + 1) * width).unwrap_or_default()
}

fn failed(reason: String) -> LaunchError {
    LaunchError::Failed(reason)
}

fn lost(error: impl std::fmt::Display) -> DeviceLost {
    DeviceLost(error.to_string())
}

impl StepDevice for ModelDevice {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        self.check(plan)?;
        let launched = self.launch_on_ranks(plan);
        if let Some(states) = &mut self.states {
            // Where memory is short, nothing has run.
            match &launched {
                Err(error) if out_of_memory(error) => {}
                launched => states.ran(plan, launched.is_ok()),
            }
        }
        match launched {
            Ok(ticket) => Ok(ticket),
            Err(error) if out_of_memory(&error) => Err(LaunchError::OutOfMemory(error.to_string())),
            // A device that is gone fails again.
            Err(error) => match self.synchronize_ranks() {
                Ok(()) => Err(failed(error.to_string())),
                Err(_) => Err(LaunchError::Lost(lost(error))),
            },
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        let pending = self.take(ticket)?;
        self.complete_on_ranks(pending).map_err(lost)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, DeviceLost> {
        let Some(pending) = self.pending.front_mut().filter(|pending| pending.ticket == ticket) else {
            return self.wait(ticket).map(Some);
        };
        // The tokens are read last: when they are there, so is the rest.
        match pending.reads.drawn.try_take() {
            None => Ok(None),
            Some(Err(error)) => Err(lost(error)),
            Some(Ok(bytes)) => {
                pending.reads.drawn = ReadTicket::ready(bytes);
                self.wait(ticket).map(Some)
            }
        }
    }

    /// Makes and captures a program. If one cannot be made, a step that needs it reports why.
    fn warm_up(&mut self) -> Result<bool, DeviceLost> {
        let Some(key) = self.cold.pop_front() else { return Ok(false) };
        let ModelDevice { model, stages, cold, .. } = self;
        let warmed = stages.iter_mut().map(|stage| stage.warm_up(model, key));
        let warmed: Result<Vec<bool>, ModelError> = warmed.collect();
        if !warmed.is_ok_and(|captured| captured.contains(&true)) {
            cold.clear();
        }
        Ok(!cold.is_empty())
    }
}

impl Drop for ModelDevice {
    fn drop(&mut self) {
        self.pending.clear();
        self.stages.iter_mut().for_each(|stage| stage.release(&self.model));
    }
}

impl std::fmt::Debug for ModelDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelDevice")
            .field("model", &self.model)
            .field("slots", &self.slots)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
