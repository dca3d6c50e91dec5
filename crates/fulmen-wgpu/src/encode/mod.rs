//! The only way work reaches the device: dispatches are compiled into a [`DispatchList`] once, and each
//! run of the list is one compute pass and one submission.
//!
//! Compiling creates every wgpu object: bind groups (deduplicated), and one uniform buffer for
//! parameters that do not fit immediate data. Encoding creates only the encoder and the pass, and sets
//! only state that changes from one dispatch to the next. wgpu command buffers cannot be submitted
//! twice, so every run pays for its encoding: 1 to 3 µs per dispatch. On Vulkan a list that runs often
//! is recorded into a reusable command buffer (`replay`).

mod check;
mod profile;

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use wgpu::{BindGroup, BindGroupLayout, BufferUsages, CommandEncoder, ComputePass, SubmissionIndex};

use crate::{
    buffer::{BufferSlice, GpuBuffer},
    device::{GpuDevice, RecordMode, count},
    error::GpuError,
    kernel::Access,
    pipeline::{ParamMode, Pipeline},
    replay::{MIN_DISPATCHES, MIN_ENCODED_RUNS, RECORD_AFTER_DISPATCHES, Recording, ReplayDispatch},
    transfer::Readback,
};
pub use fulmen_core::trace::{DispatchTime, Profile};

const COMPILE: &str = "DispatchList::compile";
const SUBMIT: &str = "DispatchList::submit";

/// One compute dispatch: a pipeline, the buffers it binds, its parameters and its grid.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The compiled kernel.
    pub pipeline: Arc<Pipeline>,
    /// A range for each of the kernel's buffers, starting at a multiple of
    /// [`Caps::binding_alignment`](crate::kernel::Caps::binding_alignment), of whole words.
    pub bindings: Vec<BufferSlice>,
    /// The words of `Params`.
    pub params: Vec<u32>,
    /// Workgroups in x, y and z. A dispatch with a 0 among them does nothing.
    pub workgroups: [u32; 3],
    /// Name in profiles and messages.
    pub label: String,
}

/// Dispatches with every object that a run needs. A list can be run any number of times, from any thread.
#[derive(Debug)]
pub struct DispatchList {
    gpu: GpuDevice,
    dispatches: Vec<EncodedDispatch>,
    labels: Vec<String>,
    pipelines: Vec<Arc<Pipeline>>,
    groups: Vec<BindGroup>,
    /// What each bind group binds. Keeps the buffers, and thereby the device's count of live memory, alive.
    slices: Vec<Vec<BufferSlice>>,
    immediates: Vec<u8>,
    _uniforms: Option<GpuBuffer>,
    /// Runs that were encoded by wgpu.
    runs: AtomicU32,
    /// Set once recording was tried; `None` inside where the list cannot be recorded.
    recording: OnceLock<Option<Arc<Recording>>>,
}

/// A dispatch as indices into the tables of its [`DispatchList`].
#[derive(Debug)]
struct EncodedDispatch {
    pipeline: usize,
    group: usize,
    params: DispatchParams,
    workgroups: [u32; 3],
}

/// How the parameters of a dispatch reach the kernel.
#[derive(Debug)]
enum DispatchParams {
    None,
    Immediates(Range<usize>),
    Uniform { group: usize, offset: u32 },
}

impl DispatchList {
    /// Checks the dispatches and creates the objects they need.
    ///
    /// # Errors
    /// [`GpuError::Argument`], [`GpuError::TooLarge`], [`GpuError::Aliased`] and
    /// [`GpuError::ForeignDevice`] name the invalid dispatch; [`GpuError::OutOfMemory`],
    /// [`GpuError::DeviceLost`].
    pub fn compile(gpu: &GpuDevice, dispatches: Vec<Dispatch>) -> Result<Self, GpuError> {
        gpu.check_alive()?;
        for (index, dispatch) in dispatches.iter().enumerate() {
            check::dispatch(gpu, index, dispatch)?;
        }
        let dispatches: Vec<Dispatch> =
            dispatches.into_iter().filter(|dispatch| !dispatch.workgroups.contains(&0)).collect();
        let uniforms = Uniforms::lay_out(gpu, &dispatches)?;
        let mut builder = DispatchListBuilder {
            gpu,
            list: Self::empty(gpu),
            pipelines: HashMap::new(),
            groups: HashMap::new(),
        };
        gpu.create(COMPILE, None, || {
            for (index, dispatch) in dispatches.into_iter().enumerate() {
                builder.add(index, dispatch, uniforms.as_ref());
            }
        })?;
        let mut list = builder.list;
        list._uniforms = uniforms.map(|uniforms| uniforms.buffer);
        gpu.check_alive()?;
        Ok(list)
    }

    fn empty(gpu: &GpuDevice) -> Self {
        Self {
            gpu: gpu.clone(),
            dispatches: Vec::new(),
            labels: Vec::new(),
            pipelines: Vec::new(),
            groups: Vec::new(),
            slices: Vec::new(),
            immediates: Vec::new(),
            _uniforms: None,
            runs: AtomicU32::new(0),
            recording: OnceLock::new(),
        }
    }

