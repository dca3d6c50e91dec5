//! The part of an engine's device that lies on one device of the model: the KV pages of its layers, a page
//! table for each group of them, and the programs that run them.
//!
//! All stages have the same page numbers and page tables; each has its own pools. The first one needs
//! the history, to embed tokens, and so does the last one, which draws them.

use fulmen_core::sampling::NO_TOKEN;
use fulmen_core::{Backend, BackendError, pages_of};
use fulmen_model::ModelError;
use fulmen_model::arch::{GraphSpec, Stage, names};

use super::logit_edits::{EditBuffers, RowEdits};
use super::options::{EngineOptions, Slots};
use super::page_groups::layout;
use super::page_table::PageTable;
use super::programs::{Compiled, ProgramKey, ProgramModes, Programs};
use super::row_block::RowArrays;
use super::transfers::{HostPages, Pool};
use crate::Model;
use crate::step::Prologue;

/// A token that was drawn for a slot, and the position that it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnToken {
    pub(super) slot: u32,
    pub(super) position: u32,
    pub(super) token: u32,
}

/// Sizes that all stages share.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageSizes {
    pub(super) slots: Slots,
    pub(super) context: u32,
    pub(super) vocabulary: u32,
    pub(super) max_rows: u32,
    pub(super) max_outputs: u32,
    /// Pages on the host, of all KV caches or of those without a window, and of windows or states.
    pub(super) host_pages: [u32; 2],
}

/// What a stage is to run.
pub(super) struct StageRun<'a> {
    pub(super) key: ProgramKey,
    /// The hidden states of the stage before, if there is one.
    pub(super) hidden: Option<&'a [u8]>,
    /// Logit biases and token masks, for the last stage.
    pub(super) edits: Option<Vec<RowEdits>>,
}

/// The memory and the programs of a stage.
pub(super) struct DeviceStage {
    /// Its place in the model's placement.
    number: usize,
    sizes: StageSizes,
    allocations: Vec<u64>,
    /// Pools by group: of keys and values, and in the second group of those of layers with a window, or of
    /// recurrent states.
    pools: [Vec<Pool>; 2],
    history: u64,
    /// The page tables of the groups with keys and values. Where states lie is said by the rows.
    tables: Vec<PageTable>,
    hosts: [HostPages; 2],
    edits: EditBuffers,
    programs: Programs,
    /// Transfers of the last launch that have run: if it failed, the next one, which gets them again, leaves
    /// them out.
    transferred: usize,
}

impl DeviceStage {
    /// Without memory: see [`allocate`](DeviceStage::allocate).
    pub(super) fn new(
        model: &Model,
        number: usize,
        spec: GraphSpec,
        sizes: StageSizes,
        modes: ProgramModes,
    ) -> DeviceStage {
        let stage = model.placement().stages()[number];
        let weights = model.stage_weights(number).clone();
        let columns = pages_of(sizes.context);
        let pools = [spec.pages, spec.window_pages].into_iter().filter(|&pages| pages > 0);
        DeviceStage {
            number,
            sizes,
            allocations: Vec::new(),
            pools: [Vec::new(), Vec::new()],
            history: 0,
            tables: pools.map(|pages| PageTable::new(sizes.slots, columns, pages)).collect(),
            hosts: sizes.host_pages.map(HostPages::new),
            edits: EditBuffers::default(),
            programs: Programs::new((stage, spec), weights, (0, 0), (0, 0), modes),
            transferred: 0,
        }
    }

