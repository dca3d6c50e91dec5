//! `fulmen ops check`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use fulmen_bench::{BenchError, dtype_name};
use fulmen_core::DType;
use fulmen_core::device::DeviceInfo;
use fulmen_testkit::{Agreement, Outcome, Report, Size, Tally, run_table_with};
#[cfg(feature = "wgpu")]
use fulmen_testkit::{Filter, Row, gpu_table, run_gpu_table};
#[cfg(feature = "wgpu")]
use fulmen_wgpu::{GpuDevice, WgpuDispatcher};
use serde_json::{Value, json};

use super::{CaseFilter, OpsError, RunOptions};
use crate::output::{columns, counted, print};
use crate::progress::step_bar;

/// Check every op of a device against a reference in f64.
///
/// The data are random, and their seed is printed. Memory is filled with NaN before each case, bytes outside
/// of the outputs must not change, and a second run must give the same bits. Failed cases are printed in
/// full, and the exit status is 1 if there are any. On wgpu devices, cases of the command batch (element-wise
/// ops, reductions, row ops, matmuls) and of the matmul cache are checked as well.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    run: RunOptions,

    #[command(flatten)]
    filter: CaseFilter,

    /// Skip slow cases: shapes of real models and millions of elements.
    #[arg(long, conflicts_with = "all")]
    quick: bool,

    /// Run all cases, including every combination of sizes, which takes minutes on a fast device.
    #[arg(long)]
    all: bool,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen ops check
  fulmen ops check --op mul_mat --op gate_up --dtype q4_k
  fulmen ops check --op softmax --seed 42        with the data of an earlier run
  fulmen ops check --json | jq .failures

`error` and `allowed` in the table are those of the case that came closest to its limit: the
normalized mean-square error, and for element-wise ops and reductions of the command batch the
largest relative error.";

const BAD: Style = AnsiColor::Red.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();

pub(super) fn run(args: &Args) -> Result<(), OpsError> {
    let (mut filter, seed) = (args.filter.filter(), args.run.seed());
    filter.up_to = match (args.quick, args.all) {
        (true, _) => Some(Size::Quick),
        (_, true) => None,
        _ => Some(Size::Large),
    };
    #[cfg(feature = "wgpu")]
    if let Some((device, gpu)) = args.run.open_gpu()? {
        return run_gpu(args, &filter, seed, &device, &gpu);
    }
    let rows = fulmen_testkit::table().iter().filter(|case| filter.takes(case)).count();
    if rows == 0 {
        return Err(BenchError::NoCases.into());
    }
    let (device, mut backend) = args.run.open()?;
    let (bar, start) = (step_bar(rows), Instant::now());
    let report = run_table_with(backend.as_mut(), &filter, seed, |row, _, _| {
        bar.set_message(row.name.clone());
        bar.inc(1);
    });
    bar.finish_and_clear();
    finish(args, &report, &device, start.elapsed())
}

/// The cases of graphs, then those of the command batch and of the matmul cache.
#[cfg(feature = "wgpu")]
fn run_gpu(
    args: &Args,
    filter: &Filter,
    seed: u64,
    device: &DeviceInfo,
    gpu: &GpuDevice,
) -> Result<(), OpsError> {
    let graph_cases = fulmen_testkit::table().iter().filter(|case| filter.takes(case)).count();
    let rows = graph_cases + gpu_table().iter().filter(|case| filter.takes_gpu(case)).count();
    if rows == 0 {
        return Err(BenchError::NoCases.into());
    }
    let (bar, start) = (step_bar(rows), Instant::now());
    let done = |row: &Row| {
        bar.set_message(row.name.clone());
        bar.inc(1);
    };
    let mut dispatcher = WgpuDispatcher::on(gpu)?;
    let mut report = run_table_with(&mut dispatcher, filter, seed, |row, _, _| done(row));
    report.rows.extend(run_gpu_table(gpu, filter, seed, done).rows);
    bar.finish_and_clear();
    finish(args, &report, device, start.elapsed())
}

/// Prints the report; failed cases are an error.
fn finish(args: &Args, report: &Report, device: &DeviceInfo, elapsed: Duration) -> Result<(), OpsError> {
    print(&if args.json { as_json(report, device, elapsed) } else { as_text(report, device, elapsed) })?;
    match report.bad_rows(&[]).count() {
        0 => Ok(()),
        failed => Err(OpsError::Failed { failed, cases: report.rows.len() }),
    }
}

