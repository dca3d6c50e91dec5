//! `fulmen bench decode`: answers of a model without a file, and where the time of a step goes.

use std::path::PathBuf;

use fulmen_model::engine::StepLaunches;
use fulmen_model::{Session, SessionOptions};
use serde_json::{Value, json};

use super::BenchError;
use super::shape::{self, ShapeOptions};
use super::steps::{Answer, Rates};
use super::table::{Table, Trace};
use crate::model::floor::{Before, bandwidth, bytes_per_step};
use crate::model::load::Loaded;
use crate::output::columns;

/// Time the decode steps of a model that needs no file: random weights in the shape and types of a real one.
///
/// Sequences decode greedily behind so many tokens; the token is drawn on the device and read by the host after each step. The
/// floor is the time in which the device's memory, measured in the same run, gives all weights and the keys and values of all
/// positions once. Below that, each op of a step: its time, the bytes that it must read and write, and how much of the
/// memory's speed that is. `[gaps]` is what a step takes beyond its ops; `[overlap]`, below zero, is what a step saves
/// because ops overlap in it that were timed one by one. `host µs` is how long the host launches a step: it does not wait there
/// for a device that works by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    options: ShapeOptions,

    /// Tokens that are in the context before the first step; several with commas. With the steps they must fit the model's.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1024", value_parser = clap::value_parser!(u32).range(1..))]
    context: Vec<u32>,

    /// Sequences that decode together; several with commas.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,

    /// Steps of a run.
    #[arg(long, value_name = "STEPS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=16_384))]
    steps: u16,

    /// Steps that the device runs before the host looks.
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ahead: u16,

    /// How often each test is timed.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    /// Write the kernels of a step to this file, for chrome://tracing and Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench decode --shape qwen3-4b
  fulmen bench decode --shape qwen3-8b --context 1024,8192 --batch 1,4,16
  fulmen bench decode --shape llama3.2-1b --trace step.json    the kernels of a step for chrome://tracing
  fulmen bench decode --shape qwen3-4b --layers 2 --device cpu   fewer layers, for slow devices";

/// One context and batch.
struct Line {
    context: u32,
    batch: u32,
    rates: Rates,
    launches: Option<StepLaunches>,
    /// Bytes that a step must read.
    bytes: u64,
    memory: Option<f64>,
    table: Table,
}

impl Line {
    fn step_us(&self) -> f64 {
        step_us(&self.rates, self.batch)
    }

    fn floor_us(&self) -> Option<f64> {
        self.memory.map(|memory| 1e6 * self.bytes as f64 / memory)
    }

    fn share(&self) -> Option<f64> {
        self.floor_us().map(|floor| floor / self.step_us())
    }
}

fn step_us(rates: &Rates, batch: u32) -> f64 {
    1e6 * f64::from(batch) / rates.mean().max(1e-9)
}

pub(super) fn run(args: &Args) -> Result<(), BenchError> {
    let trace = Trace::create(args.trace.as_ref())?;
    let most = |list: &[u32]| list.iter().max().copied().unwrap_or(1);
    let loaded = args.options.load(args.session(most(&args.context), most(&args.batch)))?;
    let memory = bandwidth(&loaded.model, args.options.engine.open.threads(), Before::Nothing);
    let mut lines = Vec::new();
    for &context in &args.context {
        for &batch in &args.batch {
            lines.push(measure(args, &loaded, context, batch, memory)?);
        }
    }
    args.options.report(&loaded, memory, &lines, args.json, trace)
}

impl Args {
    /// Just enough room: what a session could hold beyond that would cost time on some devices.
    fn session(&self, context: u32, sequences: u32) -> SessionOptions {
        let context = context.saturating_add(self.steps.into()).saturating_add(1);
        SessionOptions { sequences, ..self.options.engine.session(context) }
    }
}

fn measure(
    args: &Args,
    loaded: &Loaded,
    context: u32,
    batch: u32,
    memory: Option<f64>,
) -> Result<Line, BenchError> {
    let mut session: Session = loaded.model.session_with(args.session(context, batch))?;
    let answer = Answer::new(&loaded.model, &mut session, batch, context as usize, args.ahead)?;
    let rates = answer.rates(&mut session, args.steps.into(), args.repeat)?;
    let launches = session.step_launches();
    let depth = context as usize + usize::from(args.steps) / 2;
    let bytes = bytes_per_step(&loaded.model, &session, depth, batch);
    let name = format!("a step at context {context}, batch {batch}");
    let table = Table::measure(name, &mut session, step_us(&rates, batch), memory, |session| {
        answer.run(session, 1).map(drop)
    })?;
    Ok(Line { context, batch, rates, launches, bytes, memory, table })
}

impl shape::Line for Line {
    fn text(lines: &[Line]) -> String {
        let row = |line: &Line| {
            let count =
                |of: fn(StepLaunches) -> usize| line.launches.map_or(String::new(), |n| of(n).to_string());
            vec![
                line.context.to_string(),
                line.batch.to_string(),
                format!("{:.1}", line.rates.mean()),
                format!("± {:.1}", line.rates.spread()),
                format!("{:.1}", line.step_us()),
                line.floor_us().map_or(String::new(), |us| format!("{us:.1}")),
                line.share().map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
                count(|n| n.launches),
                count(|n| n.kernels),
                line.launches.map_or(String::new(), |n| format!("{:.1}", 1e6 * n.host.as_secs_f64())),
            ]
        };
        let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
        let header = [
            "context",
            "batch",
            "tok/s",
            "",
            "µs a step",
            "floor µs",
            "of floor",
            "launches",
            "kernels",
            "host µs",
        ];
        columns(&header, &rows)
    }

    fn json(&self) -> Value {
        let line = self;
        json!({
            "context": line.context,
            "batch": line.batch,
            "tokens_per_second": line.rates.mean(),
            "spread": line.rates.spread(),
            "runs": line.rates.0,
            "step_us": line.step_us(),
            "launches": line.launches.map(|n| n.launches),
            "kernels": line.launches.map(|n| n.kernels),
            "host_us": line.launches.map(|n| 1e6 * n.host.as_secs_f64()),
            "read_bytes": line.bytes,
            "floor_us": line.floor_us(),
            "share_of_floor": line.share(),
            "profile": line.table.json(),
        })
    }

    fn table(&self) -> &Table {
        &self.table
    }
}
