//! `fulmen quantize`: a model in smaller types.

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use fulmen_core::DType;
use fulmen_core::device::format_bytes;
use fulmen_model::quantize::{QuantizeError, QuantizePlan, Recipe, quantize};
use fulmen_model::source;

use crate::model::find::{FindError, find};
use crate::model::interrupt::{self, Answering};
use crate::output::{columns, print};

/// Store a model in smaller types.
///
/// Types are f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k, q5_1, q5_0, q4_k_m (the usual choice), q4_k, q4_1, q4_0, q3_k and
/// q2_k. Matrices get the type, vectors stay F32, and the output matrix of types below 6 bits is stored in Q6_K. The
/// mixes q4_k_m and q5_k_m also store half of the value and down matrices in Q6_K. A matrix whose rows are not a
/// multiple of 256 gets a type with blocks of 32, and this is said.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The model: a GGUF file (of a model in parts, any of them), or a folder with config.json and safetensors files.
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The file to write. It appears when it is complete.
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// The type: q4_k_m, q8_0, f16, …
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    recipe: Recipe,

    /// Replace OUT if it is there already.
    #[arg(long)]
    force: bool,

    /// Threads; all of the processor's by default.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  fulmen quantize model-f16.gguf model-q4_k_m.gguf --type q4_k_m
  fulmen quantize model-f16.gguf model-q8_0.gguf --type q8_0 --force
  fulmen quantize folder model-q4_k_m.gguf --type q4_k_m
                               a folder with config.json and safetensors files";

/// Why the model could not be quantized.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error("{} is there already; --force replaces it", .0.display())]
    Exists(PathBuf),
    #[error("the file is complete, but the summary could not be written: {0}")]
    Print(#[from] io::Error),
}

/// Gives the exit code.
pub(crate) fn run(args: &Args) -> Result<i32, CommandError> {
    let source = source::open(find(&args.input)?).map_err(QuantizeError::Read)?;
    let plan = QuantizePlan::of(&*source, args.recipe)?;
    if !args.force && args.output.symlink_metadata().is_ok() {
        return Err(CommandError::Exists(args.output.clone()));
    }
    if !plan.requantized.is_empty() {
        let types = counted(&plan.requantized, |dtype| dtype.to_string());
        warn(&format!(
            "the weights are quantized already ({types}); start from F16 or F32 for a better result"
        ));
    }
    let began = Instant::now();
    let bar = bar(plan.work);
    let threads = args.threads.map_or_else(all_threads, usize::from);
    let stop = Arc::<AtomicBool>::default();
    interrupt::install();
    let answering = Answering::new(Arc::clone(&stop));
    let done = quantize(&*source, &plan, &args.output, args.force, threads, |elements| {
        bar.inc(elements);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    drop(answering);
    if matches!(done, Err(QuantizeError::Stopped)) {
        anstream::eprintln!("stopped by Ctrl-C; nothing was written");
        return Ok(interrupt::EXIT_CODE);
    }
    done?;
    if !plan.other_types.is_empty() {
        let types = counted(&plan.other_types, |(asked, got)| format!("{got} instead of {asked}"));
        warn(&format!("rows that are not a multiple of the block have another type: {types}"));
    }
    print(&summary(args, &plan, began.elapsed().as_secs_f64()))?;
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

fn summary(args: &Args, plan: &QuantizePlan, seconds: f64) -> String {
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
    let out = args.output.display();
    format!("{table}{out}: {after}, {percent:.1} % of {before}, written in {seconds:.1} s\n")
}

fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// A bar on stderr that is shown on a terminal and nowhere else.
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
