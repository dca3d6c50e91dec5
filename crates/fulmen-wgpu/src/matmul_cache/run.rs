//! Running matmuls: inputs up, launches, results down, in one submission.

use std::{collections::HashMap, sync::Arc};

use super::GpuMatmulCache;
use crate::{
    buffer::{BufferSlice, GpuBuffer},
    device::GpuDevice,
    encode::{Dispatch, DispatchList, Profile},
    error::GpuError,
    kernel::Kernel,
    kernels::matmul::{MatmulBuffer, MatmulLaunch},
    matmul_launches::{WeightLaunch, WeightLaunches},
    pipeline::Pipeline,
    transfer::{Readback, Upload},
};

/// Where a matmul's input is.
#[derive(Clone, Copy, Debug)]
pub enum MatmulInput<'a> {
    /// On the host: `m · k` f32 values.
    Host(&'a [f32]),
    /// On the cache's device: `m · k` f32 values at the start of a buffer, such as an earlier result.
    Buffer(&'a GpuBuffer),
}

/// Where a matmul's result goes.
#[derive(Debug)]
pub enum MatmulOutput<'a> {
    /// To the host: `m · n` f32 values.
    Host(&'a mut [f32]),
    /// It stays on the cache's device, at the start of a buffer of at least `m · n` f32: for a later matmul,
    /// or for a [command batch](crate::GpuCommandBatch::import_buffer).
    Buffer(&'a GpuBuffer),
}

/// A matmul by a cached weight: `output[m, n] = input[m, k] · weight[n, k]ᵀ`.
#[derive(Debug)]
pub struct CachedMatmul<'a> {
    /// The name of the weight.
    pub weight: &'a str,
    /// Rows of the input.
    pub m: usize,
    /// The input.
    pub input: MatmulInput<'a>,
    /// The result.
    pub output: MatmulOutput<'a>,
}

/// Buffers and programs that stay from call to call.
#[derive(Debug, Default)]
pub(super) struct Runs {
    compiled: HashMap<Vec<Key>, Compiled>,
    input: Option<GpuBuffer>,
    output: Option<GpuBuffer>,
    scratch: Vec<GpuBuffer>,
}

/// One matmul of a call, by what its launches bind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    weight: u64,
    m: u32,
    input: Place,
    output: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// At this offset of the cache's own buffer.
    Own(u64),
    /// In a buffer of the caller.
    Theirs(GpuBuffer),
}

#[derive(Debug)]
struct Compiled {
    program: DispatchList,
    used: u64,
}

/// Programs that are kept; those that were not used for longest go first. A caller with new buffers in
/// each call would fill memory otherwise.
const MOST_PROGRAMS: usize = 1024;

impl Runs {
    pub(super) fn io_bytes(&self) -> u64 {
        [&self.input, &self.output].into_iter().flatten().map(GpuBuffer::size).sum()
    }

    pub(super) fn scratch_bytes(&self) -> u64 {
        self.scratch.iter().map(GpuBuffer::size).sum()
    }

    /// Drops what refers to a weight.
    pub(super) fn forget(&mut self, weight: u64) {
        self.compiled.retain(|key, _| key.iter().all(|matmul| matmul.weight != weight));
    }

    /// Makes a buffer at least this large. Programs that bind the old one are of no use any more.
    fn grow(
        &mut self,
        gpu: &GpuDevice,
        call: &'static str,
        which: impl Fn(&mut Self) -> &mut Option<GpuBuffer>,
        bytes: u64,
    ) -> Result<(), GpuError> {
        if bytes == 0 || which(self).as_ref().is_some_and(|buffer| buffer.size() >= bytes) {
            return Ok(());
        }
        // Powers of two, so that inputs that grow little by little do not make a buffer each time.
        let size = bytes.checked_next_power_of_two().unwrap_or(bytes).min(gpu.caps().max_buffer).max(bytes);
        let new = gpu.create_buffer(call, size).or_else(|_| gpu.create_buffer(call, bytes))?;
        *which(self) = Some(new);
        self.compiled.clear();
        Ok(())
    }
}

/// A call in flight: what is still to be read, and where it goes.
struct Started {
    readback: Readback,
}

/// Where everything of a call lies.
#[derive(Default)]
struct Layout {
    keys: Vec<Key>,
    /// For each matmul with an input on the host: its offset and its number.
    uploads: Vec<(u64, usize)>,
    /// For each matmul with a result on the host: the range of the cache's buffer.
    reads: Vec<(u64, u64)>,
    input_bytes: u64,
    output_bytes: u64,
}

