//! Compiling, running and reading a batch.

use std::collections::{HashMap, HashSet};

use half::f16;

use super::GpuCommandBatch;
use super::group::{Unit, units};
use super::lower::{Bound, Lowered, Place, lower, replaceable};
use super::memory::{self, Memory, Need};
use super::value::{BufferId, Op, Source, Value, home};
use crate::buffer::{BufferSlice, GpuBuffer};
use crate::encode::{Profile, Program, Step};
use crate::error::GpuError;
use crate::kernels::Elem;
use crate::pipeline::PipelineCache;
use crate::transfer::Readback;

/// A batch that is ready to run: the program and the buffers of what can be read.
#[derive(Debug)]
pub(super) struct Compiled {
    program: Program,
    /// Values that keep their results.
    stored: HashMap<u32, GpuBuffer>,
    /// Imports that kernels cannot bind as they are: from, to, bytes.
    copies: Vec<(GpuBuffer, GpuBuffer, u64)>,
    /// How many values there were when it was compiled.
    values: usize,
}

impl GpuCommandBatch {
    /// Runs all recorded operations: one submission with one compute pass. The first run compiles them; the next ones only
    /// run what was compiled, unless operations were added. Kernels come from [`PipelineCache::global`].
    ///
    /// Does not wait for the device: reading does.
    ///
    /// # Errors
    /// [`GpuError`] where an operation does not fit the device, memory runs out or the device is lost.
    pub async fn execute(&mut self) -> Result<(), GpuError> {
        self.execute_blocking()
    }