    /// The number of dispatches.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether there are no dispatches.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Encodes all dispatches into one compute pass; an empty list encodes nothing. wgpu reports errors
    /// when the encoder is finished.
    pub fn encode(&self, encoder: &mut CommandEncoder) {
        self.encode_timed(encoder, None);
    }

    /// [`encode`](Self::encode) with timestamps before and after the pass; they do not slow the dispatches
    /// in between.
    pub fn encode_timed(
        &self,
        encoder: &mut CommandEncoder,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        if self.is_empty() {
            return;
        }
        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        let mut state = PassState::default();
        for dispatch in &self.dispatches {
            self.record(&mut pass, &mut state, dispatch);
        }
        count(&self.gpu.counters().passes, 1);
        count(&self.gpu.counters().dispatches, self.dispatches.len() as u64);
    }

    /// Encodes one dispatch, skipping state that is set already.
    fn record(&self, pass: &mut ComputePass<'_>, state: &mut PassState, dispatch: &EncodedDispatch) {
        let same_pipeline = state.pipeline.replace(dispatch.pipeline) == Some(dispatch.pipeline);
        if !same_pipeline {
            pass.set_pipeline(&self.pipelines[dispatch.pipeline].raw);
        }
        if state.group.replace(dispatch.group) != Some(dispatch.group) {
            pass.set_bind_group(0, &self.groups[dispatch.group], &[]);
        }
        match &dispatch.params {
            DispatchParams::None => {}
            DispatchParams::Immediates(range) => {
                let (words, before) =
                    (&self.immediates[range.clone()], state.immediates.replace(range.clone()));
                let same = before.is_some_and(|before| same_pipeline && self.immediates[before] == *words);
                if !same {
                    pass.set_immediates(0, words);
                }
            }
            DispatchParams::Uniform { group, offset } => {
                pass.set_bind_group(1, &self.groups[*group], &[*offset])
            }
        }
        let [x, y, z] = dispatch.workgroups;
        pass.dispatch_workgroups(x, y, z);
    }

    /// Whether the list is recorded, so that runs need no encoding.
    pub fn is_recorded(&self) -> bool {
        self.recording.get().is_some_and(Option::is_some)
    }

    /// The recorded Vulkan command buffer, once the list has run often enough to be recorded.
    pub(crate) fn recording(&self) -> Option<&Arc<Recording>> {
        let runs = self.runs.load(Ordering::Relaxed);
        let pays = match self.gpu.record_option() {
            RecordMode::Always => true,
            RecordMode::Auto => u64::from(runs) * self.dispatches.len() as u64 >= RECORD_AFTER_DISPATCHES,
            RecordMode::Never => false,
        };
        if !pays || runs < MIN_ENCODED_RUNS || self.dispatches.len() < MIN_DISPATCHES {
            return None;
        }
        let record = || {
            let dispatches = self.dispatches.iter().map(|dispatch| {
                let words = match &dispatch.params {
                    DispatchParams::None => &[][..],
                    DispatchParams::Immediates(range) => &self.immediates[range.clone()],
                    DispatchParams::Uniform { .. } => return None,
                };
                let pipeline = &*self.pipelines[dispatch.pipeline];
                let (slices, workgroups) = (&*self.slices[dispatch.group], dispatch.workgroups);
                Some(ReplayDispatch { pipeline, slices, words, workgroups })
            });
            Recording::new(&self.gpu, &dispatches.collect::<Option<Vec<_>>>()?)
        };
        self.recording.get_or_init(record).as_ref()
    }

