//! `fulmen bench model`.

use std::path::PathBuf;

use fulmen_bench::model::{ThroughputOptions, ThroughputTimes, bench_throughput};
use fulmen_engine::SessionOptions;

use super::BenchCommandError;
use super::summary::{MEMORY_BOUND, model_and_device};
use crate::model::load::ModelOptions;
use crate::output::{columns, json, percent, print};
use crate::progress::with_bar;

/// Time a model: prefill (pp) and decode (tg) at several depths of the context.
///
/// Tokens are random; the time does not depend on them. Each test runs once to warm up and then --repeat
/// times; the mean and the standard deviation are shown. `of bound` is the share of the memory-bandwidth
/// bound that decoding reaches: the speed of reading the weights and the KV cache once per step, at the
/// bandwidth measured in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    /// Without it, the small built-in model.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Tokens of the prefill tests, separated by commas; 0 for none. 512 by default, 256 for the built-in
    /// model.
    #[arg(long, alias = "pp", value_name = "TOKENS", value_delimiter = ',')]
    prefill: Option<Vec<usize>>,

    /// Tokens of the decode tests, separated by commas; 0 for none.
    #[arg(long, alias = "tg", value_name = "TOKENS", value_delimiter = ',', default_value = "128")]
    decode: Vec<usize>,

    /// Tokens in the KV cache before each test, separated by commas.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,

    /// Number of sequences that decode together.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,

    /// Decode steps that the device runs before the host reads a token.
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    ahead: u16,

    /// Number of timed runs of each test.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    #[command(flatten)]
    options: ModelOptions,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench model                                    the small built-in model
  fulmen bench model model.gguf --prefill 512,2048 --decode 128
  fulmen bench model model.gguf --prefill 0 --depth 0,8192 --batch 16
  fulmen bench model ORG/NAME --device wgpu --json > model.json";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let default = if args.model.is_some() { 512 } else { 256 };
    let options = ThroughputOptions {
        prefill: args.prefill.clone().unwrap_or_else(|| vec![default]),
        decode: args.decode.clone(),
        depths: args.depth.clone(),
        batch: args.batch,
        steps_ahead: args.ahead,
        repeat: args.repeat,
    };
    let session = SessionOptions {
        context: args.options.context.unwrap_or(options.context()),
        sequences: args.batch,
        ..args.options.session()
    };
    let loaded = args.options.load(args.model.as_deref(), session)?;
    let report = with_bar(|progress| bench_throughput(&loaded, &options, progress))?;
    let output = match args.json {
        true => json(&report),
        false => {
            let device = model_and_device(&loaded, report.memory_bytes_per_second);
            format!("{}\n{MEMORY_BOUND}{device}", table(&report.tests))
        }
    };
    Ok(print(&output)?)
}

fn table(tests: &[ThroughputTimes]) -> String {
    let row = |test: &ThroughputTimes| {
        let read = test.read_bytes_per_second.map(|read| format!("{:.1}", read / 1e9));
        vec![
            test.test.clone(),
            test.depth.to_string(),
            format!("{:.1}", test.rate.mean),
            format!("± {:.1}", test.rate.spread),
            read.unwrap_or_default(),
            test.share_of_bound.map_or(String::new(), percent),
        ]
    };
    let rows: Vec<Vec<String>> = tests.iter().map(row).collect();
    columns(&["test", "depth", "tok/s", "", "GB/s", "of bound"], &rows)
}