    /// [`execute`](Self::execute) with a cache of the caller's.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub async fn execute_with_cache(&mut self, cache: &PipelineCache) -> Result<(), GpuError> {
        self.execute_with_cache_blocking(cache)
    }

    /// [`execute`](Self::execute) without an executor. Submitting does not block, so this returns as soon.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn execute_blocking(&mut self) -> Result<(), GpuError> {
        self.execute_with_cache_blocking(PipelineCache::global())
    }

    /// [`execute_with_cache`](Self::execute_with_cache) without an executor.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn execute_with_cache_blocking(&mut self, cache: &PipelineCache) -> Result<(), GpuError> {
        self.prepare(cache)?;
        let Some(compiled) = &self.compiled else { return Ok(()) };
        compiled.submit(&self.gpu, None)?;
        self.ran();
        Ok(())
    }

    /// What was computed again for reading belongs to the run before.
    fn ran(&mut self) {
        self.executed = true;
        self.restored.clear();
    }

    /// Runs all recorded operations and reads some of the results, all in one submission.
    ///
    /// # Errors
    /// As [`execute`](Self::execute) and [`read`](Self::read).
    pub fn execute_and_read_blocking(&mut self, ids: &[BufferId]) -> Result<Vec<Vec<f32>>, GpuError> {
        let indices = self.indices("execute_and_read", ids)?;
        self.keep.extend(&indices);
        self.prepare(PipelineCache::global())?;
        let slices = self.slices("execute_and_read", &indices)?;
        let Some(compiled) = &self.compiled else { return Ok(Vec::new()) };
        let mut readback = Readback::plan(&self.gpu, "execute_and_read", &slices)?;
        compiled.submit(&self.gpu, Some(&mut readback))?;
        self.ran();
        let mut read = Floats::of(self, &indices);
        readback.wait_with(|index, bytes| read.put(index, bytes))?;
        Ok(read.values)
    }

    /// Runs all recorded operations with the time of each kernel on the device.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and [`GpuError::Unsupported`] where the device has no timestamps.
    pub fn execute_profiled(&mut self) -> Result<Profile, GpuError> {
        self.prepare(PipelineCache::global())?;
        let Some(compiled) = &self.compiled else { return Err(not_executed("execute_profiled")) };
        compiled.copy_imports(&self.gpu)?;
        let profile = compiled.program.profile()?;
        self.ran();
        Ok(profile)
    }

    /// Runs all recorded operations, waits for them, and gives their time on the device in microseconds: from the
    /// beginning of the one pass to its end. [`execute_profiled`](Self::execute_profiled) tells the kernels apart, but
    /// keeps them apart too.
    ///
    /// # Errors
    /// As [`execute_profiled`](Self::execute_profiled).
    pub fn execute_timed(&mut self) -> Result<f64, GpuError> {
        self.prepare(PipelineCache::global())?;
        let Some(compiled) = &self.compiled else { return Err(not_executed("execute_timed")) };
        compiled.copy_imports(&self.gpu)?;
        let time = compiled.program.time_us()?;
        self.executed = true;
        Ok(time)
    }

    /// The elements of a value, as the last run left them.
    ///
    /// A value that fusion or shared memory did away with is computed once more, together with what it needs; later runs
    /// keep it.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the value is another batch's or nothing was run yet; the device's own errors.
    pub async fn read(&mut self, id: BufferId) -> Result<Vec<f32>, GpuError> {
        Ok(self.read_many(&[id]).await?.pop().unwrap_or_default())
    }

    /// Several values, with one submission.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_many(&mut self, ids: &[BufferId]) -> Result<Vec<Vec<f32>>, GpuError> {
        let indices = self.indices("read", ids)?;
        self.restore(&indices)?;
        let slices = self.slices("read", &indices)?;
        let mut read = Floats::of(self, &indices);
        self.gpu.start_reads("read", &slices)?.await_with(|index, bytes| read.put(index, bytes)).await?;
        Ok(read.values)
    }

    /// [`read`](Self::read) without an executor.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_blocking(&mut self, id: BufferId) -> Result<Vec<f32>, GpuError> {
        Ok(self.read_many_blocking(&[id])?.pop().unwrap_or_default())
    }

    /// [`read_many`](Self::read_many) without an executor.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_many_blocking(&mut self, ids: &[BufferId]) -> Result<Vec<Vec<f32>>, GpuError> {
        let indices = self.indices("read", ids)?;
        self.restore(&indices)?;
        let slices = self.slices("read", &indices)?;
        let mut read = Floats::of(self, &indices);
        self.gpu.start_reads("read", &slices)?.wait_with(|index, bytes| read.put(index, bytes))?;
        Ok(read.values)
    }

    /// [`read_blocking`](Self::read_blocking) into memory of the caller. Read after read into the same memory is faster
    /// than into new memory, whose pages the system has to provide first.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`GpuError::Argument`] where `out` has another length than the value.
    pub fn read_into_blocking(&mut self, id: BufferId, out: &mut [f32]) -> Result<(), GpuError> {
        let indices = self.indices("read_into", &[id])?;
        let value = &self.values[indices[0] as usize];
        let (len, elem) = (value.len, value.elem);
        if len != out.len() as u64 {
            return Err(GpuError::Argument {
                call: "read_into",
                what: "the length of the output".to_owned(),
                expected: len.to_string(),
                got: out.len().to_string(),
            });
        }
        self.restore(&indices)?;
        let slices = self.slices("read_into", &indices)?;
        let read = self.gpu.start_reads("read_into", &slices)?;
        match elem {
            // No padding: a value of 32 bits is whole words.
            Elem::F32 => read.wait_into(&mut [bytemuck::cast_slice_mut(out)]),
            Elem::F16 => read.wait_with(|_, bytes| {
                out.iter_mut()
                    .zip(bytes.as_chunks::<2>().0)
                    .for_each(|(x, b)| *x = f16::from_ne_bytes(*b).to_f32());
            }),
        }
    }

    /// Changes the data of an upload; the next run uses it.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the value is not an upload of this batch or the length is another.
    pub fn write(&mut self, id: BufferId, data: &[f32]) -> Result<(), GpuError> {
        let index = self.index("write", id)?;
        let wrong = |what: &str, expected: String, got: String| GpuError::Argument {
            call: "write",
            what: what.to_owned(),
            expected,
            got,
        };
        let value = &mut self.values[index as usize];
        if value.len != data.len() as u64 {
            let (expected, got) = (value.len.to_string(), data.len().to_string());
            return Err(wrong("the number of elements", expected, got));
        }
        let elem = value.elem;
        let Source::Upload { pending, buffer } = &mut value.source else {
            return Err(wrong("the value", "one that was uploaded".to_owned(), format!("{id:?}")));
        };
        let bytes = super::record::encode(data, elem);
        match buffer {
            Some(buffer) => self.gpu.upload("write", buffer, 0, &bytes)?,
            None => *pending = Some(bytes),
        }
        self.written = true;
        Ok(())
    }

    /// Uploads what waits and compiles what has changed.
    fn prepare(&mut self, cache: &PipelineCache) -> Result<(), GpuError> {
        self.gpu.check_alive()?;
        for value in &mut self.values {
            let bytes = value.bytes();
            let Source::Upload { pending, buffer } = &mut value.source else { continue };
            let Some(data) = pending.take() else { continue };
            let target = match buffer {
                Some(buffer) => buffer.clone(),
                None => buffer.insert(self.gpu.create_buffer("upload", bytes)?).clone(),
            };
            self.gpu.upload("upload", &target, 0, &data)?;
        }
        self.written = false;
        let is_op = |id: &&u32| self.values[**id as usize].op().is_some();
        let current = self.compiled.as_ref().is_some_and(|compiled| {
            let kept = self.keep.iter().filter(is_op).all(|id| compiled.stored.contains_key(id));
            kept && compiled.values == self.values.len()
        });
        if current {
            return Ok(());
        }
        let targets = self.targets();
        self.compiled = Some(self.compile(&targets, &HashMap::new(), cache)?);
        Ok(())
    }

    /// Values that a run leaves readable: those that nothing reads, those that were asked for, and what belongs to
    /// operations in place.
    fn targets(&self) -> Vec<u32> {
        let read: HashSet<u32> = self.values.iter().filter_map(Value::op).flat_map(Op::args).collect();
        (0..self.values.len() as u32)
            .filter(|&id| {
                let value = &self.values[id as usize];
                let Some(op) = value.op() else { return false };
                let wanted = !read.contains(&id) || self.keep.contains(&id) || !self.options.share_memory;
                let in_place = home(&self.values, id).is_some() || self.must_read_early(id, op);
                value.overwritten_by.is_none() && (wanted || in_place)
            })
            .collect()
    }

    /// Whether an operation reads a buffer that another one overwrites: it runs before that, and what it gives is kept,
    /// since it could not be computed again.
    fn must_read_early(&self, id: u32, op: &Op) -> bool {
        op.args().into_iter().any(|arg| {
            let lies_in_input =
                |arg: u32| self.values[arg as usize].op().is_none() || home(&self.values, arg).is_some();
            self.values[arg as usize].overwritten_by.is_some_and(|by| by != id) && lies_in_input(arg)
        })
    }

    /// Makes sure that values can be read, by computing those again that are not there any more.
    fn restore(&mut self, ids: &[u32]) -> Result<(), GpuError> {
        let missing: Vec<u32> = ids.iter().copied().filter(|&id| self.stored(id).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let current = self.compiled.as_ref().filter(|compiled| {
            self.executed && !self.written && missing.iter().all(|&id| (id as usize) < compiled.values)
        });
        let Some(compiled) = current else { return Err(not_executed("read")) };
        let again = self.compile(&missing, &compiled.stored, PipelineCache::global())?;
        again.submit(&self.gpu, None)?;
        self.keep.extend(&missing);
        self.restored.extend(again.stored);
        Ok(())
    }

    /// The buffer that holds a value now.
    fn stored(&self, id: u32) -> Option<GpuBuffer> {
        match &self.values[id as usize].source {
            Source::Upload { buffer, .. } => buffer.clone(),
            Source::Import(buffer) => Some(buffer.clone()),
            // Its buffer is that of an input, which has changed.
            Source::Op(_) if self.written && home(&self.values, id).is_some() => None,
            Source::Op(_) => {
                let compiled = self.compiled.as_ref().filter(|_| self.executed)?;
                compiled.stored.get(&id).or_else(|| self.restored.get(&id)).cloned()
            }
        }
    }

    fn slices(&self, call: &'static str, ids: &[u32]) -> Result<Vec<BufferSlice>, GpuError> {
        ids.iter()
            .map(|&id| {
                let stored = self.stored(id).or_else(|| {
                    self.compiled.as_ref().and_then(|compiled| compiled.stored.get(&id).cloned())
                });
                let bytes = self.values[id as usize].bytes().next_multiple_of(4);
                stored.map(|buffer| buffer.slice(0..bytes)).ok_or_else(|| not_executed(call))
            })
            .collect()
    }

    fn compile(
        &self,
        targets: &[u32],
        stored: &HashMap<u32, GpuBuffer>,
        cache: &PipelineCache,
    ) -> Result<Compiled, GpuError> {
        let (values, caps) = (&self.values, self.gpu.caps());
        let is_stored = |id: u32| values[id as usize].op().is_none() || stored.contains_key(&id);
        let units = units(values, targets, &is_stored, self.options.fuse, &caps);
        let mut lowered: Vec<Lowered> = Vec::with_capacity(units.len());
        let mut needs: Vec<Need> = Vec::with_capacity(units.len());
        for unit in &units {
            let plain = lower(values, unit, None, &caps, self.gpu.tuned())?;
            // What another program keeps is not overwritten.
            let in_place =
                replaceable(values, unit).into_iter().filter(|id| !stored.contains_key(id)).collect();
            let overwrites = overwritten(values, unit);
            needs.push(Need { scratch: plain.scratch.clone(), in_place, overwrites });
            lowered.push(plain);
        }
        let memory = memory::plan(values, &units, &needs, targets, self.options.share_memory);
        for ((unit, lowered), replaced) in units.iter().zip(&mut lowered).zip(&memory.replaced) {
            if replaced.is_some() {
                *lowered = lower(values, unit, *replaced, &caps, self.gpu.tuned())?;
            }
        }
        let slots = memory
            .slots
            .iter()
            .map(|&bytes| self.gpu.create_buffer("execute", bytes))
            .collect::<Result<Vec<GpuBuffer>, GpuError>>()?;
        let mut build =
            Build { batch: self, stored, memory: &memory, slots: &slots, shadows: HashMap::new() };
        let mut steps = Vec::new();
        for (at, (unit, lowered)) in units.iter().zip(lowered).enumerate() {
            build.steps(&mut steps, unit, at, lowered, cache)?;
        }
        let program = Program::compile(&self.gpu, steps)?;
        let mut kept = HashMap::new();
        for &id in targets {
            if let Some(slot) = memory.values.get(&id) {
                kept.insert(id, slots[slot.0].clone());
            } else if home(values, id).is_some() {
                kept.insert(id, build.value(id)?);
            }
        }
        let copies = build.shadows.into_values().collect();
        Ok(Compiled { program, stored: kept, copies, values: values.len() })
    }
}

