//! `fulmen ops perf`.

use std::time::Duration;

use fulmen_bench::ops::{BandwidthSource, OpBenchOptions, OpOutcome, OpReport, OpResult, bench_ops};

use super::{CaseFilter, OpsError, RunOptions};
use crate::output::{columns, counted, json, micros, percent, print};
use crate::progress::with_bar;

/// Time the ops of a device, and compare each with the device's memory bandwidth and peak FLOP/s.
///
/// Each case is warmed up and then run repeatedly; the median counts. The ceilings are measured in the same
/// run: how fast a buffer of the case's size is read, and the FLOP/s of the fastest matmul. `of ceiling` is
/// how close a case comes to the ceiling that limits it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    run: RunOptions,

    #[command(flatten)]
    cases: CaseFilter,

    /// Time every case of the table, not only the shapes of real models.
    #[arg(long)]
    all: bool,

    /// Time for each case in milliseconds; 300 by default on the CPU, 30 on other devices, whose times vary
    /// less.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    time: Option<u64>,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen ops perf
  fulmen ops perf --op mul_mat --dtype q4_k
  fulmen ops perf --all --op rope --time 50
  fulmen ops perf --op mul_mat --json | jq '.cases[] | {name, gb_s}'";

pub(super) fn run(args: &Args) -> Result<(), OpsError> {
    let (device, mut backend) = args.run.open()?;
    let options = OpBenchOptions {
        filter: args.cases.filter(),
        all: args.all,
        budget: args.time.map(Duration::from_millis),
        seed: args.run.seed(),
        threads: args.run.threads(),
    };
    let report = with_bar(|progress| bench_ops(&device, backend.as_mut(), &options, progress))?;
    print(&if args.json { json(&report) } else { as_text(&report) })?;
    let failed = report.cases.iter().filter(|case| matches!(case.outcome, OpOutcome::Failed { .. })).count();
    match failed {
        0 => Ok(()),
        failed => Err(OpsError::Failed { failed, cases: report.cases.len() }),
    }
}

fn as_text(report: &OpReport) -> String {
    let rows: Vec<Vec<String>> = report.cases.iter().map(row).collect();
    let mut out = columns(&["case", "time", "GB/s", "GFLOP/s", "of ceiling", "limited by"], &rows);
    for case in &report.cases {
        if let OpOutcome::Failed { error } = &case.outcome {
            out += &format!("\n{}: {error}", case.name);
        }
    }
    let ceiling = &report.ceiling;
    let how = match ceiling.bandwidth_source {
        BandwidthSource::HostRead { threads } => format!("read by {}", counted(threads, "thread")),
        BandwidthSource::DeviceCopy => "read and written by a copy".to_owned(),
    };
    out + &format!(
        "\nCeilings of {} ({}): {:.1} GB/s {how}, from memory that no cache holds; {:.0} GFLOP/s by {}\n",
        report.device, report.name, ceiling.read_gb_s, ceiling.gflop_s, ceiling.gflop_s_by
    )
}

fn row(case: &OpResult) -> Vec<String> {
    match &case.outcome {
        OpOutcome::Failed { .. } => vec![case.name.clone(), "failed".to_owned()],
        OpOutcome::Timed(times) => vec![
            case.name.clone(),
            micros(1e6 * times.seconds),
            format!("{:.1}", times.gb_s),
            format!("{:.1}", times.gflop_s),
            percent(times.share),
            times.bound.to_owned(),
        ],
    }
}