fn as_text(report: &Report, device: &DeviceInfo, elapsed: Duration) -> String {
    let rows: Vec<Vec<String>> = report.by_op().into_iter().map(|(op, tally)| op_line(op, &tally)).collect();
    let header = ["op", "cases", "passed", "failed", "no kernel", "error", "allowed"];
    let mut out = columns(&header, &rows);
    let bad: Vec<_> = report.bad_rows(&[]).collect();
    if !bad.is_empty() {
        out += "\n";
        for row in bad {
            out += &format!("{BAD}{row}{BAD:#}\n");
        }
    }
    out += "\nCases by op and type:\n";
    out += &matrix(report);
    let Tally { rows, passed, failed, unsupported, .. } = report.total();
    let style = if rows == passed { GOOD } else { BAD };
    out += &format!(
        "\n{style}{}: {passed} passed, {failed} failed, {unsupported} without a kernel{style:#} \
         on {} ({}) in {:.1} s, seed {}\n",
        counted(rows, "case"),
        device.selector(),
        device.name,
        elapsed.as_secs_f64(),
        report.seed
    );
    out
}

fn op_line(op: &str, tally: &Tally) -> Vec<String> {
    let (error, allowed) = match tally.worst {
        Some(Agreement { allowed: 0.0, .. }) => ("0".to_owned(), "exact".to_owned()),
        Some(Agreement { error, allowed }) => (format!("{error:.1e}"), format!("{allowed:.1e}")),
        None => (String::new(), String::new()),
    };
    let count = |n: usize| if n == 0 { "-".to_owned() } else { n.to_string() };
    vec![
        op.to_owned(),
        tally.rows.to_string(),
        tally.passed.to_string(),
        count(tally.failed),
        count(tally.unsupported),
        error,
        allowed,
    ]
}

/// How many cases each op has of each type, and how many passed if not all did.
fn matrix(report: &Report) -> String {
    let coverage = report.coverage();
    let types: BTreeSet<DType> = coverage.keys().map(|&(_, dtype)| dtype).collect();
    let names: Vec<String> = types.iter().map(|&dtype| dtype_name(dtype)).collect();
    let header: Vec<&str> = ["op"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let rows: Vec<Vec<String>> = report
        .by_op()
        .into_iter()
        .map(|(op, _)| {
            let cell = |dtype: &DType| match coverage.get(&(op, *dtype)) {
                None => "·".to_owned(),
                Some(tally) if tally.passed == tally.rows => tally.rows.to_string(),
                Some(tally) => format!("{}/{}", tally.passed, tally.rows),
            };
            [op.to_owned()].into_iter().chain(types.iter().map(cell)).collect()
        })
        .collect();
    columns(&header, &rows)
}

/// Field names here are an interface: add, do not rename.
fn as_json(report: &Report, device: &DeviceInfo, elapsed: Duration) -> String {
    let total = report.total();
    let ops: Vec<Value> = report
        .by_op()
        .into_iter()
        .map(|(op, tally)| {
            json!({
                "op": op,
                "rows": tally.rows,
                "passed": tally.passed,
                "failed": tally.failed,
                "unsupported": tally.unsupported,
                "worst_error": tally.worst.map(|worst| worst.error),
                "allowed_error": tally.worst.map(|worst| worst.allowed),
            })
        })
        .collect();
    let failures: Vec<Value> = report
        .bad_rows(&[])
        .map(|row| {
            let (kind, reason) = match &row.outcome {
                Outcome::Failed(failure) => ("failed", failure.to_string()),
                Outcome::Unsupported(reason) => ("unsupported", reason.clone()),
                Outcome::Passed(_) => ("passed", String::new()),
            };
            json!({
                "name": row.name, "op": row.op, "dtype": dtype_name(row.dtype), "kind": kind, "reason": reason
            })
        })
        .collect();
    let coverage: Vec<Value> = report
        .coverage()
        .into_iter()
        .map(|((op, dtype), tally)| {
            json!({ "op": op, "dtype": dtype_name(dtype), "rows": tally.rows, "passed": tally.passed })
        })
        .collect();
    let report = json!({
        "device": device.selector().to_string(),
        "name": device.name,
        "seed": report.seed,
        "seconds": elapsed.as_secs_f64(),
        "rows": total.rows,
        "passed": total.passed,
        "failed": total.failed,
        "unsupported": total.unsupported,
        "ops": ops,
        "failures": failures,
        "coverage": coverage,
    });
    format!("{report:#}\n")
}
