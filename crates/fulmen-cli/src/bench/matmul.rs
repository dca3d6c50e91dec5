//! `fulmen bench matmul`.

use std::{path::PathBuf, time::Duration};

use fulmen_core::{DType, device::DeviceSelector};
use fulmen_wgpu::{GpuDevice, GpuMatmulCache, MatmulCacheOptions};
use serde::Serialize;

use super::measure::Needs;
use super::product::{Rows, Shape, Times, Weight, busy_time, round_trip};
use super::raw::{Ceilings, Raw};
use super::report::time as text_time;
use super::roofline::{Point, roofline};
use super::{BenchError, open, pass};
use crate::ops::progress_bar;
use crate::output::{columns, print};

/// Time products by weights that stay on the device (`GpuMatmulCache`).
///
/// Each product is checked in f64 first; a wrong one fails the command. `wall` goes from an input on the host to the result
/// on the host, `round trip` is what wgpu alone takes to bring as many bytes there and back, `GPU` is the kernels by
/// timestamps. The floor is what has to be read and computed, over what plain kernels reach on the same device in the same
/// run. Products by 16-bit weights are also timed on matrix units, where the device has them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The device to use: auto, wgpu or wgpu:N. `auto` takes a hardware GPU before a software one.
    #[arg(long, short, value_name = "DEVICE", env = "FULMEN_DEVICE", default_value_t)]
    device: DeviceSelector,

    /// Rows of the input; several with commas. Without m, k, n and types, a set of products of real models is timed.
    #[arg(long, short, value_name = "COUNT", value_delimiter = ',', value_parser = side)]
    m: Vec<usize>,

    /// Columns of the weight (and of the input).
    #[arg(long, short, value_name = "COUNT", value_parser = side)]
    k: Option<usize>,

    /// Rows of the weight (columns of the result).
    #[arg(long, short, value_name = "COUNT", value_parser = side)]
    n: Option<usize>,

    /// Types of the weight: f32, f16, bf16, q4_0, q4_1, q8_0, q4_k, q5_k or q6_k; several with commas.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    dtype: Vec<DType>,

    /// Multiply activations as they are by block formats, too, instead of as 8-bit codes.
    #[arg(long)]
    exact: bool,

    /// Print the results as JSON.
    #[arg(long)]
    json: bool,

    /// Draw every product into this file: arithmetic against bytes, under what the device allows.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Run each product so many times; 30 by default, 3 with --quick.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: Option<u32>,

    /// Take small sizes, for software devices. The numbers say little then.
    #[arg(long)]
    quick: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen bench matmul                                        products of real models
  fulmen bench matmul --m 1,8,32 --k 2560 --n 9728 --dtype q4_k,f16
  fulmen bench matmul --svg roofline.svg --json > matmul.json";

fn side(text: &str) -> Result<usize, String> {
    match text.parse::<u32>() {
        Ok(size) if size > 0 => Ok(size as usize),
        _ => Err(format!("{text:?} is not a number from 1 to {}", u32::MAX)),
    }
}

/// One product. Field names are those of the JSON output: add, do not rename.
#[derive(Debug, Serialize)]
struct Line {
    dtype: String,
    m: usize,
    k: usize,
    n: usize,
    kernels: Vec<String>,
    matrix_units: bool,
    wall_us: f64,
    round_trip_us: f64,
    gpu_us: Option<f64>,
    gflop_s: Option<f64>,
    gb_s: Option<f64>,
    floor_us: f64,
    /// `memory` or `arithmetic`.
    bound: &'static str,
    /// The floor's part of the time on the GPU.
    share: Option<f64>,
    flops: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    driver: String,
    quick: bool,
    repeat: usize,
    tuned_products: usize,
    ceilings: Ceilings,
    products: Vec<Line>,
    /// Kernels that were tried and gave wrong results.
    failures: Vec<String>,
}

/// What is timed without being asked for more.
fn default_set(quick: bool) -> Vec<Shape> {
    let shape = |dtype, m, k, n| Shape { dtype, m, k, n };
    if quick {
        return vec![
            shape(DType::F32, 1, 256, 320),
            shape(DType::F32, 32, 256, 320),
            shape(DType::F16, 1, 256, 320),
            shape(DType::Q4_K, 1, 256, 320),
            shape(DType::Q4_K, 16, 256, 320),
        ];
    }
    let (k, n, head) = (2560, 9728, 151_936);
    let mut set = vec![
        shape(DType::F32, 4096, 4096, 4096),
        shape(DType::F32, 8192, 8192, 8192),
        shape(DType::F16, 4096, 4096, 4096),
        shape(DType::F16, 8192, 8192, 8192),
    ];
    set.extend([1, 8, 16, 32, 256, 1024].map(|m| shape(DType::F32, m, k, n)));
    set.extend([1, 32, 256].map(|m| shape(DType::F16, m, k, n)));
    set.extend([1, 4, 8, 16, 32, 128, 512].map(|m| shape(DType::Q4_K, m, k, n)));
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q5_K, DType::Q6_K] {
        set.push(shape(dtype, 1, k, n));
    }
    set.extend([1, 8].map(|m| shape(DType::Q4_K, m, k, head)));
    set.extend([DType::Q4_0, DType::Q6_K].map(|dtype| shape(dtype, 1, k, head)));
    set
}

