//! Measures variants of the matmul kernels on the shapes that matter, and reports how far the table is from
//! the best.
//!
//! `bench_matmul_kernels [FILTER...] [--budget SECONDS] [--table FILE] [--small]`: only the shapes whose name
//! contains a FILTER; that many seconds in all, divided among the shapes (default 60); all variants
//! into FILE instead of standard output; sides sixteen times shorter, to try the bench itself on a slow
//! device. The adapter is the first whose name contains `FULMEN_ADAPTER`.

#[path = "../../tests/common_matmul/mod.rs"]
mod common_matmul;
mod variants;

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

use common_matmul::{Buffers, Gpu, value};
use fulmen_wgpu::kernels::matmul::*;
use fulmen_wgpu::{DispatchList, GpuBuffer};
use variants::{Work, works};

const SEED_A: u32 = 11;
const SEED_B: u32 = 1000;

fn main() {
    let mut filters: Vec<String> = Vec::new();
    let mut table: Box<dyn Write> = Box::new(std::io::stdout());
    let (mut shrink, mut budget) = (1, 60.0);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--table" => {
                let path = args.next().expect("a file after --table");
                table = Box::new(std::fs::File::create(path).expect("the table's file"));
            }
            "--budget" => {
                budget = args.next().and_then(|s| s.parse().ok()).expect("seconds after --budget");
            }
            "--small" => shrink = 16,
            _ => filters.push(arg),
        }
    }
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    let start = Instant::now();
    let gpu = Gpu::open();
    println!("{}: {:?}", gpu.name(), gpu.caps);
    warm(&gpu);
    let works: Vec<Work> = works(shrink).into_iter().filter(|w| wanted(w.name)).collect();
    let mut layers = Vec::new();
    for m in [1, 8, 32, 256].into_iter().filter(|m| wanted(&format!("ffn m={m}"))) {
        layers.push(ffn(&gpu, m, shrink));
    }
    let mut summary = Vec::new();
    for (i, work) in works.iter().enumerate() {
        // What earlier shapes did not use is there for the later ones.
        let left = budget - start.elapsed().as_secs_f64();
        let share = Duration::from_secs_f64((left / (works.len() - i) as f64).max(0.2));
        summary.push(measure(&gpu, work, Instant::now() + share, &mut *table));
    }
    println!("\n== best variants, and what the table chooses ({:.0} s)", start.elapsed().as_secs_f64());
    for lines in &summary {
        lines.iter().for_each(|line| println!("{line}"));
    }
    println!("\n== best and table");
    summary.iter().for_each(|lines| println!("{}", lines[0]));
    layers.iter().for_each(|line| println!("{line}"));
}

/// Keeps the device busy until its clocks are up.
fn warm(gpu: &Gpu) {
    let side = 1024;
    let shape = MatmulShape::f32(side, side, side, Layout::Nk);
    let list = launches(shape, &EpilogueSource::none(), &gpu.caps).expect("a kernel");
    let [a, b, out] = [1, 2, 3].map(|seed| gpu.filled(side * side, seed));
    let steps = gpu.steps(&list, &Buffers { a: &a, b: [&b, &b], part: None, out: &out, extras: vec![] });
    let program = gpu.program(std::iter::repeat_n(steps, 4).flatten());
    let until = Instant::now() + Duration::from_millis(400);
    while Instant::now() < until {
        gpu.run(&program);
        gpu.read_f32(&out, &[(0, 4)]);
    }
}

fn launches_of(gpu: &Gpu, work: &Work, choice: MatmulConfig) -> Result<MatmulLaunches, MatmulError> {
    match work.pair {
        true => pair_launches_with(choice, work.shape, &EpilogueSource::silu_gate(), &gpu.caps),
        false => launches_with(choice, work.shape, 0..work.shape.n, &EpilogueSource::none(), &gpu.caps),
    }
}

struct Timing {
    choice: MatmulConfig,
    one: f64,
    chained: f64,
    launches: usize,
}

