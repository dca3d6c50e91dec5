//! `fulmen quantize`: stores a model in smaller types.

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use fulmen_core::DType;
use fulmen_core::device::format_bytes;
use fulmen_model::gguf::{GgufWriteError, NewFile};
use fulmen_model::quantize::{Importance, ImportanceError, QuantizeError, QuantizePlan, Recipe, quantize};
use fulmen_model::source::{self, TensorInfo};

use crate::error::CommandError;
use crate::model::find::{FindError, find};
use crate::model::interrupt::{self, CancelOnCtrlC};
use crate::output::{columns, print, printable};
use crate::select::hardware_threads;

/// Store a model in smaller types.
///
/// Types are f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_k, q5_1, q5_0, q4_k_m (the usual choice), q4_k_s,
/// q4_k, q4_1, q4_0, q3_k_l, q3_k_m, q3_k_s, q3_k, q2_k, iq4_nl, iq4_xs and mxfp4_moe. Matrices get this type
/// and vectors stay in F32. For types below 6 bits, the output matrix is stored in Q6_K. mxfp4_moe stores the
/// weights of experts in MXFP4 and the rest in Q8_0. The mixes store some projections in more bits: q4_k_m
/// and q5_k_m half of the value and down projections in Q6_K, q4_k_s those of the first layers in Q5_K,
/// q3_k_m and q3_k_l all value, output and down projections in Q4_K or Q5_K. A matrix whose rows are not a
/// multiple of 256 elements gets a type with blocks of 32, with a warning.
///
/// With an importance matrix the errors that change results most are kept small, in types below 8 bits except
/// MXFP4.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file (any part of a split model), a folder with config.json and safetensors files, or
    /// the name of a pulled model.
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// GGUF file to write. It appears only when it is complete. A directory, device, pipe or symbolic link is
    /// never replaced.
    #[arg(value_name = "OUT", required_unless_present = "dry_run")]
    output: Option<PathBuf>,

    /// Type of the matrices: q4_k_m, q8_0, f16, …
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    recipe: Recipe,

    /// Type of the matrices with TEXT in their name, as in `ffn_down=q6_k` or `blk.0.=q8_0`. May be repeated;
    /// the first that matches is used.
    #[arg(long, value_name = "TEXT=TYPE", value_parser = tensor_type)]
    tensor_type: Vec<(String, DType)>,

    /// Importance matrix, as llama-imatrix writes it: a GGUF file, or the older format.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,

    /// Print the type and size of every tensor, and write nothing. With --imatrix, also which tensors use it.
    #[arg(long)]
    dry_run: bool,

    /// Overwrite OUT if it exists.
    #[arg(long)]
    force: bool,

    /// CPU threads; all hardware threads by default.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  fulmen quantize model-f16.gguf model-q4_k_m.gguf --type q4_k_m
  fulmen quantize model-f16.gguf model-q8_0.gguf --type q8_0 --force
  fulmen quantize model-f16.gguf model-q2_k.gguf --type q2_k --imatrix imatrix.gguf
  fulmen quantize model-f16.gguf --type q4_k_s --tensor-type token_embd=q8_0 --dry-run
  fulmen quantize folder model-q4_k_m.gguf --type q4_k_m
                               a folder with config.json and safetensors files";

/// Why the model could not be quantized.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuantizeCommandError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    #[error("{} already exists; use --force to overwrite it", .0.display())]
    Exists(PathBuf),
    #[error("the file is complete, but the summary cannot be written: {0}")]
    Print(#[from] io::Error),
}

impl CommandError for QuantizeCommandError {}

