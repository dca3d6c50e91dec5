//! Running a batch and reading its values.

use std::collections::HashMap;

use half::f16;

use super::GpuCommandBatch;
use super::compile::CompiledBatch;
use super::value::{BufferId, Source, alias_root};
use crate::buffer::{BufferSlice, GpuBuffer};
use crate::encode::Profile;
use crate::error::GpuError;
use crate::kernels::Elem;
use crate::pipeline::PipelineCache;
use crate::transfer::Readback;

impl GpuCommandBatch {
    /// Runs all recorded operations in one submission with one compute pass. The first run compiles
    /// them; later runs reuse the compiled batch unless operations were added. Kernels come from
    /// [`PipelineCache::global`].
    ///
    /// Does not wait for the device; reading does. Never blocks, on any executor: it yields while kernels are
    /// compiled and while large uploads are in flight. Dropped before it is ready, it has run nothing.
    ///
    /// # Errors
    /// [`GpuError`] where an operation does not fit the device, memory runs out or the device is lost.
    pub async fn execute(&mut self) -> Result<(), GpuError> {
        self.execute_with_cache(PipelineCache::global()).await
    }

    /// [`execute`](Self::execute) with the caller's pipeline cache.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub async fn execute_with_cache(&mut self, cache: &PipelineCache) -> Result<(), GpuError> {
        self.prepare_async(cache).await?;
        self.gpu.ready_to_submit().await?;
        self.submit()
    }

    /// [`execute`](Self::execute) without an async executor: blocks while kernels are compiled and while
    /// large uploads are in flight.
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
        self.submit()
    }

    /// Submits the compiled batch.
    fn submit(&mut self) -> Result<(), GpuError> {
        let Some(compiled) = &self.compiled else { return Ok(()) };
        compiled.submit(&self.gpu, None)?;
        self.ran();
        Ok(())
    }

    /// Marks a finished submission; values recomputed for reading belonged to the previous run.
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
        let mut read = ReadValues::of(self, &indices);
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
        let profile = compiled.list.profile()?;
        self.ran();
        Ok(profile)
    }

    /// Runs all recorded operations, waits for them, and returns their time on the device in
    /// microseconds, from the beginning of the pass to its end.
    /// [`execute_profiled`](Self::execute_profiled) times each kernel, but also keeps kernels from
    /// overlapping.
    ///
    /// # Errors
    /// As [`execute_profiled`](Self::execute_profiled).
    pub fn execute_timed(&mut self) -> Result<f64, GpuError> {
        self.prepare(PipelineCache::global())?;
        let Some(compiled) = &self.compiled else { return Err(not_executed("execute_timed")) };
        compiled.copy_imports(&self.gpu)?;
        let time = compiled.list.time_us()?;
        self.executed = true;
        Ok(time)
    }

    /// The elements of a value, as the last run left them.
    ///
    /// A value that was fused away, or whose buffer was reused, is recomputed together with what it
    /// needs; later runs keep it.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the value belongs to another batch or was not run yet; errors of
    /// the device.
    pub async fn read(&mut self, id: BufferId) -> Result<Vec<f32>, GpuError> {
        Ok(self.read_many(&[id]).await?.pop().unwrap_or_default())
    }

    /// Several values, with one submission.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_many(&mut self, ids: &[BufferId]) -> Result<Vec<Vec<f32>>, GpuError> {
        let indices = self.indices("read", ids)?;
        self.restore_async(&indices).await?;
        let slices = self.slices("read", &indices)?;
        let mut read = ReadValues::of(self, &indices);
        self.gpu.ready_to_submit().await?;
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
        let mut read = ReadValues::of(self, &indices);
        self.gpu.start_reads("read", &slices)?.wait_with(|index, bytes| read.put(index, bytes))?;
        Ok(read.values)
    }

    /// [`read_blocking`](Self::read_blocking) into the caller's memory. Reading repeatedly into the
    /// same memory is faster than into new memory, whose pages the system has to map first.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`GpuError::Argument`] where `out` has a different length than the value.
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
            // No padding: f32 values are whole words.
            Elem::F32 => read.wait_into(&mut [bytemuck::cast_slice_mut(out)]),
            Elem::F16 => read.wait_with(|_, bytes| {
                out.iter_mut()
                    .zip(bytes.as_chunks::<2>().0)
                    .for_each(|(x, b)| *x = f16::from_ne_bytes(*b).to_f32());
            }),
        }
    }

    /// Replaces the data of an upload; the next run uses it.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the value is not an upload of this batch or the length differs.
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

    /// Uploads pending data, and compiles the batch if it has changed.
    fn prepare(&mut self, cache: &PipelineCache) -> Result<(), GpuError> {
        self.gpu.check_alive()?;
        for value in &mut self.values {
            let Some((target, data)) = value.pending_upload(&self.gpu)? else { continue };
            self.gpu.upload("upload", &target, 0, data)?;
            value.uploaded();
        }
        self.written = false;
        if !self.is_compiled() {
            let targets = self.targets();
            self.compiled = Some(self.compile(&targets, &HashMap::new(), cache)?);
        }
        Ok(())
    }

    /// [`prepare`](Self::prepare) for any executor. Data stays pending until it is uploaded, so that nothing
    /// is lost if the future is dropped.
    async fn prepare_async(&mut self, cache: &PipelineCache) -> Result<(), GpuError> {
        self.gpu.check_alive()?;
        for value in &mut self.values {
            let Some((target, data)) = value.pending_upload(&self.gpu)? else { continue };
            self.gpu.upload_async("upload", &target, 0, data).await?;
            value.uploaded();
        }
        self.written = false;
        if !self.is_compiled() {
            let targets = self.targets();
            self.compiled = Some(self.compile_async(&targets, &HashMap::new(), cache).await?);
        }
        Ok(())
    }

    /// Whether the compiled batch has all operations, and keeps all values that are to be kept.
    fn is_compiled(&self) -> bool {
        let is_op = |id: &&u32| self.values[**id as usize].op().is_some();
        self.compiled.as_ref().is_some_and(|compiled| {
            let kept = self.keep.iter().filter(is_op).all(|id| compiled.stored.contains_key(id));
            kept && compiled.values == self.values.len()
        })
    }

    /// Makes values readable by recomputing those that were not kept.
    fn restore(&mut self, ids: &[u32]) -> Result<(), GpuError> {
        let Some((missing, compiled)) = self.missing(ids)? else { return Ok(()) };
        let again = self.compile(&missing, &compiled.stored, PipelineCache::global())?;
        self.recompute(again, missing)
    }

    /// [`restore`](Self::restore) for any executor.
    async fn restore_async(&mut self, ids: &[u32]) -> Result<(), GpuError> {
        let Some((missing, compiled)) = self.missing(ids)? else { return Ok(()) };
        let again = self.compile_async(&missing, &compiled.stored, PipelineCache::global()).await?;
        self.gpu.ready_to_submit().await?;
        self.recompute(again, missing)
    }

    /// Values that were not kept, and the run that they are recomputed from.
    fn missing(&self, ids: &[u32]) -> Result<Option<(Vec<u32>, &CompiledBatch)>, GpuError> {
        let missing: Vec<u32> = ids.iter().copied().filter(|&id| self.stored(id).is_none()).collect();
        if missing.is_empty() {
            return Ok(None);
        }
        let current = self.compiled.as_ref().filter(|compiled| {
            self.executed && !self.written && missing.iter().all(|&id| (id as usize) < compiled.values)
        });
        current.map(|compiled| Some((missing, compiled))).ok_or_else(|| not_executed("read"))
    }

    fn recompute(&mut self, again: CompiledBatch, missing: Vec<u32>) -> Result<(), GpuError> {
        again.submit(&self.gpu, None)?;
        self.keep.extend(&missing);
        self.restored.extend(again.stored);
        Ok(())
    }

    /// The buffer that currently holds a value.
    fn stored(&self, id: u32) -> Option<GpuBuffer> {
        match &self.values[id as usize].source {
            Source::Upload { buffer, .. } => buffer.clone(),
            Source::Import(buffer) => Some(buffer.clone()),
            // It shares the buffer of an input, which has changed.
            Source::Op(_) if self.written && alias_root(&self.values, id).is_some() => None,
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
}

/// Collects values that are read from the device.
struct ReadValues {
    /// Length and element type of each value.
    stored: Vec<(u64, Elem)>,
    values: Vec<Vec<f32>>,
}

impl ReadValues {
    fn of(batch: &GpuCommandBatch, ids: &[u32]) -> ReadValues {
        let stored = ids.iter().map(|&id| (batch.values[id as usize].len, batch.values[id as usize].elem));
        ReadValues { stored: stored.collect(), values: vec![Vec::new(); ids.len()] }
    }

    fn put(&mut self, index: usize, bytes: &[u8]) {
        let (len, elem) = self.stored[index];
        self.values[index] = super::record::decode(bytes, len, elem);
    }
}

pub(super) fn not_executed(call: &'static str) -> GpuError {
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
    fn f16_values_survive_a_round_trip() {
        use crate::kernels::Elem;
        let data = [1.0f32, -2.5, 65504.0, 0.0, f32::INFINITY];
        let bytes = super::super::record::encode(&data, Elem::F16);
        assert_eq!(bytes.len(), 10);
        assert_eq!(super::super::record::decode(&bytes, 5, Elem::F16), data);
    }
}
