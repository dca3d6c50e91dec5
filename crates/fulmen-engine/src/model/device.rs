//! The device of an engine that runs a model.

use std::collections::VecDeque;

use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_core::{
    Backend, BackendError, KV_PAGE, NO_PAGE, PrefillChunk, ReadTicket, attention_work, pages_of,
};
use fulmen_model::arch::{GraphSpec, Step, names};
use fulmen_model::{Model, ModelError};

use super::logit_edits::{EditBuffers, RowEdits};
use super::options::{EngineOptions, pool};
use super::programs::{Compiled, ProgramKey, Programs, out_of_memory};
use super::row_block::RowArrays;
use super::sampling::{SlotSampling, refused, sampled};
use super::transfers::{HostPages, LayerPool};
use crate::driver::{StepDevice, Ticket};
use crate::error::{DeviceLost, LaunchError};
use crate::scheduler::SchedulerConfig;
use crate::step::{LogitsRow, NO_SLOT, Prologue, StepOutput, StepPlan, TableEdit};

/// A step whose results were not read.
struct Pending {
    ticket: Ticket,
    logits: Vec<LogitsRow>,
    /// The drawn tokens; a word that nobody looks at if there are none.
    drawn: ReadTicket,
    /// Where log-probabilities are wanted: the logits of the rows with these numbers.
    reads: Vec<(usize, ReadTicket)>,
}

