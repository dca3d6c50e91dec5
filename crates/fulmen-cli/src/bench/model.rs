//! `fulmen bench model`: prompts and answers of a model, beside what the device's memory allows.

use std::path::PathBuf;
use std::time::Instant;

use fulmen_model::{ModelError, Session, SessionOptions};
use serde_json::json;

use super::BenchError;
use crate::model::floor::{bandwidth, bytes_per_token};
use crate::model::load::{Loaded, ModelOptions, summary};
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
    /// Tokens per second of each run.
    rates: Vec<f64>,
    /// Bytes that a step must read, for decoding.
    bytes: Option<u64>,
    batch: u32,
}

impl Line {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }

    fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        (squares / self.rates.len().saturating_sub(1).max(1) as f64).sqrt()
    }

    /// Bytes per second of the reads that decoding cannot do without.
    fn read(&self) -> Option<f64> {
        self.bytes.map(|bytes| bytes as f64 * self.mean() / f64::from(self.batch))
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
    let floor = bandwidth(&loaded.model, args.options.open.threads());
    let output =
        if args.json { as_json(&lines, &loaded, floor) } else { as_text(&lines, &loaded, floor, args) };
    Ok(print(&output)?)
}

fn random_tokens(loaded: &Loaded, count: usize) -> Vec<u32> {
    let vocabulary = u64::from(loaded.model.config().vocabulary);
    // A multiplicative walk over the vocabulary: no tokens in a row are alike.
    (0..count as u64)
        .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33).wrapping_rem(vocabulary) as u32)
        .collect()
}

fn prompt(
    args: &Args,
    session: &mut Session,
    loaded: &Loaded,
    depth: usize,
    tokens: usize,
) -> Result<Line, ModelError> {
    let all = random_tokens(loaded, depth + tokens);
    session.truncate(0, 0)?;
    session.feed(0, &all[..depth])?;
    let mut once = || {
        session.truncate(0, depth)?;
        let start = Instant::now();
        // The logits of the last token are part of a prompt.
        session.draw(0, &all[depth..])?;
        Ok::<f64, ModelError>(tokens as f64 / start.elapsed().as_secs_f64())
    };
    once()?;
    let rates = (0..args.repeat).map(|_| once()).collect::<Result<_, _>>()?;
    Ok(Line { name: format!("pp{tokens}"), depth, rates, bytes: None, batch: 1 })
}

fn answer(
    args: &Args,
    session: &mut Session,
    loaded: &Loaded,
    depth: usize,
    tokens: usize,
) -> Result<Line, ModelError> {
    let sequences: Vec<u32> = (0..args.batch).collect();
    // There is always one token to go on from.
    let depth = depth.max(1);
    let before = random_tokens(loaded, depth);
    for &sequence in &sequences {
        session.truncate(sequence, 0)?;
        session.feed(sequence, &before)?;
    }
    let mut once = |tokens: usize| {
        for &sequence in &sequences {
            session.truncate(sequence, depth)?;
        }
        let start = Instant::now();
        let mut left = tokens;
        while left > 0 {
            let steps = left.min(args.ahead.into());
            session.decode(&sequences, steps)?;
            left -= steps;
        }
        Ok::<f64, ModelError>((tokens * sequences.len()) as f64 / start.elapsed().as_secs_f64())
    };
    once(tokens.min(16))?;
    let rates = (0..args.repeat).map(|_| once(tokens)).collect::<Result<_, _>>()?;
    // Every sequence reads its own positions.
    let weights = loaded.model.bytes_per_token();
    let cache = bytes_per_token(&loaded.model, session, depth + tokens / 2) - weights;
    let bytes = Some(weights + cache * u64::from(args.batch));
    let name = if args.batch > 1 { format!("tg{tokens} x{}", args.batch) } else { format!("tg{tokens}") };
    Ok(Line { name, depth: if depth == 1 { 0 } else { depth }, rates, bytes, batch: args.batch })
}

fn as_text(lines: &[Line], loaded: &Loaded, floor: Option<f64>, args: &Args) -> String {
    let row = |line: &Line| {
        let share = line.read().zip(floor).map(|(read, floor)| format!("{:.0} %", 100.0 * read / floor));
        let read = line.read().map(|read| format!("{:.1}", read / 1e9));
        vec![
            line.name.clone(),
            line.depth.to_string(),
            format!("{:.1}", line.mean()),
            format!("± {:.1}", line.spread()),
            read.unwrap_or_default(),
            share.unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    let mut out = columns(&["test", "depth", "tok/s", "", "GB/s", "of floor"], &rows);
    out += &format!("\n{} on {} ({})", summary(&loaded.model), loaded.device.selector(), loaded.device.name);
    if loaded.device.backend == fulmen_core::BackendKind::Cpu {
        out += &format!(", {} threads", args.options.open.threads());
    }
    if let Some(floor) = floor {
        out += &format!(", memory {:.1} GB/s", floor / 1e9);
    }
    out + "\n"
}

/// Field names here are an interface: add, do not rename.
fn as_json(lines: &[Line], loaded: &Loaded, floor: Option<f64>) -> String {
    let tests: Vec<_> = lines
        .iter()
        .map(|line| {
            json!({
                "test": line.name,
                "depth": line.depth,
                "batch": line.batch,
                "tokens_per_second": line.mean(),
                "spread": line.spread(),
                "runs": line.rates,
                "read_bytes_per_second": line.read(),
                "share_of_floor": line.read().zip(floor).map(|(read, floor)| read / floor),
            })
        })
        .collect();
    let list = json!({
        "device": loaded.device.selector().to_string(),
        "name": loaded.device.name,
        "architecture": loaded.model.config().architecture.name(),
        "weight_bytes": loaded.model.weight_bytes(),
        "memory_bytes_per_second": floor,
        "load_seconds": loaded.time.as_secs_f64(),
        "tests": tests,
    });
    format!("{list:#}\n")
}
