//! `fulmen tune`: the fastest kernels of a device, measured and remembered.

use std::time::{Duration, Instant};

use fulmen_core::{DType, device::DeviceSelector};
use fulmen_wgpu::tune::{Outcome, TuneOptions, Tuning, kernel_for};
use fulmen_wgpu::{GpuDevice, GpuError, GpuMatmulCache, MatmulCacheOptions};
use serde_json::json;

use crate::bench::product::{Weight, busy_time, input};
use crate::bench::{BenchError, open};
use crate::ops::progress_bar;
use crate::output::{columns, print};

/// Measure the kernels for products on a device, and remember the fastest.
///
/// Every candidate is run on random numbers and checked in f64 first; one whose result is wrong is never taken. What was
/// measured is kept beside the compiled pipelines, per device, driver and version, and used by the matmul cache and the
/// command batch of every later process. Without options, products of real models are measured.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The device to use: auto, wgpu or wgpu:N. `auto` takes a hardware GPU before a software one.
    #[arg(long, short, value_name = "DEVICE", env = "FULMEN_DEVICE", default_value_t)]
    device: DeviceSelector,

    /// Types of the weights; several with commas.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    dtype: Vec<DType>,

    /// Weights as ROWSxCOLUMNS (n x k); several with commas.
    #[arg(long, value_name = "NxK", value_delimiter = ',', value_parser = shape)]
    shape: Vec<(usize, usize)>,

    /// Rows of the input; several with commas.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    m: Vec<u32>,

    /// Multiply activations as they are by block formats, too, instead of as 8-bit codes or in 16 bits.
    #[arg(long)]
    exact: bool,

    /// Stop after so many seconds; what was measured until then is kept.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,

    /// Measure nothing, and print which kernel is taken for each product: the table, and what was measured before.
    #[arg(long, conflicts_with_all = ["list", "dry_run"])]
    table: bool,

    /// Print every candidate with its time.
    #[arg(long)]
    list: bool,

    /// Do not write to disk what was measured.
    #[arg(long)]
    dry_run: bool,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen tune
  fulmen tune --dtype q4_k --shape 9728x2560,2560x9728 --m 1,8,32 --list
  fulmen tune --table                                        which kernel is taken for which product
  fulmen tune --dry-run --dtype f16 --shape 4096x4096 --m 512";

fn shape(text: &str) -> Result<(usize, usize), String> {
    let side = |text: &str| text.parse::<u32>().ok().filter(|&size| size > 0).map(|size| size as usize);
    let sides = text.split_once(['x', 'X']).and_then(|(n, k)| Some((side(n)?, side(k)?)));
    sides.ok_or_else(|| format!("{text:?} is not two numbers with an x between them, such as 9728x2560"))
}

/// What is measured without being asked for more.
const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::Q4_K, DType::Q6_K];
const SHAPES: [(usize, usize); 2] = [(9728, 2560), (2560, 9728)];
const ROWS: [u32; 8] = [1, 2, 4, 8, 16, 32, 128, 512];

/// Why `fulmen tune` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneError {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("the results could not be written: {0}")]
    Write(#[from] std::io::Error),
    #[error("no kernel gave a right result for {0}")]
    NoneRight(String),
}

/// One product that was measured.
struct Line {
    dtype: DType,
    n: usize,
    k: usize,
    m: u32,
    tuning: Tuning,
}

