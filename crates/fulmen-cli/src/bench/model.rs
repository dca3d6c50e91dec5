//! `fulmen bench model`: prompts and answers of a model, beside what the device's memory allows.

use std::path::PathBuf;

use fulmen_model::{ModelError, Session, SessionOptions};
use serde_json::{Value, json};

use super::BenchError;
use super::steps::{self, Answer, Prompt, Rates};
use crate::model::floor::{Before, bandwidth, bytes_per_step};
use crate::model::load::{Loaded, ModelOptions};
use crate::output::{columns, print};

/// Time a model: prompts (pp) and answers (tg) at several depths of the context.
///
/// Tokens are random; what they say does not change the time. Each test runs once to warm up and then some more times; the
/// mean and the spread are shown. The share of the floor says how close decoding comes to reading the weights and the
/// cache once per token at the speed of the device's memory, measured in the same run.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model: a GGUF file, a folder or a name that was pulled. Without it the small model that is part of the program.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Tokens of the prompts; several with commas, 0 for none. Without it 512, and 256 for the small model.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pp: Option<Vec<usize>>,

    /// Tokens of the answers; several with commas, 0 for none.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "128")]
    tg: Vec<usize>,

    /// Tokens that are in the context before; several with commas.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,

    /// Sequences that decode together.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,

    /// Steps that the device runs before the host looks.
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ahead: u16,

    /// How often each test is timed.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    #[command(flatten)]
    options: ModelOptions,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One test and what came of it.
struct Line {
    name: String,
    depth: usize,
    rates: Rates,
    /// Bytes that a step must read, for decoding.
    bytes: Option<u64>,
    batch: u32,
}

impl Line {
    /// Bytes per second of the reads that decoding cannot do without.
    fn read(&self) -> Option<f64> {
        self.bytes.map(|bytes| bytes as f64 * self.rates.mean() / f64::from(self.batch))
    }
}

pub(super) fn run(args: &Args) -> Result<(), BenchError> {
    let prompts = args.pp.clone().unwrap_or_else(|| vec![if args.model.is_some() { 512 } else { 256 }]);
    let deepest = args.depth.iter().max().copied().unwrap_or(0);
    let longest = prompts.iter().chain(&args.tg).max().copied().unwrap_or(0);
    let needed = u32::try_from(deepest + longest + 1).unwrap_or(u32::MAX);
    let session = SessionOptions {
        context: args.options.ctx.unwrap_or(needed.max(64)),
        sequences: args.batch,
        ..args.options.session()
    };
    let loaded = args.options.load(args.model.as_deref(), session)?;
    let mut session = loaded.model.session()?;
    let mut lines = Vec::new();
    for &depth in &args.depth {
        for &tokens in prompts.iter().filter(|tokens| **tokens > 0) {
            lines.push(prompt(args, &mut session, &loaded, depth, tokens)?);
        }
        for &tokens in args.tg.iter().filter(|tokens| **tokens > 0) {
            lines.push(answer(args, &mut session, &loaded, depth, tokens)?);
        }
    }
    let threads = args.options.engine.open.threads();
    let floor = bandwidth(&loaded.model, threads, Before::Work);
    let output = match args.json {
        true => {
            let tests = lines.iter().map(|line| as_json(line, floor)).collect();
            format!("{:#}\n", steps::as_json(&loaded, floor, tests))
        }
        false => format!("{}\n{}", as_text(&lines, floor), steps::footer(&loaded, floor, threads)),
    };
    Ok(print(&output)?)
}

fn prompt(
    args: &Args,
    session: &mut Session,
    loaded: &Loaded,
    depth: usize,
    tokens: usize,
) -> Result<Line, ModelError> {
    let prompt = Prompt::new(&loaded.model, session, depth, tokens)?;
    let rates = prompt.rates(session, args.repeat)?;
    Ok(Line { name: format!("pp{tokens}"), depth, rates, bytes: None, batch: 1 })
}

fn answer(
    args: &Args,
    session: &mut Session,
    loaded: &Loaded,
    depth: usize,
    tokens: usize,
) -> Result<Line, ModelError> {
    let answer = Answer::new(&loaded.model, session, args.batch, depth, args.ahead)?;
    let rates = answer.rates(session, tokens, args.repeat)?;
    let bytes = bytes_per_step(&loaded.model, session, depth.max(1) + tokens / 2, args.batch);
    let name = if args.batch > 1 { format!("tg{tokens} x{}", args.batch) } else { format!("tg{tokens}") };
    Ok(Line { name, depth, rates, bytes: Some(bytes), batch: args.batch })
}

fn as_text(lines: &[Line], floor: Option<f64>) -> String {
    let row = |line: &Line| {
        let share = line.read().zip(floor).map(|(read, floor)| format!("{:.0} %", 100.0 * read / floor));
        let read = line.read().map(|read| format!("{:.1}", read / 1e9));
        vec![
            line.name.clone(),
            line.depth.to_string(),
            format!("{:.1}", line.rates.mean()),
            format!("± {:.1}", line.rates.spread()),
            read.unwrap_or_default(),
            share.unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    columns(&["test", "depth", "tok/s", "", "GB/s", "of floor"], &rows)
}

/// Field names here are an interface: add, do not rename.
fn as_json(line: &Line, floor: Option<f64>) -> Value {
    json!({
        "test": line.name,
        "depth": line.depth,
        "batch": line.batch,
        "tokens_per_second": line.rates.mean(),
        "spread": line.rates.spread(),
        "runs": line.rates.0,
        "read_bytes_per_second": line.read(),
        "share_of_floor": line.read().zip(floor).map(|(read, floor)| read / floor),
    })
}
