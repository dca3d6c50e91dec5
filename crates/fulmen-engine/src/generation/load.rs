//! Loads the weights of a model onto its devices, after checking that they fit.

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use fulmen_core::Backend;
use fulmen_model::ModelError;
use fulmen_model::arch::{Beside, Config, Placement, Results, Stage, Step};
use fulmen_model::source::ModelSource;

use super::chunk;
use super::host_experts::{HostExperts, HostPlan};
use super::model::{Device, LoadOptions, LoadProgress, Shared};
use super::session::SessionOptions;
use super::templates::Templates;
use super::weights::{self, Weights};
use crate::segmented::SegmentedDevice;

/// The devices that a model is loaded onto.
pub(super) struct Devices {
    /// One for each stage.
    pub(super) stages: Vec<Device>,
    /// The one that computes the experts that the placement leaves on the host.
    pub(super) host: Option<Device>,
}

impl Devices {
    /// Those of stages that have their experts.
    pub(super) fn of_stages(stages: Vec<Device>) -> Devices {
        Devices { stages, host: None }
    }
}

/// The layers of a model on one device.
pub(super) struct ModelStage {
    pub(super) templates: Templates,
    pub(super) weights: Weights,
    /// Bytes of the weights of those experts that are on the host.
    pub(super) host_bytes: u64,
    device: Mutex<Device>,
}

impl ModelStage {
    /// Locks the device. A thread that panicked while holding the lock does not affect the others: sessions
    /// write their own state before they run.
    pub(super) fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for ModelStage {
    fn drop(&mut self) {
        let device = self.device.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.weights.free(device.as_mut());
    }
}

/// What a session on one device needs, but for activations.
pub(super) struct Needs<'a> {
    pub(super) source: &'a dyn ModelSource,
    pub(super) config: &'a Config,
    pub(super) session: &'a SessionOptions,
    pub(super) stage: Stage,
}

impl Needs<'_> {
    /// Bytes of the activations of a prefill of `rows` tokens.
    pub(super) fn activations(&self, templates: &Templates, rows: u32) -> Result<u64, ModelError> {
        self.arena(templates, Step::Prefill { rows: rows.min(self.session.context), results: None })
    }

    /// The same with a token drawn after the last one.
    pub(super) fn results(&self, templates: &Templates, rows: u32) -> Result<u64, ModelError> {
        let draw = Results::Draw { penalize: true, mask: true, candidates: None, beside: Beside::default() };
        let (rows, results) = (rows.min(self.session.context), Some((1, draw)));
        self.arena(templates, Step::Prefill { rows, results })
    }

    fn arena(&self, templates: &Templates, step: Step) -> Result<u64, ModelError> {
        let spec = self.session.spec(step).on(self.stage);
        Ok(templates.plan(self.config, self.source, &spec)?.arena_bytes as u64)
    }

    /// The prefill chunk where memory is short.
    pub(super) fn least_chunk(&self) -> u32 {
        if self.session.chunk == 0 { chunk::MIN_CHUNK } else { self.session.chunk }
    }

    /// The prefill chunk, where `reserved` bytes will be allocated before the first one.
    fn chunk(&self, device: &dyn Backend, templates: &Templates, reserved: u64) -> Result<u32, ModelError> {
        let cache = self.session.stage_memory_bytes(self.config, self.stage);
        let reserved = reserved.saturating_add(cache);
        chunk::choose(device, self.session.chunk, reserved, |rows| self.activations(templates, rows))
    }
}