    /// Allocates everything. What was allocated before a failure is freed by
    /// [`release`](DeviceStage::release).
    pub(super) fn allocate(
        &mut self,
        model: &Model,
        spec: &GraphSpec,
        options: &EngineOptions,
    ) -> Result<(), ModelError> {
        let (stage, sizes) = (self.stage(), self.sizes);
        let plan = |spec: &GraphSpec| model.plan(spec);
        let (arena, rows) = Programs::memory(plan, (stage, spec), sizes.max_rows, sizes.max_outputs)?;
        let edits = EditBuffers::bytes(sizes.max_outputs.next_power_of_two(), sizes.vocabulary);
        let mut bindings = model.stage_weights(self.number).clone();
        let config = model.rank_config();
        model.with_stage(self.number, |device| {
            let mut alloc = |device: &mut dyn Backend, bytes: usize| {
                let ptr = device.alloc(bytes.max(1))?;
                self.allocations.push(ptr);
                Ok::<u64, BackendError>(ptr)
            };
            for number in config.cached_layers(stage) {
                let layout = layout(config, options.cache, number)?;
                let window = spec.window_pages > 0 && config.variant.window_of(number).is_some();
                let pages = if window { spec.window_pages } else { spec.pages };
                let bytes = layout.bytes().saturating_mul(pages as usize);
                let (k, v) = (alloc(device, bytes)?, alloc(device, bytes)?);
                let name = names::cache(number);
                bindings.set(&format!("{name}.k"), k);
                bindings.set(&format!("{name}.v"), v);
                let pools = [k, v].map(|ptr| Pool { ptr, bytes: layout.bytes() });
                self.pools[usize::from(window)].extend(pools);
            }
            for (name, values) in model.rank_config().recurrent_states(stage) {
                let bytes = 4 * values as usize;
                let ptr = alloc(device, bytes.saturating_mul(spec.states as usize))?;
                bindings.set(&name, ptr);
                self.pools[1].push(Pool { ptr, bytes });
            }
            for (table, name) in self.tables.iter_mut().zip([names::PAGES, names::WINDOW_PAGES]) {
                let ptr = alloc(device, table.bytes())?;
                table.place(device, ptr)?;
                bindings.set(name, ptr);
            }
            let line = 4 * sizes.context as usize;
            if stage.is_first() || stage.is_last() {
                self.history = alloc(device, line * spec.sequences as usize)?;
                // Inactive rows embed token 0.
                let (first, count) = (sizes.slots.sequences as usize, sizes.slots.inactive as usize);
                device.write(self.history + (line * first) as u64, &vec![0; line * count])?;
                bindings.set(names::HISTORY, self.history);
            }
            let (arena, rows) = ((alloc(device, arena)?, arena), (alloc(device, rows)?, rows));
            if stage.is_last() {
                let [edits, masks] = edits;
                let buffers = [alloc(device, edits)?, alloc(device, masks)?];
                self.edits = EditBuffers::new(buffers, sizes.vocabulary);
                self.edits.bind(&mut bindings);
            }
            self.programs = Programs::new((stage, *spec), bindings, arena, rows, self.programs.modes());
            Ok(())
        })
    }

    pub(super) fn stage(&self) -> Stage {
        self.programs.stage()
    }

    pub(super) fn modes(&self) -> ProgramModes {
        self.programs.modes()
    }

    /// Bytes of the KV pages of its layers.
    pub(super) fn cache_bytes(&self) -> u64 {
        let bytes = |pools: &[Pool], pages: u32| {
            pools.iter().map(|pool| pool.bytes as u64).sum::<u64>() * u64::from(pages)
        };
        let [pages, window_pages] = self.programs.pages();
        // Without pages of windows the second group is that of states.
        bytes(&self.pools[0], pages) + bytes(&self.pools[1], window_pages)
    }

    /// Makes the program of a step: what needs memory.
    pub(super) fn make(&mut self, model: &Model, key: ProgramKey) -> Result<(), ModelError> {
        let key = self.programs.key(key);
        model.with_stage(self.number, |device| self.programs.make(model, device, key))
    }

    /// Makes and captures the program of a step before its first use. `false` if the device captures nothing.
    pub(super) fn warm_up(&mut self, model: &Model, key: ProgramKey) -> Result<bool, ModelError> {
        let key = self.programs.key(key);
        model.with_stage(self.number, |device| self.programs.warm_up(model, device, key))
    }

    /// Whether the device captures programs at their first use.
    pub(super) fn captures_for_free(&self, model: &Model) -> bool {
        model.with_stage(self.number, |device| device.captures_for_free())
    }

