//! The contract between a graph and the kernels that run it.

use std::{ops::Range, time::Duration};

use super::ops::{OpCall, dispatch_methods, op_table};
use super::{Program, ProgramCall, call::*};
use crate::{BackendError, Fusions};

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

    /// The fusions to plan graphs with for this backend.
    fn fusions(&self) -> Fusions {
        Fusions::all()
    }

    /// Runs two consecutive calls as one if the backend has a fused kernel for them; otherwise does nothing
    /// and returns `None`. All outputs of both calls are written.
    fn dispatch_pair(&mut self, first: &OpCall, second: &OpCall) -> Result<Option<usize>, BackendError> {
        let _ = (first, second);
        Ok(None)
    }

    /// Called before each call or pair of a program with the remaining calls, starting with that one, so that
    /// a backend can prepare later calls (for example prefetch what they read).
    fn look_ahead(&mut self, remaining: &[ProgramCall]) {
        let _ = remaining;
    }

    /// Waits until all launched work is done.
    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn unsupported(backend: &'static str, op: &str, call: &impl std::fmt::Debug) -> Result<usize, BackendError> {
    Err(BackendError::Unsupported { backend, what: format!("{op}: {call:?}") })
}
