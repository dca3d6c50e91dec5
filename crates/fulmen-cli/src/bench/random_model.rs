//! Options of benchmarks that need no model file: random weights in the shape of a real model.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_bench::model::{LoadedModel, ModelReport, OpProfile, SyntheticModel, write_trace};
use fulmen_engine::SessionOptions;
use fulmen_model::quantize::Recipe;
use fulmen_model::synth::{ModelShape, Synth};

use super::BenchCommandError;
use crate::model::load::{EngineOptions, LoadError};
use crate::synth::preset;

/// Which model, on which device.
#[derive(Debug, clap::Args)]
pub(super) struct RandomModelOptions {
    /// Shape of the model: qwen3-4b, qwen3-8b, llama3.2-1b, …; an unknown name lists all of them.
    #[arg(long, value_name = "SHAPE", value_parser = preset)]
    shape: ModelShape,

    /// Type of the weights, as for `fulmen quantize`.
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    recipe: Recipe,

    /// Number of layers, instead of the shape's own.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,

    /// Seed of the random weights.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    pub(super) engine: EngineOptions,
}

impl RandomModelOptions {
    /// The shape, with the number of layers that was asked for.
    pub(super) fn shape(&self) -> ModelShape {
        let layers = self.layers.map_or(self.shape.layers, usize::from);
        ModelShape { layers, ..self.shape.clone() }
    }

    /// The type of the weights.
    pub(super) fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// The arguments that select this model in another process.
    pub(super) fn arguments(&self) -> Vec<String> {
        let layers = self.shape().layers.to_string();
        let (recipe, kv) = (self.recipe.to_string(), fulmen_bench::dtype_name(self.engine.kv));
        let seed = self.seed.to_string();
        let pairs = [
            ("--shape", self.shape.name),
            ("--type", &recipe),
            ("--layers", &layers),
            ("--seed", &seed),
            ("--kv", &kv),
        ];
        let pairs = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]);
        pairs.chain(self.engine.split.arguments()).collect()
    }

    /// Loads the model. Each tensor is generated when it is uploaded.
    pub(super) fn load(&self, session: SessionOptions) -> Result<LoadedModel, LoadError> {
        self.load_as(self.recipe, session)
    }

    /// Loads rank 0 of the model, divided among `ranks`, without the others.
    pub(super) fn load_rank(&self, ranks: u32, session: SessionOptions) -> Result<LoadedModel, LoadError> {
        let synth = Synth::new(self.shape(), self.recipe, self.seed);
        self.engine.load_rank(ranks, session, Arc::new(synth.source()?))
    }

    /// Loads the model with weights of another type.
    pub(super) fn load_as(&self, recipe: Recipe, session: SessionOptions) -> Result<LoadedModel, LoadError> {
        let synth = Synth::new(self.shape(), recipe, self.seed);
        self.engine.load(session, None, false, || Ok(Arc::new(synth.source()?)))
    }

    /// `qwen3-4b q4_k_m: `, before the description of the model.
    pub(super) fn title(&self) -> String {
        format!("{} {}: ", self.shape.name, self.recipe)
    }

    /// Adds to a report which model it is about.
    pub(super) fn describe<T>(&self, loaded: &LoadedModel, report: &mut ModelReport<T>) {
        report.synthetic = Some(SyntheticModel {
            shape: self.shape.name.to_owned(),
            recipe: self.recipe.to_string(),
            layers: self.layers.map_or(self.shape.layers, usize::from),
            seed: self.seed,
            chunk: loaded.model.session_options().chunk,
        });
    }
}

/// A file for the kernels of some runs, created before anything is measured.
pub(super) struct TraceFile<'a>(Option<(&'a Path, File)>);

impl TraceFile<'_> {
    pub(super) fn create(path: Option<&PathBuf>) -> Result<TraceFile<'_>, BenchCommandError> {
        let open = |path: &PathBuf| {
            File::create(path).map_err(|error| BenchCommandError::Trace { path: path.clone(), error })
        };
        let file = path.map(|path| Ok::<_, BenchCommandError>((path.as_path(), open(path)?)));
        Ok(TraceFile(file.transpose()?))
    }

    pub(super) fn write<'p>(
        self,
        profiles: impl Iterator<Item = &'p OpProfile>,
    ) -> Result<(), BenchCommandError> {
        let Some((path, file)) = self.0 else { return Ok(()) };
        let failed = |error| BenchCommandError::Trace { path: path.to_owned(), error };
        write_trace(BufWriter::new(file), profiles).map_err(failed)
    }
}
