//! Measures the kernels with quantised weights on the shapes that matter, and prints the best.
//!
//! `bench_qmatmul_kernels [FILTER] [--table FILE] [--small]`: only the work whose name contains FILTER; all
//! variants into FILE instead of standard output; sixteen times fewer rows, to try the bench itself on a slow
//! device. The adapter is the first whose name contains `FULMEN_ADAPTER`.
//!
//! Each variant is timed with its whole plan (`one`: alone in a pass; `chained`: in a row with others), and
//! as the product without the launch that makes A int8 (`product`). The rate is that of the weight's bytes in
//! `one`.

#[path = "../tests/common_matmul/mod.rs"]
mod common_matmul;

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

use common_matmul::{Buffers, Gpu, Ready, value};
use fulmen_core::{DType, quant};
use fulmen_wgpu::kernels::matmul::{self, EpilogueSource, Layout, MatmulShape, Plan};
use fulmen_wgpu::kernels::qmatmul::*;

const SEED_A: u32 = 11;

/// Different rows of a weight; the others repeat them.
const DISTINCT: u32 = 1024;

fn main() {
    let mut filter = String::new();
    let mut table: Box<dyn Write> = Box::new(std::io::stdout());
    let mut shrink = 1;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--table" => {
                let path = args.next().expect("a file after --table");
                table = Box::new(std::fs::File::create(path).expect("the table's file"));
            }
            "--small" => shrink = 16,
            _ => filter = arg,
        }
    }
    let start = Instant::now();
    let mut gpu = Gpu::open();
    println!("{}: {:?}", gpu.name, gpu.caps);
    warm(&mut gpu);
    let mut summary = Vec::new();
    for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::Q4_0] {
        for (name, n, k) in [("up", 9728, 2560), ("down", 2560, 9728), ("head", 151_936, 2560)] {
            let weight = QuantWeight { dtype, n: n / shrink, k };
            let names = [1, 4, 8, 32].map(|m| (m, format!("{dtype:?} {name} m={m}")));
            // Many rows on one shape: enough to choose how tiles of W are decoded.
            let names = if name == "up" { &names[..] } else { &names[..3] };
            if names.iter().any(|(_, name)| name.contains(&filter)) {
                let weights = Weights::new(&gpu, weight);
                for (m, name) in names.iter().filter(|(_, name)| name.contains(&filter)) {
                    summary.extend(measure(&mut gpu, name, *m, &weights, &mut *table));
                }
            }
        }
    }
    println!(
        "\n== best variants; `table` marks what the table chooses ({:.0} s)",
        start.elapsed().as_secs_f64()
    );
    summary.iter().for_each(|line| println!("{line}"));
}

/// Keeps the device busy until its clocks are up.
fn warm(gpu: &mut Gpu) {
    let side = 1024;
    let shape = MatmulShape::f32(side, side, side, Layout::Nk);
    let plan = matmul::plan(shape, &EpilogueSource::none(), &gpu.caps).expect("a plan");
    let [a, b, out] = [1, 2, 3].map(|seed| gpu.filled(side * side, seed));
    let ready = gpu.prepare(&plan, &Buffers { a: &a, b: [&b, &b], part: None, out: &out, extras: vec![] });
    let until = Instant::now() + Duration::from_millis(400);
    while Instant::now() < until {
        gpu.run(&[&ready; 4]);
        gpu.read(&out, &[(0, 4)]);
    }
}

/// Copies of a weight, so that none of it is left in a cache when its turn comes.
struct Weights {
    weight: QuantWeight,
    bytes: u64,
    /// The different rows.
    rows: Vec<f32>,
    copies: Vec<wgpu::Buffer>,
}

impl Weights {
    fn new(gpu: &Gpu, weight: QuantWeight) -> Self {
        let part = QuantWeight { n: DISTINCT.min(weight.n), ..weight };
        let blocks = blocks(part);
        let count = part.n as usize * part.k as usize;
        let rows = quant::dequantize_to_vec(part.dtype, &blocks, count).expect("values");
        let source = gpu.upload(&part.repack(&blocks).expect("a packed weight"));
        let bytes = weight.packed_bytes().expect("a size");
        let piece = part.packed_bytes().expect("a size");
        let copies = (0..(300_000_000 / bytes).clamp(2, 12)).map(|_| {
            let buffer = gpu.empty(bytes);
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            for at in (0..bytes).step_by(piece as usize) {
                encoder.copy_buffer_to_buffer(&source, 0, &buffer, at, piece.min(bytes - at));
            }
            gpu.queue.submit([encoder.finish()]);
            buffer
        });
        Self { weight, bytes, rows, copies: copies.collect() }
    }
}

