//! Profiles: each op timed by the host, or each kernel timed by the device, and the remaining time.

use std::collections::HashMap;
use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_core::{CacheUse, ExecError, KernelDispatch, KernelTime, Program, Work};

/// Times of ops, summed over steps. Timing waits for the device after each op, so the sum exceeds the time of
/// an untimed step. A device that can time the kernels of a replay reports those instead, under their own
/// names.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    ops: HashMap<String, (u64, Duration)>,
    /// Wall-clock time of all steps, measured by the session.
    pub(super) wall: Duration,
    /// Every kernel, if requested.
    timeline: Option<Timeline>,
}

/// Kernels in execution order.
#[derive(Clone, Debug)]
struct Timeline {
    kernels: Vec<TimedKernel>,
    began: Instant,
}

/// One execution of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedKernel {
    /// The kernel's name, or the op's if the device does not time kernels.
    pub name: String,
    /// The ops it computes or is part of, with the shapes and types of their weights.
    pub op: String,
    /// Whether it is the first kernel of these ops. The others follow directly.
    pub leads: bool,
    /// The work of all these ops for the first kernel, zero for the others.
    pub work: Work,
    /// Start time, relative to the start of the profile.
    pub start: Duration,
    /// Duration.
    pub time: Duration,
    /// Whether the time was measured by the device rather than by the host, which waits after each op.
    pub by_device: bool,
}

/// One line of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// The op with the shape and type of its weight, or the kernel; `[other]` for time outside of ops.
    pub name: String,
    /// Number of executions.
    pub count: u64,
    /// Total time.
    pub time: Duration,
}

impl Profile {
    /// A profile that records every kernel.
    pub(super) fn with_timeline() -> Profile {
        let timeline = Timeline { kernels: Vec::new(), began: Instant::now() };
        Profile { timeline: Some(timeline), ..Profile::default() }
    }

    /// Runs a program and waits after each call, or after each pair of calls that the device runs as one.
    pub(super) fn run<D: KernelDispatch + ?Sized>(
        &mut self,
        program: &Program,
        device: &mut D,
        cache_use: CacheUse,
    ) -> Result<(), ExecError> {
        device.synchronize()?;
        let (began, mut kernels) = (Instant::now(), Vec::new());
        let mut start = began;
        program.run_observed(device, |device, calls, _| {
            if !calls.is_empty() {
                device.synchronize()?;
                let time = start.elapsed();
                kernels.push(KernelTime { name: String::new(), start: start - began, time, calls });
            }
            start = Instant::now();
            Ok(true)
        })?;
        for kernel in &mut kernels {
            kernel.name = op(program, kernel);
        }
        self.take(program, kernels, cache_use, began, false);
        Ok(())
    }

    /// Adds the times that a device measured in a run that started at `began`.
    pub(super) fn add(
        &mut self,
        program: &Program,
        kernels: Vec<KernelTime>,
        cache_use: CacheUse,
        began: Instant,
    ) {
        self.take(program, kernels, cache_use, began, true);
    }

    fn take(
        &mut self,
        program: &Program,
        kernels: Vec<KernelTime>,
        cache_use: CacheUse,
        began: Instant,
        by_device: bool,
    ) {
        for kernel in &kernels {
            let entry = self.ops.entry(kernel.name.clone()).or_default();
            *entry = (entry.0 + 1, entry.1 + kernel.time);
        }
        let Some(timeline) = &mut self.timeline else { return };
        let offset = began.saturating_duration_since(timeline.began);
        let mut last = 0..0;
        for kernel in kernels {
            let leads = kernel.calls.is_empty() || kernel.calls != last;
            let steps = program.calls().get(kernel.calls.clone()).unwrap_or_default();
            let work = match leads {
                true => steps.iter().map(|step| step.call.work(cache_use)).sum(),
                false => Work::default(),
            };
            let op = op(program, &kernel);
            let KernelTime { name, start, time, calls } = kernel;
            last = calls;
            let start = offset + start;
            timeline.kernels.push(TimedKernel { name, op, leads, work, start, time, by_device });
        }
    }

    /// Every kernel in order, if [`Session::start_timeline`](super::Session::start_timeline) requested it.
    pub fn timeline(&self) -> &[TimedKernel] {
        self.timeline.as_ref().map_or(&[], |timeline| &timeline.kernels)
    }

    /// The ops by descending time, followed by the time outside of ops.
    pub fn rows(&self) -> Vec<ProfileRow> {
        let row = |(name, &(count, time)): (&String, &(u64, Duration))| ProfileRow {
            name: name.clone(),
            count,
            time,
        };
        let mut rows: Vec<ProfileRow> = self.ops.iter().map(row).collect();
        rows.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        let inside: Duration = rows.iter().map(|row| row.time).sum();
        rows.push(ProfileRow {
            name: "[other]".to_owned(),
            count: 0,
            time: self.wall.saturating_sub(inside),
        });
        rows
    }

    /// Total time, inside and outside of ops.
    pub fn total(&self) -> Duration {
        self.rows().iter().map(|row| row.time).sum()
    }
}

/// The ops of a kernel's calls, or the kernel's name if they are not known.
fn op(program: &Program, kernel: &KernelTime) -> String {
    let steps = program.calls().get(kernel.calls.clone()).unwrap_or_default();
    match steps {
        [] => kernel.name.clone(),
        steps => steps.iter().map(|step| step.call.label()).collect::<Vec<_>>().join(", "),
    }
}