/// Runs the steps of an engine on the device of a model.
///
/// All memory is allocated when it is made: KV pages, page tables, histories, the arena of the largest
/// program. Programs are made when they are first needed.
pub struct ModelDevice {
    model: Model,
    /// Slots of sequences. One more is that of inactive rows.
    slots: u32,
    context: u32,
    vocabulary: u32,
    allocations: Vec<u64>,
    layers: Vec<LayerPool>,
    history: u64,
    table: u64,
    /// The page table as the device has it, and its columns.
    pages: Vec<u32>,
    columns: usize,
    host: HostPages,
    sampling: Vec<SlotSampling>,
    edits: EditBuffers,
    programs: Programs,
    pending: VecDeque<Pending>,
    launches: u64,
    batch_invariant: bool,
    /// Transfers of a failed launch that have run, so that the next launch, which gets them again, leaves
    /// them out.
    transferred: usize,
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
        let (slots, context) = (config.max_sequences, config.context);
        let [group] = config.groups[..] else {
            let found = format!("{} groups", config.groups.len());
            let (what, expected) = ("the groups of layers", "one of full attention".to_owned());
            return Err(ModelError::Option { what, expected, found });
        };
        // The last page is that of inactive rows.
        let spec = GraphSpec {
            step: Step::Mixed { rows: 1, chunks: 0, results: None },
            cache: options.cache,
            sequences: slots.saturating_add(1),
            capacity: context,
            pages: group.pages.saturating_add(1),
        };
        let mut device = ModelDevice {
            model: model.clone(),
            slots,
            context,
            vocabulary: config.vocabulary,
            allocations: Vec::new(),
            layers: Vec::new(),
            history: 0,
            table: 0,
            pages: vec![NO_PAGE; (slots as usize + 1) * pages_of(context) as usize],
            columns: pages_of(context) as usize,
            host: HostPages::new(group.host_pages),
            sampling: vec![SlotSampling::default(); slots as usize],
            edits: EditBuffers::default(),
            programs: Programs::new(spec, model.weights().clone(), (0, 0), (0, 0), options.eager),
            pending: VecDeque::new(),
            launches: 0,
            batch_invariant: config.batch_invariant,
            transferred: 0,
        };
        device.check_invariance()?;
        // On failure the device is dropped, which frees what was allocated.
        device.allocate(&spec, config.max_rows(), options)?;
        Ok(device)
    }

    /// Fails if rows should have the same bits in any batch, and the backend cannot do that.
    fn check_invariance(&self) -> Result<(), ModelError> {
        let (invariant, backend) = self.model.with_device(|device| {
            let invariant = !self.batch_invariant || device.set_batch_invariant(true);
            device.set_batch_invariant(false);
            (invariant, device.backend())
        });
        if invariant {
            return Ok(());
        }
        Err(ModelError::Option {
            what: "batch_invariant",
            expected: "a device with batch-invariant kernels".to_owned(),
            found: format!("{backend}, which has none"),
        })
    }

    fn allocate(
        &mut self,
        spec: &GraphSpec,
        max_rows: u32,
        options: &EngineOptions,
    ) -> Result<(), ModelError> {
        let model = self.model.clone();
        let layouts = pool(model.config(), options.cache)?.layers;
        let max_outputs = self.slots.min(max_rows);
        let (arena, rows) = Programs::memory(&model, spec, max_rows, max_outputs)?;
        let [edits, masks] = EditBuffers::bytes(max_outputs.next_power_of_two(), self.vocabulary);
        let mut bindings = model.weights().clone();
        let inactive = self.pages.len() - self.columns;
        self.pages[inactive] = spec.pages - 1;
        model.with_device(|device| {
            let mut alloc = |device: &mut dyn Backend, bytes: usize| {
                let ptr = device.alloc(bytes.max(1))?;
                self.allocations.push(ptr);
                Ok::<u64, BackendError>(ptr)
            };
            for (number, layout) in (0..).zip(layouts) {
                let bytes = layout.bytes().saturating_mul(spec.pages as usize);
                let (k, v) = (alloc(device, bytes)?, alloc(device, bytes)?);
                let name = names::cache(number);
                bindings.set(&format!("{name}.k"), k);
                bindings.set(&format!("{name}.v"), v);
                self.layers.push(LayerPool { k, v, layout });
            }
            self.table = alloc(device, 4 * self.pages.len())?;
            let line = 4 * self.context as usize;
            self.history = alloc(device, line * spec.sequences as usize)?;
            let (arena, rows) = ((alloc(device, arena)?, arena), (alloc(device, rows)?, rows));
            self.edits = EditBuffers::new([alloc(device, edits)?, alloc(device, masks)?], self.vocabulary);
            device.write(self.table, bytemuck::cast_slice(&self.pages))?;
            // Inactive rows embed token 0.
            device.write(self.history + (line * self.slots as usize) as u64, &vec![0; line])?;
            bindings.set(names::PAGES, self.table);
            bindings.set(names::HISTORY, self.history);
            self.edits.bind(&mut bindings);
            self.programs = Programs::new(*spec, bindings, arena, rows, options.eager);
            Ok(())
        })
    }

    /// Bytes of the KV pages of all layers.
    pub fn cache_bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| 2 * layer.layout.bytes() as u64);
        layers.sum::<u64>() * u64::from(self.programs.pages())
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
            if row.slot >= self.slots || row.position >= self.context {
                return Err(failed(format!("{row:?} of {} slots of {}", self.slots, self.context)));
            }
        }
        let outside = |setup: &&crate::step::SlotSetup| setup.history.len() > self.context as usize;
        if let Some(setup) = plan.prologue.slots.iter().find(outside) {
            let (slot, tokens) = (setup.slot, setup.history.len());
            let reason = format!("{tokens} tokens in a context of {}", self.context);
            return Err(LaunchError::Rejected { slot, reason });
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

    fn run_prologue(&mut self, device: &mut dyn Backend, prologue: &Prologue) -> Result<(), BackendError> {
        for &transfer in prologue.transfers.iter().skip(self.transferred) {
            self.host.run(device, &self.layers, transfer)?;
            self.transferred += 1;
        }
        for setup in &prologue.slots {
            let line = u64::from(setup.slot) * u64::from(self.context);
            device.write(self.history + 4 * line, bytemuck::cast_slice(&setup.history))?;
        }
        self.edit_table(device, &prologue.table)
    }

    /// Changes page tables: one write from the first to the last change of each slot.
    fn edit_table(&mut self, device: &mut dyn Backend, edits: &[TableEdit]) -> Result<(), BackendError> {
        let mut changed: Vec<usize> = Vec::with_capacity(edits.len());
        for edit in edits {
            let (column, value) = (edit.index as usize, edit.slot);
            if edit.slot >= self.slots || column >= self.columns {
                let limit = self.slots;
                return Err(BackendError::Index { what: "the slot of a page", row: column, value, limit });
            }
            let at = edit.slot as usize * self.columns + column;
            self.pages[at] = edit.page.0;
            changed.push(at);
        }
        changed.sort_unstable();
        for run in changed.chunk_by(|a, b| a / self.columns == b / self.columns) {
            let (Some(&first), Some(&last)) = (run.first(), run.last()) else { continue };
            let words = &self.pages[first..=last];
            device.write(self.table + 4 * first as u64, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }

    /// The arrays of a step for a program of `key`.
    fn arrays(&self, plan: &StepPlan, key: ProgramKey) -> Result<RowArrays, ModelError> {
        // Inactive rows are those of a slot of their own. They are in no chunk, so that attention leaves them
        // out; in a step without chunks they are like decode rows.
        let rows = || (0..).zip(&plan.rows.slots);
        let place = |(row, &slot): (u32, &u32)| match slot {
            NO_SLOT => (row.wrapping_sub(plan.rows.active) % KV_PAGE, self.slots),
            slot => (plan.rows.positions[row as usize], slot),
        };
        let mut arrays = RowArrays {
            positions: rows().map(|row| place(row).0).collect(),
            slots: rows().map(|row| place(row).1).collect(),
            work: work_list(plan, key.chunks)?,
            ..RowArrays::default()
        };
        for logits in plan.logits.iter().filter_map(|logits| plan.rows.get(logits.row).zip(Some(logits.row)))
        {
            let (row, number) = logits;
            let sampling = &self.sampling[row.slot as usize];
            arrays.output_rows.push(number);
            arrays.output_positions.push(row.position);
            arrays.output_slots.push(row.slot);
            arrays.sampling.push(sampling.state(row.position));
            arrays.penalties.push(sampling.penalties());
        }
        let outputs = key.outputs as usize;
        arrays.output_rows.resize(outputs, 0);
        arrays.output_positions.resize(outputs, 0);
        arrays.output_slots.resize(outputs, self.slots);
        arrays.sampling.resize(outputs, SampleState::greedy());
        arrays.penalties.resize(outputs, Penalties::NONE);
        Ok(arrays)
    }

    /// The logit biases and token masks of the output rows, if a row has some.
    fn row_edits(&self, plan: &StepPlan) -> Option<Vec<RowEdits>> {
        let row_edits = |logits: &LogitsRow| {
            let slot = plan.rows.get(logits.row).map(|row| &self.sampling[row.slot as usize]);
            let biases = slot.map_or_else(Vec::new, |slot| slot.biases.clone());
            RowEdits { biases, mask: logits.mask.clone() }
        };
        let rows: Vec<RowEdits> = plan.logits.iter().map(row_edits).collect();
        rows.iter().any(|row| row.mask.is_some() || !row.biases.is_empty()).then_some(rows)
    }

    fn start(&mut self, device: &mut dyn Backend, plan: &StepPlan) -> Result<Pending, ModelError> {
        for setup in &plan.prologue.slots {
            if let Some(slot) = self.sampling.get_mut(setup.slot as usize) {
                *slot = SlotSampling::new(&setup.sampling, self.vocabulary);
            }
        }
        let slots = plan.logits.iter().filter_map(|logits| plan.rows.get(logits.row));
        let penalize = slots.into_iter().any(|row| self.sampling[row.slot as usize].penalizes());
        let edits = self.row_edits(plan);
        let (chunks, outputs) = (plan.chunks.len() as u32, plan.logits.len() as u32);
        let key = ProgramKey::new(plan.bucket, chunks, outputs, penalize, edits.is_some());
        let model = self.model.clone();
        // First what needs memory, so that nothing has run if there is none.
        self.programs.make(&model, device, key)?;
        self.run_prologue(device, &plan.prologue)?;
        let arrays = self.arrays(plan, key)?;
        let rows = self.programs.rows_ptr();
        let compiled = self.programs.made(key)?;
        device.write(rows, &compiled.block.pack(&arrays))?;
        if let Some(mut edits) = edits {
            edits.resize(key.outputs as usize, RowEdits::default());
            self.edits.write(device, &edits)?;
        }
        compiled.run(device)?;
        let (drawn, reads) = start_reads(device, compiled, plan, self.vocabulary, self.history)?;
        self.transferred = 0;
        self.launches += 1;
        Ok(Pending { ticket: Ticket(self.launches), logits: plan.logits.clone(), drawn, reads })
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

    fn finish(
        &mut self,
        logits: &[LogitsRow],
        drawn: &[u8],
        rows: Vec<(usize, Vec<u8>)>,
    ) -> Result<StepOutput, ModelError> {
        self.host.settle()?;
        self.model.check_unchanged()?;
        let tokens: Vec<u32> = bytemuck::pod_collect_to_vec(drawn);
        let mut rows = rows.into_iter().peekable();
        let mut output = StepOutput::default();
        for (number, (row, &token)) in logits.iter().zip(&tokens).enumerate() {
            let values = rows.next_if(|(at, _)| *at == number);
            let values: Option<Vec<f32>> = values.map(|(_, bytes)| bytemuck::pod_collect_to_vec(&bytes));
            output.sampled.push(sampled(row, token, values.as_deref()).unwrap_or_else(|fault| {
                output.faults.push(fault);
                crate::step::Sampled::token(token)
            }));
        }
        Ok(output)
    }
}

/// Which rows decode and which are prefill chunks, for a program of up to `max_chunks` of them.
fn work_list(plan: &StepPlan, max_chunks: u32) -> Result<Vec<u32>, ModelError> {
    let chunk = |chunk: &crate::step::PrefillChunk| PrefillChunk {
        first_row: chunk.rows.start,
        rows: chunk.rows.end.saturating_sub(chunk.rows.start),
        sequence: chunk.slot,
        first_position: chunk.position,
    };
    let chunks: Vec<PrefillChunk> = plan.chunks.iter().map(chunk).collect();
    attention_work(plan.decode_rows, &chunks, max_chunks).map_err(|problem| ModelError::Option {
        what: "the prefill chunks of a step",
        expected: format!("at most {max_chunks} in order"),
        found: problem.to_string(),
    })
}

/// Starts to read the drawn tokens, and the logits of rows with log-probabilities.
fn start_reads(
    device: &mut dyn Backend,
    compiled: &Compiled,
    plan: &StepPlan,
    vocabulary: u32,
    history: u64,
) -> Result<(ReadTicket, Vec<(usize, ReadTicket)>), BackendError> {
    if plan.logits.is_empty() {
        // A step without results: a word that arrives when it is done.
        return Ok((device.start_read(history, 4)?, Vec::new()));
    }
    let row_bytes = 4 * vocabulary as usize;
    let mut reads = Vec::new();
    for (number, _) in plan.logits.iter().enumerate().filter(|(_, logits)| logits.logprobs.is_some()) {
        let at = compiled.logits + (number * row_bytes) as u64;
        reads.push((number, device.start_read(at, row_bytes)?));
    }
    Ok((device.start_read(compiled.drawn, 4 * plan.logits.len())?, reads))
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
        let model = self.model.clone();
        let started = model.with_device(|device| {
            if self.batch_invariant {
                device.set_batch_invariant(true);
            }
            let started = self.start(device, plan);
            // Sessions of the model may use the device next.
            if self.batch_invariant {
                device.set_batch_invariant(false);
            }
            started
        });
        match started {
            Ok(pending) => {
                let ticket = pending.ticket;
                self.pending.push_back(pending);
                Ok(ticket)
            }
            Err(error) if out_of_memory(&error) => Err(LaunchError::OutOfMemory(error.to_string())),
            // A device that is gone fails again.
            Err(error) => match self.model.with_device(|device| device.synchronize()) {
                Ok(()) => Err(failed(error.to_string())),
                Err(_) => Err(LaunchError::Lost(lost(error))),
            },
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        let Pending { logits, drawn, reads, .. } = self.take(ticket)?;
        // Without the lock: other threads may use the device meanwhile.
        let drawn = drawn.wait().map_err(lost)?;
        let rows = reads.into_iter().map(|(number, read)| Ok((number, read.wait()?)));
        let rows: Vec<_> = rows.collect::<Result<_, BackendError>>().map_err(lost)?;
        self.finish(&logits, &drawn, rows).map_err(lost)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, DeviceLost> {
        let Some(pending) = self.pending.front_mut().filter(|pending| pending.ticket == ticket) else {
            return self.wait(ticket).map(Some);
        };
        // The tokens are read last: when they are there, so are the logits.
        match pending.drawn.try_take() {
            None => Ok(None),
            Some(Err(error)) => Err(lost(error)),
            Some(Ok(bytes)) => {
                pending.drawn = ReadTicket::ready(bytes);
                self.wait(ticket).map(Some)
            }
        }
    }
}

impl Drop for ModelDevice {
    fn drop(&mut self) {
        self.pending.clear();
        let model = self.model.clone();
        model.with_device(|device| {
            self.programs.release(device);
            for ptr in self.allocations.drain(..) {
                // There is no caller to report an error to.
                let _ = device.free(ptr);
            }
        });
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