/// Blocks of any codes, with scales and minima of ordinary size.
fn blocks(weight: QuantWeight) -> Vec<u8> {
    let QuantWeight { dtype, n, k } = weight;
    let mut rng = fastrand::Rng::with_seed(u64::from(k));
    let mut bytes = vec![0; n as usize * k as usize / dtype.block_len() * dtype.block_bytes()];
    rng.fill(&mut bytes);
    let halves: &[usize] = match dtype {
        DType::Q4_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for at in halves {
            let half = rng.u16(0x2000..0x2800) | u16::from(rng.bool()) << 15;
            block[*at..][..2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}

fn choices() -> Vec<Choice> {
    let rows = |values, threads, lanes, rows, unroll, team| {
        Choice::Rows(Rows { values, threads, lanes, rows, unroll, team })
    };
    let mut all = Vec::new();
    for lanes in [8, 16, 32] {
        for r in [1, 2, 4] {
            for unroll in [1, 2] {
                all.push(rows(Values::Int8, 128, lanes, r, unroll, Team::Shuffle));
            }
        }
        all.push(rows(Values::Int8, 128, lanes, 1, 4, Team::Shuffle));
        all.push(rows(Values::Int8, 64, lanes, 1, 2, Team::Shuffle));
        all.push(rows(Values::Int8, 256, lanes, 1, 2, Team::Shuffle));
        all.push(rows(Values::Float, 128, lanes, 1, 1, Team::Shuffle));
    }
    all.push(rows(Values::Int8, 128, 32, 1, 2, Team::Memory));
    all.push(rows(Values::Float, 128, 32, 2, 1, Team::Shuffle));
    all
}

struct Timing {
    choice: Choice,
    one: f64,
    chained: f64,
    product: f64,
}

/// Times every choice and gives the lines of the best.
fn measure(gpu: &mut Gpu, name: &str, m: u32, weights: &Weights, table: &mut dyn Write) -> Vec<String> {
    let (weight, caps, none) = (weights.weight, gpu.caps, EpilogueSource::none());
    let own = choose(m, weight, Values::Int8, &caps).expect("a kernel");
    let mut choices = choices();
    choices.push(own);
    if let Choice::Tiled(tile) = own {
        choices.push(Choice::Dequantize(matmul::KernelChoice::Tiled(tile)));
        for slices in [1, 2, 4, 8] {
            choices.push(Choice::Tiled(matmul::Tiled { slices, ..tile }));
        }
    }
    let mut seen = HashSet::new();
    choices.retain(|choice| seen.insert(*choice));
    let plan = |choice: Choice| plan_with(choice, m, weight, 0..weight.n, &none, &caps).ok();
    let plans: Vec<_> = choices.iter().filter_map(|c| plan(*c).map(|plan| (*c, plan))).collect();
    gpu.compile_all(plans.iter().flat_map(|(_, plan)| &plan.steps).map(|step| step.launch.kernel.clone()));

    let a = gpu.filled(m * weight.k, SEED_A);
    let out = gpu.empty(u64::from(m) * u64::from(weight.n) * 4);
    let mut results: Vec<Timing> = Vec::new();
    for (choice, plan) in &plans {
        let mut prepare = |plan: &Plan| -> Vec<Ready> {
            let bind = |w| Buffers { a: &a, b: [w, w], part: None, out: &out, extras: vec![] };
            weights.copies.iter().map(|w| gpu.prepare(plan, &bind(w))).collect()
        };
        let readies = prepare(plan);
        let first = usize::from(plan.steps[0].launch.kernel.label == "qmatmul quantize");
        let steps = plan.steps[first..].to_vec();
        let product = prepare(&Plan { steps, scratch: plan.scratch.clone() });
        gpu.fill(&out, m * weight.n, 77);
        gpu.run(&[&readies[0]]);
        if let Err(error) = check(gpu, m, weights, *choice, &out) {
            writeln!(table, "{name:<14} {choice} WRONG {error}").unwrap();
            println!("WRONG {name} {choice}: {error}");
            continue;
        }
        let best = results.iter().map(|r| r.one).fold(f64::INFINITY, f64::min);
        let timing = time(gpu, *choice, &readies, &product, best);
        writeln!(table, "{}", line(name, weights, &timing, "")).unwrap();
        results.push(timing);
    }
    results.sort_by(|x, y| x.one.total_cmp(&y.one));
    let float =
        results.iter().position(|r| matches!(r.choice, Choice::Rows(Rows { values: Values::Float, .. })));
    let scratch = |c: Choice| matches!(c, Choice::Dequantize(_));
    let kept = |i: usize, r: &Timing| i < 4 || scratch(r.choice) || r.choice == own || Some(i) == float;
    let mark = |r: &Timing| if r.choice == own { "table" } else { "" };
    let kept = results.iter().enumerate().filter(|(i, r)| kept(*i, r));
    kept.map(|(i, r)| format!("#{:<3} {}", i + 1, line(name, weights, r, mark(r)))).collect()
}

fn line(name: &str, weights: &Weights, timing: &Timing, mark: &str) -> String {
    let Timing { choice, one, chained, product } = timing;
    let [rate, product_rate] = [one, product].map(|us| weights.bytes as f64 / us / 1e3);
    format!(
        "{name:<14} {one:7.1} chained {chained:7.1} product {product:7.1} µs \
         {rate:5.0} (product {product_rate:5.0}) GB/s \
         {mark:<5} {choice}"
    )
}

/// Medians. A variant far behind the best is measured once.
fn time(gpu: &Gpu, choice: Choice, readies: &[Ready], product: &[Ready], best: f64) -> Timing {
    let turn = |i: usize| &readies[i % readies.len()];
    let rough = median(gpu.time(&[vec![turn(1)], vec![turn(2)], vec![turn(3)]]));
    if rough > 2.5 * best || rough > 100_000.0 {
        return Timing { choice, one: rough, chained: rough, product: rough };
    }
    let runs = ((10_000.0 / rough) as usize).clamp(5, 40);
    let one = median(gpu.time(&(0..runs).map(|i| vec![turn(i)]).collect::<Vec<_>>()));
    let alone = |i: usize| vec![&product[i % product.len()]];
    let product = median(gpu.time(&(0..runs).map(alone).collect::<Vec<_>>()));
    let length = runs.min(10);
    let chains: Vec<Vec<_>> = (0..3).map(|_| (0..length).map(turn).collect()).collect();
    Timing { choice, one, chained: median(gpu.time(&chains)) / length as f64, product }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Some outputs against the f64 sums.
fn check(gpu: &Gpu, m: u32, weights: &Weights, choice: Choice, out: &wgpu::Buffer) -> Result<(), String> {
    let QuantWeight { n, k, .. } = weights.weight;
    let places: Vec<(u32, u32)> = (0..96u32)
        .map(|i| {
            let h = i.wrapping_mul(2_654_435_769);
            // The corners, then places all over.
            let row = if i % 8 == 0 { m - 1 } else { (h >> 4) % m };
            (row, if i % 9 == 0 { n - 1 } else { (h >> 7) % n })
        })
        .collect();
    let ranges: Vec<_> =
        places.iter().map(|(row, col)| ((u64::from(*row) * u64::from(n) + u64::from(*col)) * 4, 4)).collect();
    let limit = match choice {
        Choice::Rows(Rows { values: Values::Int8, .. }) => 0.03,
        _ => 1e-5,
    };
    for (&(row, col), got) in places.iter().zip(gpu.read_f32(out, &ranges)) {
        let distinct = weights.rows.len() as u32 / k;
        let w = &weights.rows[(col % distinct * k) as usize..][..k as usize];
        let products = w.iter().zip(0..).map(|(w, i)| f64::from(*w) * f64::from(value(row * k + i, SEED_A)));
        let (want, power) = products.fold((0.0, 0.0), |(sum, power), p| (sum + p, power + p * p));
        // Not `>`: it would let a NaN pass.
        let close = (f64::from(got) - want).abs() <= limit * power.sqrt();
        if !close {
            return Err(format!("[{row}, {col}] is {got}, not {want}"));
        }
    }
    Ok(())
}
