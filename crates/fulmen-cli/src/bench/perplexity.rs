//! `fulmen bench perplexity`: how well a model foresees a text.

use std::io::Read;
use std::path::{Path, PathBuf};

use fulmen_model::tokenizer::Special;
use fulmen_model::{ModelError, Perplexity, PerplexityOptions, SessionOptions};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::json;

use super::BenchError;
use crate::model::load::{Loaded, ModelOptions, summary};
use crate::output::print;

/// Score a text with a model: the mean of −ln p of its tokens, and the perplexity, which is e to that. Less is better.
///
/// The text is divided into windows of --ctx tokens (512, or the model's context if that is shorter), each run by itself. The
/// first half of a window is context and is not scored, so every token that is has at least half a window before it; llama.cpp
/// counts the same way. With --stride every token but the first is scored. Only figures of the same text, the same
/// tokenizer and the same windows can be compared.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model: a GGUF file, a folder with config.json and safetensors files, or a name that was pulled.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// The text: a UTF-8 file, or - for standard input.
    #[arg(value_name = "TEXT")]
    text: PathBuf,

    /// Begin windows at multiples of so many tokens, and score in each what was not scored before.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,

    /// Read control tokens that the text spells out, such as <|endoftext|>, as those tokens.
    #[arg(long)]
    special: bool,

    /// Begin neither the text nor a window with a token of the model's own.
    #[arg(long)]
    bare: bool,

    #[command(flatten)]
    options: ModelOptions,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The window where none is asked for: what others measure with.
const WINDOW: u32 = 512;

pub(super) fn run(args: &Args) -> Result<(), BenchError> {
    let text = read(&args.text)?;
    let loaded = args.options.load(Some(&args.model), args.options.session())?;
    let tokenizer = loaded.model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
    let special = if args.special { Special::Parse } else { Special::AsText };
    let encode = |text: &str| match args.bare {
        true => tokenizer.encode(text, special),
        false => tokenizer.encode_prompt(text, special),
    };
    let tokens = encode(&text);
    let context = args.options.ctx.unwrap_or_else(|| WINDOW.min(loaded.model.config().context));
    let options = PerplexityOptions {
        window: context as usize,
        stride: args.stride.map(|stride| stride as usize),
        // What a prompt begins with, if it begins with anything.
        begin: encode("").first().copied(),
        threads: args.options.engine.open.threads(),
    };
    let mut session = loaded.model.session_with(SessionOptions { context, ..args.options.session() })?;
    let bar = bar();
    let scored = session.perplexity(&tokens, &options, |known, total| {
        bar.set_length(total as u64);
        bar.set_position(known.run as u64);
        bar.set_message(format!("{:.4}", known.value()));
    });
    bar.finish_and_clear();
    let scored = scored?;
    let output = if args.json {
        as_json(args, &loaded, &scored, tokens.len(), context)
    } else {
        as_text(&loaded, &scored, tokens.len(), context, args.stride)
    };
    Ok(print(&output)?)
}

fn read(path: &Path) -> Result<String, BenchError> {
    let wrong = |error| BenchError::Text { path: path.to_owned(), error };
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes).map_err(wrong)?
    } else {
        std::fs::read(path).map_err(wrong)?
    };
    String::from_utf8(bytes)
        .map_err(|error| BenchError::NotUtf8 { path: path.to_owned(), at: error.utf8_error().valid_up_to() })
}

/// A bar on stderr that is shown on a terminal and nowhere else.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "perplexity {msg} {bar:30} {pos} of {len} tokens  {rate}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.0} tok/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate));
    }
    bar
}

fn as_text(loaded: &Loaded, scored: &Perplexity, tokens: usize, context: u32, stride: Option<u32>) -> String {
    let (value, mean) = (scored.value(), scored.mean_nll());
    let stride = stride.map_or(String::new(), |stride| format!(", stride {stride}"));
    format!(
        "perplexity {value:.4} ± {:.4}   mean of -ln p {mean:.6} ± {:.6}\n\
         {} of {tokens} tokens scored in windows of {context}{stride}; {} run at {:.1} tok/s\n\
         {} on {} ({})\n",
        value * scored.error(),
        scored.error(),
        scored.scored,
        scored.run,
        scored.rate(),
        summary(&loaded.model),
        loaded.device.selector(),
        loaded.device.name,
    )
}

/// Field names here are an interface: add, do not rename.
fn as_json(args: &Args, loaded: &Loaded, scored: &Perplexity, tokens: usize, context: u32) -> String {
    let object = json!({
        "perplexity": scored.value(),
        "perplexity_error": scored.value() * scored.error(),
        "mean_nll": scored.mean_nll(),
        "mean_nll_error": scored.error(),
        "tokens": tokens,
        "tokens_scored": scored.scored,
        "tokens_run": scored.run,
        "tokens_per_second": scored.rate(),
        "seconds": scored.time.as_secs_f64(),
        "context": context,
        "stride": args.stride,
        "special": args.special,
        "bare": args.bare,
        "cache": args.options.engine.kv.to_string(),
        "device": loaded.device.selector().to_string(),
        "name": loaded.device.name,
        "architecture": loaded.model.config().architecture.name(),
        "weight_bytes": loaded.model.weight_bytes(),
    });
    format!("{object:#}\n")
}
