//! Benchmarks of models: prefill and decode, kernel by kernel, an engine under load, perplexity, and
//! divergence from a reference.

mod decode;
mod divergence;
mod engine;
mod matrix;
mod op_profile;
mod parallel;
mod perplexity;
mod prefill;
mod runs;
mod throughput;

use std::time::Duration;

use fulmen_core::DeviceInfo;
use fulmen_engine::Model;
use serde::Serialize;

pub use decode::{DecodeOptions, DecodeTimes, bench_decode};
pub use divergence::{Divergence, DivergenceOptions, DivergenceReport, measure_divergence};
pub use engine::{EngineBenchOptions, EngineTimes, InactiveRows, Latency, bench_engine};
pub use matrix::{Axis, Cliff, MatrixCell, MatrixOptions, MatrixReport, bench_matrix, find_cliffs};
pub use op_profile::{Clock, OpProfile, OpRow, write_trace};
pub use parallel::{Link, ParallelTimes, StepCollectives, bench_rank};
pub use perplexity::{PerplexityReport, TextOptions, measure_perplexity};
pub use prefill::{PrefillOptions, PrefillTimes, bench_prefill};
pub use runs::TokenRate;
pub use throughput::{ThroughputOptions, ThroughputTimes, bench_throughput};

/// A model on a device.
pub struct LoadedModel {
    /// The model.
    pub model: Model,
    /// Its device.
    pub device: DeviceInfo,
    /// How long loading took.
    pub load_time: Duration,
    /// CPU threads of the backend.
    pub threads: usize,
}

/// A random-weight model that a benchmark ran on. Field names are those of the JSON output: add, do not
/// rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SyntheticModel {
    /// The preset, such as `qwen3-4b`.
    pub shape: String,
    /// The mix of weight types, such as `q4_k_m`.
    #[serde(rename = "type")]
    pub recipe: String,
    /// Its layers.
    pub layers: usize,
    /// The seed of its weights.
    pub seed: u64,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
}

/// The tests of one benchmark. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport<T> {
    /// The device, as `--device` takes it.
    pub device: String,
    /// Its name.
    pub name: String,
    /// The architecture of the model.
    pub architecture: &'static str,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// The measured memory bandwidth of the device.
    pub memory_bytes_per_second: Option<f64>,
    /// How long loading took.
    pub load_seconds: f64,
    /// The model, if its weights are random.
    #[serde(flatten)]
    pub synthetic: Option<SyntheticModel>,
    /// The tests.
    pub tests: Vec<T>,
}

impl<T> ModelReport<T> {
    fn new(loaded: &LoadedModel, bandwidth: Option<f64>, tests: Vec<T>) -> ModelReport<T> {
        ModelReport {
            device: loaded.device.selector().to_string(),
            name: loaded.device.name.clone(),
            architecture: loaded.model.config().architecture.name(),
            weight_bytes: loaded.model.weight_bytes(),
            memory_bytes_per_second: bandwidth,
            load_seconds: loaded.load_time.as_secs_f64(),
            synthetic: None,
            tests,
        }
    }
}

fn largest(values: &[u32]) -> u32 {
    values.iter().max().copied().unwrap_or(0)
}
