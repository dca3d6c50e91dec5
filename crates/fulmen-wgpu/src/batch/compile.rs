//! Compiling a batch: fusion groups become dispatches over buffers.

use std::collections::{HashMap, HashSet};

use super::GpuCommandBatch;
use super::fuse::{FusionGroup, fusion_groups};
use super::lower::{BoundRange, BufferRef, LoweredGroup, lower, replaceable};
use super::memory::{self, GroupNeeds, MemoryPlan};
use super::run::not_executed;
use super::value::{Op, Source, Value, alias_root};
use crate::buffer::{BufferSlice, GpuBuffer};
use crate::device::GpuDevice;
use crate::encode::{Dispatch, DispatchList};
use crate::error::GpuError;
use crate::kernel::Kernel;
use crate::pipeline::PipelineCache;
use crate::transfer::Readback;

/// A compiled batch: its dispatches, and the buffers of the values that can be read.
#[derive(Debug)]
pub(super) struct CompiledBatch {
    pub(super) list: DispatchList,
    /// Values that stay readable after a run.
    pub(super) stored: HashMap<u32, GpuBuffer>,
    /// Imports that kernels cannot bind directly: source, copy, bytes.
    copies: Vec<(GpuBuffer, GpuBuffer, u64)>,
    /// The number of recorded values when it was compiled.
    pub(super) values: usize,
}

/// The launches of a batch, and where values lie: without pipelines and buffers.
struct LoweredBatch {
    groups: Vec<FusionGroup>,
    lowered: Vec<LoweredGroup>,
    memory: MemoryPlan,
}

impl LoweredBatch {
    fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.lowered.iter().flat_map(|group| &group.launches).map(|(launch, _)| &launch.kernel)
    }
}

impl GpuCommandBatch {
    /// Values that stay readable after a run: those that nothing reads, those that were asked for, and
    /// those that in-place operations need.
    pub(super) fn targets(&self) -> Vec<u32> {
        let read: HashSet<u32> = self.values.iter().filter_map(Value::op).flat_map(Op::args).collect();
        (0..self.values.len() as u32)
            .filter(|&id| {
                let value = &self.values[id as usize];
                let Some(op) = value.op() else { return false };
                let wanted = !read.contains(&id) || self.keep.contains(&id) || !self.options.share_memory;
                let in_place = alias_root(&self.values, id).is_some() || self.reads_before_overwrite(id, op);
                value.overwritten_by.is_none() && (wanted || in_place)
            })
            .collect()
    }

    /// Whether an operation reads a buffer that another operation overwrites. It must run before that,
    /// and its result is kept, since it could not be recomputed.
    fn reads_before_overwrite(&self, id: u32, op: &Op) -> bool {
        op.args().into_iter().any(|arg| {
            let lies_in_input = |arg: u32| {
                self.values[arg as usize].op().is_none() || alias_root(&self.values, arg).is_some()
            };
            self.values[arg as usize].overwritten_by.is_some_and(|by| by != id) && lies_in_input(arg)
        })
    }

    /// Compiles what computes `targets`. Values in `stored` have buffers of an earlier run.
    pub(super) fn compile(
        &self,
        targets: &[u32],
        stored: &HashMap<u32, GpuBuffer>,
        cache: &PipelineCache,
    ) -> Result<CompiledBatch, GpuError> {
        self.bind(self.lower(targets, stored)?, targets, stored, cache)
    }

    /// [`compile`](Self::compile) that yields while kernels are compiled.
    pub(super) async fn compile_async(
        &self,
        targets: &[u32],
        stored: &HashMap<u32, GpuBuffer>,
        cache: &PipelineCache,
    ) -> Result<CompiledBatch, GpuError> {
        let lowered = self.lower(targets, stored)?;
        // SAFETY: the kernels of this crate, as in `add_dispatches`.
        unsafe { cache.compile_ahead(&self.gpu, lowered.kernels()) }.await;
        self.bind(lowered, targets, stored, cache)
    }