    /// Programs that were made so far.
    pub(super) fn programs_made(&self) -> u64 {
        self.programs.made_so_far()
    }

    /// Adds drawn tokens to the history of a stage that has not drawn them. A row that drew none has failed:
    /// what it would embed next does not matter, but must be a token, also for the penalties of the last
    /// stage.
    pub(super) fn append(&self, model: &Model, drawn: &[DrawnToken]) -> Result<(), BackendError> {
        let (first, last) = (self.stage().is_first(), self.stage().is_last());
        let wanted = |drawn: &&DrawnToken| first || last && drawn.token == NO_TOKEN;
        model.with_stage(self.number, |device| {
            for &DrawnToken { slot, position, token } in drawn.iter().filter(wanted) {
                let at = u64::from(slot) * u64::from(self.sizes.context) + u64::from(position);
                let token = if token == NO_TOKEN { 0 } else { token };
                device.write(self.history + 4 * at, &token.to_le_bytes())?;
            }
            Ok(())
        })
    }

    /// Runs what precedes the rows of a step.
    pub(super) fn run_prologue(&mut self, model: &Model, prologue: &Prologue) -> Result<(), BackendError> {
        model.with_stage(self.number, |device| {
            for &transfer in prologue.transfers.iter().skip(self.transferred) {
                let group = transfer.group() as usize;
                let (Some(host), Some(pools)) = (self.hosts.get_mut(group), self.pools.get(group)) else {
                    let (value, limit) = (transfer.group(), self.hosts.len() as u32);
                    return Err(BackendError::Index { what: "the group of a page", row: 0, value, limit });
                };
                host.run(device, pools, transfer)?;
                self.transferred += 1;
            }
            if self.history != 0 {
                for setup in &prologue.slots {
                    let line = u64::from(setup.slot) * u64::from(self.sizes.context);
                    device.write(self.history + 4 * line, bytemuck::cast_slice(&setup.history))?;
                }
            }
            for (group, table) in (0..).zip(&mut self.tables) {
                table.edit(device, prologue.table.iter().filter(|edit| edit.group == group))?;
            }
            Ok(())
        })
    }

    /// Runs the program of a step. `arrays` gives the rows for a program, and `then` starts to read results.
    pub(super) fn run<T>(
        &mut self,
        model: &Model,
        StageRun { key, hidden, edits }: StageRun<'_>,
        arrays: impl FnOnce(ProgramKey) -> Result<RowArrays, ModelError>,
        then: impl FnOnce(&mut dyn Backend, &Compiled) -> Result<T, BackendError>,
    ) -> Result<T, ModelError> {
        let key = self.programs.key(key);
        let arrays = arrays(key)?;
        model.with_stage(self.number, |device| {
            let rows = self.programs.rows_ptr();
            let compiled = self.programs.made(key)?;
            device.write(rows, &compiled.block.pack(&arrays))?;
            if let Some(hidden) = hidden {
                device.write(compiled.stage_input, hidden)?;
            }
            if let Some(mut edits) = edits {
                edits.resize(key.outputs as usize, RowEdits::default());
                self.edits.write(device, &edits)?;
            }
            compiled.run(device)?;
            Ok(then(device, compiled)?)
        })
    }

    /// The address of a page table.
    pub(super) fn table(&self) -> u64 {
        self.tables.first().map_or(0, PageTable::ptr)
    }

    /// None of the transfers of the next step has run before.
    pub(super) fn new_transfers(&mut self) {
        self.transferred = 0;
    }

    /// Takes pages that have arrived on the host.
    pub(super) fn settle(&mut self) -> Result<(), BackendError> {
        self.hosts.iter_mut().try_for_each(HostPages::settle)
    }

    /// Frees everything.
    pub(super) fn release(&mut self, model: &Model) {
        model.with_stage(self.number, |device| {
            self.programs.release(device);
            for ptr in self.allocations.drain(..) {
                // There is no caller to report an error to.
                let _ = device.free(ptr);
            }
        });
    }
}
