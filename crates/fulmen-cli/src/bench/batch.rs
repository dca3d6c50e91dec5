//! `fulmen bench batch`.

use std::{fs::File, path::PathBuf};

use fulmen_bench::command_batch::{
    BatchTimes, CommandBatchOptions, CommandBatchReport, ReadbackTimes, bench_command_batch,
};
use fulmen_core::trace::write_chrome_trace;

use super::BenchCommandError;
use super::summary::ceilings;
use crate::gpu_option::GpuOption;
use crate::output::{columns, json, micros, percent, print};
use crate::progress::with_bar;

/// Time the command batch: feed-forward layers, chains of element-wise ops, a pass over 1 GiB, and readback.
///
/// Each case is recorded once, checked in f64 and replayed; medians count, and a wrong result is an error.
/// `execute` is a replay until the device is done, `execute+read` includes copying the result to the host,
/// `submit` is the call alone, and `GPU` is the compute pass by the device's timestamps. `bound` is the least
/// time by the roofline model: what must be read, written and computed, at the bandwidth and FLOP/s that
/// plain wgpu kernels reach in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    gpu: GpuOption,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,

    /// Write the kernels of the feed-forward layer on one row to this file, for chrome://tracing and
    /// Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Number of timed runs of each case; 30 by default, 5 with --quick.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: Option<u32>,

    /// Use small sizes, for software devices. The results say little about large ones.
    #[arg(long)]
    quick: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench batch
  fulmen bench batch --quick             small sizes, for software devices
  fulmen bench batch --trace ffn.json    the kernels of a layer for chrome://tracing
  fulmen bench batch --json > batch.json";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let gpu = args.gpu.open()?;
    let trace_error = |path: &PathBuf| {
        let path = path.clone();
        move |error| BenchCommandError::Trace { path, error }
    };
    let trace = match &args.trace {
        Some(path) => Some((path, File::create(path).map_err(trace_error(path))?)),
        None => None,
    };
    let options =
        CommandBatchOptions { quick: args.quick, repeat: args.repeat.map(|repeat| repeat as usize) };
    let report = with_bar(|progress| bench_command_batch(&gpu, &options, progress))?;
    if let Some((path, mut file)) = trace {
        let profile = report.profile.as_ref().ok_or(BenchCommandError::NoTimestamps)?;
        write_chrome_trace(&mut file, [("ffn/m1", profile)]).map_err(trace_error(path))?;
    }
    print(&if args.json { json(&report) } else { as_text(&report) })?;
    Ok(())
}

fn as_text(report: &CommandBatchReport) -> String {
    let rows: Vec<Vec<String>> = report.cases.iter().map(case_row).collect();
    let header = [
        "case",
        "execute+read",
        "execute",
        "submit",
        "per op",
        "GPU",
        "bound",
        "of bound",
        "limited by",
        "launches",
    ];
    let mut out = columns(&header, &rows) + "\n";
    for case in &report.cases {
        if let Some(note) = &case.note {
            let ops = crate::output::counted(case.ops, "op");
            out += &format!("{:<14} {note}; {ops}\n", case.case);
        }
    }
    let CommandBatchReport { costs, pass, pipelines, .. } = report;
    let ratio = pass.ratio.map_or("unknown".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio));
    let lines = [
        format!("ceilings       {}", ceilings(&report.ceilings)),
        "bound          least time by the roofline of these ceilings; of bound: bound / GPU".to_owned(),
        format!(
            "wgpu calls     encode {}, submit {}, one of 100 dispatches {}, read 4 bytes {} (read_many: {})",
            micros(costs.encode_us),
            micros(costs.submit_us),
            micros(costs.dispatch_us),
            micros(costs.readback_us),
            micros(costs.fulmen_readback_us)
        ),
        format!(
            "pass           {ratio} of the speed of a plain wgpu kernel, which takes {} at {:.0} GB/s",
            micros(pass.raw_gpu_us),
            pass.raw_gb_s
        ),
        format!(
            "pipelines      {} compiled for {} distinct kernels in {} layers; {} for the first layer",
            pipelines.compiled, pipelines.distinct, pipelines.layers, pipelines.of_one_layer
        ),
        "GPU            the compute pass of the whole batch, by timestamps".to_owned(),
        format!("device         {} ({}, {})", report.device, report.interface, report.driver),
        format!("runs           {} of each case, medians; every result was checked first", report.repeat),
    ];
    out += &(lines.join("\n") + "\n\n");
    let rows: Vec<Vec<String>> = report.readback.iter().map(readback_row).collect();
    out += &columns(&["readback", "wgpu", "GB/s", "read_many", "GB/s", "download_into", "GB/s"], &rows);
    if report.quick {
        out += "quick          small sizes: the results say little about large ones\n";
    }
    out
}

fn case_row(case: &BatchTimes) -> Vec<String> {
    let optional = |us: Option<f64>| us.map_or("-".to_owned(), micros);
    vec![
        case.case.clone(),
        optional(case.execute_read_us),
        micros(case.execute_us),
        micros(case.submit_us),
        micros(case.submit_us_per_op),
        optional(case.gpu_us),
        micros(case.roofline_us),
        case.share.map_or("-".to_owned(), percent),
        case.limit.name().to_owned(),
        case.launches.to_string(),
    ]
}

fn readback_row(times: &ReadbackTimes) -> Vec<String> {
    let size = match times.bytes {
        bytes if bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
        bytes => format!("{} MiB", bytes >> 20),
    };
    let mut cells = vec![size];
    for (us, gb_s) in
        [(times.raw_us, times.raw_gb_s), (times.read_us, times.read_gb_s), (times.into_us, times.into_gb_s)]
    {
        cells.extend([micros(us), format!("{gb_s:.2}")]);
    }
    cells
}