    /// Fuses and plans what computes `targets`.
    fn lower(&self, targets: &[u32], stored: &HashMap<u32, GpuBuffer>) -> Result<LoweredBatch, GpuError> {
        let (values, caps) = (&self.values, self.gpu.caps());
        let is_stored = |id: u32| values[id as usize].op().is_none() || stored.contains_key(&id);
        let groups = fusion_groups(values, targets, &is_stored, self.options.fuse, &caps);
        let mut lowered: Vec<LoweredGroup> = Vec::with_capacity(groups.len());
        let mut needs: Vec<GroupNeeds> = Vec::with_capacity(groups.len());
        for group in &groups {
            let plain = lower(values, group, None, &caps, self.gpu.tuned())?;
            // A buffer that an earlier run keeps is not reused.
            let in_place =
                replaceable(values, group).into_iter().filter(|id| !stored.contains_key(id)).collect();
            let overwrites = overwritten(values, group);
            needs.push(GroupNeeds { scratch: plain.scratch.clone(), in_place, overwrites });
            lowered.push(plain);
        }
        let memory = memory::plan_memory(values, &groups, &needs, targets, self.options.share_memory);
        for ((group, lowered), replaced) in groups.iter().zip(&mut lowered).zip(&memory.replaced) {
            if replaced.is_some() {
                *lowered = lower(values, group, *replaced, &caps, self.gpu.tuned())?;
            }
        }
        Ok(LoweredBatch { groups, lowered, memory })
    }

    /// Gives launches their pipelines and buffers.
    fn bind(
        &self,
        LoweredBatch { groups, lowered, memory }: LoweredBatch,
        targets: &[u32],
        stored: &HashMap<u32, GpuBuffer>,
        cache: &PipelineCache,
    ) -> Result<CompiledBatch, GpuError> {
        let values = &self.values;
        let slots = memory
            .slots
            .iter()
            .map(|&bytes| self.gpu.create_buffer("execute", bytes))
            .collect::<Result<Vec<GpuBuffer>, GpuError>>()?;
        let mut binder = RangeBinder {
            batch: self,
            stored,
            memory: &memory,
            slots: &slots,
            import_copies: HashMap::new(),
        };
        let mut dispatches = Vec::new();
        for (at, (group, lowered)) in groups.iter().zip(lowered).enumerate() {
            binder.add_dispatches(&mut dispatches, group, at, lowered, cache)?;
        }
        let list = DispatchList::compile(&self.gpu, dispatches)?;
        let mut kept = HashMap::new();
        for &id in targets {
            if let Some(slot) = memory.values.get(&id) {
                kept.insert(id, slots[slot.0].clone());
            } else if alias_root(values, id).is_some() {
                kept.insert(id, binder.value(id)?);
            }
        }
        let copies = binder.import_copies.into_values().collect();
        Ok(CompiledBatch { list, stored: kept, copies, values: values.len() })
    }
}

/// Resolves what launches bind to ranges of buffers.
struct RangeBinder<'a> {
    batch: &'a GpuCommandBatch,
    stored: &'a HashMap<u32, GpuBuffer>,
    memory: &'a MemoryPlan,
    slots: &'a [GpuBuffer],
    /// Copies of imports whose size is not a multiple of 16 bytes.
    import_copies: HashMap<u32, (GpuBuffer, GpuBuffer, u64)>,
}

