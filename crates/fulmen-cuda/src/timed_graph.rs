//! A program captured a second time with an event between its calls, to time each of them.
//!
//! The events are part of the graph, so the times do not include the host. Kernels do not overlap: each call
//! is timed alone, and together they take longer than a normal replay.

use std::ops::Range;
use std::time::Duration;

use fulmen_core::{BackendError, ExecError, KernelTime, Program};

use crate::dispatch::CudaDispatcher;
use crate::error::CudaError;
use crate::handles::{Event, Graph};
use crate::queue::GraphScratch;

/// A captured program with timing events.
pub(crate) struct TimedGraph {
    pub(crate) graph: Graph,
    /// Alive as long as the graph.
    _scratch: GraphScratch,
    /// One before the first call, and one after each call.
    events: Vec<Event>,
    /// The calls between two events, and their names.
    calls: Vec<(Range<usize>, String)>,
}

impl TimedGraph {
    /// Captures a program call by call.
    pub(crate) fn capture(
        device: &mut CudaDispatcher,
        program: &Program,
    ) -> Result<TimedGraph, BackendError> {
        device.queue.begin_loading()?;
        let planned = program.run(device);
        device.queue.end_loading();
        planned.map_err(refused)?;
        // Created before the capture, which allows little else than launches. There are at most this many.
        let mut unused =
            (0..=program.calls().len()).map(|_| device.event()).collect::<Result<Vec<_>, _>>()?;
        device.queue.begin_capture()?;
        device.queue.overlap = false;
        let (mut events, mut calls) = (Vec::new(), Vec::new());
        let recorded = program.run_observed(device, |device, ran, _| {
            if let Some(event) = unused.pop() {
                device.mark_in_capture(&event)?;
                events.push(event);
            }
            if !ran.is_empty() {
                let steps = program.calls().get(ran.clone()).unwrap_or_default();
                let names: Vec<String> = steps.iter().map(|step| step.call.label()).collect();
                calls.push((ran, names.join(", ")));
            }
            Ok(true)
        });
        device.queue.overlap = true;
        // The capture is always ended; if a call failed, its error is the one to report.
        let ended = device.queue.end_capture();
        recorded.map_err(refused)?;
        let (graph, scratch) = ended?;
        Ok(TimedGraph { graph, _scratch: scratch, events, calls })
    }

    /// The times of the last run, which has finished.
    pub(crate) fn times(&self) -> Result<Vec<KernelTime>, CudaError> {
        let mut start = Duration::ZERO;
        let mut times = Vec::with_capacity(self.calls.len());
        for (pair, (calls, name)) in self.events.windows(2).zip(&self.calls) {
            let time = pair[0].elapsed(&pair[1])?;
            times.push(KernelTime { name: name.clone(), start, time, calls: calls.clone() });
            start += time;
        }
        Ok(times)
    }
}

fn refused(error: ExecError) -> BackendError {
    error.into_backend(crate::BACKEND, "capturing a timed program")
}
