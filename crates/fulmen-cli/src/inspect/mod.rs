//! `fulmen inspect`: what a model file contains and how much memory the model needs, as text or as JSON.

mod experts;
mod json;
mod ranks;
mod text;

use std::{io, path::PathBuf, sync::Arc};

use fulmen_core::DType;
use fulmen_core::device::{BackendReport, DeviceInfo};
use fulmen_engine::{EngineOptions, SequenceCache};
use fulmen_model::arch::Config;
use fulmen_model::gguf::MetadataError;
use fulmen_model::source::{self, ModelSource, SourceError};
use fulmen_model::summary::{Memory, PREFILL_ROWS, Summary};
use fulmen_model::tokenizer::{Tokenizer, TokenizerError};

use crate::error::CommandError;
use crate::model::find::{FindError, find};
use crate::output::print;
use crate::select;

/// Show what a model file contains, and how much memory the model needs on each device.
///
/// Only the header is read; the weights are not loaded. The memory is an estimate: the weights as they are
/// stored, a KV cache for the given context, and the activations of a prefill chunk of 512 tokens.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file (any part of a split model), a folder with config.json and safetensors files, or
    /// the name of a pulled model.
    #[arg(value_name = "MODEL")]
    file: PathBuf,

    /// Print the report as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,

    /// List every tensor with its shape, type and size.
    #[arg(long)]
    tensors: bool,

    /// List every metadata key with its value.
    #[arg(long)]
    keys: bool,

    /// Context length for the memory estimate; by default 4096, or the model's own if that is shorter.
    #[arg(long, alias = "ctx", value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    context: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  fulmen inspect model.gguf
  fulmen inspect model.gguf --context 32768     does a long context fit?
  fulmen inspect model.gguf --tensors --keys    list everything but the weights
  fulmen inspect model.gguf --json | jq .parameters";

const DEFAULT_CONTEXT: u64 = 4096;

/// Why `fulmen inspect` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{}: {error}", path.display())]
    Metadata { path: PathBuf, error: MetadataError },
    #[error("--context {0} is too large: its KV cache would need more than 2^64 bytes")]
    Context(u64),
    #[error("cannot write the report: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for InspectError {
    fn is_usage(&self) -> bool {
        matches!(self, InspectError::Context(_))
    }
}

/// Everything that is shown.
struct Report<'a> {
    args: &'a Args,
    source: &'a dyn ModelSource,
    summary: Summary,
    context: u64,
    memory: Option<Memory>,
    /// The KV pages of a sequence in an engine, in F16 and in Q8_0, if layers with a sliding window take less
    /// there.
    served: Option<Served>,
    /// What each rank needs, for the numbers of ranks that the model can be divided by.
    ranks: Vec<ranks::RankNeeds>,
    /// What is on each side of a mixture whose experts are on the CPU.
    experts: Option<experts::ExpertNeeds>,
    /// `None` if there is none.
    tokenizer: Result<Option<Tokenizer>, TokenizerError>,
    devices: Vec<&'a DeviceInfo>,
}

/// What a sequence of the whole context takes in an engine, where layers with a sliding window have KV pages
/// of their own.
struct Served {
    f16: SequenceCache,
    q8_0: Option<SequenceCache>,
}

/// `None` where no layer takes less, or if the model cannot run.
fn served(source: &dyn ModelSource, context: u64) -> Option<Served> {
    let (config, context) = (Config::read(source).ok()?, u32::try_from(context).ok()?);
    let cache = |cache| {
        let options = EngineOptions { context, cache, max_sequences: 1, ..EngineOptions::default() };
        options.sequence_cache(&config, PREFILL_ROWS as u32).ok()
    };
    let f16 = cache(DType::F16)?;
    f16.window.filter(|&(pages, _)| pages < f16.pages)?;
    Some(Served { f16, q8_0: cache(DType::Q8_0) })
}

pub(crate) fn run(args: &Args) -> Result<(), InspectError> {
    let source: Arc<dyn ModelSource> = Arc::from(source::open(find(&args.file)?)?);
    let metadata = |error| InspectError::Metadata { path: args.file.clone(), error };
    let summary = Summary::of(&*source).map_err(metadata)?;
    let context = args.context.unwrap_or_else(|| DEFAULT_CONTEXT.min(summary.context.unwrap_or(u64::MAX)));
    let memory = summary.memory(context);
    // The model is described completely if the memory for the shortest context is known.
    if memory.is_none() && summary.memory(1).is_some() {
        return Err(InspectError::Context(context));
    }
    let reports: Vec<BackendReport> = select::reports();
    let report = Report {
        args,
        source: &*source,
        ranks: ranks::possible(&source, memory.as_ref()),
        experts: experts::needs(&source, memory.as_ref()),
        served: served(&*source, context),
        memory,
        tokenizer: Tokenizer::from_source(&*source),
        summary,
        context,
        devices: reports.iter().flat_map(|report| &report.devices).collect(),
    };
    let output = if args.json { json::render(&report) } else { text::render(&report) };
    Ok(print(&output)?)
}

/// The memory that a device has for the model: what is free if that is known, otherwise all of it.
fn room(device: &DeviceInfo) -> Option<u64> {
    device.free_bytes.or(device.memory_bytes)
}
