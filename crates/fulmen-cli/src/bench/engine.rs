//! `fulmen bench engine`.

use std::path::PathBuf;
use std::sync::Arc;

use fulmen_bench::model::{EngineBenchOptions, EngineTimes, LoadedModel, SyntheticModel, bench_engine};
use fulmen_engine::EngineOptions;
use fulmen_model::quantize::Recipe;
use fulmen_model::synth::{ModelShape, Synth};

use super::BenchCommandError;
use super::summary::model_and_device;
use crate::model::load::{LoadError, ModelOptions};
use crate::output::{columns, json, percent, print};
use crate::progress::with_bar;
use crate::synth::preset;

/// Time an engine under load: many requests at once share one model.
///
/// Requests have different prompts of --input random tokens and generate --output tokens each. A new one is
/// sent whenever one ends, or --rate arrive per second. `TTFT` is the time from a request to its first token,
/// `ITL` the time between two of its tokens, each the median, the 95th and the 99th percentile. `of bound`
/// compares the whole run with prefill and decode steps alone, timed in the same run: all prompts at the rate
/// of a prefill, then all output in decode steps of as many sequences. `inactive` is the time that inactive
/// rows add to a decode step: k rows in the next larger bucket against a program of exactly k rows.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    /// Without it and without --shape, the small built-in model.
    #[arg(value_name = "MODEL", conflicts_with = "shape")]
    model: Option<PathBuf>,

    /// Random weights in the shape of a model: qwen3-4b, qwen3-8b, llama3.2-1b, …
    #[arg(long, value_name = "SHAPE", value_parser = preset)]
    shape: Option<ModelShape>,

    /// Type of the random weights, as for `fulmen quantize`.
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m", requires = "shape")]
    recipe: Recipe,

    /// Number of layers of the random weights, instead of the shape's own.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(requires = "shape")]
    layers: Option<u16>,

    /// Seed of the random weights.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "shape")]
    seed: u64,

    /// Requests that run at the same time, separated by commas: one test each.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',', default_value = "1,16,64")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    concurrency: Vec<u32>,

    /// Tokens of each prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    input: u32,

    /// Tokens that each request generates.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    output: u32,

    /// Requests of each test; by default three times the concurrency.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,

    /// Requests that arrive per second, instead of a new one whenever one ends.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,

    /// Tokens of prompts that arrive beside the requests and generate one token.
    #[arg(long, value_name = "TOKENS", requires = "extra_rate")]
    extra_input: Option<u32>,

    /// How many of them arrive per second.
    #[arg(long, value_name = "PER_SECOND", requires = "extra_input")]
    extra_rate: Option<f64>,

    /// KV pages of 128 positions; by default what the requests need, as far as there is memory.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pages: Option<u32>,

    /// The most rows of a step; by default the device's prefill chunk.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    max_rows: Option<u32>,

    /// The most prefill rows in a step with decode rows; by default a fifth of the rows, or four for each
    /// decode row if that is more, and all rows while many prompts are read at once.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    prefill_rows: Option<u32>,

    /// Give each request the same bits whatever else is in its batch.
    #[arg(long)]
    batch_invariant: bool,

    /// Do not keep pages for prompts with the same beginning.
    #[arg(long)]
    no_prefix_cache: bool,

    /// Do not measure the bound.
    #[arg(long)]
    no_bound: bool,

    /// Do not measure what inactive rows cost.
    #[arg(long)]
    no_inactive_rows: bool,

    #[command(flatten)]
    options: ModelOptions,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench engine                                                  the small built-in model
  fulmen bench engine --shape qwen3-4b --concurrency 1,16,64,256
  fulmen bench engine model.gguf --concurrency 64 --input 512 --output 256 --json
  fulmen bench engine --shape qwen3-4b -c 64 --extra-input 2048 --extra-rate 4";

