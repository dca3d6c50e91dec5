//! How long each step takes on the device.

use wgpu::{BufferUsages, ComputePassDescriptor, ComputePassTimestampWrites, Features, QuerySet};

use super::{Program, Set};
use crate::{buffer::GpuBuffer, device::count, error::GpuError};

const CALL: &str = "Program::profile";

/// One step's time on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// The step's name.
    pub label: String,
    /// When it began, in microseconds after the first step.
    pub start_us: f64,
    /// How long it took, in microseconds.
    pub duration_us: f64,
}

/// The times of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Each step, in order.
    pub steps: Vec<StepTime>,
    /// The device cannot take times inside a pass, so each step had a pass of its own. That costs several microseconds
    /// a step which a normal run does not have.
    pub split_passes: bool,
}

impl Profile {
    /// From the start of the first step to the end of the last, in microseconds.
    pub fn total_us(&self) -> f64 {
        self.steps.last().map_or(0.0, |last| last.start_us + last.duration_us)
    }
}

impl Program {
    /// Runs all steps once and waits for them, with the time taken before and after each.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] where the device has no timestamps; else as [`submit`](Program::submit).
    pub fn profile(&self) -> Result<Profile, GpuError> {
        let gpu = &self.gpu;
        if !gpu.features().contains(Features::TIMESTAMP_QUERY) {
            return Err(GpuError::Unsupported { call: CALL, what: "timestamps" });
        }
        let split_passes = !gpu.features().contains(Features::TIMESTAMP_QUERY_INSIDE_PASSES);
        // Two for each step where each has its pass; else one between steps, one before and one behind.
        let count = if split_passes { self.len() * 2 } else { self.len() + 1 };
        if self.is_empty() {
            return Ok(Profile { steps: Vec::new(), split_passes });
        }
        let queries = Queries::new(self, count)?;
        let encode: Encode = if split_passes { Queries::encode_split } else { Queries::encode_inside };
        let times = queries.run(self, encode)?;
        let period = f64::from(gpu.wgpu_queue().get_timestamp_period()) / 1000.0;
        let first = times[0];
        let micros = |ticks: u64, since: u64| ticks.saturating_sub(since) as f64 * period;
        let step = |(index, label): (usize, &String)| {
            let (begin, end) = if split_passes {
                (times[index * 2], times[index * 2 + 1])
            } else {
                (times[index], times[index + 1])
            };
            StepTime { label: label.clone(), start_us: micros(begin, first), duration_us: micros(end, begin) }
        };
        Ok(Profile { steps: self.labels.iter().enumerate().map(step).collect(), split_passes })
    }

    /// Runs all steps once, in one pass as [`submit`](Program::submit) does, and waits for them. Gives the time from the
    /// beginning of the pass to its end on the device, in microseconds. Unlike [`profile`](Program::profile) it takes no
    /// times between the steps, which would keep them apart.
    ///
    /// # Errors
    /// As [`profile`](Program::profile).
    pub fn time_us(&self) -> Result<f64, GpuError> {
        if !self.gpu.features().contains(Features::TIMESTAMP_QUERY) {
            return Err(GpuError::Unsupported { call: "Program::time_us", what: "timestamps" });
        }
        if self.is_empty() {
            return Ok(0.0);
        }
        let times = Queries::new(self, 2)?.run(self, Queries::encode_whole)?;
        let period = f64::from(self.gpu.wgpu_queue().get_timestamp_period()) / 1000.0;
        Ok(times[1].saturating_sub(times[0]) as f64 * period)
    }
}

/// Timestamps, in as many sets as wgpu's limit for one makes necessary, and the buffer they are read through.
struct Queries {
    sets: Vec<QuerySet>,
    results: GpuBuffer,
    count: usize,
}

/// Even, so that the two of a step are in one set; and whole in the alignment of results.
const PER_SET: usize = wgpu::QUERY_SET_MAX_QUERIES as usize;

/// How a program is recorded with its timestamps.
type Encode = fn(&Queries, &Program, &mut wgpu::CommandEncoder);

impl Queries {
    fn new(program: &Program, count: usize) -> Result<Self, GpuError> {
        let gpu = &program.gpu;
        let sets = gpu.create(CALL, None, || {
            let sizes = (0..count).step_by(PER_SET).map(|start| (count - start).min(PER_SET));
            let set = |size| {
                gpu.wgpu_device().create_query_set(&wgpu::QuerySetDescriptor {
                    label: Some(CALL),
                    ty: wgpu::QueryType::Timestamp,
                    // At most the limit for one set.
                    count: size as u32,
                })
            };
            sizes.map(set).collect()
        })?;
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let results = gpu.create_buffer_for(CALL, count as u64 * 8, usage)?;
        Ok(Self { sets, results, count })
    }

    fn set(&self, query: usize) -> (&QuerySet, u32) {
        (&self.sets[query / PER_SET], (query % PER_SET) as u32)
    }

    /// Runs the program and gives the ticks.
    fn run(&self, program: &Program, encode: Encode) -> Result<Vec<u64>, GpuError> {
        let gpu = &program.gpu;
        let slice = self.results.slice(0..self.count as u64 * 8);
        let mut readback = crate::transfer::Readback::plan(gpu, CALL, &[slice])?;
        let submission = gpu.record(CALL, |encoder| {
            encode(self, program, encoder);
            for (index, set) in self.sets.iter().enumerate() {
                let first = index * PER_SET;
                let size = (self.count - first).min(PER_SET) as u32;
                encoder.resolve_query_set(set, 0..size, self.results.raw(), first as u64 * 8);
            }
            readback.record(encoder);
        })?;
        readback.submitted(submission)?;
        let bytes = readback.wait()?.concat();
        Ok(bytes.as_chunks::<8>().0.iter().map(|ticks| u64::from_le_bytes(*ticks)).collect())
    }

    fn encode_inside(&self, program: &Program, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        let mut set = Set::default();
        let (queries, index) = self.set(0);
        pass.write_timestamp(queries, index);
        for (number, step) in program.steps.iter().enumerate() {
            program.record(&mut pass, &mut set, step);
            let (queries, index) = self.set(number + 1);
            pass.write_timestamp(queries, index);
        }
        count(&program.gpu.counters().passes, 1);
        count(&program.gpu.counters().dispatches, program.len() as u64);
    }

    /// One pass, with a time at its beginning and one at its end.
    fn encode_whole(&self, program: &Program, encoder: &mut wgpu::CommandEncoder) {
        let (query_set, first) = self.set(0);
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor {
            label: None,
            timestamp_writes: Some(ComputePassTimestampWrites {
                query_set,
                beginning_of_pass_write_index: Some(first),
                end_of_pass_write_index: Some(first + 1),
            }),
        });
        let mut set = Set::default();
        for step in &program.steps {
            program.record(&mut pass, &mut set, step);
        }
        count(&program.gpu.counters().passes, 1);
        count(&program.gpu.counters().dispatches, program.len() as u64);
    }

    fn encode_split(&self, program: &Program, encoder: &mut wgpu::CommandEncoder) {
        for (number, step) in program.steps.iter().enumerate() {
            let (query_set, first) = self.set(number * 2);
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor {
                label: Some(&program.labels[number]),
                timestamp_writes: Some(ComputePassTimestampWrites {
                    query_set,
                    beginning_of_pass_write_index: Some(first),
                    end_of_pass_write_index: Some(first + 1),
                }),
            });
            program.record(&mut pass, &mut Set::default(), step);
            count(&program.gpu.counters().passes, 1);
            count(&program.gpu.counters().dispatches, 1);
        }
    }
}