/// Turns what launches bind into ranges of buffers.
struct Build<'a> {
    batch: &'a GpuCommandBatch,
    stored: &'a HashMap<u32, GpuBuffer>,
    memory: &'a Memory,
    slots: &'a [GpuBuffer],
    /// Copies of imports whose size is not whole vectors.
    shadows: HashMap<u32, (GpuBuffer, GpuBuffer, u64)>,
}

impl Build<'_> {
    fn steps(
        &mut self,
        steps: &mut Vec<Step>,
        unit: &Unit,
        at: usize,
        lowered: Lowered,
        cache: &PipelineCache,
    ) -> Result<(), GpuError> {
        for (launch, bindings) in lowered.launches {
            // SAFETY: the kernels of this crate clamp their indices or keep to the lengths that they are given, and the
            // tests run them with checks as well.
            let pipeline = unsafe { cache.get_trusted(&self.batch.gpu, &launch.kernel)? };
            let bindings =
                bindings.into_iter().map(|bound| self.slice(unit, at, bound)).collect::<Result<_, _>>()?;
            steps.push(Step {
                pipeline,
                bindings,
                params: launch.params,
                workgroups: launch.workgroups,
                label: launch.kernel.label.into_owned(),
            });
        }
        Ok(())
    }

    fn slice(&mut self, unit: &Unit, at: usize, bound: Bound) -> Result<BufferSlice, GpuError> {
        let buffer = match bound.place {
            Place::Scratch(i) => self.slots[self.memory.scratch[at][i].0].clone(),
            Place::Value(id) if id == unit.root && home(&self.batch.values, id).is_none() => {
                self.slots[self.memory.values[&id].0].clone()
            }
            Place::Value(id) => self.value(id)?,
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
        let id = home(&self.batch.values, id).unwrap_or(id);
        let value = &self.batch.values[id as usize];
        match &value.source {
            Source::Upload { buffer: Some(buffer), .. } => Ok(buffer.clone()),
            Source::Import(buffer) if buffer.size() >= value.bytes().next_multiple_of(16) => {
                Ok(buffer.clone())
            }
            Source::Import(buffer) => {
                if let Some((_, copy, _)) = self.shadows.get(&id) {
                    return Ok(copy.clone());
                }
                let copy = self.batch.gpu.create_buffer("import_buffer", value.bytes())?;
                self.shadows.insert(id, (buffer.clone(), copy.clone(), value.bytes().next_multiple_of(4)));
                Ok(copy)
            }
            Source::Upload { buffer: None, .. } | Source::Op(_) => Err(not_executed("execute")),
        }
    }
}

