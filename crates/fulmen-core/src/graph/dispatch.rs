//! The contract between a graph and the kernels that run it.

use std::{ops::Range, sync::Arc, time::Duration};

use super::collective::{AllGatherCall, AllReduceCall};
use super::divided_norm::{MeanSquaresCall, RmsScaleCall};
use super::experts::{ExpertDownCall, ExpertGateUpCall};
use super::host_segment::HostSegmentCall;
use super::ops::{OpCall, dispatch_methods, op_table};
use super::recurrent::{CausalConvCall, GatedDeltaRuleCall, SigmoidGateCall};
use super::routing::RouteCall;
use super::{ActivationForm, PlannedCall, Program, ProgramCall, call::*};
use crate::{BackendError, Communicator, DeviceGroup, Extent, Fusions, GroupSpec};

/// A program that a backend has captured; see [`KernelDispatch::prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplayId(pub u64);

/// When a kernel of a program ran, by the device's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Its name.
    pub name: String,
    /// From the start of the program.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
    /// The calls of the program that it belongs to; empty if that is unknown. The kernels of one call are
    /// consecutive.
    pub calls: Range<usize>,
}

/// Kernels of one device. [`execute_graph`](super::execute_graph) calls one method per node, in order.
///
/// Each method returns the number of kernels that it launched: 0 if there was nothing to do, more than 1 if
/// it needed several. Calls may return before the work is done; [`synchronize`](KernelDispatch::synchronize)
/// waits for it. The required methods are the minimum for a transformer layer; the other `dispatch_*` methods
/// return [`Unsupported`](BackendError::Unsupported) until a backend implements them.
pub trait KernelDispatch {
    /// The backend's name in messages.
    fn backend(&self) -> &'static str;

    op_table!(dispatch_methods);

    /// Captures a program so that [`replay`](KernelDispatch::replay) can run all of it with one launch. Runs
    /// nothing. `None` if the backend cannot capture it or would not gain from it: the caller then runs the
    /// program itself.
    ///
    /// The addresses of the program must stay valid until [`release`](KernelDispatch::release); the data
    /// there may change between replays.
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        let _ = program;
        Ok(None)
    }

    /// Whether capturing a program costs no more than running it once, so that it pays even for a few runs.
    fn captures_for_free(&self) -> bool {
        false
    }

    /// Runs a captured program, as [`Program::run`] would, and returns the number of launches.
    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        Err(BackendError::Unsupported { backend: self.backend(), what: format!("the replay of {id:?}") })
    }

    /// As [`replay`](KernelDispatch::replay), unless `go_on`, which is called before each launch, returns
    /// false; then `None`.
    fn replay_while(
        &mut self,
        id: ReplayId,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        if go_on() { self.replay(id).map(Some) } else { Ok(None) }
    }

    /// The number of kernels and copies in a captured program, if known.
    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        let _ = id;
        None
    }

    /// Runs a captured program as [`replay`](KernelDispatch::replay) does, waits for it, and returns the name
    /// and device time of each kernel, in order. `None`, without running anything, if the device has no
    /// timestamps.
    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        let _ = id;
        Ok(None)
    }

    /// Releases a captured program. An unknown id is ignored.
    fn release(&mut self, id: ReplayId) {
        let _ = id;
    }

    /// The prefill chunk size: more rows at once would not be faster.
    fn prefill_chunk(&self) -> u32 {
        512
    }

    /// Rows of a decode step that kernels with a block per row run at once, where one row more takes
    /// noticeably longer.
    fn rows_at_once(&self) -> Option<u32> {
        None
    }

    /// The fusions to plan graphs with for this backend.
    fn fusions(&self) -> Fusions {
        Fusions::all()
    }

    /// Whether this [batch-invariant](crate::PlanOptions::batch_invariant) call is supported. A plan with one
    /// that is not is refused.
    fn batch_invariant(&self, call: &OpCall) -> bool {
        let _ = call;
        false
    }

    /// How many of the next calls of a program, from the first on, run as one kernel or one fixed sequence of
    /// kernels: at least 1. All outputs of all of them are written.
    ///
    /// Like the other questions of a plan, it is answered from the calls and the device's capabilities alone.
    /// `unfinished` lists what earlier calls of the program write and may not have finished writing when a
    /// kernel starts, on a device whose kernels overlap; see [`drains`](KernelDispatch::drains).
    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        let _ = (next, unfinished);
        1
    }

    /// Whether this call and all calls before it have finished when a kernel of a later call starts.
    fn drains(&self, call: &OpCall) -> bool {
        let _ = call;
        true
    }

    /// The forms other than f32 in which calls that run as one can read an activation, the best first.
    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        let _ = calls;
        Vec::new()
    }

    /// Whether calls that run as one can also write this form of an activation that they write, or that they
    /// read and do not change. Only one form of an activation is asked for.
    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        let _ = (calls, activation);
        false
    }

    /// Whether calls that run as one can prefetch what the call after them reads.
    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        let _ = (calls, next);
        false
    }

    /// Runs calls of a program as planned: reads what was forwarded to them, and writes what they forward.
    /// The default is for a backend that plans nothing.
    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        let calls = program.calls().get(planned.calls.clone()).unwrap_or_default();
        calls.iter().map(|step| self.dispatch(&step.call)).sum()
    }

    /// The device among those of this machine, if it can join a [`device_group`](Self::device_group): ranks
    /// on different ones can run collectives by themselves.
    fn group_device(&self) -> Option<u64> {
        None
    }

    /// A group of ranks that run collectives inside their programs, by themselves.
    fn device_group(&self, spec: &GroupSpec<'_>) -> Result<Arc<dyn DeviceGroup>, BackendError> {
        let what = format!("collectives of a group of {} inside a program", spec.ranks);
        Err(BackendError::Unsupported { backend: self.backend(), what })
    }

    /// Joins a group of this backend. Returns when all ranks have joined, or with an error after the time-out
    /// of the group; each rank joins on a thread of its own.
    fn join_group(
        &mut self,
        group: &Arc<dyn DeviceGroup>,
        rank: u32,
    ) -> Result<Arc<dyn Communicator>, BackendError> {
        let what = format!("rank {rank} of {group:?}");
        Err(BackendError::Unsupported { backend: self.backend(), what })
    }

    /// Waits until all launched work is done.
    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn unsupported(backend: &'static str, op: &str, call: &impl std::fmt::Debug) -> Result<usize, BackendError> {
    Err(BackendError::Unsupported { backend, what: format!("{op}: {call:?}") })
}
