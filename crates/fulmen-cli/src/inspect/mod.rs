//! `fulmen inspect`: what a model's file holds and what the model needs, as text or as JSON.

mod json;
mod text;

use std::{io, path::PathBuf};

use fulmen_core::device::{BackendReport, DeviceInfo};
use fulmen_model::gguf::MetadataError;
use fulmen_model::source::{self, ModelSource, SourceError};
use fulmen_model::summary::{Memory, Summary};

use crate::model::find::{FindError, find};
use crate::output::print;
use crate::select;

/// Show what a model's file holds and how much memory the model needs on each device.
///
/// Only the header is read; the weights are not loaded. The memory is an estimate: the weights as they are stored, a KV
/// cache of the given context, and what 512 tokens of a prompt need that are run at once.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A GGUF file (of a model in parts, any of them), or a folder with config.json and safetensors files.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON: sizes in bytes, numbers as numbers.
    #[arg(long)]
    json: bool,

    /// List every tensor with its size and type.
    #[arg(long)]
    tensors: bool,

    /// List every key of the metadata with its value.
    #[arg(long)]
    keys: bool,

    /// Tokens of context to count memory for; by default 4096, or the model's own context if that is shorter.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    context: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  fulmen inspect model.gguf
  fulmen inspect model.gguf --context 32768     does a long context fit?
  fulmen inspect model.gguf --tensors --keys    everything but the weights
  fulmen inspect model.gguf --json | jq .parameters";

const DEFAULT_CONTEXT: u64 = 4096;

/// Why a model could not be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{}: {error}", path.display())]
    Metadata { path: PathBuf, error: MetadataError },
    #[error("the result could not be written: {0}")]
    Write(#[from] io::Error),
}

/// Everything that is shown.
struct Report<'a> {
    args: &'a Args,
    source: &'a dyn ModelSource,
    summary: Summary,
    context: u64,
    memory: Option<Memory>,
    devices: Vec<&'a DeviceInfo>,
}

pub(crate) fn run(args: &Args) -> Result<(), InspectError> {
    let source = source::open(find(&args.file)?)?;
    let metadata = |error| InspectError::Metadata { path: args.file.clone(), error };
    let summary = Summary::of(&*source).map_err(metadata)?;
    let context = args.context.unwrap_or_else(|| DEFAULT_CONTEXT.min(summary.context.unwrap_or(u64::MAX)));
    let reports: Vec<BackendReport> = select::reports();
    let report = Report {
        args,
        source: &*source,
        memory: summary.memory(context),
        summary,
        context,
        devices: reports.iter().flat_map(|report| &report.devices).collect(),
    };
    let output = if args.json { json::render(&report) } else { text::render(&report) };
    Ok(print(&output)?)
}

/// What a device has for the model: what is free where that is known, else all of it.
fn room(device: &DeviceInfo) -> Option<u64> {
    device.free_bytes.or(device.memory_bytes)
}
