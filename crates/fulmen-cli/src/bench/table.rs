//! Where the time of a run goes: its ops with their times and bytes, and what is between them.

use std::path::{Path, PathBuf};
use std::{collections::HashMap, fs::File};

use fulmen_core::Work;
use fulmen_model::engine::TimedKernel;
use fulmen_model::{ModelError, Session};
use fulmen_wgpu::trace::write_chrome_trace;
use fulmen_wgpu::{DispatchTime, Profile};
use serde_json::{Value, json};

use super::BenchError;
use crate::output::columns;

/// Timed runs, of which the medians count.
const RUNS: usize = 5;

/// The ops of a run beside the time that the run takes when nobody looks.
pub(super) struct Table {
    pub(super) name: String,
    /// Microseconds of the run without timing.
    total_us: f64,
    rows: Vec<Row>,
    /// The kernels of the last timed run.
    last: Vec<TimedKernel>,
    by_device: bool,
    /// Bytes per second of the memory.
    memory: Option<f64>,
}

/// Ops with one label.
#[derive(Default)]
struct Row {
    op: String,
    calls: usize,
    kernels: usize,
    us: f64,
    work: Work,
}

impl Table {
    /// Times the kernels of some runs.
    pub(super) fn measure(
        name: String,
        session: &mut Session,
        total_us: f64,
        memory: Option<f64>,
        mut run: impl FnMut(&mut Session) -> Result<(), ModelError>,
    ) -> Result<Table, ModelError> {
        let mut runs = Vec::with_capacity(RUNS);
        // The first one may make what timing needs.
        for at in 0..=RUNS {
            session.start_timeline();
            let done = run(session);
            let profile = session.stop_profile();
            done?;
            if let Some(profile) = profile.filter(|_| at > 0) {
                runs.push(profile.timeline().to_vec());
            }
        }
        let kernels = medians(&runs);
        let by_device = kernels.iter().all(|kernel| kernel.by_device);
        let (rows, last) = (grouped(&kernels), runs.pop().unwrap_or_default());
        Ok(Table { name, total_us, rows, last, by_device, memory })
    }

    fn sum_us(&self) -> f64 {
        self.rows.iter().map(|row| row.us).sum()
    }

    /// Operations of all ops.
    pub(super) fn flops(&self) -> u64 {
        self.rows.iter().map(|row| row.work.flops).fold(0, u64::saturating_add)
    }

    /// What is between the ops, and its name: less than nothing where ops overlap that were timed one by one.
    fn rest(&self) -> (&'static str, f64) {
        let rest = self.total_us - self.sum_us();
        (if rest < 0.0 { "[overlap]" } else { "[gaps]" }, rest)
    }

    pub(super) fn text(&self) -> String {
        let share = |us: f64| format!("{:.1} %", 100.0 * us / self.total_us);
        let line = |row: &Row| {
            let speed = row.work.bytes as f64 / (row.us / 1e6).max(1e-12);
            let memory = self.memory.map(|memory| format!("{:.0} %", 100.0 * speed / memory));
            vec![
                row.op.clone(),
                row.calls.to_string(),
                row.kernels.to_string(),
                format!("{:.1}", row.us),
                share(row.us),
                format!("{:.3}", row.work.bytes as f64 / 1e6),
                format!("{:.1}", speed / 1e9),
                memory.unwrap_or_default(),
            ]
        };
        let mut rows: Vec<Vec<String>> = self.rows.iter().map(line).collect();
        let bytes: u64 = self.rows.iter().map(|row| row.work.bytes).fold(0, u64::saturating_add);
        let (name, rest) = self.rest();
        let plain = |name: &str, us: f64| {
            vec![name.to_owned(), String::new(), String::new(), format!("{us:.1}"), share(us)]
        };
        rows.push(plain(name, rest));
        let mut total = plain("[all]", self.total_us);
        total.push(format!("{:.3}", bytes as f64 / 1e6));
        rows.push(total);
        let how = match self.by_device {
            true => "each timed alone by the device's clock",
            false => "each timed by the host, which waits for the device after it",
        };
        format!(
            "{}: {:.1} µs; ops {how}, medians of {RUNS} runs\n{}",
            self.name,
            self.total_us,
            columns(&["op", "calls", "kernels", "µs", "share", "MB", "GB/s", "of memory"], &rows)
        )
    }

    /// Field names here are an interface: add, do not rename.
    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let speed = row.work.bytes as f64 / (row.us / 1e6).max(1e-12);
            json!({
                "op": row.op,
                "calls": row.calls,
                "kernels": row.kernels,
                "us": row.us,
                "bytes": row.work.bytes,
                "flops": row.work.flops,
                "bytes_per_second": speed,
                "share_of_memory": self.memory.map(|memory| speed / memory),
            })
        };
        json!({
            "clock": if self.by_device { "device" } else { "host" },
            "runs": RUNS,
            "ops": self.rows.iter().map(row).collect::<Vec<_>>(),
            "sum_us": self.sum_us(),
            "gaps_us": self.rest().1,
            "total_us": self.total_us,
        })
    }

    /// The kernels of the last timed run, from its start.
    fn trace(&self) -> Profile {
        let first = self.last.first().map_or_else(Default::default, |kernel| kernel.start);
        let dispatch = |kernel: &TimedKernel| DispatchTime {
            label: kernel.name.clone(),
            start_us: 1e6 * kernel.start.saturating_sub(first).as_secs_f64(),
            duration_us: 1e6 * kernel.time.as_secs_f64(),
        };
        Profile { dispatches: self.last.iter().map(dispatch).collect(), split_passes: false }
    }
}

/// Each kernel with the median of its times, when the runs are alike; else the last run.
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

/// Rows by op, the longest first.
fn grouped(kernels: &[TimedKernel]) -> Vec<Row> {
    let (mut rows, mut places): (Vec<Row>, HashMap<&str, usize>) = Default::default();
    for kernel in kernels {
        let place = *places.entry(&kernel.op).or_insert_with(|| {
            rows.push(Row { op: kernel.op.clone(), ..Row::default() });
            rows.len() - 1
        });
        let row = &mut rows[place];
        row.calls += usize::from(kernel.leads);
        row.kernels += 1;
        row.us += 1e6 * kernel.time.as_secs_f64();
        row.work += kernel.work;
    }
    rows.sort_by(|a, b| b.us.total_cmp(&a.us));
    rows
}

/// A file for the kernels of some runs, opened before anything is measured.
pub(super) struct Trace<'a>(Option<(&'a Path, File)>);

impl Trace<'_> {
    pub(super) fn create(path: Option<&PathBuf>) -> Result<Trace<'_>, BenchError> {
        let open = |path: &PathBuf| {
            File::create(path).map_err(|error| BenchError::Trace { path: path.clone(), error })
        };
        Ok(Trace(path.map(|path| Ok::<_, BenchError>((path.as_path(), open(path)?))).transpose()?))
    }

    pub(super) fn write(self, tables: &[&Table]) -> Result<(), BenchError> {
        let Some((path, file)) = self.0 else { return Ok(()) };
        let rows: Vec<(&str, Profile)> = tables.iter().map(|table| (&*table.name, table.trace())).collect();
        write_chrome_trace(std::io::BufWriter::new(file), rows.iter().map(|(name, profile)| (*name, profile)))
            .map_err(|error| BenchError::Trace { path: path.to_owned(), error })
    }
}