/// Times the table's choice and then every other until `end`. The first line compares the table with the
/// best; the others are the best.
fn measure(gpu: &Gpu, work: &Work, end: Instant, table: &mut dyn Write) -> Vec<String> {
    let MatmulShape { m, k, n, .. } = work.shape;
    let own = if work.pair { choose_pair } else { choose }(work.shape, &gpu.caps).expect("a kernel");
    let mut seen = HashSet::new();
    let choices = std::iter::once(own).chain(work.choices.iter().copied()).filter(|c| seen.insert(*c));
    let lists: Vec<_> =
        choices.filter_map(|c| launches_of(gpu, work, c).ok().map(|list| (c, list))).collect();

    // Copies of B, so that none of it is left in a cache when its turn comes.
    let bytes = u64::from(k) * u64::from(n) * 4;
    let per_run = if work.pair { 2 } else { 1 };
    let copies = (400_000_000 / bytes).clamp(2, 8) as u32 * per_run;
    let bs: Vec<_> = (0..copies).map(|i| gpu.filled(k * n, SEED_B + i)).collect();
    let a = gpu.filled(m * k, SEED_A);
    let out = gpu.empty(u64::from(m) * u64::from(n) * 4);
    let flops = 2.0 * f64::from(m) * f64::from(k) * f64::from(n) * f64::from(per_run);
    let moved = (f64::from(per_run) * bytes as f64) + 4.0 * f64::from(m) * f64::from(k + n);
    let mut results: Vec<Timing> = Vec::new();
    let mut done = 0;
    // A few at a time, compiled on all cores.
    for group in lists.chunks(16) {
        if Instant::now() > end && !results.is_empty() {
            break;
        }
        let kernels = group.iter().flat_map(|(_, list)| &list.launches).map(|step| &step.launch.kernel);
        gpu.compile_all(&kernels.collect::<Vec<_>>());
        for (choice, list) in group {
            if Instant::now() > end && !results.is_empty() {
                break;
            }
            done += 1;
            let runs = bs.chunks_exact(per_run as usize).map(|b| {
                let b = [&b[0], &b[per_run as usize - 1]];
                gpu.steps(list, &Buffers { a: &a, b, part: None, out: &out, extras: vec![] })
            });
            let runs: Vec<_> = runs.collect();
            let ones: Vec<_> = runs.iter().map(|steps| gpu.program(steps.iter().cloned())).collect();
            gpu.fill(&out, m * n, 77);
            gpu.run(&ones[0]);
            if let Err(error) = check(gpu, work, &out) {
                writeln!(table, "{:<14} {choice} WRONG {error}", work.name).unwrap();
                println!("WRONG {} {choice}: {error}", work.name);
                continue;
            }
            let best = results.iter().map(|r| r.one).fold(f64::INFINITY, f64::min);
            let chain = |length: usize| {
                gpu.program(runs.iter().flatten().cloned().cycle().take(length * list.launches.len()))
            };
            let (one, chained) = time(gpu, &ones, &chain, best);
            let (gbs, tflops) = (moved / one / 1e3, flops / one / 1e6);
            writeln!(
                table,
                "{:<14} {one:9.1} µs  chained {chained:9.1} µs  {gbs:6.0} GB/s  {tflops:5.1} TFLOP/s  \
                 {choice}",
                work.name
            )
            .unwrap();
            results.push(Timing { choice: *choice, one, chained, launches: list.launches.len() });
        }
    }
    results.sort_by(|x, y| x.one.total_cmp(&y.one));
    let mut lines = vec![compare(work, &results, own, lists.len() - done)];
    for (i, r) in results.iter().enumerate().filter(|(i, r)| *i < 6 || r.choice == own) {
        let (gbs, tflops) = (moved / r.one / 1e3, flops / r.one / 1e6);
        let (one, chained, launches, choice) = (r.one, r.chained, r.launches, r.choice);
        let mark = if choice == own { "table" } else { "" };
        lines.push(format!(
            "    #{:<3} {one:9.1} / {chained:9.1} µs {gbs:5.0} GB/s {tflops:5.1} TF in {launches} {mark:<5} \
             {choice}",
            i + 1
        ));
    }
    lines
}

/// The table's time against the best; `left` variants were not measured.
fn compare(work: &Work, results: &[Timing], own: MatmulConfig, left: usize) -> String {
    let Some(best) = results.first() else { return format!("{:<12} nothing was right", work.name) };
    let missed = if left > 0 { format!(", {left} not measured") } else { String::new() };
    match results.iter().find(|r| r.choice == own) {
        None => format!("{:<12} the table's choice is wrong: {own}", work.name),
        Some(table) => format!(
            "{:<12} best {:9.1} µs, table {:9.1} µs, ratio {:.3} (chained {:.3}){missed}  best: {}",
            work.name,
            best.one,
            table.one,
            table.one / best.one,
            table.chained / best.chained,
            best.choice
        ),
    }
}

