//! Runs of a graph on a device: built once, kept, replayed where the device can.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fulmen_core::{Backend, Bindings, BoundGraph, CacheUse, ExecError, PlanOptions, ReplayId};

use super::model::Shared;
use super::profile::Profile;
use crate::arch::{GraphSpec, Step};
use crate::error::ModelError;

/// Programs that are kept. A prompt has at most two sizes of chunks; batches come and go.
const KEPT: usize = 8;

/// Where the times of a run go, and how much of the caches it reads.
pub(super) struct Timing<'a> {
    pub(super) profile: &'a mut Profile,
    pub(super) cache_use: CacheUse,
}

/// A run, ready.
pub(super) struct Program {
    step: Step,
    pub(super) bound: BoundGraph,
    replay: Option<ReplayId>,
    /// When it was last used.
    used: u64,
}

impl Program {
    /// Runs it and gives how often the host launched something. Does not wait for the device, unless it is timed.
    pub(super) fn run(
        &self,
        device: &mut dyn Backend,
        timing: Option<Timing<'_>>,
    ) -> Result<usize, ExecError> {
        Ok(match (timing, self.replay) {
            (Some(timing), _) => self.run_timed(device, timing).map(|()| 0)?,
            (None, Some(id)) => device.replay(id)?,
            (None, None) => self.bound.run(device)?,
        })
    }

    /// Runs it, in as many launches as the device takes for it, until the flag is set. Gives whether it came to its end.
    pub(super) fn run_unless(
        &self,
        device: &mut dyn Backend,
        timing: Option<Timing<'_>>,
        stop: &AtomicBool,
    ) -> Result<bool, ExecError> {
        let mut go_on = || !stop.load(Ordering::Relaxed);
        match (timing, self.replay) {
            (Some(timing), _) => self.run_timed(device, timing).map(|()| true),
            (None, Some(id)) => Ok(device.replay_while(id, &mut go_on)?.is_some()),
            (None, None) => Ok(self.bound.program().run_while(device, go_on)?.is_some()),
        }
    }

    fn run_timed(&self, device: &mut dyn Backend, timing: Timing<'_>) -> Result<(), ExecError> {
        let Timing { profile, cache_use } = timing;
        let (program, began) = (self.bound.program(), Instant::now());
        let times = self.replay.map(|id| device.replay_timed(id)).transpose()?.flatten();
        match times {
            Some(times) => profile.add(program, times, cache_use, began),
            None => profile.run(program, device, cache_use)?,
        }
        Ok(())
    }

    /// How many kernels and copies a replay of it has, where there is one and the device knows.
    pub(super) fn captured_kernels(&self, device: &dyn Backend) -> Option<usize> {
        self.replay.and_then(|id| device.captured_kernels(id))
    }

    fn release(self, device: &mut dyn Backend) {
        if let Some(id) = self.replay {
            device.release(id);
        }
        // There is nobody left to tell.
        let _ = self.bound.release(device);
    }
}

/// The programs of a session.
#[derive(Default)]
pub(super) struct Programs {
    kept: Vec<Program>,
    clock: u64,
}

impl Programs {
    /// The program of a step: one that is there, or a new one. The others give up their memory if it needs that.
    pub(super) fn get(
        &mut self,
        shared: &Shared,
        device: &mut dyn Backend,
        spec: &GraphSpec,
        bindings: &Bindings,
        eager: bool,
    ) -> Result<&Program, ModelError> {
        self.clock += 1;
        let at = match self.kept.iter().position(|program| program.step == spec.step) {
            Some(at) => at,
            None => {
                if self.kept.len() >= KEPT {
                    let oldest = (0..self.kept.len()).min_by_key(|&at| self.kept[at].used);
                    if let Some(oldest) = oldest {
                        self.kept.swap_remove(oldest).release(device);
                    }
                }
                let mut built = build(shared, device, spec, bindings, eager);
                if is_out_of_memory(&built) && !self.kept.is_empty() {
                    self.release(device);
                    built = build(shared, device, spec, bindings, eager);
                }
                self.kept.push(built?);
                self.kept.len() - 1
            }
        };
        self.kept[at].used = self.clock;
        Ok(&self.kept[at])
    }

    /// Gives everything back.
    pub(super) fn release(&mut self, device: &mut dyn Backend) {
        self.kept.drain(..).for_each(|program| program.release(device));
    }
}

fn is_out_of_memory(built: &Result<Program, ModelError>) -> bool {
    use fulmen_core::BackendError::OutOfMemory;
    matches!(
        built,
        Err(ModelError::Backend(OutOfMemory { .. })
            | ModelError::Exec(ExecError::Backend(OutOfMemory { .. })))
    )
}

fn build(
    shared: &Shared,
    device: &mut dyn Backend,
    spec: &GraphSpec,
    bindings: &Bindings,
    eager: bool,
) -> Result<Program, ModelError> {
    let graph = shared.config.graph(shared.source.as_ref(), spec)?;
    let options = PlanOptions { fusions: device.fusions(), ..PlanOptions::default() };
    let bound = graph.plan(&options)?.bind(device, bindings)?;
    // A prefill is long beside its launches, and comes in many sizes.
    let repeats = matches!(spec.step, Step::Decode { .. }) || device.captures_for_free();
    let replay = if repeats && !eager { device.prepare(bound.program()) } else { Ok(None) };
    match replay {
        Ok(replay) => Ok(Program { step: spec.step, bound, replay, used: 0 }),
        Err(error) => {
            // The first error is the one to report.
            let _ = bound.release(device);
            Err(error.into())
        }
    }
}
