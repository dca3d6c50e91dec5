//! `fulmen bench divergence`.

use std::path::PathBuf;
use std::sync::Arc;

use fulmen::OpenOptions;
use fulmen_bench::model::{Divergence, DivergenceOptions, DivergenceReport, TextOptions, measure_divergence};
use fulmen_core::DType;
use fulmen_core::device::DeviceSelector;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::source::{self, Dequantized, ModelSource};

use super::BenchCommandError;
use super::perplexity::read;
use crate::model::find::find;
use crate::model::load::{LoadError, ModelOptions, summary};
use crate::model::split::SplitError;
use crate::output::{columns, counted, json, percent, print};
use crate::progress::with_bar;
use crate::select::{open, parse_device};

/// Measure how far the probabilities of a model are from those of a reference: the Kullback–Leibler
/// divergence, per token of a text.
///
/// The reference is the same model with its weights as f32, an f32 KV cache and f32 arithmetic on the CPU, or
/// another file, such as the one that the model was quantized from. So the divergence is what a device, a KV
/// cache and a batch size lose, or what a smaller type loses as well.
///
/// The text is split into windows of --context tokens, of which the second half is scored: once in prefill,
/// and once for each --batch in decode steps of so many windows at a time. What fills no window is left out.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, or the name of a pulled model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Text: a UTF-8 file, or - for standard input.
    #[arg(value_name = "TEXT")]
    text: PathBuf,

    /// Reference: another model with the same vocabulary. By default the model itself with f32 weights.
    #[arg(long, value_name = "MODEL")]
    reference: Option<PathBuf>,

    /// Device of the reference.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = parse_device)]
    reference_device: DeviceSelector,

    /// Sequences that decode together, as a list.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: Vec<u32>,

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
  fulmen bench divergence model.gguf wiki.test.raw --batch 1,4,16,64
  fulmen bench divergence model.gguf text.txt --kv q8_0               what a smaller KV cache loses
  fulmen bench divergence model-q4.gguf text.txt --reference model-f16.gguf";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let text = read(&args.text)?;
    let session = args.options.session();
    let loaded = args.options.load(Some(&args.model), session)?;
    let (reference, device) = args.load_reference()?;
    let options = DivergenceOptions {
        text: TextOptions {
            context: args.options.context,
            stride: None,
            special: args.special,
            bare: args.bare,
            session,
        },
        batches: args.batch.clone(),
    };
    let report = with_bar(|progress| {
        measure_divergence(&loaded, &reference, &device.to_string(), &text, &options, progress)
    })?;
    let output = match args.json {
        true => json(&report),
        false => as_text(&report, &summary(&loaded.model), &summary(&reference)),
    };
    Ok(print(&output)?)
}

impl Args {
    fn load_reference(&self) -> Result<(Model, DeviceSelector), LoadError> {
        let path = self.reference.as_ref().unwrap_or(&self.model);
        let found: Arc<dyn ModelSource> = Arc::from(source::open(find(path)?).map_err(ModelError::from)?);
        let floats = Dequantized::new(found).map_err(ModelError::from)?;
        let options = OpenOptions { threads: self.options.engine.open.asked_threads() };
        let (device, opened) = open(self.reference_device, &options).map_err(SplitError::from)?;
        let session = SessionOptions { cache: DType::F32, ..SessionOptions::default() };
        let load = LoadOptions { session, check_weights: true, progress: None };
        Ok((Model::from_source(Arc::new(floats), opened, load)?, device.selector()))
    }
}

fn as_text(report: &DivergenceReport, model: &str, reference: &str) -> String {
    let row = |test: &Divergence| {
        vec![
            test.batch.map_or("prefill".to_owned(), |rows| rows.to_string()),
            format!("{:.4}", test.perplexity),
            format!("{:+.3} %", 100.0 * (test.perplexity / test.reference_perplexity - 1.0)),
            format!("{:.2e} ± {:.0e}", test.kl_mean, test.kl_error),
            format!("{:.2e}", test.kl_median),
            format!("{:.2e}", test.kl_p99),
            format!("{:.2e}", test.kl_max),
            percent(test.same_top),
            format!("{:.2e}", test.probability_rms),
        ]
    };
    let rows: Vec<Vec<String>> = report.tests.iter().map(row).collect();
    let header =
        ["batch", "perplexity", "change", "KL mean", "median", "99 %", "largest", "same top", "rms Δp"];
    let scored = report.tests.first().map_or(0, |test| test.tokens_scored);
    format!(
        "{}\n\
         KL: Kullback–Leibler divergence from the reference per token, in nats; change: of the perplexity\n\
         same top: how often the most likely token is the same\n\
         Δp: difference in the probability of the text's next token\n\
         {} scored in {} of {}\n\
         {model} on {} ({}), KV cache {}\n\
         reference: {reference} on {}, KV cache F32\n",
        columns(&header, &rows),
        counted(scored, "token"),
        counted(report.windows, "window"),
        report.context,
        report.device,
        report.name,
        report.cache,
        report.reference_device,
    )
}