/// Values as they come from the device.
struct Floats {
    /// Elements of each, and how they are stored.
    stored: Vec<(u64, Elem)>,
    values: Vec<Vec<f32>>,
}

impl Floats {
    fn of(batch: &GpuCommandBatch, ids: &[u32]) -> Floats {
        let stored = ids.iter().map(|&id| (batch.values[id as usize].len, batch.values[id as usize].elem));
        Floats { stored: stored.collect(), values: vec![Vec::new(); ids.len()] }
    }

    fn put(&mut self, index: usize, bytes: &[u8]) {
        let (len, elem) = self.stored[index];
        self.values[index] = super::record::decode(bytes, len, elem);
    }
}

impl Compiled {
    /// Encodes and submits: copies of imports, the program, and the copies of a read-back.
    fn submit(
        &self,
        gpu: &crate::device::GpuDevice,
        readback: Option<&mut Readback>,
    ) -> Result<(), GpuError> {
        match readback {
            None if self.copies.is_empty() => self.program.submit().map(drop),
            readback => {
                let copy = |encoder: &mut wgpu::CommandEncoder| self.record_copies(encoder);
                let read = |encoder: &mut wgpu::CommandEncoder| {
                    readback.iter().for_each(|readback| readback.record(encoder));
                };
                let before: Option<&dyn Fn(&mut wgpu::CommandEncoder)> =
                    if self.copies.is_empty() { None } else { Some(&copy) };
                let after: Option<&dyn Fn(&mut wgpu::CommandEncoder)> =
                    if readback.is_some() { Some(&read) } else { None };
                let submission = gpu.run("execute", &self.program, before, after)?;
                readback.map_or(Ok(()), |readback| readback.submitted(submission))
            }
        }
    }