/// Checks that a model fits, chooses its prefill chunk, and imports the weights of each stage into its
/// device.
pub(super) fn stages(
    source: &dyn ModelSource,
    config: &Config,
    placement: &Placement,
    devices: Devices,
    session: &mut SessionOptions,
    options: &mut LoadOptions<'_>,
) -> Result<Vec<ModelStage>, ModelError> {
    let Devices { stages: devices, mut host } = devices;
    let decode = session.spec(Step::decode(1));
    if placement.stages().len() > 1 {
        // No stage of several knows which tensors belong to none.
        config.graph(source, &decode)?;
    }
    let mut loads = Vec::new();
    let (mut total, mut rows) = (0u64, u32::MAX);
    for (&stage, device) in placement.stages().iter().zip(devices) {
        let graph = config.graph(source, &decode.on(stage))?;
        weights::check_types(&graph.tensors, source, device.as_ref())?;
        let host = match stage.is_cut() {
            true => {
                let device = host.take().ok_or(ModelError::Without { what: "device for the experts" })?;
                Some(HostPlan::new(device, config.host_segments(source, &decode.on(stage))?, source)?)
            }
            false => None,
        };
        let templates = Templates::new(device.fusions());
        let needs = Needs { source, config, session, stage };
        let stored = weights::stored_bytes(&graph.tensors, device.as_ref());
        rows = rows.min(needs.chunk(device.as_ref(), &templates, stored)?);
        total = total.saturating_add(weights::weight_bytes(&graph.tensors));
        total = total.saturating_add(host.as_ref().map_or(0, HostPlan::weight_bytes));
        loads.push((device, graph.tensors, templates, host));
    }
    for (&stage, (device, tensors, templates, host)) in placement.stages().iter().zip(&loads) {
        let needs = Needs { source, config, session, stage };
        let stored = weights::stored_bytes(tensors, device.as_ref());
        check_memory(device.as_ref(), &needs, stored, needs.activations(templates, rows)?)?;
        host.as_ref().map_or(Ok(()), |host| host.check_memory(rows.min(session.context)))?;
    }
    session.chunk = rows;

    // Checking and importing count equally.
    let steps = if options.check_weights { 2 } else { 1 };
    let total = total.saturating_mul(steps);
    let mut report = |done: u64| match &mut options.progress {
        Some(progress) => progress(LoadProgress { done: done.min(total), total }),
        None => ControlFlow::Continue(()),
    };
    let (mut stages, mut before) = (Vec::new(), 0u64);
    let (checked, constants) = (options.check_weights, config.constants());
    for (mut device, tensors, templates, host) in loads {
        let mut doubled = |done: u64| report(before.saturating_add(done).saturating_mul(steps));
        let host = match host {
            Some(plan) => {
                Some(plan.load(source, session.chunk.min(session.context), checked, &mut doubled)?)
            }
            None => None,
        };
        let host_bytes = host.as_ref().map_or(0, HostExperts::weight_bytes);
        before = before.saturating_add(host_bytes);
        let mut doubled = |done: u64| report(before.saturating_add(done).saturating_mul(steps));
        let weights = Weights::load(device.as_mut(), &tensors, source, &constants, checked, &mut doubled)?;
        before = before.saturating_add(weights::weight_bytes(&tensors));
        let device = match host {
            Some(host) => Box::new(SegmentedDevice::new(device, host)),
            None => device,
        };
        stages.push(ModelStage { templates, weights, host_bytes, device: Mutex::new(device) });
    }
    match report(total) {
        ControlFlow::Continue(()) => Ok(stages),
        ControlFlow::Break(()) => Err(ModelError::Cancelled),
    }
}

/// The prefill chunk of a session of a loaded model: what is best on the device that wants the smallest.
pub(super) fn chunk(shared: &Shared, session: &SessionOptions) -> Result<u32, ModelError> {
    let Shared { config, source, placement, stages, .. } = shared;
    let mut rows = u32::MAX;
    for (&stage, loaded) in placement.stages().iter().zip(stages) {
        let needs = Needs { source: source.as_ref(), config, session, stage };
        rows = rows.min(needs.chunk(loaded.device().as_ref(), &loaded.templates, 0)?);
    }
    Ok(rows)
}

/// Fails if the device reports less available memory than needed.
fn check_memory(
    device: &dyn Backend,
    needs: &Needs<'_>,
    weights: u64,
    activations: u64,
) -> Result<(), ModelError> {
    let Some(available) = device.available_bytes() else { return Ok(()) };
    let cache = needs.session.stage_memory_bytes(needs.config, needs.stage);
    if weights.saturating_add(cache).saturating_add(activations) > available {
        let device = device.backend();
        return Err(ModelError::Memory { device, weights, cache, activations, available });
    }
    Ok(())
}

/// Runs `first` on another thread beside `second`. Without threads, one after the other.
pub(super) fn beside<A: Send, B>(first: impl Fn() -> A + Send + Sync, second: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let running = thread::Builder::new().spawn_scoped(scope, &first);
        let second = second();
        let first = match running {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => first(),
        };
        (first, second)
    })
}