/// Medians of single runs, and of a chain of runs in one pass divided by its length. A variant far behind the
/// best is measured twice only.
fn time(gpu: &Gpu, ones: &[DispatchList], chain: &dyn Fn(usize) -> DispatchList, best: f64) -> (f64, f64) {
    let turn = |i: usize| &ones[i % ones.len()];
    let rough = gpu.time(&[turn(1), turn(2)]).into_iter().fold(f64::INFINITY, f64::min);
    if rough > 1.5 * best || rough > 100_000.0 {
        return (rough, rough);
    }
    let runs = ((20_000.0 / rough) as usize).clamp(3, 40);
    let one = median(gpu.time(&(0..runs).map(turn).collect::<Vec<_>>()));
    let length = runs.min(10);
    let chain = chain(length);
    (one, median(gpu.time(&[&chain; 3])) / length as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Some outputs of the first copy of B against the f64 sums.
fn check(gpu: &Gpu, work: &Work, out: &GpuBuffer) -> Result<(), String> {
    let MatmulShape { m, k, n, b, .. } = work.shape;
    let place = |i: u32| {
        let h = i.wrapping_mul(2_654_435_769);
        // The corners, then places all over.
        let row = if i.is_multiple_of(8) { m - 1 } else { (h >> 4) % m };
        (row, if i.is_multiple_of(9) { n - 1 } else { (h >> 7) % n })
    };
    let places: Vec<(u32, u32)> = (0..96).map(place).collect();
    let ranges: Vec<_> =
        places.iter().map(|(row, col)| ((u64::from(*row) * u64::from(n) + u64::from(*col)) * 4, 4)).collect();
    let got = gpu.read_f32(out, &ranges);
    let sum = |row: u32, col: u32, seed: u32| -> f64 {
        let at = |i: u32| if b == Layout::Nk { col * k + i } else { i * n + col };
        (0..k).map(|i| f64::from(value(row * k + i, SEED_A)) * f64::from(value(at(i), seed))).sum()
    };
    let scale = f64::from(k).sqrt() / 3.0;
    for (&(row, col), got) in places.iter().zip(got) {
        let v0 = sum(row, col, SEED_B);
        let (want, scale) = match work.pair {
            false => (v0, scale),
            true => (v0 / (1.0 + (-v0).exp()) * sum(row, col, SEED_B + 1), scale * scale),
        };
        if (f64::from(got) - want).abs() > 2e-5 * scale || got.is_nan() {
            return Err(format!("[{row}, {col}] is {got}, not {want}"));
        }
    }
    Ok(())
}

/// A gated feed-forward layer with the kernels of the table, in one pass: alone, and in a chain of layers.
fn ffn(gpu: &Gpu, m: u32, shrink: u32) -> String {
    let (hidden, inter) = (2560 / shrink, 9728 / shrink);
    let up = MatmulShape::f32(m, hidden, inter, Layout::Nk);
    let down = MatmulShape::f32(m, inter, hidden, Layout::Nk);
    let pair = pair_launches(up, &EpilogueSource::silu_gate(), &gpu.caps).expect("a kernel");
    let last = launches(down, &EpilogueSource::none(), &gpu.caps).expect("a kernel");
    let weights: Vec<_> = (0..6).map(|i| gpu.filled(hidden * inter, i)).collect();
    let x = gpu.filled(m * hidden, 1);
    let [h, y] = [inter, hidden].map(|n| gpu.empty(u64::from(m * n) * 4));
    let layer = |w: &[GpuBuffer]| {
        let first = Buffers { a: &x, b: [&w[0], &w[1]], part: None, out: &h, extras: vec![] };
        let second = Buffers { a: &h, b: [&w[2], &w[2]], part: None, out: &y, extras: vec![] };
        [gpu.steps(&pair, &first), gpu.steps(&last, &second)].concat()
    };
    let layers: Vec<_> = weights.chunks_exact(3).map(layer).collect();
    let ones = [0, 1].map(|i: usize| gpu.program(layers[i].iter().cloned()));
    let us = median(gpu.time(&(0..22).map(|i| &ones[i % 2]).collect::<Vec<_>>()));
    let chain = gpu.program(layers.iter().flatten().cloned().cycle().take(10 * layers[0].len()));
    let chained = median(gpu.time(&[&chain; 5])) / 10.0;
    format!("ffn m={m:<4} {us:9.1} / {chained:9.1} µs in {} launches", layers[0].len())
}