pub(crate) fn run(args: &Args) -> Result<(), TuneError> {
    let gpu = open(args.device)?;
    let or = |given: &[DType]| if given.is_empty() { DTYPES.to_vec() } else { given.to_vec() };
    let dtypes = or(&args.dtype);
    let shapes = if args.shape.is_empty() { SHAPES.to_vec() } else { args.shape.clone() };
    let rows = if args.m.is_empty() { ROWS.to_vec() } else { args.m.clone() };
    if args.table {
        return Ok(print(&table(&gpu, &dtypes, &shapes, &rows, args.exact))?);
    }
    let bar = progress_bar(dtypes.len() * shapes.len() * rows.len());
    let (start, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut lines = Vec::new();
    'all: for &dtype in &dtypes {
        for &(n, k) in &shapes {
            let options = MatmulCacheOptions { exact_activations: args.exact, ..Default::default() };
            let mut cache = GpuMatmulCache::with_options(gpu.clone(), options);
            let weight = Weight::upload(&mut cache, dtype, n, k)?;
            for &m in &rows {
                if start.elapsed() > limit {
                    break 'all;
                }
                bar.set_message(format!("{} {n}x{k} m={m}", dtype.name()));
                let tuning = measure(&gpu, &mut cache, &weight, k, m)?;
                lines.push(Line { dtype, n, k, m, tuning });
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    if !args.dry_run {
        gpu.save_tuned()?;
        gpu.save_pipelines()?;
    }
    print(&if args.json { as_json(&gpu, &lines) } else { as_text(&gpu, &lines, args) })?;
    match lines.iter().find(|line| line.tuning.best.is_none()) {
        Some(line) => Err(TuneError::NoneRight(line.name())),
        None => Ok(()),
    }
}

/// Which kernel is taken for each product now.
fn table(gpu: &GpuDevice, dtypes: &[DType], shapes: &[(usize, usize)], rows: &[u32], exact: bool) -> String {
    let mut lines = Vec::new();
    for &dtype in dtypes {
        for &(n, k) in shapes {
            for &m in rows {
                // Both came from numbers of 32 bits.
                let taken = kernel_for(gpu, dtype, m, (n as u32, k as u32), exact);
                let (kernel, by) = match taken {
                    Some(taken) if taken.measured => (taken.kernel, "measured"),
                    Some(taken) => (taken.kernel, "table"),
                    None => ("none".to_owned(), "-"),
                };
                lines.push(vec![
                    format!("{} {n}x{k} m={m}", dtype.name().to_lowercase()),
                    by.to_owned(),
                    kernel,
                ]);
            }
        }
    }
    columns(&["product", "by", "kernel"], &lines)
}

fn measure(
    gpu: &GpuDevice,
    cache: &mut GpuMatmulCache,
    weight: &Weight,
    k: usize,
    m: u32,
) -> Result<Tuning, GpuError> {
    let (rows, options) = (m as usize, TuneOptions { warm_up: busy_time(gpu), ..TuneOptions::default() });
    let input = input(rows, k);
    let mut is_right = |got: &[f32]| weight.check(&input, got, rows).is_ok();
    cache.tune(&weight.name, &input, rows, options, &mut is_right)
}

impl Line {
    fn name(&self) -> String {
        let Line { dtype, n, k, m, .. } = self;
        format!("{} {n}x{k} m={m}", dtype.name().to_lowercase())
    }

    fn count(&self, of: impl Fn(&Outcome) -> bool) -> usize {
        self.tuning.candidates.iter().filter(|candidate| of(&candidate.outcome)).count()
    }
}

fn as_text(gpu: &GpuDevice, lines: &[Line], args: &Args) -> String {
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let (table, best) = (line.tuning.micros(0), line.tuning.best);
            let fastest = best.and_then(|best| line.tuning.micros(best));
            let ratio =
                table.zip(fastest).map_or("-".to_owned(), |(table, best)| format!("{:.2}", table / best));
            let kernel = best.map_or("none", |best| &line.tuning.candidates[best].kernel);
            vec![
                line.name(),
                micros(table),
                micros(fastest),
                ratio,
                line.tuning.candidates.len().to_string(),
                line.count(|outcome| *outcome == Outcome::Wrong).to_string(),
                kernel.to_owned(),
            ]
        })
        .collect();
    let header = ["product", "table", "fastest", "ratio", "tried", "wrong", "kernel"];
    let mut out = columns(&header, &rows);
    for line in lines.iter().filter(|line| args.list || line.count(|o| *o == Outcome::Wrong) > 0) {
        out += &format!("\n{}\n", line.name());
        let mut sorted: Vec<_> = line.tuning.candidates.iter().collect();
        let time = |outcome: &Outcome| match outcome {
            Outcome::Right(us) | Outcome::Slow(us) => *us,
            Outcome::Wrong | Outcome::Refused(_) => f64::MAX,
        };
        sorted.sort_by(|a, b| time(&a.outcome).total_cmp(&time(&b.outcome)));
        for candidate in sorted.iter().filter(|c| args.list || c.outcome == Outcome::Wrong) {
            let outcome = match &candidate.outcome {
                Outcome::Right(us) => format!("{us:.1} µs"),
                Outcome::Slow(us) => format!("{us:.1} µs, once"),
                Outcome::Wrong => "WRONG".to_owned(),
                Outcome::Refused(_) => "does not fit".to_owned(),
            };
            out += &format!("  {outcome:>16}  {}\n", candidate.kernel);
        }
    }
    let kept = if args.dry_run { "nothing was written" } else { "kept for later processes" };
    out + &format!("\n{} products are tuned on {}; {kept}\n", gpu.tuned_matmuls(), gpu.info().name)
}

/// Field names here are an interface: add, do not rename.
fn as_json(gpu: &GpuDevice, lines: &[Line]) -> String {
    let products: Vec<_> = lines
        .iter()
        .map(|line| {
            let candidates: Vec<_> = line
                .tuning
                .candidates
                .iter()
                .map(|candidate| {
                    let (outcome, us) = match &candidate.outcome {
                        Outcome::Right(us) => ("right", Some(*us)),
                        Outcome::Slow(us) => ("slow", Some(*us)),
                        Outcome::Wrong => ("wrong", None),
                        Outcome::Refused(_) => ("refused", None),
                    };
                    json!({ "kernel": candidate.kernel, "outcome": outcome, "us": us })
                })
                .collect();
            json!({
                "dtype": line.dtype.name().to_lowercase(), "n": line.n, "k": line.k, "m": line.m,
                "table_us": line.tuning.micros(0),
                "best_us": line.tuning.best.and_then(|best| line.tuning.micros(best)),
                "best": line.tuning.best.map(|best| line.tuning.candidates[best].kernel.clone()),
                "candidates": candidates,
            })
        })
        .collect();
    format!("{:#}\n", json!({ "device": gpu.info().name, "products": products }))
}
