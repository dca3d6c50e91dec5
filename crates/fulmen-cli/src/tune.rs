//! `fulmen tune`: finds and remembers the fastest matmul kernels of a device.

use std::time::Duration;

use fulmen_bench::BenchError;
use fulmen_bench::tune::{
    Candidate, CandidateOutcome, TuneRequest, TunedMatmul, selected_kernels, tune_matmuls,
};
use fulmen_core::DType;
use fulmen_wgpu::{GpuDevice, GpuError};
use serde_json::json;

use crate::error::CommandError;
use crate::gpu_option::{GpuOption, GpuOptionError};
use crate::model::interrupt;
use crate::output::{columns, counted, print};
use crate::progress::with_bar;

/// Measure the matmul kernels of a wgpu device and remember the fastest.
///
/// Every candidate runs on random values and is checked in f64; one whose result is wrong is never selected.
/// The results are stored next to the compiled pipelines, per device, driver and version, and used by the
/// matmul cache and the command batch of every later process. Without options, matmuls of real models are
/// tuned.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    gpu: GpuOption,

    /// Types of the weights, separated by commas.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    dtype: Vec<DType>,

    /// Shapes of the weights as ROWSxCOLUMNS (n x k), separated by commas.
    #[arg(long, value_name = "NxK", value_delimiter = ',', value_parser = shape)]
    shape: Vec<(usize, usize)>,

    /// Rows of the input, separated by commas.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    m: Vec<u32>,

    /// Use f32 activations instead of activations rounded to q8 (block-quantized weights) or f16 (f16
    /// weights).
    #[arg(long)]
    exact: bool,

    /// Stop after this time; results up to then are kept.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,

    /// Measure nothing; print which kernel is used for each matmul, from the built-in table or earlier
    /// measurements.
    #[arg(long, conflicts_with_all = ["list", "dry_run"])]
    table: bool,

    /// Print every candidate with its time.
    #[arg(long)]
    list: bool,

    /// Do not store the results.
    #[arg(long)]
    dry_run: bool,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen tune                          tune the matmuls of real models
  fulmen tune --dtype q4_k --shape 9728x2560,2560x9728 --m 1,8,32 --list
  fulmen tune --table                  show which kernel is used for which matmul
  fulmen tune --dry-run --dtype f16 --shape 4096x4096 --m 512";

fn shape(text: &str) -> Result<(usize, usize), String> {
    let side = |text: &str| text.parse::<u32>().ok().filter(|&size| size > 0).map(|size| size as usize);
    let sides = text.split_once(['x', 'X']).and_then(|(n, k)| Some((side(n)?, side(k)?)));
    sides.ok_or_else(|| format!("{text:?} is not a shape; expected two numbers such as 9728x2560"))
}