/// Returns the exit code.
pub(crate) fn run(args: &Args) -> Result<i32, QuantizeCommandError> {
    let source = source::open(find(&args.input)?).map_err(QuantizeError::Read)?;
    let mut plan = QuantizePlan::with_types(&*source, args.recipe, &args.tensor_type)?;
    if let Some(path) = &args.imatrix {
        plan = plan.with_importance(&*source, &Importance::open(path)?)?;
        warn_of_importance(&plan);
    }
    let Some(output) = args.output.as_deref().filter(|_| !args.dry_run) else {
        print(&dry_run(&plan, args.imatrix.is_some()))?;
        return Ok(0);
    };
    match NewFile::check(output, args.force) {
        Err(GgufWriteError::Exists { path }) => return Err(QuantizeCommandError::Exists(path)),
        checked => checked.map_err(QuantizeError::Write)?,
    }
    if !plan.requantized.is_empty() {
        let types = counted(&plan.requantized, |dtype| dtype.to_string());
        warn(&format!(
            "the weights are already quantized ({types}); starting from F16 or F32 gives a better result"
        ));
    }
    let start = Instant::now();
    let bar = bar(plan.work);
    let threads = args.threads.map_or_else(hardware_threads, usize::from);
    let stop = Arc::<AtomicBool>::default();
    interrupt::install();
    let cancel = CancelOnCtrlC::new(Arc::clone(&stop));
    let done = quantize(&*source, &plan, output, args.force, threads, |elements| {
        bar.inc(elements);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    drop(cancel);
    if matches!(done, Err(QuantizeError::Stopped)) {
        anstream::eprintln!("stopped by Ctrl-C; nothing was written");
        return Ok(interrupt::EXIT_CODE);
    }
    done?;
    if !plan.other_types.is_empty() {
        let types = counted(&plan.other_types, |(asked, got)| format!("{got} instead of {asked}"));
        warn(&format!("rows that are not a multiple of the block size got another type: {types}"));
    }
    print(&summary(output, &plan, start.elapsed().as_secs_f64()))?;
    Ok(0)
}

/// `3 Q8_0, 2 Q4_0`.
fn counted<K>(counts: &BTreeMap<K, usize>, words: impl Fn(&K) -> String) -> String {
    let list: Vec<String> = counts.iter().map(|(key, count)| format!("{count} {}", words(key))).collect();
    list.join(", ")
}

fn warn(text: &str) {
    let style = anstyle::AnsiColor::Yellow.on_default().bold();
    anstream::eprintln!("{style}warning:{style:#} {text}");
}

/// Tensors that the importance matrix does not know, and entries that the model does not know.
fn warn_of_importance(plan: &QuantizePlan) {
    let (without, unused) = (&plan.without_importance, &plan.unused_importance);
    if !without.is_empty() {
        warn(&format!("the importance matrix has no entry for {}", names(without)));
    }
    if !unused.is_empty() {
        warn(&format!(
            "the importance matrix has entries for tensors that the model lacks: {}",
            names(unused)
        ));
    }
}

/// The first names of a list.
fn names(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let list = names[..names.len().min(SHOWN)].join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}

/// Reads `TEXT=TYPE`: a text of tensor names, and the name of a type that is not a mix.
fn tensor_type(text: &str) -> Result<(String, DType), String> {
    let (name, dtype) = text.rsplit_once('=').ok_or("expected TEXT=TYPE")?;
    if name.is_empty() {
        return Err("expected a text of tensor names before the =".to_owned());
    }
    if let Some(dtype) = weight_types().find(|known| known.name().eq_ignore_ascii_case(dtype)) {
        return Ok((name.to_owned(), dtype));
    }
    match dtype.parse::<Recipe>() {
        Ok(mix) => Err(format!("{dtype:?} is a mix of types; expected one type, such as {}", mix.base())),
        Err(_) => {
            let known: Vec<String> = weight_types().map(|dtype| dtype.name().to_lowercase()).collect();
            Err(format!("unknown type {dtype:?} (known: {})", known.join(", ")))
        }
    }
}

/// The types that matrices of a file can be stored in. Q8_K is one of activations.
fn weight_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.can_encode() && *dtype != DType::Q8_K)
}

/// Every tensor, its shape, type and size, and the total.
fn dry_run(plan: &QuantizePlan, importance: bool) -> String {
    let row = |tensor: &TensorInfo| {
        let dims: Vec<String> = tensor.dims().iter().map(usize::to_string).collect();
        let size = format_bytes(tensor.bytes() as u64);
        let mut row = vec![printable(tensor.name()), dims.join(" x "), tensor.dtype().to_string(), size];
        if importance {
            row.push(if plan.uses_importance(tensor.name()) { "yes" } else { "no" }.to_owned());
        }
        row
    };
    let rows: Vec<Vec<String>> = plan.tensors().iter().map(row).collect();
    let heads = ["tensor", "shape", "type", "size", "imatrix"];
    let table = columns(&heads[..if importance { 5 } else { 4 }], &rows);
    let percent = 100.0 * plan.after as f64 / plan.before.max(1) as f64;
    let (before, after) = (format_bytes(plan.before), format_bytes(plan.after));
    format!("{table}{after}, {percent:.1} % of {before}; nothing was written\n")
}

fn summary(output: &Path, plan: &QuantizePlan, seconds: f64) -> String {
    let mut types: BTreeMap<DType, (usize, u64)> = BTreeMap::new();
    for tensor in plan.tensors() {
        let (tensors, bytes) = types.entry(tensor.dtype()).or_default();
        (*tensors, *bytes) = (*tensors + 1, *bytes + tensor.bytes() as u64);
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let row = |(dtype, (tensors, bytes)): (DType, (usize, u64))| {
        vec![dtype.to_string(), tensors.to_string(), format_bytes(bytes)]
    };
    let rows: Vec<Vec<String>> = types.into_iter().map(row).collect();
    let percent = 100.0 * plan.after as f64 / plan.before.max(1) as f64;
    let (before, after) = (format_bytes(plan.before), format_bytes(plan.after));
    let table = columns(&["type", "tensors", "size"], &rows);
    let out = output.display();
    format!("{table}{out}: {after}, {percent:.1} % of {before}, written in {seconds:.1} s\n")
}

/// A progress bar with the weights per second.
fn bar(elements: u64) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(elements);
    let template = "{bar:30} {percent:>3} %  {per_sec}  {eta} left";
    if let Ok(style) = indicatif::ProgressStyle::with_template(template) {
        let rate = |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.1} M weights/s", state.per_sec() / 1e6);
        };
        bar.set_style(style.with_key("per_sec", rate));
    }
    bar
}