impl RangeBinder<'_> {
    fn add_dispatches(
        &mut self,
        dispatches: &mut Vec<Dispatch>,
        group: &FusionGroup,
        at: usize,
        lowered: LoweredGroup,
        cache: &PipelineCache,
    ) -> Result<(), GpuError> {
        for (launch, bindings) in lowered.launches {
            // SAFETY: the kernels of this crate clamp their indices or stay within the lengths that
            // they are given, and the tests also run them with checks.
            let pipeline = unsafe { cache.get_trusted(&self.batch.gpu, &launch.kernel)? };
            let bindings =
                bindings.into_iter().map(|bound| self.slice(group, at, bound)).collect::<Result<_, _>>()?;
            dispatches.push(Dispatch {
                pipeline,
                bindings,
                params: launch.params,
                workgroups: launch.workgroups,
                label: launch.kernel.label.into_owned(),
            });
        }
        Ok(())
    }

    fn slice(&mut self, group: &FusionGroup, at: usize, bound: BoundRange) -> Result<BufferSlice, GpuError> {
        let buffer = match bound.buffer {
            BufferRef::Scratch(i) => self.slots[self.memory.scratch[at][i].0].clone(),
            BufferRef::Value(id) if id == group.root && alias_root(&self.batch.values, id).is_none() => {
                self.slots[self.memory.values[&id].0].clone()
            }
            BufferRef::Value(id) => self.value(id)?,
        };
        let end = bound.offset.saturating_add(bound.bytes).min(buffer.size());
        Ok(buffer.slice(bound.offset..end))
    }

    fn value(&mut self, id: u32) -> Result<GpuBuffer, GpuError> {
        if let Some(slot) = self.memory.values.get(&id) {
            return Ok(self.slots[slot.0].clone());
        }
        if let Some(buffer) = self.stored.get(&id) {
            return Ok(buffer.clone());
        }
        let id = alias_root(&self.batch.values, id).unwrap_or(id);
        let value = &self.batch.values[id as usize];
        match &value.source {
            Source::Upload { buffer: Some(buffer), .. } => Ok(buffer.clone()),
            Source::Import(buffer) if buffer.size() >= value.bytes().next_multiple_of(16) => {
                Ok(buffer.clone())
            }
            Source::Import(buffer) => {
                if let Some((_, copy, _)) = self.import_copies.get(&id) {
                    return Ok(copy.clone());
                }
                let copy = self.batch.gpu.create_buffer("import_buffer", value.bytes())?;
                self.import_copies
                    .insert(id, (buffer.clone(), copy.clone(), value.bytes().next_multiple_of(4)));
                Ok(copy)
            }
            Source::Upload { buffer: None, .. } | Source::Op(_) => Err(not_executed("execute")),
        }
    }
}

impl CompiledBatch {
    /// Encodes and submits copies of imports, the dispatches, and the copies of a read-back.
    pub(super) fn submit(&self, gpu: &GpuDevice, readback: Option<&mut Readback>) -> Result<(), GpuError> {
        match readback {
            None if self.copies.is_empty() => self.list.submit().map(drop),
            readback => {
                let copy = |encoder: &mut wgpu::CommandEncoder| self.record_copies(encoder);
                let read = |encoder: &mut wgpu::CommandEncoder| {
                    readback.iter().for_each(|readback| readback.record(encoder));
                };
                let before: Option<&dyn Fn(&mut wgpu::CommandEncoder)> =
                    if self.copies.is_empty() { None } else { Some(&copy) };
                let after: Option<&dyn Fn(&mut wgpu::CommandEncoder)> =
                    if readback.is_some() { Some(&read) } else { None };
                let submission = gpu.run("execute", &self.list, before, after)?;
                readback.map_or(Ok(()), |readback| readback.submitted(submission))
            }
        }
    }

    fn record_copies(&self, encoder: &mut wgpu::CommandEncoder) {
        for (from, to, bytes) in &self.copies {
            encoder.copy_buffer_to_buffer(from.raw(), 0, to.raw(), 0, *bytes);
        }
    }

    pub(super) fn copy_imports(&self, gpu: &GpuDevice) -> Result<(), GpuError> {
        if self.copies.is_empty() {
            return Ok(());
        }
        gpu.record("execute", |encoder| self.record_copies(encoder)).map(drop)
    }

    /// The number of dispatches per run.
    pub(super) fn launches(&self) -> usize {
        self.list.len()
    }
}

/// The input that a group's result overwrites because it was recorded in place over an upload or an import.
fn overwritten(values: &[Value], group: &FusionGroup) -> Option<u32> {
    alias_root(values, group.root)?;
    let mut at = group.root;
    // Intermediate versions that are computed inside the group are never stored.
    while group.members.contains(&at) || at == group.root {
        at = values[at as usize].in_place_of?;
    }
    Some(at)
}
