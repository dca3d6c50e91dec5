//! `fulmen synth`: models with random weights, for tests and measurements.

use std::path::PathBuf;

use fulmen_model::quantize::Recipe;
use fulmen_model::synth::{ModelShape, PRESETS, Synth, SynthError};

use crate::error::CommandError;
use crate::model::interrupt;
use crate::output::print;
use crate::progress::step_bar;

/// Write a model with random weights in the shape of a real one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Shape of the model: tiny-llama, tiny-gemma3, qwen3-0.6b, llama3.2-1b, gemma3-4b, mistral-small, …
    #[arg(value_name = "SHAPE", value_parser = preset)]
    shape: ModelShape,

    /// File to write.
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// Type of the weights.
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    recipe: Recipe,

    /// Seed of the random weights.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Number of layers, instead of the shape's own.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,

    /// Overwrite OUT if it exists.
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen synth tiny-llama tiny.gguf --type q8_0
  fulmen synth qwen3-4b random.gguf --layers 4";

impl CommandError for SynthError {}

/// Parses the name of a shape; the error lists all of them.
pub(crate) fn preset(name: &str) -> Result<ModelShape, String> {
    let names = || PRESETS.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ");
    ModelShape::preset(name).ok_or_else(|| format!("unknown shape {name:?}; known shapes are {}", names()))
}

pub(crate) fn run(args: &Args) -> Result<(), SynthError> {
    let mut shape = args.shape.clone();
    if let Some(layers) = args.layers {
        shape.layers = layers.into();
    }
    let synth = Synth::new(shape, args.recipe, args.seed);
    interrupt::install();
    let bar = step_bar(synth.tensors()?.len());
    synth.write(&args.out, args.force, |_| bar.inc(1))?;
    bar.finish_and_clear();
    // The file is complete; a closed stdout does not change that.
    let _ = print(&format!("wrote {}\n", args.out.display()));
    Ok(())
}
