//! `fulmen ops perf`.

use std::time::Duration;

use fulmen_core::Backend;
use fulmen_core::device::{BackendKind, DeviceInfo};
use fulmen_testkit::draw::Pools;
use fulmen_testkit::perf::{Bound, Ceiling, HostReader, Timing, copy_gb_s, time_case};
use fulmen_testkit::{Case, table};
use serde_json::{Value, json};

use super::{OpsError, Rows, RunOptions, progress_bar, type_name};
use crate::output::{columns, print};

/// Time the ops of a device, beside what its memory and its arithmetic allow.
///
/// Each case is warmed up and then run again and again for some time; the median counts. The ceilings are measured in the
/// same run: how fast a buffer of the case's size is read, and how many operations the best product does. A share says
/// how close a case comes to the ceiling that binds it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    run: RunOptions,

    #[command(flatten)]
    rows: Rows,

    /// Time every case of the table, not only the shapes of real models.
    #[arg(long)]
    all: bool,

    /// Time each case for so many milliseconds: 300 by default on the processor, 30 on other devices, whose times vary
    /// less.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    time: Option<u64>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen ops perf
  fulmen ops perf --op mul_mat --dtype q4_k
  fulmen ops perf --all --op rope --time 50
  fulmen ops perf --op mul_mat --json | jq '.cases[] | {name, gb_s}'";

/// Products of many rows: the fastest of them is the ceiling of arithmetic.
const PRODUCTS: &str = "qwen3-4b/m512/2560x2560";

/// One case and what came of it.
struct Line {
    case: Case,
    ceiling: Ceiling,
    result: Result<Timing, String>,
}

pub(super) fn run(args: &Args) -> Result<(), OpsError> {
    let (filter, seed) = (args.rows.filter(), args.run.seed());
    let wanted = |case: &Case| filter.takes(case) && (args.all || case.timed);
    let cases: Vec<Case> = table().into_iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err(OpsError::NoRows);
    }
    let (device, mut backend) = args.run.open()?;
    let usual = if device.backend == BackendKind::Cpu { 300 } else { 30 };
    let (mut pools, budget) = (Pools::new(seed), Duration::from_millis(args.time.unwrap_or(usual)));
    let mut reader = match device.backend {
        BackendKind::Cpu => Reader::Host(HostReader::new(args.run.threads())),
        _ => {
            Reader::Device(copy_gb_s(backend.as_mut()).map_err(|error| OpsError::Ceiling(error.to_string()))?)
        }
    };
    let (gflop_s, product) =
        best_product(backend.as_mut(), &mut pools, budget.min(Duration::from_millis(200)))?;
    let ceiling = Ceiling { read_gb_s: reader.gb_s(u64::MAX), gflop_s };
    let bar = progress_bar(cases.len());
    let mut lines = Vec::with_capacity(cases.len());
    for case in cases {
        bar.set_message(case.name.clone());
        let result = time_case(backend.as_mut(), &case, &mut pools, budget).map_err(|e| e.to_string());
        let ceiling = Ceiling { read_gb_s: reader.gb_s(case.work.bytes), gflop_s };
        lines.push(Line { case, ceiling, result });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let output = if args.json {
        as_json(&lines, ceiling, &product, &device, seed)
    } else {
        as_text(&lines, ceiling, &product, &device, &reader.how())
    };
    print(&output)?;
    match lines.iter().filter(|line| line.result.is_err()).count() {
        0 => Ok(()),
        bad => Err(OpsError::Bad { bad, rows: lines.len() }),
    }
}

/// How fast the device's memory is.
enum Reader {
    /// By the size of what is read.
    Host(HostReader),
    /// The same for every size.
    Device(f64),
}

impl Reader {
    fn gb_s(&mut self, bytes: u64) -> f64 {
        match self {
            Reader::Host(reader) => reader.gb_s(bytes),
            Reader::Device(gb_s) => *gb_s,
        }
    }

    /// How it was measured.
    fn how(&self) -> String {
        match self {
            Reader::Host(reader) => format!("read by {} threads where no cache helps", reader.threads()),
            Reader::Device(_) => "read and written by a copy where no cache helps".to_owned(),
        }
    }
}

