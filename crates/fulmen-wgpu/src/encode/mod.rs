//! The one way work reaches the device: steps are compiled into a [`Program`] once, and each run of the program is one
//! compute pass and one submission.
//!
//! Compiling makes every object: bind groups (equal ones once) and one buffer with the parameters that do not go as
//! immediate data. Encoding makes none but the encoder and its pass, and sets only what changes from step to step.
//! wgpu has no command buffers that can be submitted twice, so a run costs its encoding again: 1 to 3 µs a dispatch. Where
//! Vulkan can keep a program, it is encoded for the first runs only (`replay`).

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

pub use self::profile::{Profile, StepTime};
use crate::{
    buffer::{BufferSlice, GpuBuffer},
    device::{GpuDevice, Record, count},
    error::GpuError,
    kernel::Access,
    pipeline::{ParamMode, Pipeline},
    replay::{ENCODED_RUNS, FEWEST_STEPS, PAYS_AFTER, Recording, ReplayStep},
    transfer::Readback,
};

const COMPILE: &str = "Program::compile";
const SUBMIT: &str = "Program::submit";

/// One launch: a pipeline, the buffers it binds, its parameters and its grid.
#[derive(Clone, Debug)]
pub struct Step {
    /// What runs.
    pub pipeline: Arc<Pipeline>,
    /// A range for each of the kernel's buffers, starting at a multiple of
    /// [`Caps::binding_alignment`](crate::kernel::Caps::binding_alignment), of whole words.
    pub bindings: Vec<BufferSlice>,
    /// The words of `Params`.
    pub params: Vec<u32>,
    /// Workgroups in x, y and z. A step with a 0 among them does nothing.
    pub workgroups: [u32; 3],
    /// Name in profiles and messages.
    pub label: String,
}

/// Steps with all that a run needs. It can be run again and again, from any thread.
#[derive(Debug)]
pub struct Program {
    gpu: GpuDevice,
    steps: Vec<Recorded>,
    labels: Vec<String>,
    pipelines: Vec<Arc<Pipeline>>,
    groups: Vec<BindGroup>,
    /// What each group binds; keeps the count of the memory, too.
    slices: Vec<Vec<BufferSlice>>,
    immediates: Vec<u8>,
    _uniforms: Option<GpuBuffer>,
    /// Runs that wgpu encoded.
    runs: AtomicU32,
    /// `None` inside where the program cannot be recorded.
    recording: OnceLock<Option<Arc<Recording>>>,
}

/// A step by its places in the tables of its program.
#[derive(Debug)]
struct Recorded {
    pipeline: usize,
    group: usize,
    params: Params,
    workgroups: [u32; 3],
}

#[derive(Debug)]
enum Params {
    None,
    Immediates(Range<usize>),
    Uniform { group: usize, offset: u32 },
}