impl Args {
    fn bench(&self) -> EngineBenchOptions {
        let session = self.options.session();
        EngineBenchOptions {
            concurrency: self.concurrency.clone(),
            input: self.input,
            output: self.output,
            requests: self.requests.unwrap_or(0),
            rate: self.rate.unwrap_or(0.0),
            extra: self.extra_input.zip(self.extra_rate),
            prefill: 0,
            bound: !self.no_bound,
            inactive_rows: !self.no_inactive_rows,
            engine: EngineOptions {
                context: self.options.context.unwrap_or(0),
                pages: self.pages.unwrap_or(0),
                cache: session.cache,
                max_rows: self.max_rows.unwrap_or(0),
                prefill_rows: self.prefill_rows.unwrap_or(0),
                prefix_cache: !self.no_prefix_cache,
                batch_invariant: self.batch_invariant,
                eager: session.eager,
                ..EngineOptions::default()
            },
            session,
        }
    }

    fn load(&self, options: &EngineBenchOptions) -> Result<LoadedModel, LoadError> {
        let session = options.session_options();
        match self.random() {
            Some(synth) => {
                let source = || Ok(Arc::new(synth.source()?) as _);
                self.options.engine.load(session, Some(&options.engine), false, source)
            }
            None => self.options.load_for(self.model.as_deref(), session, Some(&options.engine)),
        }
    }

    fn shape(&self) -> Option<ModelShape> {
        let shape = self.shape.clone()?;
        let layers = self.layers.map_or(shape.layers, usize::from);
        Some(ModelShape { layers, ..shape })
    }

    fn random(&self) -> Option<Synth> {
        self.shape().map(|shape| Synth::new(shape, self.recipe, self.seed))
    }

    fn describe(&self, loaded: &LoadedModel) -> Option<SyntheticModel> {
        let shape = self.shape()?;
        Some(SyntheticModel {
            shape: shape.name.to_owned(),
            recipe: self.recipe.to_string(),
            layers: shape.layers,
            seed: self.seed,
            chunk: loaded.model.session_options().chunk,
        })
    }
}

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let options = args.bench();
    let loaded = args.load(&options)?;
    let mut report = with_bar(|progress| bench_engine(&loaded, &options, progress))?;
    report.synthetic = args.describe(&loaded);
    let output = match args.json {
        true => json(&report),
        false => {
            let title =
                args.shape().map_or_else(String::new, |shape| format!("{} {}: ", shape.name, args.recipe));
            format!("{}\n{BOUND}{title}{}", table(&report.tests), model_and_device(&loaded, None))
        }
    };
    Ok(print(&output)?)
}

const BOUND: &str = "\
TTFT, ITL: time to first token and inter-token latency in ms (p50 / p95 / p99)
of bound: % of the speed of the prompts at the rate of a prefill alone, then decode steps alone
pages: the most KV pages in use; behind a plus those of layers with a sliding window, if they have their own
programs: how many steps waited for a program of their size to be made
inactive: what inactive rows add to a decode step, of the bucket with most of them (limit: 5 %)
";

/// The most pages in use; in a second group those of layers with a window.
fn pages(test: &EngineTimes) -> String {
    let all = format!("{} of {}", test.pages_used, test.pages);
    match test.window_pages_used.zip(test.window_pages) {
        Some((used, window)) => format!("{all} + {used} of {window}"),
        None => all,
    }
}

fn table(tests: &[EngineTimes]) -> String {
    let row = |test: &EngineTimes| {
        let latency = |l: fulmen_bench::model::Latency| format!("{:.1} / {:.1} / {:.1}", l.p50, l.p95, l.p99);
        vec![
            test.concurrency.to_string(),
            test.requests.to_string(),
            format!("{:.1}", test.output_tokens_per_second),
            latency(test.time_to_first_token_ms),
            latency(test.inter_token_ms),
            format!("{:.1}", test.rows_per_step),
            pages(test),
            test.preemptions.to_string(),
            test.programs_made.to_string(),
            test.share_of_bound.map_or(String::new(), percent),
            test.inactive_rows.map_or(String::new(), |rows| {
                format!("{:+.1} % ({} in {})", 100.0 * rows.cost, rows.active, rows.bucket)
            }),
        ]
    };
    let rows: Vec<Vec<String>> = tests.iter().map(row).collect();
    let header = [
        "concurrency",
        "requests",
        "output tok/s",
        "TTFT",
        "ITL",
        "rows per step",
        "pages",
        "preempted",
        "programs",
        "of bound",
        "inactive",
    ];
    columns(&header, &rows)
}