/// Operations per nanosecond of the fastest product, and its name.
fn best_product(
    backend: &mut dyn Backend,
    pools: &mut Pools,
    budget: Duration,
) -> Result<(f64, String), OpsError> {
    let mut best = None;
    for case in table().into_iter().filter(|case| case.op == "mul_mat" && case.name.ends_with(PRODUCTS)) {
        let timing = time_case(backend, &case, pools, budget);
        let timing = timing.map_err(|error| OpsError::Ceiling(error.to_string()))?;
        let gflop_s = case.work.flops as f64 / (timing.best.as_secs_f64() * 1e9);
        if best.as_ref().is_none_or(|(best, _)| gflop_s > *best) {
            best = Some((gflop_s, case.name));
        }
    }
    best.ok_or_else(|| OpsError::Ceiling(format!("the table has no product {PRODUCTS}")))
}

fn as_text(lines: &[Line], ceiling: Ceiling, product: &str, device: &DeviceInfo, how: &str) -> String {
    let rows: Vec<Vec<String>> = lines.iter().map(text_line).collect();
    let mut out = columns(&["case", "time", "GB/s", "GFLOP/s", "share", "of"], &rows);
    for line in lines {
        if let Err(error) = &line.result {
            out += &format!("\n{}: {error}", line.case.name);
        }
    }
    out + &format!(
        "\nCeilings of {} ({}): {:.1} GB/s {how}, {:.0} GFLOP/s by {product}\n",
        device.selector(),
        device.name,
        ceiling.read_gb_s,
        ceiling.gflop_s
    )
}

fn text_line(line: &Line) -> Vec<String> {
    let mut cells = vec![line.case.name.clone()];
    match &line.result {
        Err(_) => cells.push("failed".to_owned()),
        Ok(timing) => {
            let (share, bound) = timing.share(line.ceiling);
            cells.push(time(timing.median));
            cells.push(format!("{:.1}", timing.gb_s()));
            cells.push(format!("{:.1}", timing.gflop_s()));
            cells.push(format!("{:.0} %", 100.0 * share));
            cells.push(bound_name(bound).to_owned());
        }
    }
    cells
}

fn bound_name(bound: Bound) -> &'static str {
    match bound {
        Bound::Memory => "memory",
        Bound::Compute => "compute",
    }
}

/// A duration with three digits or more.
fn time(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        ..100.0 => format!("{us:.2} µs"),
        ..10_000.0 => format!("{us:.0} µs"),
        _ => format!("{:.1} ms", us / 1e3),
    }
}

/// Field names here are an interface: add, do not rename.
fn as_json(lines: &[Line], ceiling: Ceiling, product: &str, device: &DeviceInfo, seed: u64) -> String {
    let cases: Vec<Value> = lines
        .iter()
        .map(|Line { case, ceiling, result }| {
            let mut value = json!({ "name": case.name, "op": case.op, "dtype": type_name(case.dtype) });
            match result {
                Err(error) => value["error"] = json!(error),
                Ok(timing) => {
                    let (share, bound) = timing.share(*ceiling);
                    value["seconds"] = json!(timing.median.as_secs_f64());
                    value["best_seconds"] = json!(timing.best.as_secs_f64());
                    value["runs"] = json!(timing.runs);
                    value["bytes"] = json!(timing.work.bytes);
                    value["flops"] = json!(timing.work.flops);
                    value["gb_s"] = json!(timing.gb_s());
                    value["gflop_s"] = json!(timing.gflop_s());
                    value["ceiling_gb_s"] = json!(ceiling.read_gb_s);
                    value["share"] = json!(share);
                    value["bound"] = json!(bound_name(bound));
                }
            }
            value
        })
        .collect();
    let list = json!({
        "device": device.selector().to_string(),
        "name": device.name,
        "seed": seed,
        "ceiling": { "read_gb_s": ceiling.read_gb_s, "gflop_s": ceiling.gflop_s, "gflop_s_by": product },
        "cases": cases,
    });
    format!("{list:#}\n")
}
