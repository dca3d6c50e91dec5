//! Models for benchmarks that need no file: random weights in the shape of a real model.

use std::sync::Arc;

use fulmen_model::quantize::Recipe;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::{Model, SessionOptions};
use serde_json::{Value, json};

use super::BenchError;
use super::steps;
use super::table::{Table, Trace};
use crate::model::load::{EngineOptions, LoadError, Loaded};
use crate::output::print;
use crate::synth::preset;

/// Which model, on which device.
#[derive(Debug, clap::Args)]
pub(super) struct ShapeOptions {
    /// The shape of the model: qwen3-4b, qwen3-8b, llama3.2-1b, …; one that does not exist lists them all.
    #[arg(long, value_name = "SHAPE", value_parser = preset)]
    shape: ModelShape,

    /// The mix of types that the weights have, as `fulmen quantize` gives it.
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    recipe: Recipe,

    /// Take so many layers instead of the shape's.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,

    /// Draw the weights from this seed.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    pub(super) engine: EngineOptions,
}

/// What was measured of one test.
pub(super) trait Line {
    /// Rows of all tests under one head.
    fn text(lines: &[Self]) -> String
    where
        Self: Sized;

    /// Field names are an interface: add, do not rename.
    fn json(&self) -> Value;

    /// Where the time went.
    fn table(&self) -> &Table;
}

impl ShapeOptions {
    /// Prints what was measured, and writes the trace.
    pub(super) fn report<L: Line>(
        &self,
        loaded: &Loaded,
        memory: Option<f64>,
        lines: &[L],
        json: bool,
        trace: Trace,
    ) -> Result<(), BenchError> {
        let output = if json {
            let mut report = steps::as_json(loaded, memory, lines.iter().map(L::json).collect());
            self.describe(&loaded.model, &mut report);
            format!("{report:#}\n")
        } else {
            let tables: Vec<String> = lines.iter().map(|line| line.table().text() + "\n").collect();
            let footer = self.title() + &steps::footer(loaded, memory, self.engine.open.threads());
            format!("{}\n{}{footer}", L::text(lines), tables.concat())
        };
        let tables: Vec<&Table> = lines.iter().map(L::table).collect();
        trace.write(&tables)?;
        Ok(print(&output)?)
    }

    /// Makes the weights, one tensor after the other, on their way to the device.
    pub(super) fn load(&self, session: SessionOptions) -> Result<Loaded, LoadError> {
        let mut shape = self.shape.clone();
        if let Some(layers) = self.layers {
            shape.layers = layers.into();
        }
        let synth = Synth::new(shape, self.recipe, self.seed);
        self.engine.load(session, false, || Ok(Arc::new(synth.source()?)))
    }

    /// `qwen3-4b q4_k_m: `, before what is said of the model.
    fn title(&self) -> String {
        format!("{} {}: ", self.shape.name, self.recipe)
    }

    /// Adds which model it was. Field names here are an interface: add, do not rename.
    fn describe(&self, model: &Model, report: &mut Value) {
        report["shape"] = json!(self.shape.name);
        report["type"] = json!(self.recipe.to_string());
        report["layers"] = json!(self.layers.map_or(self.shape.layers, usize::from));
        report["seed"] = json!(self.seed);
        report["chunk"] = json!(model.session_options().chunk);
    }
}
