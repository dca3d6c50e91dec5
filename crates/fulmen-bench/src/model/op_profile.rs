//! Where the time of a run goes: its ops with their times and bytes, and the time between them.

use std::{collections::HashMap, io};

use fulmen_core::Work;
use fulmen_core::trace::{DispatchTime, Profile, write_chrome_trace};
use fulmen_engine::Session;
use fulmen_engine::generation::TimedKernel;
use fulmen_model::ModelError;
use serde::Serialize;

/// Timed runs, of which the medians count.
const RUNS: usize = 5;

/// Which clock took the times of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The device, kernel by kernel.
    Device,
    /// The host, which waits for the device after each op.
    Host,
}

/// The ops of a run, and the time that the run takes without profiling. Field names are those of the JSON
/// output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpProfile {
    /// What was run.
    #[serde(skip)]
    pub name: String,
    /// The clock.
    pub clock: Clock,
    /// Timed runs, of which the medians count.
    pub runs: usize,
    /// Ops with the same label are one row; the longest first.
    pub ops: Vec<OpRow>,
    /// The sum over all ops, each timed alone.
    pub sum_us: f64,
    /// The time of the run beyond its ops; negative if ops overlap that were timed one by one.
    pub gaps_us: f64,
    /// The run without profiling.
    pub total_us: f64,
    /// The kernels of the last timed run.
    #[serde(skip)]
    timeline: Vec<TimedKernel>,
}

/// All ops with one label. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpRow {
    /// The label: the op, and shape and type of its weight.
    pub op: String,
    /// How often it is called.
    pub calls: usize,
    /// Kernels of all calls.
    pub kernels: usize,
    /// Their time.
    pub us: f64,
    /// Bytes that they must read or write.
    pub bytes: u64,
    /// Operations that they must do.
    pub flops: u64,
    /// `bytes` per second.
    pub bytes_per_second: f64,
    /// That, divided by the memory bandwidth of the device.
    pub share_of_memory: Option<f64>,
}

impl OpProfile {
    /// Profiles `run`, which takes `total_us` without profiling, each time after `prepare`. `bandwidth` is
    /// that of the device in bytes per second.
    pub(super) fn measure(
        name: String,
        session: &mut Session,
        total_us: f64,
        bandwidth: Option<f64>,
        mut prepare: impl FnMut(&mut Session) -> Result<(), ModelError>,
        mut run: impl FnMut(&mut Session) -> Result<(), ModelError>,
    ) -> Result<OpProfile, ModelError> {
        let mut runs = Vec::with_capacity(RUNS);
        // The first run may set up what timing needs.
        for at in 0..=RUNS {
            prepare(session)?;
            session.start_timeline();
            let done = run(session);
            let profile = session.stop_profile();
            done?;
            if let Some(profile) = profile.filter(|_| at > 0) {
                runs.push(profile.timeline().to_vec());
            }
        }
        let kernels = medians(&runs);
        let on_device = kernels.iter().all(|kernel| kernel.by_device);
        let ops = rows(&kernels, bandwidth);
        let sum_us = ops.iter().map(|row| row.us).sum();
        Ok(OpProfile {
            name,
            clock: if on_device { Clock::Device } else { Clock::Host },
            runs: RUNS,
            ops,
            sum_us,
            gaps_us: total_us - sum_us,
            total_us,
            timeline: runs.pop().unwrap_or_default(),
        })
    }

    /// Operations of all ops.
    pub fn flops(&self) -> u64 {
        self.ops.iter().map(|row| row.flops).fold(0, u64::saturating_add)
    }

    /// Bytes of all ops.
    pub fn bytes(&self) -> u64 {
        self.ops.iter().map(|row| row.bytes).fold(0, u64::saturating_add)
    }

    /// The kernels of the last timed run, from its start.
    fn trace(&self) -> Profile {
        let first = self.timeline.first().map_or_else(Default::default, |kernel| kernel.start);
        let dispatch = |kernel: &TimedKernel| DispatchTime {
            label: kernel.name.clone(),
            start_us: 1e6 * kernel.start.saturating_sub(first).as_secs_f64(),
            duration_us: 1e6 * kernel.time.as_secs_f64(),
        };
        Profile { dispatches: self.timeline.iter().map(dispatch).collect(), split_passes: false }
    }
}

/// Writes the kernels of some runs as a Chrome trace, one row for each run.
///
/// # Errors
/// What `out` reports.
pub fn write_trace<'a>(
    out: impl io::Write,
    profiles: impl IntoIterator<Item = &'a OpProfile>,
) -> io::Result<()> {
    let rows: Vec<(&str, Profile)> =
        profiles.into_iter().map(|profile| (&*profile.name, profile.trace())).collect();
    write_chrome_trace(out, rows.iter().map(|(name, profile)| (*name, profile)))
}

/// Each kernel with the median of its times, if all runs have the same kernels; otherwise the last run.
fn medians(runs: &[Vec<TimedKernel>]) -> Vec<TimedKernel> {
    let Some(mut kernels) = runs.last().cloned() else { return Vec::new() };
    if runs.iter().any(|run| run.len() != kernels.len()) {
        return kernels;
    }
    for (at, kernel) in kernels.iter_mut().enumerate() {
        let mut times: Vec<_> = runs.iter().map(|run| run[at].time).collect();
        times.sort_unstable();
        kernel.time = times[times.len() / 2];
    }
    kernels
}

/// Kernels by op, the longest op first.
fn rows(kernels: &[TimedKernel], bandwidth: Option<f64>) -> Vec<OpRow> {
    let (mut rows, mut places): (Vec<(OpRow, Work)>, HashMap<&str, usize>) = Default::default();
    for kernel in kernels {
        let place = *places.entry(&kernel.op).or_insert_with(|| {
            rows.push((OpRow::new(&kernel.op), Work::default()));
            rows.len() - 1
        });
        let (row, work) = &mut rows[place];
        row.calls += usize::from(kernel.leads);
        row.kernels += 1;
        row.us += 1e6 * kernel.time.as_secs_f64();
        *work += kernel.work;
    }
    rows.sort_by(|(a, _), (b, _)| b.us.total_cmp(&a.us));
    rows.into_iter().map(|(row, work)| row.with_work(work, bandwidth)).collect()
}

impl OpRow {
    fn new(op: &str) -> OpRow {
        OpRow {
            op: op.to_owned(),
            calls: 0,
            kernels: 0,
            us: 0.0,
            bytes: 0,
            flops: 0,
            bytes_per_second: 0.0,
            share_of_memory: None,
        }
    }

    fn with_work(self, work: Work, bandwidth: Option<f64>) -> OpRow {
        let bytes_per_second = work.bytes as f64 / (self.us / 1e6).max(1e-12);
        let share_of_memory = bandwidth.map(|bandwidth| bytes_per_second / bandwidth);
        OpRow { bytes: work.bytes, flops: work.flops, bytes_per_second, share_of_memory, ..self }
    }
}
