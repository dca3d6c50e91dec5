//! Compiled steps: the template of each kind of step is planned and bound once per row count, kept, and
//! replayed where the device supports capture.

use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_core::clock::Instant;
use fulmen_core::{Backend, Bindings, BoundGraph, CacheUse, ExecError, ReplayId, timeline};
use fulmen_model::ModelError;
use fulmen_model::arch::{GraphSpec, Step};

use super::model::Shared;
use super::profile::Profile;

/// Steps that are kept. A prefill needs at most two chunk sizes; batch sizes vary.
const MAX_STEPS: usize = 8;

/// Where the times of a step go, and how much of the KV caches it reads.
pub(super) struct Timing<'a> {
    pub(super) profile: &'a mut Profile,
    pub(super) cache_use: CacheUse,
}

/// A step that is bound to a device and ready to run.
pub(super) struct CompiledStep {
    step: Step,
    pub(super) bound: BoundGraph,
    replay: Option<ReplayId>,
    /// When it was last used, on the cache's clock.
    used: u64,
}

impl CompiledStep {
    /// Runs the step and returns the number of launches by the host. Waits for the device only if it is
    /// timed.
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

    /// Runs the step launch by launch until `stop` is set. Returns whether it ran to completion.
    pub(super) fn run_unless(
        &self,
        device: &mut dyn Backend,
        timing: Option<Timing<'_>>,
        stop: &AtomicBool,
    ) -> Result<bool, ExecError> {
        let mut keep_going = || !stop.load(Ordering::Relaxed);
        match (timing, self.replay) {
            (Some(timing), _) => self.run_timed(device, timing).map(|()| true),
            (None, Some(id)) => Ok(device.replay_while(id, &mut keep_going)?.is_some()),
            (None, None) => Ok(self.bound.program().run_while(device, keep_going)?.is_some()),
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

    /// Kernels and copies per replay, if the step is captured and the device knows.
    pub(super) fn captured_kernels(&self, device: &dyn Backend) -> Option<usize> {
        self.replay.and_then(|id| device.captured_kernels(id))
    }

    fn release(self, device: &mut dyn Backend) {
        if let Some(id) = self.replay {
            device.release(id);
        }
        // There is no caller to report an error to.
        let _ = self.bound.release(device);
    }
}

/// The compiled steps of a session, least recently used evicted first.
#[derive(Default)]
pub(super) struct StepCache {
    steps: Vec<CompiledStep>,
    clock: u64,
}

impl StepCache {
    /// The compiled step for what a stage of the model runs of `spec`: from the cache, or new. If memory runs
    /// out, the other steps are released first.
    pub(super) fn get(
        &mut self,
        (shared, stage): (&Shared, usize),
        device: &mut dyn Backend,
        spec: &GraphSpec,
        bindings: &Bindings,
        eager: bool,
    ) -> Result<&CompiledStep, ModelError> {
        self.clock += 1;
        let at = match self.steps.iter().position(|compiled| compiled.step == spec.step) {
            Some(at) => at,
            None => {
                if self.steps.len() >= MAX_STEPS {
                    let oldest = (0..self.steps.len()).min_by_key(|&at| self.steps[at].used);
                    if let Some(oldest) = oldest {
                        self.steps.swap_remove(oldest).release(device);
                    }
                }
                let mut built = build((shared, stage), device, spec, bindings, eager);
                if is_out_of_memory(&built) && !self.steps.is_empty() {
                    self.release(device);
                    built = build((shared, stage), device, spec, bindings, eager);
                }
                self.steps.push(built?);
                self.steps.len() - 1
            }
        };
        self.steps[at].used = self.clock;
        Ok(&self.steps[at])
    }

    /// Releases every step.
    pub(super) fn release(&mut self, device: &mut dyn Backend) {
        self.steps.drain(..).for_each(|compiled| compiled.release(device));
    }
}

fn is_out_of_memory(built: &Result<CompiledStep, ModelError>) -> bool {
    use fulmen_core::BackendError::OutOfMemory;
    matches!(
        built,
        Err(ModelError::Backend(OutOfMemory { .. })
            | ModelError::Exec(ExecError::Backend(OutOfMemory { .. })))
    )
}

fn build(
    (shared, stage): (&Shared, usize),
    device: &mut dyn Backend,
    spec: &GraphSpec,
    bindings: &Bindings,
    eager: bool,
) -> Result<CompiledStep, ModelError> {
    let plan = timeline::span("plan a step", || shared.stage_plan(stage, spec))?;
    let bound = timeline::span("bind a step", || plan.bind(device, bindings))?;
    // A prefill takes long compared with its launches and comes in many sizes, so it is captured only if that
    // is free.
    let repeats = matches!(spec.step, Step::Decode { .. }) || device.captures_for_free();
    let mut capture = || timeline::span("capture a step", || device.prepare(bound.program()));
    let replay = if repeats && !eager { capture() } else { Ok(None) };
    match replay {
        Ok(replay) => Ok(CompiledStep { step: spec.step, bound, replay, used: 0 }),
        Err(error) => {
            // The first error is the one to report.
            let _ = bound.release(device);
            Err(error.into())
        }
    }
}
