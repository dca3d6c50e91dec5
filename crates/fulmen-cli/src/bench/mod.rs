//! `fulmen bench`: arguments and output of the benchmarks in `fulmen-bench`.

#[cfg(feature = "wgpu")]
mod batch;
mod collective;
mod decode;
mod divergence;
mod engine;
#[cfg(feature = "wgpu")]
mod matmul;
mod matrix;
mod model;
mod parallel;
mod perplexity;
mod prefill;
mod random_model;
#[cfg(feature = "server")]
mod serve;
mod summary;

use std::{io, path::PathBuf};

use clap::Subcommand;
use fulmen_bench::BenchError;

use crate::error::CommandError;
#[cfg(feature = "wgpu")]
use crate::gpu_option::GpuOptionError;
use crate::model::load::LoadError;

/// Time matmuls, command batches and whole models on a device.
///
/// Results are checked before they are timed, and every time is compared with a bound: what the computation
/// must at least read, write and compute, at the memory bandwidth and FLOP/s that plain kernels reach on the
/// same device in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench decode --shape qwen3-4b --batch 1,16   decode, kernel by kernel
  fulmen bench prefill --shape qwen3-4b               its prefill
  fulmen bench engine --shape qwen3-4b                many requests at once
  fulmen bench serve --shape qwen3-4b                 many requests at once over HTTP
  fulmen bench matrix --shape qwen3-4b                decode along every axis: where are the cliffs?
  fulmen bench collective --devices cuda:0,cuda:1     all-reduce and all-gather between devices
  fulmen bench parallel --shape qwen3-8b              decode on several devices, predicted
  fulmen bench model m.gguf --depth 0,2048            prefill and decode of a model file
  fulmen bench perplexity m.gguf text.txt             how well a model predicts a text
  fulmen bench divergence m.gguf text.txt --kv q8_0   how far its probabilities are from those in f32
  fulmen bench matmul                                 matmuls by weights that stay on the GPU
  fulmen bench matmul --m 1,32 --k 2560 --n 9728 --dtype q4_k --svg roofline.svg
  fulmen bench batch                                  the command batch on the best GPU
  fulmen bench batch --quick                          small sizes, for software devices";

// Each subcommand's help is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    #[cfg(feature = "wgpu")]
    Batch(batch::Args),
    Collective(collective::Args),
    Decode(decode::Args),
    Divergence(divergence::Args),
    Engine(engine::Args),
    Prefill(prefill::Args),
    Model(model::Args),
    #[cfg(feature = "wgpu")]
    Matmul(matmul::Args),
    Matrix(matrix::Args),
    Parallel(parallel::Args),
    Perplexity(perplexity::Args),
    #[cfg(feature = "server")]
    Serve(serve::Args),
}

/// Why `fulmen bench` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchCommandError {
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Device(#[from] GpuOptionError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[cfg(feature = "server")]
    #[error(transparent)]
    Serve(#[from] serve::LocalError),
    #[cfg(feature = "server")]
    #[error(transparent)]
    Engine(#[from] fulmen_server::EngineModelError),
    #[error(transparent)]
    Join(#[from] fulmen_engine::JoinError),
    #[error("cannot write the trace to {}: {error}", path.display())]
    Trace { path: PathBuf, error: io::Error },
    #[cfg(feature = "wgpu")]
    #[error("--trace needs timestamps, which this device does not have")]
    NoTimestamps,
    #[error("timing the kernels of target {target} failed: {reason}")]
    Target { target: u16, reason: String },
    #[error("cannot write the chart to {}: {error}", path.display())]
    Chart { path: PathBuf, error: io::Error },
    #[cfg(feature = "wgpu")]
    #[error("some kernels gave wrong results and are not in the table:\n{0}")]
    WrongKernels(String),
    #[error("cannot read {}: {error}", path.display())]
    Text { path: PathBuf, error: io::Error },
    #[error("{} is not UTF-8: the first bad byte is at offset {offset}", path.display())]
    NotUtf8 { path: PathBuf, offset: usize },
    #[error("cannot write the results: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for BenchCommandError {
    fn is_usage(&self) -> bool {
        match self {
            #[cfg(feature = "wgpu")]
            BenchCommandError::Device(error) => error.is_usage(),
            BenchCommandError::Bench(error) => error.is_usage(),
            BenchCommandError::Load(error) => error.is_usage(),
            _ => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), BenchCommandError> {
    match &args.command {
        #[cfg(feature = "wgpu")]
        BenchCommand::Batch(args) => batch::run(args),
        BenchCommand::Collective(args) => collective::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Divergence(args) => divergence::run(args),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::Prefill(args) => prefill::run(args),
        BenchCommand::Model(args) => model::run(args),
        #[cfg(feature = "wgpu")]
        BenchCommand::Matmul(args) => matmul::run(args),
        BenchCommand::Matrix(args) => matrix::run(args),
        BenchCommand::Parallel(args) => parallel::run(args),
        BenchCommand::Perplexity(args) => perplexity::run(args),
        #[cfg(feature = "server")]
        BenchCommand::Serve(args) => serve::run(args),
    }
}
