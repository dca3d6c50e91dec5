//! The results as text and as JSON.

use serde::Serialize;

use super::layers::Pipelines;
use super::measure::Measured;
use super::pass::Beside;
use super::raw::{Ceilings, Costs};
use super::readback::Read;
use crate::output::columns;

/// Everything that was measured. Field names are those of the JSON output: add, do not rename.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) device: String,
    pub(super) driver: String,
    pub(super) interface: String,
    pub(super) quick: bool,
    pub(super) repeat: usize,
    pub(super) ceilings: Ceilings,
    pub(super) costs: Costs,
    pub(super) works: Vec<Measured>,
    pub(super) pass: Beside,
    pub(super) readback: Vec<Read>,
    pub(super) pipelines: Pipelines,
}

impl Report {
    pub(super) fn json(&self) -> String {
        // Numbers, names and lists of them: there is nothing here that JSON cannot say.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        text + "\n"
    }

    pub(super) fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self.works.iter().map(line).collect();
        let header = [
            "work",
            "execute+read",
            "execute",
            "submit",
            "per op",
            "GPU",
            "floor",
            "share",
            "of",
            "launches",
        ];
        let mut out = columns(&header, &rows) + "\n";
        for work in &self.works {
            if let Some(note) = &work.note {
                out += &format!("{:<14} {note}; {} ops\n", work.work, work.ops);
            }
        }
        let Report { ceilings, costs, pass, pipelines, .. } = self;
        let by = if ceilings.by_host_clock { ", by the host's clock" } else { "" };
        let ratio = pass.ratio.map_or("not known".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio));
        let lines = [
            format!(
                "ceilings       {:.0} GB/s read, {:.0} GB/s read and written, {:.0} GFLOP/s in f32{by}",
                ceilings.read_gb_s, ceilings.copy_gb_s, ceilings.f32_gflop_s
            ),
            format!(
                "raw wgpu       encode {}, submit {}, one of 100 dispatches {}, read 4 bytes {} (by GpuDevice::read_many {})",
                time(costs.encode_us),
                time(costs.submit_us),
                time(costs.dispatch_us),
                time(costs.readback_us),
                time(costs.fulmen_readback_us)
            ),
            format!(
                "pass           {ratio} of the raw kernel's speed: {} at {:.0} GB/s",
                time(pass.raw_gpu_us),
                pass.raw_gb_s
            ),
            format!(
                "pipelines      {} compiled for {} different kernels in {} layers; {} for the first layer",
                pipelines.compiled, pipelines.distinct, pipelines.layers, pipelines.of_one_layer
            ),
            "GPU            one pass for the whole work, from its beginning to its end, by timestamps"
                .to_owned(),
            format!("device         {} ({}, {})", self.device, self.interface, self.driver),
            format!("runs           {} of each work, medians; every result was checked first", self.repeat),
        ];
        out += &(lines.join("\n") + "\n\n");
        let rows: Vec<Vec<String>> = self.readback.iter().map(read_line).collect();
        out += &columns(&["readback", "wgpu", "GB/s", "read_many", "GB/s", "download_into", "GB/s"], &rows);
        if self.quick {
            out += "quick          small sizes: the numbers say little about large ones\n";
        }
        out
    }
}

fn line(work: &Measured) -> Vec<String> {
    let optional = |us: Option<f64>| us.map_or("-".to_owned(), time);
    vec![
        work.work.clone(),
        optional(work.execute_read_us),
        time(work.execute_us),
        time(work.submit_us),
        time(work.submit_us_per_op),
        optional(work.gpu_us),
        time(work.floor_us),
        work.share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
        work.bound.to_owned(),
        work.launches.to_string(),
    ]
}

fn read_line(read: &Read) -> Vec<String> {
    let size = match read.bytes {
        bytes if bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
        bytes => format!("{} MiB", bytes >> 20),
    };
    let mut cells = vec![size];
    for (us, gb_s) in
        [(read.raw_us, read.raw_gb_s), (read.read_us, read.read_gb_s), (read.into_us, read.into_gb_s)]
    {
        cells.extend([time(us), format!("{gb_s:.2}")]);
    }
    cells
}

/// Microseconds with two digits or more.
pub(super) fn time(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.2} µs"),
        ..10_000.0 => format!("{us:.0} µs"),
        _ => format!("{:.1} ms", us / 1e3),
    }
}