    /// Counts a submitted run.
    pub(crate) fn has_run(&self, replayed: bool) {
        if replayed {
            let counters = self.gpu.counters();
            count(&counters.passes, 1);
            count(&counters.dispatches, self.dispatches.len() as u64);
            count(&counters.replays, 1);
        } else {
            self.runs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs all dispatches: one pass, one submission. An empty list submits nothing.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`], [`GpuError::Validation`] where a buffer was
    /// destroyed.
    pub fn submit(&self) -> Result<Option<SubmissionIndex>, GpuError> {
        self.gpu.check_alive()?;
        if self.is_empty() {
            return Ok(None);
        }
        self.gpu.run(SUBMIT, self, None, None).map(Some)
    }

    /// Runs all dispatches and reads ranges of buffers, all in one submission. The data is available once the
    /// returned read-back has been waited for or awaited.
    ///
    /// # Errors
    /// As [`submit`](Self::submit) and [`GpuDevice::read_many`].
    pub fn submit_and_read(&self, slices: &[BufferSlice]) -> Result<Readback, GpuError> {
        let mut readback = Readback::plan(&self.gpu, SUBMIT, slices)?;
        if self.is_empty() && readback.is_empty() {
            return Ok(readback);
        }
        let submission = self.gpu.run(SUBMIT, self, None, Some(&|encoder| readback.record(encoder)))?;
        readback.submitted(submission)?;
        Ok(readback)
    }
}

/// What is currently set in the compute pass.
#[derive(Default)]
struct PassState {
    pipeline: Option<usize>,
    group: Option<usize>,
    immediates: Option<Range<usize>>,
}

/// A [`DispatchList`] under construction, with lookup tables for pipelines and bind groups that occur twice.
struct DispatchListBuilder<'a> {
    gpu: &'a GpuDevice,
    list: DispatchList,
    pipelines: HashMap<*const Pipeline, usize>,
    groups: HashMap<(Vec<Access>, Vec<BufferSlice>), usize>,
}

impl DispatchListBuilder<'_> {
    fn add(&mut self, index: usize, dispatch: Dispatch, uniforms: Option<&Uniforms>) {
        let Dispatch { pipeline, bindings, params, workgroups, label } = dispatch;
        let params = match (pipeline.params, &pipeline.uniform, uniforms) {
            (ParamMode::Immediates, ..) => {
                let start = self.list.immediates.len();
                self.list.immediates.extend(params.iter().flat_map(|word| word.to_le_bytes()));
                DispatchParams::Immediates(start..self.list.immediates.len())
            }
            (ParamMode::Uniform, Some(layout), Some(uniforms)) => {
                let size = pipeline.uniform_bytes();
                let slice = BufferSlice { buffer: uniforms.buffer.clone(), offset: 0, size };
                // An empty access list cannot collide with the key of a storage bind group.
                let group = self.group(&label, layout, Vec::new(), vec![slice]);
                DispatchParams::Uniform { group, offset: uniforms.offsets[index] }
            }
            _ => DispatchParams::None,
        };
        let group = self.group(&label, &pipeline.buffers, pipeline.access.clone(), bindings);
        let pipelines = &mut self.list.pipelines;
        let pipeline = *self.pipelines.entry(Arc::as_ptr(&pipeline)).or_insert_with(|| {
            pipelines.push(pipeline);
            pipelines.len() - 1
        });
        self.list.labels.push(label);
        self.list.dispatches.push(EncodedDispatch { pipeline, group, params, workgroups });
    }

    /// The bind group of these ranges. Layouts with equal entries are interchangeable in wgpu, so
    /// ranges and accesses identify a bind group.
    fn group(
        &mut self,
        label: &str,
        layout: &BindGroupLayout,
        access: Vec<Access>,
        slices: Vec<BufferSlice>,
    ) -> usize {
        let key = (access, slices);
        if let Some(&group) = self.groups.get(&key) {
            return group;
        }
        let entries: Vec<_> = (0..).zip(&key.1).map(|(binding, slice)| entry(binding, slice)).collect();
        let descriptor = wgpu::BindGroupDescriptor { label: Some(label), layout, entries: &entries };
        let groups = &mut self.list.groups;
        groups.push(self.gpu.wgpu_device().create_bind_group(&descriptor));
        count(&self.gpu.counters().bind_groups, 1);
        self.list.slices.push(key.1.clone());
        let group = groups.len() - 1;
        self.groups.insert(key, group);
        group
    }
}

fn entry(binding: u32, slice: &BufferSlice) -> wgpu::BindGroupEntry<'_> {
    wgpu::BindGroupEntry {
        binding,
        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: slice.buffer.raw(),
            offset: slice.offset,
            size: wgpu::BufferSize::new(slice.size),
        }),
    }
}

/// All parameters that do not go as immediate data, in one uniform buffer.
struct Uniforms {
    buffer: GpuBuffer,
    /// Offset of each dispatch's parameters; 0 for dispatches without parameters in this buffer.
    offsets: Vec<u32>,
}

impl Uniforms {
    fn lay_out(gpu: &GpuDevice, dispatches: &[Dispatch]) -> Result<Option<Self>, GpuError> {
        let align = u64::from(gpu.limits().min_uniform_buffer_offset_alignment.max(16));
        let mut bytes: Vec<u8> = Vec::new();
        let mut known: HashMap<&[u32], u32> = HashMap::new();
        let mut offsets = Vec::with_capacity(dispatches.len());
        let too_large = |needed: u64| GpuError::TooLarge {
            call: COMPILE,
            what: "the bytes of parameters".to_owned(),
            needed,
            limit: u64::from(u32::MAX),
        };
        for dispatch in dispatches {
            if dispatch.pipeline.params != ParamMode::Uniform {
                offsets.push(0);
                continue;
            }
            if let Some(&offset) = known.get(&*dispatch.params) {
                offsets.push(offset);
                continue;
            }
            let start = (bytes.len() as u64).next_multiple_of(align);
            let offset = u32::try_from(start).map_err(|_| too_large(start))?;
            bytes.resize(start as usize, 0);
            bytes.extend(dispatch.params.iter().flat_map(|word| word.to_le_bytes()));
            bytes.resize((start + dispatch.pipeline.uniform_bytes()) as usize, 0);
            known.insert(&dispatch.params, offset);
            offsets.push(offset);
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let buffer = gpu.create_buffer_for(COMPILE, bytes.len() as u64, usage)?;
        gpu.upload(COMPILE, &buffer, 0, &bytes)?;
        Ok(Some(Self { buffer, offsets }))
    }
}
