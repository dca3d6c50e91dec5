//! `fulmen bench prefill`: prompts of a model without a file, and where their time goes.

use std::path::PathBuf;

use fulmen_model::SessionOptions;
use serde_json::{Value, json};

use super::BenchError;
use super::shape::{self, ShapeOptions};
use super::steps::{Prompt, Rates};
use super::table::{Table, Trace};
use crate::model::floor::{Before, bandwidth, tensor_peak};
use crate::model::load::Loaded;
use crate::output::columns;

/// Time the prompts of a model that needs no file: random weights in the shape and types of a real one.
///
/// A prompt is run in chunks, and its first token is drawn on the device and read by the host. The operations are those of
/// products and attention over the positions that each token sees; where the peak of the device's tensor units is known
/// (dense, f16, by its data sheet), the share of it is shown. Below that, each op of the prompt: its time and the bytes that it
/// must read and write.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    options: ShapeOptions,

    /// Tokens of the prompts; several with commas.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512,2048", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Vec<u32>,

    /// Tokens that are in the context before; several with commas.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    depth: Vec<u32>,

    /// How often each test is timed.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    /// Write the kernels of a prompt to this file, for chrome://tracing and Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench prefill --shape qwen3-4b
  fulmen bench prefill --shape qwen3-4b --tokens 2048 --depth 0,8192 --chunk 512
  fulmen bench prefill --shape qwen3-0.6b --tokens 64 --layers 2 --device cpu   for slow devices";

/// One prompt.
struct Line {
    tokens: u32,
    depth: u32,
    chunk: u32,
    rates: Rates,
    /// The peak of the tensor units, in operations per second.
    peak: Option<f64>,
    table: Table,
}

impl Line {
    fn seconds(&self) -> f64 {
        f64::from(self.tokens) / self.rates.mean().max(1e-9)
    }

    fn flops(&self) -> f64 {
        self.table.flops() as f64 / self.seconds()
    }

    fn share(&self) -> Option<f64> {
        self.peak.map(|peak| self.flops() / peak)
    }
}

pub(super) fn run(args: &Args) -> Result<(), BenchError> {
    let trace = Trace::create(args.trace.as_ref())?;
    let most = |list: &[u32]| list.iter().max().copied().unwrap_or(0);
    let loaded = args.options.load(args.session(most(&args.tokens), most(&args.depth)))?;
    let memory = bandwidth(&loaded.model, args.options.engine.open.threads(), Before::Nothing);
    let mut lines = Vec::new();
    for &depth in &args.depth {
        for &tokens in &args.tokens {
            lines.push(measure(args, &loaded, depth, tokens, memory)?);
        }
    }
    args.options.report(&loaded, memory, &lines, args.json, trace)
}

impl Args {
    fn session(&self, tokens: u32, depth: u32) -> SessionOptions {
        self.options.engine.session(tokens.saturating_add(depth).saturating_add(1))
    }
}

fn measure(
    args: &Args,
    loaded: &Loaded,
    depth: u32,
    tokens: u32,
    memory: Option<f64>,
) -> Result<Line, BenchError> {
    let mut session = loaded.model.session_with(args.session(tokens, depth))?;
    let prompt = Prompt::new(&loaded.model, &mut session, depth as usize, tokens as usize)?;
    let rates = prompt.rates(&mut session, args.repeat)?;
    let total_us = 1e6 * f64::from(tokens) / rates.mean().max(1e-9);
    let name = format!("a prompt of {tokens} tokens at depth {depth}");
    let run = |session: &mut _| prompt.run(session).map(drop);
    let table = Table::measure(name, &mut session, total_us, memory, run)?;
    let chunk = session.options().chunk;
    Ok(Line { tokens, depth, chunk, rates, peak: tensor_peak(&loaded.device), table })
}

impl shape::Line for Line {
    fn text(lines: &[Line]) -> String {
        let row = |line: &Line| {
            vec![
                line.tokens.to_string(),
                line.depth.to_string(),
                line.chunk.to_string(),
                format!("{:.1}", line.rates.mean()),
                format!("± {:.1}", line.rates.spread()),
                format!("{:.2}", 1e3 * line.seconds()),
                format!("{:.3}", line.flops() / 1e12),
                line.share().map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
            ]
        };
        let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
        columns(&["tokens", "depth", "chunk", "tok/s", "", "ms", "TFLOP/s", "of peak"], &rows)
    }

    fn json(&self) -> Value {
        let line = self;
        json!({
            "tokens": line.tokens,
            "depth": line.depth,
            "chunk": line.chunk,
            "tokens_per_second": line.rates.mean(),
            "spread": line.rates.spread(),
            "runs": line.rates.0,
            "seconds": line.seconds(),
            "flops": line.table.flops(),
            "flops_per_second": line.flops(),
            "peak_flops_per_second": line.peak,
            "share_of_peak": line.share(),
            "profile": line.table.json(),
        })
    }

    fn table(&self) -> &Table {
        &self.table
    }
}