impl Args {
    fn shapes(&self) -> Result<Vec<Shape>, BenchError> {
        if self.m.is_empty() && self.k.is_none() && self.n.is_none() && self.dtype.is_empty() {
            return Ok(default_set(self.quick));
        }
        let (k, n) = (self.k.unwrap_or(2560), self.n.unwrap_or(9728));
        let ms = if self.m.is_empty() { vec![1] } else { self.m.clone() };
        let dtypes = if self.dtype.is_empty() { vec![DType::F32] } else { self.dtype.clone() };
        let of = |&dtype: &DType| ms.iter().map(move |&m| Shape { dtype, m, k, n }).collect::<Vec<_>>();
        Ok(dtypes.iter().flat_map(of).collect())
    }
}

pub(super) fn run(args: &Args) -> Result<(), BenchError> {
    let shapes = args.shapes()?;
    let gpu = open(args.device)?;
    let repeat = args.repeat.map_or(if args.quick { 3 } else { 30 }, |n| n as usize);
    let bar = progress_bar(shapes.len() + 1);
    bar.set_message("ceilings");
    let ceilings = {
        let bytes = if args.quick { 4 << 20 } else { 1 << 30 };
        let (raw, arena) = (Raw::new(&gpu), pass::arena(&gpu, bytes)?);
        let relu = raw.relu(&arena)?;
        raw.ceilings(&arena, &relu, args.quick, repeat)?
    };
    bar.inc(1);
    let mut bench = Bench { gpu: &gpu, args, repeat, ceilings, lines: Vec::new(), failures: Vec::new() };
    // The rows of a weight lie together, so that it is uploaded once.
    let mut at = 0;
    while let Some(first) = shapes.get(at) {
        let same = |shape: &&Shape| (shape.dtype, shape.k, shape.n) == (first.dtype, first.k, first.n);
        let rows: Vec<usize> = shapes[at..].iter().take_while(same).map(|shape| shape.m).collect();
        bar.set_message(first.to_string());
        bench.weight(*first, &rows)?;
        at += rows.len();
        bar.inc(rows.len() as u64);
    }
    bar.finish_and_clear();
    let info = gpu.info();
    let report = Report {
        device: info.name.clone(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        quick: args.quick,
        repeat,
        tuned_products: gpu.tuned_matmuls(),
        ceilings,
        products: bench.lines,
        failures: bench.failures,
    };
    if let Some(path) = &args.svg {
        let points: Vec<Point> = report.products.iter().filter_map(Line::point).collect();
        let drawn = roofline(&report.device, &report.ceilings, &points);
        std::fs::write(path, drawn).map_err(|error| BenchError::File { path: path.clone(), error })?;
    }
    print(&if args.json { report.json() } else { report.text() })?;
    if report.failures.is_empty() {
        Ok(())
    } else {
        Err(BenchError::WrongKernels(report.failures.join("\n")))
    }
}

struct Bench<'a> {
    gpu: &'a GpuDevice,
    args: &'a Args,
    repeat: usize,
    ceilings: Ceilings,
    lines: Vec<Line>,
    failures: Vec<String>,
}

