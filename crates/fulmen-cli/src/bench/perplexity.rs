//! `fulmen bench perplexity`.

use std::io::Read;
use std::path::{Path, PathBuf};

use fulmen_bench::model::{LoadedModel, PerplexityReport, TextOptions, measure_perplexity};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::BenchCommandError;
use crate::model::load::{ModelOptions, summary};
use crate::output::{json, print};

/// Measure how well a model predicts a text: the mean of −ln p over its tokens, and the perplexity e^mean.
/// Lower is better.
///
/// The text is split into windows of --context tokens (512, or the model's context if that is shorter), and
/// each window runs on its own. The first half of a window is only context, so every scored token has at
/// least half a window before it; llama.cpp counts in the same way. With --stride, every token but the first
/// is scored. Only results with the same text, tokenizer and windows can be compared.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Text: a UTF-8 file, or - for standard input.
    #[arg(value_name = "TEXT")]
    text: PathBuf,

    /// Start windows at multiples of this, and score in each the tokens that no earlier window has scored.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,

    /// Parse control tokens in the text, such as <|endoftext|>, instead of reading them as plain text.
    #[arg(long)]
    special: bool,

    /// Do not add the model's BOS token to the text and to each window.
    #[arg(long)]
    bare: bool,

    #[command(flatten)]
    options: ModelOptions,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench perplexity model.gguf wiki.test.raw
  fulmen bench perplexity model.gguf text.txt --context 2048 --stride 512
  fulmen bench perplexity model.gguf - < text.txt
  fulmen bench perplexity model.gguf text.txt --kv q8_0     the effect of a smaller KV cache";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let text = read(&args.text)?;
    let session = args.options.session();
    let loaded = args.options.load(Some(&args.model), session)?;
    let options = TextOptions {
        context: args.options.context,
        stride: args.stride,
        special: args.special,
        bare: args.bare,
        session,
    };
    let bar = bar();
    let report = measure_perplexity(&loaded, &text, &options, |known, total| {
        bar.set_length(total as u64);
        bar.set_position(known.run as u64);
        bar.set_message(format!("{:.4}", known.value()));
    });
    bar.finish_and_clear();
    let report = report?;
    Ok(print(&if args.json { json(&report) } else { as_text(&loaded, &report) })?)
}

pub(super) fn read(path: &Path) -> Result<String, BenchCommandError> {
    let failed = |error| BenchCommandError::Text { path: path.to_owned(), error };
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes).map_err(failed)?
    } else {
        std::fs::read(path).map_err(failed)?
    };
    String::from_utf8(bytes).map_err(|error| BenchCommandError::NotUtf8 {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "perplexity {msg} {bar:30} {pos}/{len} tokens  {rate}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.0} tok/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate));
    }
    bar
}

fn as_text(loaded: &LoadedModel, report: &PerplexityReport) -> String {
    let stride = report.stride.map_or(String::new(), |stride| format!(", stride {stride}"));
    format!(
        "perplexity {:.4} ± {:.4}   mean -ln p {:.6} ± {:.6}\n\
         {} of {} tokens scored in windows of {}{stride}; {} tokens run at {:.1} tok/s\n\
         {} on {} ({})\n",
        report.perplexity,
        report.perplexity_error,
        report.mean_nll,
        report.mean_nll_error,
        report.tokens_scored,
        report.tokens,
        report.context,
        report.tokens_run,
        report.tokens_per_second,
        summary(&loaded.model),
        report.device,
        report.name,
    )
}
