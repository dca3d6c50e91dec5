//! `fulmen bench prefill`.

use std::path::PathBuf;

use fulmen_bench::model::{PrefillOptions, PrefillTimes, bench_prefill};

use super::BenchCommandError;
use super::random_model::{RandomModelOptions, TraceFile};
use super::summary::{model_and_device, op_table};
use crate::output::{columns, json, percent, print};
use crate::progress::with_bar;

/// Time the prefill of a model with random weights: no model file is needed.
///
/// A prompt runs in chunks, and its first token is sampled on the device and read by the host. TFLOP/s count
/// matmuls and attention over the positions that each token sees. If the peak of the device's tensor cores is
/// known (dense, f16, by its data sheet), `of peak` is the share of it. Below, each op of the prefill: its
/// time and the bytes that it must read and write.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    model: RandomModelOptions,

    /// Tokens of the prompts, separated by commas.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512,2048")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Vec<u32>,

    /// Tokens in the KV cache before the prompt, separated by commas.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    depth: Vec<u32>,

    /// Number of timed runs of each test.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    /// Write the kernels of a prefill to this file, for chrome://tracing and Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench prefill --shape qwen3-4b
  fulmen bench prefill --shape qwen3-4b --tokens 2048 --depth 0,8192 --chunk 512
  fulmen bench prefill --shape qwen3-0.6b --tokens 64 --layers 2 --device cpu   for slow devices";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let trace = TraceFile::create(args.trace.as_ref())?;
    let options = PrefillOptions {
        tokens: args.tokens.clone(),
        depths: args.depth.clone(),
        repeat: args.repeat,
        session: args.model.engine.session(0),
    };
    let loaded = args.model.load(options.session_options())?;
    let mut report = with_bar(|progress| bench_prefill(&loaded, &options, progress))?;
    args.model.describe(&loaded, &mut report);
    trace.write(report.tests.iter().map(|test| &test.profile))?;
    let output = if args.json {
        json(&report)
    } else {
        let tables: String = report.tests.iter().map(|test| op_table(&test.profile) + "\n").collect();
        let model = args.model.title() + &model_and_device(&loaded, report.memory_bytes_per_second);
        format!("{}\n{tables}{model}", table(&report.tests))
    };
    Ok(print(&output)?)
}

fn table(tests: &[PrefillTimes]) -> String {
    let row = |test: &PrefillTimes| {
        vec![
            test.tokens.to_string(),
            test.depth.to_string(),
            test.chunk.to_string(),
            format!("{:.1}", test.rate.mean),
            format!("± {:.1}", test.rate.spread),
            format!("{:.2}", 1e3 * test.seconds),
            format!("{:.3}", test.flops_per_second / 1e12),
            test.share_of_peak.map_or(String::new(), percent),
        ]
    };
    let rows: Vec<Vec<String>> = tests.iter().map(row).collect();
    columns(&["tokens", "depth", "chunk", "tok/s", "", "ms", "TFLOP/s", "of peak"], &rows)
}
