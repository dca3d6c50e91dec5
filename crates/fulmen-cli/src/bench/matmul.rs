//! `fulmen bench matmul`.

use std::path::PathBuf;

use fulmen_bench::matmul::{MatmulOptions, MatmulReport, MatmulShape, MatmulTimes, bench_matmul};
use fulmen_bench::roofline;
use fulmen_core::DType;

use super::BenchCommandError;
use super::summary::ceilings;
use crate::gpu_option::GpuOption;
use crate::output::{columns, counted, json, micros, percent, print, write_file};
use crate::progress::with_bar;

/// Time matmuls by weights that stay on a wgpu device (`GpuMatmulCache`).
///
/// Each matmul is checked in f64 first; a wrong result is an error. `wall` is the time from an input on the
/// host to the result on the host, `round trip` what wgpu alone takes to copy as many bytes there and back,
/// and `GPU` the kernels by the device's timestamps. `bound` is the least time by the roofline model, at the
/// bandwidth and FLOP/s that plain kernels reach in the same run. Matmuls that do not run on tensor cores by
/// default are also timed there, if the device has them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    gpu: GpuOption,

    /// Rows of the input, separated by commas. Without -m, -k, -n and --dtype, matmuls of real models are
    /// timed.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',', value_parser = size)]
    m: Vec<usize>,

    /// Columns of the weight and of the input.
    #[arg(long, short, value_name = "COUNT", value_parser = size)]
    k: Option<usize>,

    /// Rows of the weight, columns of the result.
    #[arg(long, short, value_name = "COUNT", value_parser = size)]
    n: Option<usize>,

    /// Types of the weight, separated by commas: f32, f16, bf16, q4_0, q4_1, q8_0, q4_k, q5_k or q6_k.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    dtype: Vec<DType>,

    /// Multiply block-quantized weights by f32 activations instead of quantized (q8) ones.
    #[arg(long)]
    exact: bool,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,

    /// Draw a roofline chart of all matmuls to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Number of timed runs of each matmul; 30 by default, 3 with --quick.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: Option<u32>,

    /// Use small sizes, for software devices. The results say little about large ones.
    #[arg(long)]
    quick: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench matmul                                        matmuls of real models
  fulmen bench matmul --m 1,8,32 --k 2560 --n 9728 --dtype q4_k,f16
  fulmen bench matmul --svg roofline.svg --json > matmul.json";

fn size(text: &str) -> Result<usize, String> {
    match text.parse::<u32>() {
        Ok(size) if size > 0 => Ok(size as usize),
        _ => Err(format!("{text:?} is not a number from 1 to {}", u32::MAX)),
    }
}

impl Args {
    fn shapes(&self) -> Vec<MatmulShape> {
        if self.m.is_empty() && self.k.is_none() && self.n.is_none() && self.dtype.is_empty() {
            return MatmulOptions::default_shapes(self.quick);
        }
        let (k, n) = (self.k.unwrap_or(2560), self.n.unwrap_or(9728));
        let rows = if self.m.is_empty() { &[1][..] } else { &self.m };
        let dtypes = if self.dtype.is_empty() { &[DType::F32][..] } else { &self.dtype };
        let by_type = |&dtype: &DType| rows.iter().map(move |&m| MatmulShape { dtype, m, k, n });
        dtypes.iter().flat_map(by_type).collect()
    }
}

pub(super) fn run(args: &Args) -> Result<(), BenchCommandError> {
    let gpu = args.gpu.open()?;
    let options = MatmulOptions {
        shapes: args.shapes(),
        exact: args.exact,
        quick: args.quick,
        repeat: args.repeat.map(|repeat| repeat as usize),
    };
    let report = with_bar(|progress| bench_matmul(&gpu, &options, progress))?;
    if let Some(path) = &args.svg {
        let points: Vec<_> = report.matmuls.iter().filter_map(MatmulTimes::point).collect();
        let chart = roofline::draw(&report.device, &report.ceilings, &points);
        let failed = |error| BenchCommandError::Chart { path: path.clone(), error };
        write_file(path, &chart).map_err(failed)?;
    }
    print(&if args.json { json(&report) } else { as_text(&report) })?;
    if report.failures.is_empty() {
        Ok(())
    } else {
        Err(BenchCommandError::WrongKernels(report.failures.join("\n")))
    }
}

fn as_text(report: &MatmulReport) -> String {
    let header =
        ["matmul", "wall", "round trip", "GPU", "GFLOP/s", "GB/s", "bound", "of bound", "limited by"];
    let rows: Vec<Vec<String>> = report.matmuls.iter().map(row).collect();
    let mut out = columns(&header, &rows) + "\n";
    for matmul in &report.matmuls {
        out += &format!("{:<28} {}\n", matmul.name(), matmul.kernels.join(", "));
    }
    let lines = [
        format!("ceilings  {}", ceilings(&report.ceilings)),
        "bound     least time by the roofline of these ceilings; of bound: bound / GPU".to_owned(),
        format!(
            "device    {} ({}); {} tuned on it",
            report.device,
            report.driver,
            counted(report.tuned_shapes, "matmul shape")
        ),
        format!("runs      {} of each matmul, medians; every result was checked first", report.repeat),
    ];
    out += &(lines.join("\n") + "\n");
    if report.quick {
        out += "quick     small sizes: the results say little about large ones\n";
    }
    out
}

fn row(matmul: &MatmulTimes) -> Vec<String> {
    let optional = |number: Option<f64>| number.map_or("-".to_owned(), |number| format!("{number:.0}"));
    vec![
        matmul.name(),
        micros(matmul.wall_us),
        micros(matmul.round_trip_us),
        matmul.gpu_us.map_or("-".to_owned(), micros),
        optional(matmul.gflop_s),
        optional(matmul.gb_s),
        micros(matmul.roofline_us),
        matmul.share.map_or("-".to_owned(), percent),
        matmul.limit.name().to_owned(),
    ]
}
