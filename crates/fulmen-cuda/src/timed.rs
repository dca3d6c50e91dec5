//! A program captured once more with a mark between its calls, to time each of them.
//!
//! The marks are part of the graph, so the host is not in the times. Kernels do not overlap in it: each call is timed alone, and
//! all of them together take longer than a replay without marks.

use std::ops::Range;
use std::time::Duration;

use fulmen_core::{BackendError, ExecError, KernelTime, Program};

use crate::dispatch::CudaDispatcher;
use crate::error::CudaError;
use crate::handles::{Event, Graph};
use crate::queue::Kept;

/// A captured program with marks.
pub(crate) struct Timed {
    pub(crate) graph: Graph,
    /// Kept alive for the graph.
    _kept: Kept,
    /// One before the first call, and one behind each.
    marks: Vec<Event>,
    /// The calls between two marks, and their names.
    calls: Vec<(Range<usize>, String)>,
}

impl Timed {
    /// Captures a program call by call.
    pub(crate) fn capture(device: &mut CudaDispatcher, program: &Program) -> Result<Timed, BackendError> {
        device.queue.begin_planning()?;
        let planned = program.run(device);
        device.queue.end_planning();
        planned.map_err(refused)?;
        // Before the capture, which allows little beside launches. No more marks are needed than this.
        let mut unused =
            (0..=program.calls().len()).map(|_| device.event()).collect::<Result<Vec<_>, _>>()?;
        device.queue.begin_capture()?;
        device.queue.overlap = false;
        let (mut marks, mut calls) = (Vec::new(), Vec::new());
        let recorded = program.run_observed(device, |device, ran, _| {
            if let Some(mark) = unused.pop() {
                device.mark_in_capture(&mark)?;
                marks.push(mark);
            }
            if !ran.is_empty() {
                let steps = program.calls().get(ran.clone()).unwrap_or_default();
                let names: Vec<String> = steps.iter().map(|step| step.call.label()).collect();
                calls.push((ran, names.join(", ")));
            }
            Ok(true)
        });
        device.queue.overlap = true;
        // Always ended; where a call failed, its error is the one to report.
        let ended = device.queue.end_capture();
        recorded.map_err(refused)?;
        let (graph, kept) = ended?;
        Ok(Timed { graph, _kept: kept, marks, calls })
    }

    /// The times of its last run, which is over.
    pub(crate) fn times(&self) -> Result<Vec<KernelTime>, CudaError> {
        let mut start = Duration::ZERO;
        let mut times = Vec::with_capacity(self.calls.len());
        for (pair, (calls, name)) in self.marks.windows(2).zip(&self.calls) {
            let time = pair[0].elapsed(&pair[1])?;
            times.push(KernelTime { name: name.clone(), start, time, calls: calls.clone() });
            start += time;
        }
        Ok(times)
    }
}

fn refused(error: ExecError) -> BackendError {
    error.into_backend(crate::BACKEND, "the capture of a timed program")
}
