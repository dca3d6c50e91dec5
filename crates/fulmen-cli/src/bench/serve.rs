//! `fulmen bench serve`.

mod local;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_bench::model::{EngineBenchOptions, Latency, LoadedModel, bench_engine};
use fulmen_bench::serve::{
    Arrival, Lengths, ServeBenchOptions, ServeReport, ServeTimes, TokenClock, bench_serve, draw_latency,
};
use fulmen_engine::EngineOptions;
use fulmen_engine::SessionOptions;
use fulmen_model::ModelError;
use fulmen_model::quantize::Recipe;
use fulmen_model::source;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::tokenizer::Tokenizer;
use fulmen_server::{EngineModel, EngineModelError, mock_model};

use super::BenchCommandError;
use super::summary::model_and_device;
use crate::model::builtin::builtin_model;
use crate::model::load::{LoadError, ModelOptions};
use crate::model::split::device_name_of;
use crate::output::{columns, json, percent, print, write_file};
use crate::progress::with_bar;
use crate::synth::preset;
pub(crate) use local::LocalError;
use local::LocalServer;

/// Time a server under load over HTTP: many requests at once, or arriving at a rate.
///
/// Without --url, a server is started in this process, and asked over a loopback connection. Requests are
/// streamed completions of random tokens. `TTFT` is the time from a request to its first text, `ITL` the time
/// between two events of its stream, each the median, the 95th and the 99th percentile, as a client sees
/// them. --engine also times the engine alone with the same load: `of engine` is the share that is left over
/// HTTP.
///
/// With --mock, the device computes nothing: this measures the server alone. `added` is then the time from
/// the device to the client.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    /// Without it and without --shape, the small built-in model.
    #[arg(value_name = "MODEL", conflicts_with_all = ["shape", "url", "mock"])]
    model: Option<PathBuf>,

    /// Random weights in the shape of a model: qwen3-4b, qwen3-8b, llama3.2-1b, …
    #[arg(long, value_name = "SHAPE", value_parser = preset, conflicts_with_all = ["url", "mock"])]
    shape: Option<ModelShape>,

    /// Type of the random weights, as for `fulmen quantize`.
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m", requires = "shape")]
    recipe: Recipe,

    /// A running server of the OpenAI API instead of one in this process.
    #[arg(long, value_name = "URL", conflicts_with = "mock")]
    url: Option<String>,

    /// API key of that server.
    #[arg(long, value_name = "KEY", env = "FULMEN_API_KEY", hide_env_values = true, requires = "url")]
    api_key: Option<String>,

    /// Name of the model on that server; by default its first one.
    #[arg(long, value_name = "NAME", requires = "url")]
    name: Option<String>,

    /// A device that computes nothing, to measure the server alone.
    #[arg(long)]
    mock: bool,

    /// Milliseconds that a step of that device takes.
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "mock")]
    step: f64,

    /// Requests that run at the same time, separated by commas: one test each.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',', default_value = "1,16,64")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    concurrency: Vec<u32>,

    /// Requests that arrive per second at random times, separated by commas: one test each, instead of
    /// --concurrency.
    #[arg(long, value_name = "PER_SECOND", value_delimiter = ',', conflicts_with = "concurrency")]
    rate: Vec<f64>,

    /// Tokens of each prompt: 128, 64-512 (uniform) or ~256 (exponential, the mean).
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    input: Lengths,

    /// Tokens that each request generates, in the same form.
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    output: Lengths,

    /// Requests of each test; by default three times the concurrency, or what arrives in 20 seconds.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,

    /// Tokens at the beginning of each prompt that it shares with others.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    shared_prefix: u32,

    /// How many different beginnings are shared.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "shared_prefix")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    prefixes: u32,

    /// Prompts have tokens below this number; by default all of the model, and 1000 with --url.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..))]
    vocabulary: Option<u32>,

    /// Seed of prompts, lengths, times and random weights.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Also time the engine alone with the same load.
    #[arg(long, conflicts_with_all = ["url", "mock", "rate", "shared_prefix"])]
    engine: bool,

    /// The most prefill rows in a step with decode rows, as for `fulmen serve`: more of them are faster in
    /// total and let running answers wait longer.
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["url", "mock"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    prefill_rows: Option<u32>,

    /// Give each request the same bits whatever else is in its batch.
    #[arg(long)]
    batch_invariant: bool,

    /// Do not keep pages for prompts with the same beginning.
    #[arg(long)]
    no_prefix_cache: bool,

    #[command(flatten)]
    options: ModelOptions,

    /// Draw latency against throughput.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench serve                                                   the small built-in model
  fulmen bench serve --shape qwen3-8b --concurrency 1,16,64,256 --engine
  fulmen bench serve model.gguf --rate 1,2,4,8 --input ~512 --output 64-256 --svg latency.svg
  fulmen bench serve model.gguf -c 64 --input 2048 --shared-prefix 1024 --prefixes 4 --json
  fulmen bench serve --url http://127.0.0.1:8080 --concurrency 16
  fulmen bench serve --mock --concurrency 256 --output 500             the server alone";

/// Prompts of other servers have tokens that every vocabulary has.
const COMMON_VOCABULARY: u32 = 1000;

/// What is measured.
struct Measured {
    /// `None` for a server elsewhere.
    server: Option<LocalServer>,
    loaded: Option<LoadedModel>,
    clock: Option<TokenClock>,
    vocabulary: u32,
}

impl Args {
    fn arrivals(&self) -> Vec<Arrival> {
        match self.rate.is_empty() {
            true => self.concurrency.iter().map(|&count| Arrival::Concurrency(count)).collect(),
            false => self.rate.iter().map(|&rate| Arrival::Rate(rate)).collect(),
        }
    }

    /// Sequences that may run at the same time.
    fn sequences(&self) -> u32 {
        match self.rate.is_empty() {
            true => self.concurrency.iter().copied().max().unwrap_or(1),
            false => 256,
        }
    }

    fn context(&self) -> u32 {
        let longest = self.input.most().saturating_add(self.output.most()).saturating_add(1);
        self.options.context.unwrap_or(longest)
    }

    fn engine_options(&self, session: &SessionOptions) -> EngineOptions {
        EngineOptions {
            context: self.context(),
            max_sequences: self.sequences(),
            cache: session.cache,
            prefill_rows: self.prefill_rows.unwrap_or(0),
            prefix_cache: !self.no_prefix_cache,
            batch_invariant: self.batch_invariant,
            queue_limit: usize::MAX,
            eager: session.eager,
            ..EngineOptions::default()
        }
    }

    fn load(&self) -> Result<LoadedModel, LoadError> {
        let session = SessionOptions { context: self.context(), ..self.options.session() };
        let engine = self.engine_options(&session);
        match &self.shape {
            Some(shape) => {
                let synth = Synth::new(shape.clone(), self.recipe, self.seed);
                let source = || Ok(Arc::new(synth.source()?) as _);
                self.options.engine.load(session, Some(&engine), false, source)
            }
            None => self.options.load_for(self.model.as_deref(), session, Some(&engine)),
        }
    }

    /// The engine alone with each concurrency, in tokens per second.
    fn engine_alone(&self, loaded: &LoadedModel) -> Result<Vec<f64>, BenchCommandError> {
        let (Some(input), Some(output)) = (self.input.fixed(), self.output.fixed()) else {
            let message = "--engine needs prompts and answers of one length each".to_owned();
            return Err(fulmen_bench::BenchError::InvalidOption(message).into());
        };
        let session = self.options.session();
        let options = EngineBenchOptions {
            concurrency: self.concurrency.clone(),
            input,
            output,
            requests: self.requests.unwrap_or(0),
            rate: 0.0,
            extra: None,
            prefill: 0,
            bound: false,
            inactive_rows: false,
            engine: self.engine_options(&session),
            session,
        };
        let report = with_bar(|progress| bench_engine(loaded, &options, progress))?;
        Ok(report.tests.iter().map(|test| test.output_tokens_per_second).collect())
    }

    fn measured(&self, loaded: Option<LoadedModel>) -> Result<Measured, BenchCommandError> {
        let common = self.vocabulary.unwrap_or(COMMON_VOCABULARY);
        if self.url.is_some() {
            return Ok(Measured { server: None, loaded, clock: None, vocabulary: common });
        }
        // As `fulmen serve`.
        let threads = threads();
        let Some(loaded) = loaded else {
            let step = Duration::try_from_secs_f64(self.step / 1e3).unwrap_or_default();
            let (model, clock) = mock_model(builtin_tokenizer()?, self.sequences(), step)?;
            let server = LocalServer::start("mock", Arc::new(model), threads)?;
            let clock: TokenClock = Arc::new(move |text| clock.drawn(text));
            return Ok(Measured {
                server: Some(server),
                loaded: None,
                clock: Some(clock),
                vocabulary: common,
            });
        };
        let engine = self.engine_options(&self.options.session());
        let device = device_name_of(&loaded.model, &loaded.device);
        let model = EngineModel::new(&loaded.model, &engine, &device)?;
        let vocabulary = self.vocabulary.unwrap_or(loaded.model.config().vocabulary);
        let name = self.shape.as_ref().map(|shape| shape.name.to_owned());
        let stem = || self.model.as_ref()?.file_stem()?.to_str().map(str::to_owned);
        let name = name.or_else(stem).unwrap_or_else(|| crate::config::BUILTIN.to_owned());
        let server = LocalServer::start(&name, Arc::new(model), threads)?;
        Ok(Measured { server: Some(server), loaded: Some(loaded), clock: None, vocabulary })
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(1, 4)
}

fn builtin_tokenizer() -> Result<Tokenizer, EngineModelError> {
    let source = source::from_bytes(builtin_model()).map_err(ModelError::from)?;
    let tokenizer = Tokenizer::from_source(source.as_ref()).map_err(ModelError::from)?;
    Ok(tokenizer.ok_or(ModelError::Without { what: "tokenizer" })?)
}

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let loaded = if args.url.is_some() || args.mock { None } else { Some(args.load()?) };
    let alone = match (&loaded, args.engine) {
        (Some(loaded), true) => Some(args.engine_alone(loaded)?),
        _ => None,
    };
    let measured = args.measured(loaded)?;
    let url = args.url.clone().or_else(|| measured.server.as_ref().map(|server| server.url.clone()));
    let options = ServeBenchOptions {
        url: url.unwrap_or_default(),
        api_key: args.api_key.clone(),
        model: args.name.clone(),
        arrivals: args.arrivals(),
        input: args.input,
        output: args.output,
        requests: args.requests.unwrap_or(0),
        shared_prefix: args.shared_prefix,
        prefixes: args.prefixes,
        vocabulary: measured.vocabulary,
        seed: args.seed,
        threads: threads(),
        clock: measured.clock.clone(),
    };
    let mut report = with_bar(|progress| bench_serve(&options, progress))?;
    report.device = measured.loaded.as_ref().map(|loaded| device_name_of(&loaded.model, &loaded.device));
    for (test, alone) in report.tests.iter_mut().zip(alone.unwrap_or_default()) {
        test.engine_tokens_per_second = Some(alone);
        test.share_of_engine = Some(test.output_tokens_per_second / alone);
    }
    if let Some(path) = &args.svg {
        let written = write_file(path, &draw_latency(&report));
        written.map_err(|error| BenchCommandError::Chart { path: path.clone(), error })?;
    }
    let output = match args.json {
        true => json(&report),
        false => {
            let what = match &measured.loaded {
                Some(loaded) => model_and_device(loaded, None),
                None => format!("{} at {}\n", report.model, report.url),
            };
            format!("{}\n{LEGEND}{what}", table(&report))
        }
    };
    Ok(print(&output)?)
}

const LEGEND: &str = "\
TTFT, ITL: time to first token and inter-token latency in ms, as a client sees them (p50 / p95 / p99)
";

fn table(report: &ServeReport) -> String {
    let latency = |l: Latency| format!("{:.1} / {:.1} / {:.1}", l.p50, l.p95, l.p99);
    let mut header = vec!["load", "requests", "failed", "output tok/s", "TTFT", "ITL"];
    let any = |has: fn(&ServeTimes) -> bool| report.tests.iter().any(has);
    let engine = any(|test| test.steps.is_some());
    let (added, alone) = (any(|test| test.added_ms.is_some()), any(|test| test.share_of_engine.is_some()));
    if engine {
        header.extend(["rows per step", "pages", "preempted"]);
    }
    if added {
        header.push("added");
    }
    if alone {
        header.extend(["engine tok/s", "of engine"]);
    }
    let row = |test: &ServeTimes| {
        let load = match test.concurrency {
            0 => format!("{} per second", test.rate),
            count => count.to_string(),
        };
        let mut row = vec![
            load,
            test.requests.to_string(),
            test.failed.to_string(),
            format!("{:.1}", test.output_tokens_per_second),
            latency(test.time_to_first_token_ms),
            latency(test.inter_token_ms),
        ];
        if engine {
            row.push(test.rows_per_step.map_or(String::new(), |rows| format!("{rows:.1}")));
            let pages = test.pages_used.zip(test.pages);
            row.push(pages.map_or(String::new(), |(used, all)| format!("{used} of {all}")));
            row.push(test.preemptions.map_or(String::new(), |count| count.to_string()));
        }
        if added {
            row.push(test.added_ms.map_or(String::new(), latency));
        }
        if alone {
            row.push(test.engine_tokens_per_second.map_or(String::new(), |rate| format!("{rate:.1}")));
            row.push(test.share_of_engine.map_or(String::new(), percent));
        }
        row
    };
    let rows: Vec<Vec<String>> = report.tests.iter().map(row).collect();
    columns(&header, &rows)
}
