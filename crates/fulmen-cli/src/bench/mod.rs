//! `fulmen bench`: how fast whole pieces of work are, beside what the device allows.

mod batch;
mod chain;
mod data;
mod decode;
mod ffn;
mod layers;
mod matmul;
mod measure;
mod model;
mod pass;
mod perplexity;
mod prefill;
pub(crate) mod product;
mod raw;
mod readback;
mod report;
mod roofline;
mod shape;
mod steps;
mod table;

use std::{io, path::PathBuf};

use clap::Subcommand;
use fulmen_core::device::{BackendKind, DeviceSelector};
use fulmen_model::ModelError;
use fulmen_wgpu::{AdapterSelector, GpuDevice, GpuError};

use crate::model::load::LoadError;

/// Time whole pieces of work on a device.
///
/// Results are checked before they are timed, and times stand beside a floor: what the work has to read, write and
/// compute, over what plain kernels reach on the same device in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench batch                     the command batch on the best GPU
  fulmen bench batch --quick             small sizes, for software devices
  fulmen bench batch --trace ffn.json    and the kernels of a layer for chrome://tracing
  fulmen bench matmul                    products by weights that stay on the GPU
  fulmen bench matmul --m 1,32 --k 2560 --n 9728 --dtype q4_k --svg roofline.svg
  fulmen bench decode --shape qwen3-4b --batch 1,16   a model's steps, without a file, kernel by kernel
  fulmen bench prefill --shape qwen3-4b  its prompts
  fulmen bench model m.gguf --depth 0,2048   a model's prompts and answers
  fulmen bench perplexity m.gguf text.txt    how well a model foresees a text";

// Each subcommand's help is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    Batch(batch::Args),
    Decode(decode::Args),
    Prefill(prefill::Args),
    Model(model::Args),
    Matmul(matmul::Args),
    Perplexity(perplexity::Args),
}

/// Why `fulmen bench` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("this runs on wgpu devices only, and {0} is none; take auto, wgpu or wgpu:N")]
    NotWgpu(DeviceSelector),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("{work} is wrong: element {index} must be {expected:e}, got {got:e}; nothing of it was timed")]
    Wrong { work: String, index: usize, expected: f64, got: f32 },
    #[error("{work} is wrong: it must have {expected} elements, got {got}")]
    WrongLength { work: String, expected: usize, got: usize },
    #[error("{compiled} pipelines were compiled for {distinct} different kernels")]
    CompiledTwice { compiled: u64, distinct: usize },
    #[error("the trace could not be written to {}: {error}", path.display())]
    Trace { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the drawing could not be written to {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("kernels gave wrong results; they are not in the table:\n{0}")]
    WrongKernels(String),
    #[error("{}: {error}", path.display())]
    Text { path: PathBuf, error: io::Error },
    #[error("{}: is not UTF-8, byte {at} is the first that is wrong", path.display())]
    NotUtf8 { path: PathBuf, at: usize },
    #[error("the data could not be made: {0}")]
    Data(String),
    #[error("the results could not be written: {0}")]
    Write(#[from] io::Error),
}

pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    match &args.command {
        BenchCommand::Batch(args) => batch::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Prefill(args) => prefill::run(args),
        BenchCommand::Model(args) => model::run(args),
        BenchCommand::Matmul(args) => matmul::run(args),
        BenchCommand::Perplexity(args) => perplexity::run(args),
    }
}

/// Opens the adapter that is asked for.
pub(crate) fn open(asked: DeviceSelector) -> Result<GpuDevice, BenchError> {
    let adapter = match asked {
        DeviceSelector::Auto | DeviceSelector::Backend(BackendKind::Wgpu) => AdapterSelector::Best,
        DeviceSelector::Device(BackendKind::Wgpu, index) => AdapterSelector::Index(index),
        DeviceSelector::Backend(_) | DeviceSelector::Device(..) => return Err(BenchError::NotWgpu(asked)),
    };
    Ok(GpuDevice::open(&adapter)?)
}