    fn record_copies(&self, encoder: &mut wgpu::CommandEncoder) {
        for (from, to, bytes) in &self.copies {
            encoder.copy_buffer_to_buffer(from.raw(), 0, to.raw(), 0, *bytes);
        }
    }

    fn copy_imports(&self, gpu: &crate::device::GpuDevice) -> Result<(), GpuError> {
        if self.copies.is_empty() {
            return Ok(());
        }
        gpu.record("execute", |encoder| self.record_copies(encoder)).map(drop)
    }

    /// Kernels that a run launches.
    pub(super) fn launches(&self) -> usize {
        self.program.len()
    }
}

/// The input of a unit whose buffer its result goes to, because it was recorded in place over an upload or an import.
fn overwritten(values: &[Value], unit: &Unit) -> Option<u32> {
    home(values, unit.root)?;
    let mut at = unit.root;
    // Versions that are computed inside the unit are never stored.
    while unit.members.contains(&at) || at == unit.root {
        at = values[at as usize].in_place_of?;
    }
    Some(at)
}

fn not_executed(call: &'static str) -> GpuError {
    GpuError::Argument {
        call,
        what: "the value".to_owned(),
        expected: "one that was executed; call execute() first".to_owned(),
        got: "one that was not, or whose inputs have changed since".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn half_precision_survives_the_way_there_and_back() {
        use crate::kernels::Elem;
        let data = [1.0f32, -2.5, 65504.0, 0.0, f32::INFINITY];
        let bytes = super::super::record::encode(&data, Elem::F16);
        assert_eq!(bytes.len(), 10);
        assert_eq!(super::super::record::decode(&bytes, 5, Elem::F16), data);
    }
}