/// Why `fulmen tune` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneError {
    #[error(transparent)]
    Device(#[from] GpuOptionError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("cannot write the results: {0}")]
    Write(#[from] std::io::Error),
    #[error("no kernel computed {0} correctly")]
    NoneRight(String),
}

impl CommandError for TuneError {
    fn is_usage(&self) -> bool {
        match self {
            TuneError::Device(error) => error.is_usage(),
            TuneError::Bench(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl Args {
    fn request(&self) -> TuneRequest {
        fn or<T: Clone>(given: &[T], default: Vec<T>) -> Vec<T> {
            if given.is_empty() { default } else { given.to_vec() }
        }
        let default = TuneRequest::default();
        let rows: Vec<usize> = self.m.iter().map(|&m| m as usize).collect();
        TuneRequest {
            dtypes: or(&self.dtype, default.dtypes),
            shapes: or(&self.shape, default.shapes),
            rows: or(&rows, default.rows),
            exact: self.exact,
            time_limit: Duration::from_secs(self.seconds),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), TuneError> {
    interrupt::install();
    let (gpu, request) = (args.gpu.open()?, args.request());
    if args.table {
        return Ok(print(&table(&gpu, &request)?)?);
    }
    let tuned = with_bar(|progress| tune_matmuls(&gpu, &request, progress))?;
    if !args.dry_run {
        gpu.save_tuned()?;
        gpu.save_pipelines()?;
    }
    print(&if args.json { as_json(&gpu, &tuned) } else { as_text(&gpu, &tuned, args) })?;
    match tuned.iter().find(|matmul| matmul.best.is_none()) {
        Some(matmul) => Err(TuneError::NoneRight(name(matmul))),
        None => Ok(()),
    }
}

/// The kernel that is used for each matmul, and why.
fn table(gpu: &GpuDevice, request: &TuneRequest) -> Result<String, BenchError> {
    let selected = selected_kernels(gpu, request)?;
    let rows: Vec<Vec<String>> = selected
        .into_iter()
        .map(|selected| {
            let from = match (&selected.kernel, selected.tuned) {
                (None, _) => "-",
                (_, true) => "measured",
                (_, false) => "table",
            };
            let kernel = selected.kernel.unwrap_or_else(|| "none".to_owned());
            vec![selected.shape.to_string(), from.to_owned(), kernel]
        })
        .collect();
    Ok(columns(&["matmul", "from", "kernel"], &rows))
}

fn name(matmul: &TunedMatmul) -> String {
    matmul.shape.to_string()
}

fn as_text(gpu: &GpuDevice, tuned: &[TunedMatmul], args: &Args) -> String {
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    let row = |matmul: &TunedMatmul| {
        let (table, best) = (matmul.table_us, matmul.best_us);
        let ratio = table.zip(best).map_or("-".to_owned(), |(table, best)| format!("{:.2}", table / best));
        vec![
            name(matmul),
            micros(table),
            micros(best),
            ratio,
            matmul.candidates.len().to_string(),
            matmul.count(CandidateOutcome::Wrong).to_string(),
            matmul.best.as_deref().unwrap_or("none").to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = tuned.iter().map(row).collect();
    let header = ["matmul", "table", "fastest", "speedup", "tried", "wrong", "fastest kernel"];
    let mut out = columns(&header, &rows);
    out += "table: the kernel that the built-in table selects; speedup: its time over that of the fastest\n";
    for matmul in tuned.iter().filter(|matmul| args.list || matmul.count(CandidateOutcome::Wrong) > 0) {
        out += &format!("\n{}\n{}", name(matmul), candidates(matmul, args.list));
    }
    let stored = if args.dry_run { "nothing was stored" } else { "stored for later processes" };
    let shapes = counted(gpu.tuned_matmuls(), "matmul shape");
    out + &format!("\n{shapes} tuned on {}; {stored}\n", gpu.info().name)
}

/// The candidates of a matmul, the fastest first; only the wrong ones unless `all`.
fn candidates(matmul: &TunedMatmul, all: bool) -> String {
    let shown = |candidate: &&Candidate| all || candidate.outcome == CandidateOutcome::Wrong;
    let mut sorted: Vec<&Candidate> = matmul.candidates.iter().filter(shown).collect();
    sorted.sort_by(|a, b| a.us.unwrap_or(f64::MAX).total_cmp(&b.us.unwrap_or(f64::MAX)));
    let line = |candidate: &Candidate| {
        let us = candidate.us.unwrap_or_default();
        let outcome = match candidate.outcome {
            CandidateOutcome::Right => format!("{us:.1} µs"),
            CandidateOutcome::Slow => format!("{us:.1} µs, one run"),
            CandidateOutcome::Wrong => "WRONG".to_owned(),
            CandidateOutcome::Refused => "unsupported".to_owned(),
        };
        format!("  {outcome:>16}  {}\n", candidate.kernel)
    };
    sorted.into_iter().map(line).collect()
}

/// Field names here are an interface: add, do not rename.
fn as_json(gpu: &GpuDevice, tuned: &[TunedMatmul]) -> String {
    format!("{:#}\n", json!({ "device": gpu.info().name, "matmuls": tuned }))
}