impl Bench<'_> {
    /// All products by one weight, which is gone from the device afterwards.
    fn weight(&mut self, shape: Shape, rows: &[usize]) -> Result<(), BenchError> {
        let options = MatmulCacheOptions { exact_activations: self.args.exact, ..Default::default() };
        let mut cache = GpuMatmulCache::with_options(self.gpu.clone(), options);
        let weight = Weight::upload(&mut cache, shape.dtype, shape.n, shape.k)?;
        for &m in rows {
            let shape = Shape { m, ..shape };
            // Many runs of a long product, or of a large copy, say no more than a few.
            let (up, down) = (4 * (m * shape.k) as u64, 4 * (m * shape.n) as u64);
            let long = shape.flops() > 100_000_000_000 || up + down > 64 << 20;
            let repeat = if long { self.repeat.min(5) } else { self.repeat };
            let round_trip_us = round_trip(self.gpu, up, down, repeat)?;
            let (mut work, busy) = (Rows::new(&weight, m), busy_time(self.gpu));
            work.check(&mut cache)?;
            let wall_us = work.wall_us(&mut cache, repeat, busy)?;
            let times = Times { wall_us, gpu_us: work.gpu_us(&mut cache, repeat, busy)? };
            self.line(&cache, &weight, shape, times, round_trip_us)?;
            self.units(&mut cache, &weight, &mut work, shape, repeat, round_trip_us)?;
        }
        Ok(())
    }

    /// The fastest of the kernels for matrix units, unless it was taken anyway.
    fn units(
        &mut self,
        cache: &mut GpuMatmulCache,
        weight: &Weight,
        work: &mut Rows<'_>,
        shape: Shape,
        repeat: usize,
        round_trip_us: f64,
    ) -> Result<(), BenchError> {
        if self.lines.last().is_some_and(|line| line.matrix_units) {
            return Ok(());
        }
        let (name, m) = (&weight.name, shape.m);
        let mut best: Option<(f64, String)> = None;
        for kernel in cache.candidates(name, m)?.into_iter().filter(|name| name.starts_with("coop")) {
            cache.set_kernel(name, m, Some(&kernel))?;
            // A kernel that is wrong is told of, and the others go on.
            match work.check(cache) {
                Err(error @ BenchError::Wrong { .. }) => {
                    self.failures.push(format!("{kernel}: {error}"));
                    continue;
                }
                result => result?,
            }
            let us = match work.gpu_us(cache, 3, Duration::ZERO)? {
                Some(us) => us,
                None => work.wall_us(cache, 3, Duration::ZERO)?,
            };
            if best.as_ref().is_none_or(|(least, _)| us < *least) {
                best = Some((us, kernel));
            }
        }
        if let Some((_, kernel)) = best {
            cache.set_kernel(name, m, Some(&kernel))?;
            let busy = busy_time(self.gpu);
            let wall_us = work.wall_us(cache, repeat, busy)?;
            let times = Times { wall_us, gpu_us: work.gpu_us(cache, repeat, busy)? };
            self.line(cache, weight, shape, times, round_trip_us)?;
        }
        cache.set_kernel(name, m, None)?;
        Ok(())
    }

    fn line(
        &mut self,
        cache: &GpuMatmulCache,
        weight: &Weight,
        shape: Shape,
        times: Times,
        round_trip_us: f64,
    ) -> Result<(), BenchError> {
        let (flops, bytes) = (shape.flops(), shape.bytes());
        let (floor_us, bound) = self.ceilings.floor_us(&Needs { bytes, mostly_read: true, flops });
        let rate = |amount: u64| times.gpu_us.filter(|&us| us > 0.0).map(|us| amount as f64 / us / 1e3);
        let kernels = cache.kernels(&weight.name, shape.m)?;
        self.lines.push(Line {
            dtype: shape.dtype.name().to_lowercase(),
            m: shape.m,
            k: shape.k,
            n: shape.n,
            matrix_units: kernels.iter().any(|kernel| kernel.contains("coop")),
            kernels,
            wall_us: times.wall_us,
            round_trip_us,
            gpu_us: times.gpu_us,
            gflop_s: rate(flops),
            gb_s: rate(bytes),
            floor_us,
            bound,
            share: times.gpu_us.filter(|&us| us > 0.0).map(|us| floor_us / us),
            flops,
            bytes,
        });
        Ok(())
    }
}

impl Line {
    fn name(&self) -> String {
        let units = if self.matrix_units { " units" } else { "" };
        format!("{} m={} {}x{}{units}", self.dtype, self.m, self.n, self.k)
    }

    fn point(&self) -> Option<Point> {
        let gflop_s = self.gflop_s?;
        Some(Point { name: self.name(), intensity: self.flops as f64 / self.bytes as f64, gflop_s })
    }

    fn cells(&self) -> Vec<String> {
        let optional = |number: Option<f64>| number.map_or("-".to_owned(), |number| format!("{number:.0}"));
        vec![
            self.name(),
            text_time(self.wall_us),
            text_time(self.round_trip_us),
            self.gpu_us.map_or("-".to_owned(), text_time),
            optional(self.gflop_s),
            optional(self.gb_s),
            text_time(self.floor_us),
            self.share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            self.bound.to_owned(),
        ]
    }
}

impl Report {
    fn json(&self) -> String {
        // Numbers, names and lists of them: there is nothing here that JSON cannot say.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    fn text(&self) -> String {
        let header = ["product", "wall", "round trip", "GPU", "GFLOP/s", "GB/s", "floor", "share", "of"];
        let rows: Vec<Vec<String>> = self.products.iter().map(Line::cells).collect();
        let mut out = columns(&header, &rows) + "\n";
        for line in &self.products {
            out += &format!("{:<28} {}\n", line.name(), line.kernels.join(", "));
        }
        let Ceilings { read_gb_s, copy_gb_s, f32_gflop_s, by_host_clock } = self.ceilings;
        let by = if by_host_clock { ", by the host's clock" } else { "" };
        let lines = [
            format!(
                "ceilings  {read_gb_s:.0} GB/s read, {copy_gb_s:.0} GB/s read and written, {f32_gflop_s:.0} GFLOP/s in f32{by}"
            ),
            format!(
                "device    {} ({}); {} products were tuned on it",
                self.device, self.driver, self.tuned_products
            ),
            format!("runs      {} of each product, medians; every result was checked first", self.repeat),
        ];
        out += &(lines.join("\n") + "\n");
        if self.quick {
            out += "quick     small sizes: the numbers say little about large ones\n";
        }
        out
    }
}