impl GpuMatmulCache {
    /// Multiplies `m` rows of input, each of k elements, by a weight: `output[m, n] = input[m, k] · weight[n,
    /// k]ᵀ`.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`], [`GpuError::Argument`] where `m` is 0 or a length does not fit,
    /// [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn matmul_cached(
        &mut self,
        weight_name: &str,
        input: &[f32],
        output: &mut [f32],
        m: usize,
    ) -> Result<(), GpuError> {
        let (input, output) = (MatmulInput::Host(input), MatmulOutput::Host(output));
        self.many("matmul_cached", &mut [CachedMatmul { weight: weight_name, m, input, output }])
    }

    /// [`matmul_cached`](Self::matmul_cached) for any executor.
    ///
    /// # Errors
    /// As [`matmul_cached`](Self::matmul_cached).
    pub async fn matmul_cached_async(
        &mut self,
        weight_name: &str,
        input: &[f32],
        output: &mut [f32],
        m: usize,
    ) -> Result<(), GpuError> {
        let (input, output) = (MatmulInput::Host(input), MatmulOutput::Host(output));
        self.many_async("matmul_cached", &mut [CachedMatmul { weight: weight_name, m, input, output }]).await
    }

    /// Several matmuls in one submission, in order: a matmul may read from a buffer that one before it writes
    /// to. Waits for the results that go to the host; without any it returns as soon as the work is
    /// submitted.
    ///
    /// ```
    /// use fulmen_wgpu::{GpuDevice, GpuMatmulCache, MatmulInput, MatmulOutput, CachedMatmul};
    ///
    /// let mut cache = GpuMatmulCache::on(GpuDevice::new()?);
    /// cache.upload_weight("up", &[1.0, 1.0, 1.0, -1.0], 2, 2)?;
    /// cache.upload_weight("down", &[0.5, 0.5], 1, 2)?;
    /// let between = cache.device().create_buffer("example", 8)?;
    /// let mut out = [0.0];
    /// cache.matmul_many(&mut [
    ///     CachedMatmul {
    ///         weight: "up",
    ///         m: 1,
    ///         input: MatmulInput::Host(&[3.0, 1.0]),
    ///         output: MatmulOutput::Buffer(&between),
    ///     },
    ///     CachedMatmul {
    ///         weight: "down",
    ///         m: 1,
    ///         input: MatmulInput::Buffer(&between),
    ///         output: MatmulOutput::Host(&mut out),
    ///     },
    /// ])?;
    /// assert_eq!(out, [3.0]);
    /// # Ok::<(), fulmen_wgpu::GpuError>(())
    /// ```
    ///
    /// # Errors
    /// As [`matmul_cached`](Self::matmul_cached), and [`GpuError::Aliased`] where a matmul reads from the
    /// buffer that it writes to. Nothing was run then.
    pub fn matmul_many(&mut self, matmuls: &mut [CachedMatmul<'_>]) -> Result<(), GpuError> {
        self.many("matmul_many", matmuls)
    }

    /// [`matmul_many`](Self::matmul_many) for any executor.
    ///
    /// # Errors
    /// As [`matmul_many`](Self::matmul_many).
    pub async fn matmul_many_async(&mut self, matmuls: &mut [CachedMatmul<'_>]) -> Result<(), GpuError> {
        self.many_async("matmul_many", matmuls).await
    }

    /// The time on the device of a matmul of `m` rows, in microseconds: the kernels alone, in one pass. What
    /// it multiplies is what the last call of that size left, or zeros.
    ///
    /// # Errors
    /// As [`matmul_cached`](Self::matmul_cached), and [`GpuError::Unsupported`] where the device has no
    /// timestamps.
    pub fn time_us(&mut self, weight_name: &str, m: usize) -> Result<f64, GpuError> {
        let key = self.own_program("time_us", weight_name, m)?;
        self.runs.compiled.get(&key).map_or(Ok(0.0), |compiled| compiled.program.time_us())
    }

    /// The time on the device of each kernel of a matmul of `m` rows. Measuring keeps the kernels apart, so
    /// their sum is more than [`time_us`](Self::time_us).
    ///
    /// # Errors
    /// As [`time_us`](Self::time_us).
    pub fn profile(&mut self, weight_name: &str, m: usize) -> Result<Profile, GpuError> {
        let key = self.own_program("profile", weight_name, m)?;
        let none = Ok(Profile { dispatches: Vec::new(), split_passes: false });
        self.runs.compiled.get(&key).map_or(none, |compiled| compiled.program.profile())
    }

    /// The names of the kernels of a matmul of `m` rows, in order.
    ///
    /// # Errors
    /// As [`matmul_cached`](Self::matmul_cached).
    pub fn kernels(&self, weight_name: &str, m: usize) -> Result<Vec<String>, GpuError> {
        const CALL: &str = "kernels";
        let weight = self.weights.get(weight_name).ok_or_else(|| self.unknown(CALL, weight_name))?;
        let all = self.launches(CALL, weight, rows(CALL, m)?)?;
        Ok(all.launches.into_iter().map(|bound| bound.launch.launch.kernel.label.into_owned()).collect())
    }

    /// Runs a matmul from and to the cache's own buffers, and waits for it.
    pub(crate) fn run_own(&mut self, weight_name: &str, m: usize) -> Result<(), GpuError> {
        let key = self.own_program("tune", weight_name, m)?;
        let Some(compiled) = self.runs.compiled.get(&key) else { return Ok(()) };
        compiled.program.submit()?.map_or(Ok(()), |submission| self.gpu.wait(&submission))
    }

    /// The pipeline of a kernel of this crate.
    pub(crate) fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>, GpuError> {
        // SAFETY: the kernels of this crate clamp their indices or keep to the lengths that they are given,
        // and the tests run them with checks as well.
        unsafe { self.pipelines.get_trusted(&self.gpu, kernel) }
    }

    /// The program of a matmul from and to the cache's own buffers.
    fn own_program(&mut self, call: &'static str, name: &str, m: usize) -> Result<Vec<Key>, GpuError> {
        let weight = self.weights.get(name).ok_or_else(|| self.unknown(call, name))?;
        let (number, m) = (weight.number, rows(call, m)?);
        let size = |side: u32| u64::from(m) * u64::from(side) * 4;
        let (input, output) = (size(weight.data.k), size(weight.data.n));
        let key = vec![Key { weight: number, m, input: Place::Own(0), output: Place::Own(0) }];
        self.prepare(call, &key, &[name], input, output)?;
        Ok(key)
    }

    fn many(&mut self, call: &'static str, matmuls: &mut [CachedMatmul<'_>]) -> Result<(), GpuError> {
        let layout = self.lay_out(call, matmuls)?;
        let Some(Started { readback }) = self.start(call, matmuls, &layout)? else { return Ok(()) };
        let mut outputs: Vec<&mut [u8]> = host_outputs(matmuls).collect();
        readback.wait_into(&mut outputs)
    }

    async fn many_async(
        &mut self,
        call: &'static str,
        matmuls: &mut [CachedMatmul<'_>],
    ) -> Result<(), GpuError> {
        let layout = self.lay_out(call, matmuls)?;
        self.compile_ahead(call, matmuls, &layout).await?;
        self.staging.ready(&self.gpu, call, layout.input_bytes).await?;
        self.gpu.ready_to_submit().await?;
        let Some(Started { readback }) = self.start(call, matmuls, &layout)? else { return Ok(()) };
        let mut outputs: Vec<&mut [u8]> = host_outputs(matmuls).collect();
        readback.await_with(|index, bytes| outputs[index].copy_from_slice(bytes)).await
    }

    /// Yields until the kernels of matmuls that were not called like this before are compiled.
    async fn compile_ahead(
        &self,
        call: &'static str,
        matmuls: &[CachedMatmul<'_>],
        layout: &Layout,
    ) -> Result<(), GpuError> {
        if self.runs.compiled.contains_key(&layout.keys) {
            return Ok(());
        }
        let mut kernels = Vec::new();
        for (key, matmul) in layout.keys.iter().zip(matmuls) {
            let weight = self.weights.get(matmul.weight).ok_or_else(|| self.unknown(call, matmul.weight))?;
            let launches = self.launches(call, weight, key.m)?.launches;
            kernels.extend(launches.into_iter().map(|bound| bound.launch.launch.kernel));
        }
        // SAFETY: the kernels of this crate, as in `pipeline`.
        unsafe { self.pipelines.compile_ahead(&self.gpu, &kernels) }.await;
        Ok(())
    }

    /// Compiles, uploads and submits; gives what is to be read, if anything is.
    fn start(
        &mut self,
        call: &'static str,
        matmuls: &[CachedMatmul<'_>],
        layout: &Layout,
    ) -> Result<Option<Started>, GpuError> {
        self.gpu.check_alive()?;
        let names: Vec<&str> = matmuls.iter().map(|matmul| matmul.weight).collect();
        self.prepare(call, &layout.keys, &names, layout.input_bytes, layout.output_bytes)?;
        let (gpu, runs) = (&self.gpu, &self.runs);
        let Some(compiled) = runs.compiled.get(&layout.keys) else { return Ok(None) };
        let upload = match layout.input_bytes {
            0 => None,
            bytes => {
                let pieces = layout.uploads.iter().filter_map(|&(at, number)| match matmuls[number].input {
                    MatmulInput::Host(data) => Some((at, bytemuck::cast_slice(data))),
                    MatmulInput::Buffer(_) => None,
                });
                Some(self.staging.write(gpu, call, bytes, pieces)?)
            }
        };
        let slices: Vec<BufferSlice> = match &runs.output {
            Some(output) => layout.reads.iter().map(|&(at, bytes)| output.slice(at..at + bytes)).collect(),
            None => Vec::new(),
        };
        let mut readback = Readback::plan(gpu, call, &slices)?;
        let submission = gpu.record(call, |encoder| {
            if let (Some(upload), Some(input)) = (&upload, &runs.input) {
                let bytes = Some(upload.used());
                encoder.copy_buffer_to_buffer(upload.buffer(), 0, input.raw(), 0, bytes);
            }
            compiled.program.encode(encoder);
            readback.record(encoder);
        })?;
        drop::<Option<Upload>>(upload);
        if slices.is_empty() {
            return Ok(None);
        }
        readback.submitted(submission)?;
        Ok(Some(Started { readback }))
    }

    /// Checks each matmul, and gives its input and its result a place.
    fn lay_out(&mut self, call: &'static str, matmuls: &[CachedMatmul<'_>]) -> Result<Layout, GpuError> {
        let align = u64::from(self.gpu.caps().binding_alignment.max(16));
        self.clock += 1;
        let mut layout = Layout::default();
        for (number, matmul) in matmuls.iter().enumerate() {
            let Some(weight) = self.weights.get_mut(matmul.weight) else {
                return Err(self.unknown(call, matmul.weight));
            };
            weight.used = self.clock;
            let m = rows(call, matmul.m)?;
            let elements = |side: u32| u64::from(m) * u64::from(side);
            let (inputs, outputs) = (elements(weight.data.k), elements(weight.data.n));
            let wrong = |what: &str, wanted: u64, got: u64, unit: &str| {
                if wanted == got {
                    return Ok(());
                }
                let what =
                    format!("the length of the {what} of a matmul with m = {m} by {:?}", matmul.weight);
                let expected = format!("{wanted} {unit}");
                Err(GpuError::Argument { call, what, expected, got: got.to_string() })
            };
            let input = match matmul.input {
                MatmulInput::Host(data) => {
                    wrong("input", inputs, data.len() as u64, "f32 values")?;
                    let at = layout.input_bytes.next_multiple_of(align);
                    layout.uploads.push((at, number));
                    layout.input_bytes = at + inputs * 4;
                    Place::Own(at)
                }
                MatmulInput::Buffer(buffer) => {
                    buffer.check_device(&self.gpu, call)?;
                    wrong("input", inputs * 4, buffer.size().min(inputs * 4), "bytes")?;
                    Place::Theirs(buffer.clone())
                }
            };
            let output = match &matmul.output {
                MatmulOutput::Host(data) => {
                    wrong("output", outputs, data.len() as u64, "f32 values")?;
                    let at = layout.output_bytes.next_multiple_of(align);
                    layout.reads.push((at, outputs * 4));
                    layout.output_bytes = at + outputs * 4;
                    Place::Own(at)
                }
                MatmulOutput::Buffer(buffer) => {
                    buffer.check_device(&self.gpu, call)?;
                    wrong("output", outputs * 4, buffer.size().min(outputs * 4), "bytes")?;
                    Place::Theirs((*buffer).clone())
                }
            };
            layout.keys.push(Key { weight: weight.number, m, input, output });
        }
        Ok(layout)
    }

    /// Makes sure that buffers are large enough and that the matmuls are compiled.
    fn prepare(
        &mut self,
        call: &'static str,
        keys: &[Key],
        names: &[&str],
        input_bytes: u64,
        output_bytes: u64,
    ) -> Result<(), GpuError> {
        let gpu = self.gpu.clone();
        self.runs.grow(&gpu, call, |runs| &mut runs.input, input_bytes)?;
        self.runs.grow(&gpu, call, |runs| &mut runs.output, output_bytes)?;
        let clock = self.clock;
        if let Some(compiled) = self.runs.compiled.get_mut(keys) {
            compiled.used = clock;
            return Ok(());
        }
        if keys.is_empty() {
            return Ok(());
        }
        let mut launches = Vec::with_capacity(keys.len());
        for (key, name) in keys.iter().zip(names) {
            let weight = self.weights.get(*name).ok_or_else(|| self.unknown(call, name))?;
            launches.push(self.launches(call, weight, key.m)?);
        }
        self.grow_scratch(call, &launches)?;
        let mut steps = Vec::new();
        for ((key, name), launches) in keys.iter().zip(names).zip(launches) {
            self.steps(call, key, name, launches, &mut steps)?;
        }
        let program = DispatchList::compile(&gpu, steps)?;
        if self.runs.compiled.len() >= MOST_PROGRAMS {
            let oldest = self.runs.compiled.iter().min_by_key(|(_, compiled)| compiled.used);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.runs.compiled.remove(&key);
            }
        }
        self.runs.compiled.insert(keys.to_vec(), Compiled { program, used: clock });
        Ok(())
    }

    /// Matmuls run one after the other, so they share scratch.
    fn grow_scratch(&mut self, call: &'static str, all: &[WeightLaunches]) -> Result<(), GpuError> {
        for launches in all {
            for (index, &bytes) in launches.scratch.iter().enumerate() {
                if self.runs.scratch.get(index).is_some_and(|buffer| buffer.size() >= bytes) {
                    continue;
                }
                let new = self.gpu.create_buffer(call, bytes)?;
                match self.runs.scratch.get_mut(index) {
                    Some(held) => *held = new,
                    None => self.runs.scratch.push(new),
                }
                self.runs.compiled.clear();
            }
        }
        Ok(())
    }

    /// The launches of a matmul on its buffers.
    fn steps(
        &self,
        call: &'static str,
        key: &Key,
        name: &str,
        launches: WeightLaunches,
        steps: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let weight = self.weights.get(name).ok_or_else(|| self.unknown(call, name))?;
        let missing = || GpuError::Internal { call, message: "a buffer is missing".to_owned() };
        let matrix = |place: &Place, own: &Option<GpuBuffer>, side: u32, rows: &std::ops::Range<u32>| {
            let (buffer, offset) = match place {
                Place::Own(offset) => (own.clone().ok_or_else(missing)?, *offset),
                Place::Theirs(buffer) => (buffer.clone(), 0),
            };
            let row = u64::from(side) * 4;
            let at = |row_number: u32| offset + u64::from(row_number) * row;
            Ok::<_, GpuError>(buffer.slice(at(rows.start)..at(rows.end)))
        };
        for WeightLaunch { launch: MatmulLaunch { launch, buffers, .. }, slice, rows } in launches.launches {
            let pipeline = self.pipeline(&launch.kernel)?;
            let bound = |buffer: &MatmulBuffer| match *buffer {
                MatmulBuffer::A => matrix(&key.input, &self.runs.input, weight.data.k, &rows),
                MatmulBuffer::Out => matrix(&key.output, &self.runs.output, weight.data.n, &rows),
                MatmulBuffer::B(_) => Ok(weight.data.slices[slice].slice.clone()),
                MatmulBuffer::Scratch(i) => {
                    self.runs.scratch.get(i as usize).map(GpuBuffer::whole).ok_or_else(missing)
                }
                MatmulBuffer::Extra(_) => Err(missing()),
            };
            let bindings = buffers.iter().map(bound).collect::<Result<_, _>>()?;
            steps.push(Dispatch {
                pipeline,
                bindings,
                params: launch.params,
                workgroups: launch.workgroups,
                label: launch.kernel.label.into_owned(),
            });
        }
        Ok(())
    }
}

/// Rows of an input, of which there is at least one.
pub(super) fn rows(call: &'static str, m: usize) -> Result<u32, GpuError> {
    u32::try_from(m).ok().filter(|&m| m > 0).ok_or_else(|| GpuError::Argument {
        call,
        what: "m".to_owned(),
        expected: format!("from 1 to {}", u32::MAX),
        got: m.to_string(),
    })
}

/// The results that go to the host, in order.
fn host_outputs<'a>(matmuls: &'a mut [CachedMatmul<'_>]) -> impl Iterator<Item = &'a mut [u8]> {
    matmuls.iter_mut().filter_map(|matmul| match &mut matmul.output {
        MatmulOutput::Host(data) => Some(bytemuck::cast_slice_mut(data)),
        MatmulOutput::Buffer(_) => None,
    })
}
