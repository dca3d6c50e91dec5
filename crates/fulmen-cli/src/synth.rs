//! `fulmen synth`: models with random weights, for tests and measurements.

use std::path::PathBuf;

use fulmen_model::quantize::Recipe;
use fulmen_model::synth::{ModelShape, PRESETS, Synth, SynthError};

use crate::ops::progress_bar;
use crate::output::print;

/// Write a model with random weights in the shape of a real one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shape: tiny-llama, tiny-qwen2, tiny-qwen3, qwen3-0.6b, llama3.2-1b, …
    #[arg(value_name = "PRESET", value_parser = preset)]
    shape: ModelShape,

    /// The file to write.
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// The type of the weights.
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    recipe: Recipe,

    /// Draw the weights from this seed.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Take so many layers instead of the preset's.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,

    /// Replace a file that is there already.
    #[arg(long)]
    force: bool,
}

/// A shape by its name, or the names that there are.
pub(crate) fn preset(name: &str) -> Result<ModelShape, String> {
    let names = || PRESETS.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ");
    ModelShape::preset(name).ok_or_else(|| format!("there is no preset {name:?}; there are {}", names()))
}

pub(crate) fn run(args: &Args) -> Result<(), SynthError> {
    let mut shape = args.shape.clone();
    if let Some(layers) = args.layers {
        shape.layers = layers.into();
    }
    let synth = Synth::new(shape, args.recipe, args.seed);
    let bar = progress_bar(synth.tensors()?.len());
    synth.write(&args.out, args.force, |_| bar.inc(1))?;
    bar.finish_and_clear();
    // What was asked for is written; a closed stdout does not change that.
    let _ = print(&format!("wrote {}\n", args.out.display()));
    Ok(())
}
