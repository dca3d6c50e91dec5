//! `fulmen bench decode`.

use std::path::PathBuf;

use fulmen_bench::model::{DecodeOptions, DecodeTimes, bench_decode};

use super::BenchCommandError;
use super::random_model::{RandomModelOptions, TraceFile};
use super::summary::{BOUND, model_and_device, op_table};
use crate::output::{columns, json, percent, print};
use crate::progress::with_bar;

/// Time decode steps of a model with random weights: no model file is needed.
///
/// Sequences decode greedily; the token is sampled on the device and read by the host after each step.
/// `bound` is the time that a step takes at least: the sum over its ops of the time that their bytes take at
/// the memory's speed or their arithmetic at that of the tensor cores, whichever is longer. Below it, each op
/// of a step: its time, the bytes that it must read and write, and how much of the memory bandwidth that is.
/// `[gaps]` is the time of a step beyond its ops; a negative `[overlap]` is the time saved because ops
/// overlap in a step that were timed one by one. `host µs` is the time that the host spends launching a step.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    model: RandomModelOptions,

    /// Tokens in the KV cache before the first step, separated by commas. With --steps they must fit the
    /// model's context.
    #[arg(long, alias = "context", value_name = "TOKENS", value_delimiter = ',', default_value = "1024")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    depth: Vec<u32>,

    /// Number of sequences that decode together, separated by commas.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,

    /// Decode steps per run.
    #[arg(long, value_name = "STEPS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16_384))]
    steps: u16,

    /// Decode steps that the device runs before the host reads a token.
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    ahead: u16,

    /// Number of timed runs of each test.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    /// Write the kernels of a step to this file, for chrome://tracing and Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench decode --shape qwen3-4b
  fulmen bench decode --shape qwen3-8b --depth 1024,8192 --batch 1,4,16
  fulmen bench decode --shape llama3.2-1b --trace step.json      a step for chrome://tracing
  fulmen bench decode --shape qwen3-4b --layers 2 --device cpu   fewer layers, for slow devices";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let trace = TraceFile::create(args.trace.as_ref())?;
    let options = DecodeOptions {
        depths: args.depth.clone(),
        batches: args.batch.clone(),
        steps: args.steps,
        steps_ahead: args.ahead,
        repeat: args.repeat,
        session: args.model.engine.session(0),
    };
    let loaded = args.model.load(options.session_options())?;
    let mut report = with_bar(|progress| bench_decode(&loaded, &options, progress))?;
    args.model.describe(&loaded, &mut report);
    trace.write(report.tests.iter().map(|test| &test.profile))?;
    let output = if args.json {
        json(&report)
    } else {
        let tables: String = report.tests.iter().map(|test| op_table(&test.profile) + "\n").collect();
        let model = args.model.title() + &model_and_device(&loaded, report.memory_bytes_per_second);
        format!("{}\n{tables}{BOUND}{model}", table(&report.tests))
    };
    Ok(print(&output)?)
}

fn table(tests: &[DecodeTimes]) -> String {
    let row = |test: &DecodeTimes| {
        let count = |count: Option<usize>| count.map_or(String::new(), |count| count.to_string());
        let micros = |us: Option<f64>| us.map_or(String::new(), |us| format!("{us:.1}"));
        vec![
            test.depth.to_string(),
            test.batch.to_string(),
            format!("{:.1}", test.rate.mean),
            format!("± {:.1}", test.rate.spread),
            format!("{:.1}", test.step_us),
            micros(test.bound_us),
            test.share_of_bound.map_or(String::new(), percent),
            count(test.launches),
            count(test.kernels),
            micros(test.host_us),
        ]
    };
    let rows: Vec<Vec<String>> = tests.iter().map(row).collect();
    let header = [
        "depth",
        "batch",
        "tok/s",
        "",
        "µs per step",
        "bound µs",
        "of bound",
        "launches",
        "kernels",
        "host µs",
    ];
    columns(&header, &rows)
}
