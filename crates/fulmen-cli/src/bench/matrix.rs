//! `fulmen bench matrix`.

use std::path::PathBuf;
use std::process::Command;

use fulmen_bench::heat_map;
use fulmen_bench::model::{Axis, MatrixCell, MatrixOptions, MatrixReport, bench_matrix, find_cliffs};
use fulmen_core::DType;
use fulmen_model::quantize::Recipe;

use super::BenchCommandError;
use super::random_model::RandomModelOptions;
use crate::model::load::cache_type;
use crate::output::{columns, json, percent, print, tell, write_file};
use crate::progress::with_bar;

/// Time decode along every axis from one base cell, and name the cells that are slower than their neighbors
/// explain.
///
/// The base cell is one sequence with the given weight type, KV cache type and context. Along each axis one
/// of them changes: rows (sequences that decode together), weight types, cache types, contexts, and the CUDA
/// kernels of other compute capabilities. `of bound` is the share of the bound: the sum over the ops of a
/// step of the time that their bytes or their arithmetic take at least. A cell is named at the end if more
/// rows give fewer tokens per second in all, or if it reads less than another and takes longer, by more than
/// 2 %.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    model: RandomModelOptions,

    /// Tokens in the KV cache of the base cell.
    #[arg(long, value_name = "TOKENS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,

    /// Rows, separated by commas.
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    #[arg(default_value = "1,2,3,4,6,8,12,16,17,24,32,33,48,64,96,128,192,256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,

    /// Weight types, separated by commas, as for `fulmen quantize`.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    #[arg(default_value = "q4_0,q4_k_m,q5_k_m,q6_k,q8_0,f16,bf16")]
    types: Vec<Recipe>,

    /// Types of the KV cache, separated by commas.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_value = "q8_0,f16,f32")]
    #[arg(value_parser = cache_type)]
    caches: Vec<DType>,

    /// Contexts, separated by commas; by default 1000, 8000 and 32000, where the model has them.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    contexts: Option<Vec<u32>>,

    /// Compute capabilities whose CUDA kernels are timed too, separated by commas, such as 80,86. Each runs
    /// in a process of its own with FULMEN_CUDA_TARGET.
    #[arg(long, value_name = "TARGET", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(80..=200))]
    targets: Vec<u16>,

    /// Rows for the other targets, separated by commas.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,4,16,64")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    target_batch: Vec<u32>,

    /// Decode steps per run.
    #[arg(long, value_name = "STEPS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16_384))]
    steps: u16,

    /// Decode steps that the device runs before the host reads a token.
    #[arg(long, value_name = "STEPS", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    ahead: u16,

    /// Number of timed runs of each cell.
    #[arg(long, short, value_name = "COUNT", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,

    /// Write a heat map to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench matrix --shape qwen3-4b --svg matrix.svg
  fulmen bench matrix --shape qwen3-8b --batch 1,16,64 --types q4_k_m,q8_0 --contexts 1000
  fulmen bench matrix --shape qwen3-4b --targets 80,86 --json > matrix.json";

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let shape = args.model.shape();
    let fits = |depth: &u32| *depth as usize + usize::from(args.steps) < shape.context;
    let default_contexts = || [1000, 8000, 32_000].into_iter().filter(fits).collect();
    let options = MatrixOptions {
        base_rows: 1,
        base_type: args.model.recipe(),
        base_depth: args.depth,
        rows: sorted(&args.batch),
        types: args.types.clone(),
        caches: args.caches.clone(),
        depths: sorted(&args.contexts.clone().unwrap_or_else(default_contexts)),
        steps: args.steps,
        steps_ahead: args.ahead,
        repeat: args.repeat,
        session: args.model.engine.session(0),
    };
    let load = |recipe, session| args.model.load_as(recipe, session);
    let mut report = with_bar(|progress| bench_matrix(shape.name, &options, load, progress))?;
    for &target in &args.targets {
        report.cells.extend(cells_of_target(args, target)?);
    }
    report.cliffs = find_cliffs(&report.cells);
    if let Some(path) = &args.svg {
        let failed = |error| BenchCommandError::Chart { path: path.clone(), error };
        write_file(path, &heat_map::draw(&report)).map_err(failed)?;
    }
    let output = if args.json { json(&report) } else { text(&report) };
    Ok(print(&output)?)
}

fn sorted(values: &[u32]) -> Vec<u32> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

/// Runs this program with the kernels of another compute capability, for its rows alone.
fn cells_of_target(args: &Args, target: u16) -> Result<Vec<MatrixCell>, BenchCommandError> {
    tell(&format!("timing the kernels of compute capability {}.{} …", target / 10, target % 10));
    let failed = |reason: String| BenchCommandError::Target { target, reason };
    let rows: Vec<String> = args.target_batch.iter().map(u32::to_string).collect();
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let done = Command::new(program)
        .env("FULMEN_CUDA_TARGET", target.to_string())
        .args(["bench", "decode", "--json", "--device", "cuda", "--batch", &rows.join(",")])
        .args(["--depth", &args.depth.to_string(), "--steps", &args.steps.to_string()])
        .args(["--ahead", &args.ahead.to_string(), "--repeat", &args.repeat.to_string()])
        .args(args.model.arguments())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !done.status.success() {
        return Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    let report: serde_json::Value =
        serde_json::from_slice(&done.stdout).map_err(|error| failed(error.to_string()))?;
    let tests = report["tests"].as_array().cloned().unwrap_or_default();
    let cell = |test: &serde_json::Value| MatrixCell {
        axis: Axis::Target,
        rows: test["batch"].as_u64().unwrap_or(0) as u32,
        recipe: args.model.recipe().to_string(),
        kv: fulmen_bench::dtype_name(args.model.engine.kv),
        depth: args.depth,
        target: Some(target.to_string()),
        read_bytes: test["read_bytes"].as_u64().unwrap_or(0),
        tokens_per_second: test["tokens_per_second"].as_f64().unwrap_or(0.0),
        step_us: test["step_us"].as_f64().unwrap_or(0.0),
        bound_us: test["bound_us"].as_f64(),
        share_of_bound: test["share_of_bound"].as_f64(),
        error: None,
    };
    Ok(tests.iter().map(cell).collect())
}

fn text(report: &MatrixReport) -> String {
    let row = |cell: &MatrixCell| {
        let start = vec![cell.axis.title().to_owned(), cell.value()];
        let rest = match &cell.error {
            Some(error) => vec![String::new(), String::new(), String::new(), error.clone()],
            None => vec![
                format!("{:.1}", cell.tokens_per_second),
                format!("{:.1}", cell.step_us),
                cell.bound_us.map_or(String::new(), |us| format!("{us:.1}")),
                cell.share_of_bound.map_or(String::new(), percent),
            ],
        };
        start.into_iter().chain(rest).collect()
    };
    let rows: Vec<Vec<String>> = report.cells.iter().map(row).collect();
    let mut out = columns(&["axis", "value", "tok/s", "µs per step", "bound µs", "of bound"], &rows);
    out += "\n";
    for cliff in &report.cliffs {
        out += &format!(
            "{} {} is {} slower than {} explains\n",
            cliff.axis.title(),
            cliff.cell,
            percent(cliff.slower_by),
            cliff.neighbor
        );
    }
    if report.cliffs.is_empty() {
        out += "no cell is slower than its neighbors explain\n";
    }
    out + &format!("{} on {} ({})\n", report.shape, report.device, report.name)
}