impl Program {
    /// Checks the steps and makes the objects they need.
    ///
    /// # Errors
    /// [`GpuError::Argument`], [`GpuError::TooLarge`], [`GpuError::Aliased`] and [`GpuError::ForeignDevice`] name the step
    /// that does not fit; [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn compile(gpu: &GpuDevice, steps: Vec<Step>) -> Result<Self, GpuError> {
        gpu.check_alive()?;
        for (index, step) in steps.iter().enumerate() {
            check::step(gpu, index, step)?;
        }
        let steps: Vec<Step> = steps.into_iter().filter(|step| !step.workgroups.contains(&0)).collect();
        let uniforms = Uniforms::lay_out(gpu, &steps)?;
        let mut tables =
            Tables { gpu, program: Self::empty(gpu), pipelines: HashMap::new(), groups: HashMap::new() };
        gpu.create(COMPILE, None, || {
            for (index, step) in steps.into_iter().enumerate() {
                tables.add(index, step, uniforms.as_ref());
            }
        })?;
        let mut program = tables.program;
        program._uniforms = uniforms.map(|uniforms| uniforms.buffer);
        gpu.check_alive()?;
        Ok(program)
    }

    fn empty(gpu: &GpuDevice) -> Self {
        Self {
            gpu: gpu.clone(),
            steps: Vec::new(),
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

    /// How many dispatches it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Records all steps into one compute pass; nothing for an empty program. Errors come when the encoder is finished.
    pub fn encode(&self, encoder: &mut CommandEncoder) {
        self.encode_timed(encoder, None);
    }

    /// [`encode`](Self::encode) with timestamps before and after the pass, which cost the steps in between nothing.
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
        let mut set = Set::default();
        for step in &self.steps {
            self.record(&mut pass, &mut set, step);
        }
        count(&self.gpu.counters().passes, 1);
        count(&self.gpu.counters().dispatches, self.steps.len() as u64);
    }

    /// Records one step, but for what is set already.
    fn record(&self, pass: &mut ComputePass<'_>, set: &mut Set, step: &Recorded) {
        let same_pipeline = set.pipeline.replace(step.pipeline) == Some(step.pipeline);
        if !same_pipeline {
            pass.set_pipeline(&self.pipelines[step.pipeline].raw);
        }
        if set.group.replace(step.group) != Some(step.group) {
            pass.set_bind_group(0, &self.groups[step.group], &[]);
        }
        match &step.params {
            Params::None => {}
            Params::Immediates(range) => {
                let (words, before) =
                    (&self.immediates[range.clone()], set.immediates.replace(range.clone()));
                let same = before.is_some_and(|before| same_pipeline && self.immediates[before] == *words);
                if !same {
                    pass.set_immediates(0, words);
                }
            }
            Params::Uniform { group, offset } => pass.set_bind_group(1, &self.groups[*group], &[*offset]),
        }
        let [x, y, z] = step.workgroups;
        pass.dispatch_workgroups(x, y, z);
    }

    /// Whether it is recorded, so that runs cost no encoding.
    pub fn is_recorded(&self) -> bool {
        self.recording.get().is_some_and(Option::is_some)
    }

    /// What Vulkan keeps of the program, once it has run often enough.
    pub(crate) fn recording(&self) -> Option<&Arc<Recording>> {
        let runs = self.runs.load(Ordering::Relaxed);
        let pays = match self.gpu.record_option() {
            Record::Always => true,
            Record::Auto => u64::from(runs) * self.steps.len() as u64 >= PAYS_AFTER,
            Record::Never => false,
        };
        if !pays || runs < ENCODED_RUNS || self.steps.len() < FEWEST_STEPS {
            return None;
        }
        let record = || {
            let steps = self.steps.iter().map(|step| {
                let words = match &step.params {
                    Params::None => &[][..],
                    Params::Immediates(range) => &self.immediates[range.clone()],
                    Params::Uniform { .. } => return None,
                };
                let pipeline = &*self.pipelines[step.pipeline];
                let (slices, workgroups) = (&*self.slices[step.group], step.workgroups);
                Some(ReplayStep { pipeline, slices, words, workgroups })
            });
            Recording::new(&self.gpu, &steps.collect::<Option<Vec<_>>>()?)
        };
        self.recording.get_or_init(record).as_ref()
    }

    /// Notes a run that was submitted.
    pub(crate) fn has_run(&self, replayed: bool) {
        if replayed {
            let counters = self.gpu.counters();
            count(&counters.passes, 1);
            count(&counters.dispatches, self.steps.len() as u64);
            count(&counters.replays, 1);
        } else {
            self.runs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs all steps: one pass, one submission. An empty program submits nothing.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`], [`GpuError::Validation`] where a buffer was destroyed.
    pub fn submit(&self) -> Result<Option<SubmissionIndex>, GpuError> {
        self.gpu.check_alive()?;
        if self.is_empty() {
            return Ok(None);
        }
        self.gpu.run(SUBMIT, self, None, None).map(Some)
    }

    /// Runs all steps and reads ranges of buffers, with one submission for both. The result is there when the read-back
    /// is waited for or awaited.
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

/// What the pass has set so far.
#[derive(Default)]
struct Set {
    pipeline: Option<usize>,
    group: Option<usize>,
    immediates: Option<Range<usize>>,
}

/// The tables of a program while it is compiled, with what finds equal entries.
struct Tables<'a> {
    gpu: &'a GpuDevice,
    program: Program,
    pipelines: HashMap<*const Pipeline, usize>,
    groups: HashMap<(Vec<Access>, Vec<BufferSlice>), usize>,
}

impl Tables<'_> {
    fn add(&mut self, index: usize, step: Step, uniforms: Option<&Uniforms>) {
        let Step { pipeline, bindings, params, workgroups, label } = step;
        let params = match (pipeline.params, &pipeline.uniform, uniforms) {
            (ParamMode::Immediates, ..) => {
                let start = self.program.immediates.len();
                self.program.immediates.extend(params.iter().flat_map(|word| word.to_le_bytes()));
                Params::Immediates(start..self.program.immediates.len())
            }
            (ParamMode::Uniform, Some(layout), Some(uniforms)) => {
                let size = pipeline.uniform_bytes();
                let slice = BufferSlice { buffer: uniforms.buffer.clone(), offset: 0, size };
                // Storage layouts have another number of accesses than none at all for one buffer.
                let group = self.group(&label, layout, Vec::new(), vec![slice]);
                Params::Uniform { group, offset: uniforms.offsets[index] }
            }
            _ => Params::None,
        };
        let group = self.group(&label, &pipeline.buffers, pipeline.access.clone(), bindings);
        let pipelines = &mut self.program.pipelines;
        let pipeline = *self.pipelines.entry(Arc::as_ptr(&pipeline)).or_insert_with(|| {
            pipelines.push(pipeline);
            pipelines.len() - 1
        });
        self.program.labels.push(label);
        self.program.steps.push(Recorded { pipeline, group, params, workgroups });
    }

    /// The bind group of these ranges. wgpu takes layouts of the same entries for the same, so the accesses tell them
    /// apart.
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
        let groups = &mut self.program.groups;
        groups.push(self.gpu.wgpu_device().create_bind_group(&descriptor));
        count(&self.gpu.counters().bind_groups, 1);
        self.program.slices.push(key.1.clone());
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

/// The parameters that do not go as immediate data, in one buffer.
struct Uniforms {
    buffer: GpuBuffer,
    /// Of each step; 0 for those that have none here.
    offsets: Vec<u32>,
}

impl Uniforms {
    fn lay_out(gpu: &GpuDevice, steps: &[Step]) -> Result<Option<Self>, GpuError> {
        let align = u64::from(gpu.limits().min_uniform_buffer_offset_alignment.max(16));
        let mut bytes: Vec<u8> = Vec::new();
        let mut known: HashMap<&[u32], u32> = HashMap::new();
        let mut offsets = Vec::with_capacity(steps.len());
        let too_large = |needed: u64| GpuError::TooLarge {
            call: COMPILE,
            what: "the bytes of parameters".to_owned(),
            needed,
            limit: u64::from(u32::MAX),
        };
        for step in steps {
            if step.pipeline.params != ParamMode::Uniform {
                offsets.push(0);
                continue;
            }
            if let Some(&offset) = known.get(&*step.params) {
                offsets.push(offset);
                continue;
            }
            let start = (bytes.len() as u64).next_multiple_of(align);
            let offset = u32::try_from(start).map_err(|_| too_large(start))?;
            bytes.resize(start as usize, 0);
            bytes.extend(step.params.iter().flat_map(|word| word.to_le_bytes()));
            bytes.resize((start + step.pipeline.uniform_bytes()) as usize, 0);
            known.insert(&step.params, offset);
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
