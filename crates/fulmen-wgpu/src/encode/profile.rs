//! How long each dispatch takes on the device.

use wgpu::{BufferUsages, ComputePassDescriptor, ComputePassTimestampWrites, Features, QuerySet};

use super::{DispatchList, PassState};
use crate::{buffer::GpuBuffer, device::count, error::GpuError};
use fulmen_core::trace::{DispatchTime, Profile};

const CALL: &str = "DispatchList::profile";

impl DispatchList {
    /// Runs all dispatches once with a timestamp before and after each, and waits for them.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] where the device has no timestamps; else as
    /// [`submit`](DispatchList::submit).
    pub fn profile(&self) -> Result<Profile, GpuError> {
        let gpu = &self.gpu;
        if !gpu.features().contains(Features::TIMESTAMP_QUERY) {
            return Err(GpuError::Unsupported { call: CALL, what: "timestamps" });
        }
        let split_passes = !gpu.features().contains(Features::TIMESTAMP_QUERY_INSIDE_PASSES);
        // Two per dispatch where each has its own pass; else one between dispatches, plus the first and
        // the last.
        let count = if split_passes { self.len() * 2 } else { self.len() + 1 };
        if self.is_empty() {
            return Ok(Profile { dispatches: Vec::new(), split_passes });
        }
        let queries = Queries::new(self, count)?;
        let encode: Encode = if split_passes { Queries::encode_split } else { Queries::encode_inside };
        let times = queries.run(self, encode)?;
        let period = f64::from(gpu.wgpu_queue().get_timestamp_period()) / 1000.0;
        let first = times[0];
        let micros = |ticks: u64, since: u64| ticks.saturating_sub(since) as f64 * period;
        let time = |(index, label): (usize, &String)| {
            let (begin, end) = if split_passes {
                (times[index * 2], times[index * 2 + 1])
            } else {
                (times[index], times[index + 1])
            };
            DispatchTime {
                label: label.clone(),
                start_us: micros(begin, first),
                duration_us: micros(end, begin),
            }
        };
        Ok(Profile { dispatches: self.labels.iter().enumerate().map(time).collect(), split_passes })
    }

    /// Runs all dispatches once in one pass, as [`submit`](DispatchList::submit) does, and waits for
    /// them. Returns the time from the beginning of the pass to its end on the device, in microseconds.
    /// Unlike [`profile`](DispatchList::profile) it writes no timestamps between dispatches, which
    /// would keep them from overlapping.
    ///
    /// # Errors
    /// As [`profile`](DispatchList::profile).
    pub fn time_us(&self) -> Result<f64, GpuError> {
        if !self.gpu.features().contains(Features::TIMESTAMP_QUERY) {
            return Err(GpuError::Unsupported { call: "DispatchList::time_us", what: "timestamps" });
        }
        if self.is_empty() {
            return Ok(0.0);
        }
        let times = Queries::new(self, 2)?.run(self, Queries::encode_whole)?;
        let period = f64::from(self.gpu.wgpu_queue().get_timestamp_period()) / 1000.0;
        Ok(times[1].saturating_sub(times[0]) as f64 * period)
    }
}

/// Timestamp queries, split into sets of at most wgpu's limit, and the buffer they are resolved into.
struct Queries {
    sets: Vec<QuerySet>,
    results: GpuBuffer,
    count: usize,
}

/// Even, so that the two queries of a dispatch are in one set, and a multiple of the resolve alignment.
const PER_SET: usize = wgpu::QUERY_SET_MAX_QUERIES as usize;

/// A function that encodes a dispatch list with its timestamps.
type Encode = fn(&Queries, &DispatchList, &mut wgpu::CommandEncoder);

impl Queries {
    fn new(list: &DispatchList, count: usize) -> Result<Self, GpuError> {
        let gpu = &list.gpu;
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

    /// Runs the list and returns the raw timestamps.
    fn run(&self, list: &DispatchList, encode: Encode) -> Result<Vec<u64>, GpuError> {
        let gpu = &list.gpu;
        let slice = self.results.slice(0..self.count as u64 * 8);
        let mut readback = crate::transfer::Readback::plan(gpu, CALL, &[slice])?;
        let submission = gpu.record(CALL, |encoder| {
            encode(self, list, encoder);
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

    fn encode_inside(&self, list: &DispatchList, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        let mut state = PassState::default();
        let (queries, index) = self.set(0);
        pass.write_timestamp(queries, index);
        for (number, dispatch) in list.dispatches.iter().enumerate() {
            list.record(&mut pass, &mut state, dispatch);
            let (queries, index) = self.set(number + 1);
            pass.write_timestamp(queries, index);
        }
        count(&list.gpu.counters().passes, 1);
        count(&list.gpu.counters().dispatches, list.len() as u64);
    }

    /// One pass with a timestamp at its beginning and one at its end.
    fn encode_whole(&self, list: &DispatchList, encoder: &mut wgpu::CommandEncoder) {
        let (query_set, first) = self.set(0);
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor {
            label: None,
            timestamp_writes: Some(ComputePassTimestampWrites {
                query_set,
                beginning_of_pass_write_index: Some(first),
                end_of_pass_write_index: Some(first + 1),
            }),
        });
        let mut state = PassState::default();
        for dispatch in &list.dispatches {
            list.record(&mut pass, &mut state, dispatch);
        }
        count(&list.gpu.counters().passes, 1);
        count(&list.gpu.counters().dispatches, list.len() as u64);
    }

    fn encode_split(&self, list: &DispatchList, encoder: &mut wgpu::CommandEncoder) {
        for (number, dispatch) in list.dispatches.iter().enumerate() {
            let (query_set, first) = self.set(number * 2);
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor {
                label: Some(&list.labels[number]),
                timestamp_writes: Some(ComputePassTimestampWrites {
                    query_set,
                    beginning_of_pass_write_index: Some(first),
                    end_of_pass_write_index: Some(first + 1),
                }),
            });
            list.record(&mut pass, &mut PassState::default(), dispatch);
            count(&list.gpu.counters().passes, 1);
            count(&list.gpu.counters().dispatches, 1);
        }
    }
}
