//! `fulmen bench batch`.

use std::{fs::File, path::PathBuf};

use fulmen_core::device::DeviceSelector;
use fulmen_wgpu::{GpuDevice, GpuError, Profile, trace::write_chrome_trace};

use super::layers::layers;
use super::measure::{Measured, Work, measure};
use super::raw::{Arena, Ceilings, Raw, RawKernel};
use super::report::Report;
use super::{BenchError, chain, ffn::Ffn, open, pass, readback};
use crate::ops::progress_bar;
use crate::output::print;

/// Time the command batch: feed-forward layers, chains of element-wise operations, a pass over 1 GiB, reads.
///
/// Each work is recorded once, checked against the processor in f64 and run again and again; medians count. A wrong
/// result fails the command. `execute` is a replay until the device is done, `+read` the same with the result on the
/// host, `submit` what the call itself costs; the time on the GPU is that of the one pass, by timestamps. The floor is
/// what has to be read, written and computed, over what plain wgpu kernels reach on the same device in the same run.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The device to use: auto, wgpu or wgpu:N. `auto` takes a hardware GPU before a software one.
    #[arg(long, short, value_name = "DEVICE", env = "FULMEN_DEVICE", default_value_t)]
    device: DeviceSelector,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,

    /// Write the kernels of the layer on one row to this file, for chrome://tracing and Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Run each work so many times; 30 by default, 5 with --quick.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: Option<u32>,

    /// Take small sizes, for software devices. The numbers say little then.
    #[arg(long)]
    quick: bool,
}

/// How large the works are.
struct Sizes {
    hidden: usize,
    inner: usize,
    chain: usize,
    pass: u64,
    layer: (usize, usize),
}

const FULL: Sizes = Sizes { hidden: 2560, inner: 9728, chain: 1 << 20, pass: 1 << 30, layer: (256, 1024) };
const QUICK: Sizes = Sizes { hidden: 128, inner: 320, chain: 1 << 14, pass: 4 << 20, layer: (64, 160) };

/// Rows of the feed-forward layer.
const ROWS: [u32; 3] = [1, 32, 256];

/// Works, and the measurements before them.
const STEPS: usize = ROWS.len() + 3 + 2 + 2;

/// The device and what was measured on it so far.
struct Bench<'a> {
    gpu: &'a GpuDevice,
    repeat: usize,
    ceilings: Ceilings,
    bar: indicatif::ProgressBar,
    works: Vec<Measured>,
}

pub(super) fn run(args: &Args) -> Result<(), BenchError> {
    let gpu = open(args.device)?;
    let trace_error = |path: &PathBuf| {
        let path = path.clone();
        move |error| BenchError::Trace { path, error }
    };
    let trace = match &args.trace {
        Some(path) => Some((path, File::create(path).map_err(trace_error(path))?)),
        None => None,
    };
    let sizes = if args.quick { QUICK } else { FULL };
    let repeat = args.repeat.map_or(if args.quick { 5 } else { 30 }, |n| n as usize);
    let (report, profile) = measure_all(&gpu, &sizes, repeat, args.quick)?;
    if let Some((path, mut file)) = trace {
        let missing = GpuError::Unsupported { call: "bench batch --trace", what: "timestamps" };
        let profile = profile.ok_or(missing)?;
        write_chrome_trace(&mut file, [("ffn/m1", &profile)]).map_err(trace_error(path))?;
    }
    print(&if args.json { report.json() } else { report.text() })?;
    Ok(())
}

/// Every work, and the profile of the layer on one row.
fn measure_all(
    gpu: &GpuDevice,
    sizes: &Sizes,
    repeat: usize,
    quick: bool,
) -> Result<(Report, Option<Profile>), BenchError> {
    let bar = progress_bar(STEPS);
    bar.set_message("ceilings");
    let (raw, arena) = (Raw::new(gpu), pass::arena(gpu, sizes.pass)?);
    let relu = raw.relu(&arena)?;
    let ceilings = raw.ceilings(&arena, &relu, quick, repeat)?;
    let costs = raw.costs(&arena, if quick { 20 } else { 200 })?;
    bar.inc(1);
    bar.set_message("readback");
    let readback = readback::reads(gpu, quick, repeat)?;
    bar.inc(1);
    let mut bench = Bench { gpu, repeat, ceilings, bar, works: Vec::new() };

    let beside = bench.pass(&raw, &relu, &arena, sizes.pass)?;
    drop((relu, arena));
    let ffn = Ffn::new(gpu, 1, 1.0, sizes.hidden, sizes.inner)?;
    let mut profile = None;
    for m in ROWS {
        let of_this = bench.add(|gpu| ffn.work(gpu, m))?;
        profile = profile.or(of_this);
    }
    drop(ffn);
    bench.add(|gpu| chain::relu(gpu, sizes.chain, true))?;
    bench.add(|gpu| chain::relu(gpu, sizes.chain, false))?;
    bench.add(|gpu| chain::mixed(gpu, sizes.chain))?;
    let (work, pipelines) = layers(gpu, sizes.layer.0, sizes.layer.1)?;
    bench.add(|_| Ok(work))?;
    let Bench { bar, works, .. } = bench;
    bar.finish_and_clear();
    let info = gpu.info();
    let report = Report {
        device: info.name.clone(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        interface: info.backend.to_string(),
        quick,
        repeat,
        ceilings,
        costs,
        works,
        pass: beside,
        readback,
        pipelines,
    };
    Ok((report, profile))
}

impl Bench<'_> {
    /// Makes a work, which checks it, and times it.
    fn add(
        &mut self,
        work: impl FnOnce(&GpuDevice) -> Result<Work, BenchError>,
    ) -> Result<Option<Profile>, BenchError> {
        let mut work = work(self.gpu)?;
        self.bar.set_message(work.name.clone());
        let (measured, profile) = measure(&mut work, self.repeat, &self.ceilings)?;
        self.works.push(measured);
        self.bar.inc(1);
        Ok(profile)
    }

    /// The pass over much memory, right before and after the raw kernel.
    fn pass(
        &mut self,
        raw: &Raw,
        relu: &RawKernel,
        arena: &Arena,
        asked: u64,
    ) -> Result<pass::Beside, BenchError> {
        let before = raw.median_us(relu, self.repeat)?;
        self.add(|gpu| pass::work(gpu, arena, asked))?;
        // The better of two: the batch is held against what the raw kernel can do.
        let raw_gpu_us = before.min(raw.median_us(relu, self.repeat)?);
        let batch = self.works.last().and_then(|work| work.gpu_us);
        Ok(pass::Beside {
            raw_gpu_us,
            raw_gb_s: 2.0 * arena.bytes as f64 / raw_gpu_us / 1e3,
            ratio: batch.map(|us| raw_gpu_us / us),
        })
    }
}
