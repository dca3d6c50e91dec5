//! Measures every variant of the matrix kernels on the shapes that matter, and prints the best.
//!
//! `bench_matmul_kernels [FILTER] [--table FILE] [--small]`: only the shapes whose name contains FILTER; all variants
//! into FILE instead of standard output; sides sixteen times shorter, to try the bench itself on a slow device. The adapter is the first whose name contains `FULMEN_ADAPTER`.

#[path = "../tests/common_matmul/mod.rs"]
mod common_matmul;

use std::io::Write;
use std::time::{Duration, Instant};

use common_matmul::{Buffers, Gpu, Ready, value};
use fulmen_wgpu::kernels::matmul::*;

/// A shape, or two products of it with a gate, and the kernels to try.
struct Work {
    name: &'static str,
    shape: MatmulShape,
    pair: bool,
    choices: Vec<KernelChoice>,
}

const SEED_A: u32 = 11;
const SEED_B: u32 = 1000;

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
    for work in works(shrink).into_iter().filter(|w| w.name.contains(&filter)) {
        let began = Instant::now();
        summary.extend(measure(&mut gpu, &work, &mut *table));
        summary.push(format!("    ({:.1} s)", began.elapsed().as_secs_f64()));
    }
    if "ffn".contains(&filter) {
        [1, 8, 32, 256].into_iter().for_each(|m| summary.push(ffn(&mut gpu, m, shrink)));
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
    let plan = plan(shape, &EpilogueSource::none(), &gpu.caps).expect("a plan");
    let [a, b, out] = [1, 2, 3].map(|seed| gpu.filled(side * side, seed));
    let ready = gpu.prepare(&plan, &Buffers { a: &a, b: [&b, &b], part: None, out: &out, extras: vec![] });
    let until = Instant::now() + Duration::from_millis(400);
    while Instant::now() < until {
        gpu.run(&[&ready; 4]);
        gpu.read(&out, &[(0, 4)]);
    }
}

fn plan_of(gpu: &Gpu, work: &Work, choice: KernelChoice) -> Result<Plan, PlanError> {
    match work.pair {
        true => plan_pair_with(choice, work.shape, &EpilogueSource::silu_gate(), &gpu.caps),
        false => plan_with(choice, work.shape, 0..work.shape.n, &EpilogueSource::none(), &gpu.caps),
    }
}

struct Timing {
    choice: KernelChoice,
    one: f64,
    chained: f64,
}

/// Times every choice and gives the lines of the best.
fn measure(gpu: &mut Gpu, work: &Work, table: &mut dyn Write) -> Vec<String> {
    let MatmulShape { m, k, n, .. } = work.shape;
    let own = match work.pair {
        true => plan_pair(work.shape, &EpilogueSource::silu_gate(), &gpu.caps),
        false => plan(work.shape, &EpilogueSource::none(), &gpu.caps),
    }
    .expect("the table's plan");
    let mut choices = work.choices.clone();
    choices.extend(choose(work.shape, &gpu.caps));
    let mut seen = std::collections::HashSet::new();
    choices.retain(|choice| seen.insert(*choice));
    let plans: Vec<_> =
        choices.iter().filter_map(|c| plan_of(gpu, work, *c).ok().map(|plan| (*c, plan))).collect();
    let kernels = plans.iter().flat_map(|(_, plan)| &plan.steps).map(|step| step.launch.kernel.clone());
    gpu.compile_all(kernels);

    // Copies of B, so that none of it is left in a cache when its turn comes.
    let bytes = u64::from(k) * u64::from(n) * 4;
    let per_run = if work.pair { 2 } else { 1 };
    let copies = (400_000_000 / bytes).clamp(1, 8).max(2) as u32 * per_run;
    let bs: Vec<_> = (0..copies).map(|i| gpu.filled(k * n, SEED_B + i)).collect();
    let a = gpu.filled(m * k, SEED_A);
    let out = gpu.empty(u64::from(m) * u64::from(n) * 4);
    let (flops, moved) = (
        2.0 * f64::from(m) * f64::from(k) * f64::from(n) * f64::from(per_run),
        (f64::from(per_run) * bytes as f64) + 4.0 * f64::from(m) * f64::from(k + n),
    );
    let mut results: Vec<Timing> = Vec::new();
    for (choice, plan) in &plans {
        let readies: Vec<_> = bs
            .chunks_exact(per_run as usize)
            .map(|b| {
                let b = [&b[0], &b[per_run as usize - 1]];
                gpu.prepare(plan, &Buffers { a: &a, b, part: None, out: &out, extras: vec![] })
            })
            .collect();
        gpu.fill(&out, m * n, 77);
        gpu.run(&[&readies[0]]);
        if let Err(error) = check(gpu, work, &out) {
            writeln!(table, "{:<14} {choice} WRONG {error}", work.name).unwrap();
            println!("WRONG {} {choice}: {error}", work.name);
            continue;
        }
        let best = results.iter().map(|r| r.one).fold(f64::INFINITY, f64::min);
        let Timing { one, chained, .. } = time(gpu, *choice, &readies, best);
        let (gbs, tflops) = (moved / one / 1e3, flops / one / 1e6);
        writeln!(
            table,
            "{:<14} {one:9.1} µs  chained {chained:9.1} µs  {gbs:6.0} GB/s  {tflops:5.1} TFLOP/s  {choice}",
            work.name
        )
        .unwrap();
        results.push(Timing { choice: *choice, one, chained });
    }
    results.sort_by(|x, y| x.one.total_cmp(&y.one));
    let label = &own.steps[0].launch.kernel.label;
    let line = |rank: usize, r: &Timing| {
        let chosen = plan_of(gpu, work, r.choice).is_ok_and(|p| p.steps[0].launch.kernel.label == *label);
        let chosen = chosen && plan_of(gpu, work, r.choice).is_ok_and(|p| p == own);
        let (gbs, tflops) = (moved / r.one / 1e3, flops / r.one / 1e6);
        let (one, chained, choice) = (r.one, r.chained, r.choice);
        let mark = if chosen { "table" } else { "" };
        format!(
            "{:<14} #{rank:<3} {one:9.1} / {chained:9.1} µs {gbs:5.0} GB/s {tflops:5.1} TF {mark:<5} {choice}",
            work.name
        )
    };
    let mut lines: Vec<String> = Vec::new();
    for (i, r) in results.iter().enumerate() {
        let text = line(i + 1, r);
        if i < 6 || text.contains(" table ") {
            lines.push(text);
        }
    }
    lines
}

/// Medians of single runs, and of a chain of runs in one pass divided by its length. A variant far behind the best is
/// measured once.
fn time(gpu: &Gpu, choice: KernelChoice, readies: &[Ready], best: f64) -> Timing {
    let turn = |i: usize| &readies[i % readies.len()];
    let rough = median(gpu.time(&[vec![turn(1)], vec![turn(2)]]));
    if rough > 2.5 * best || rough > 100_000.0 {
        return Timing { choice, one: rough, chained: rough };
    }
    let runs = ((30_000.0 / rough) as usize).clamp(3, 40);
    let one = median(gpu.time(&(0..runs).map(|i| vec![turn(i)]).collect::<Vec<_>>()));
    let length = runs.min(10);
    let chains: Vec<Vec<_>> = (0..3).map(|_| (0..length).map(turn).collect()).collect();
    Timing { choice, one, chained: median(gpu.time(&chains)) / length as f64 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Some outputs of the first copy of B against the f64 sums.
fn check(gpu: &Gpu, work: &Work, out: &wgpu::Buffer) -> Result<(), String> {
    let MatmulShape { m, k, n, b, .. } = work.shape;
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

/// A gated feed-forward layer as the table plans it, in one pass.
fn ffn(gpu: &mut Gpu, m: u32, shrink: u32) -> String {
    let (hidden, inter) = (2560 / shrink, 9728 / shrink);
    let up = MatmulShape::f32(m, hidden, inter, Layout::Nk);
    let down = MatmulShape::f32(m, inter, hidden, Layout::Nk);
    let pair = plan_pair(up, &EpilogueSource::silu_gate(), &gpu.caps).expect("a plan");
    let last = plan(down, &EpilogueSource::none(), &gpu.caps).expect("a plan");
    let weights: Vec<_> = (0..6).map(|i| gpu.filled(hidden * inter, i)).collect();
    let x = gpu.filled(m * hidden, 1);
    let [h, y] = [inter, hidden].map(|n| gpu.empty(u64::from(m * n) * 4));
    let layers: Vec<_> = weights
        .chunks_exact(3)
        .map(|w| {
            let b = [&w[0], &w[1]];
            let first = gpu.prepare(&pair, &Buffers { a: &x, b, part: None, out: &h, extras: vec![] });
            let b = [&w[2], &w[2]];
            [first, gpu.prepare(&last, &Buffers { a: &h, b, part: None, out: &y, extras: vec![] })]
        })
        .collect();
    let lists: Vec<Vec<_>> = (0..22).map(|i| layers[i % 2].iter().collect()).collect();
    let us = median(gpu.time(&lists));
    let launches = pair.steps.len() + last.steps.len();
    format!("ffn m={m:<9}      {us:9.1} µs in {launches} launches")
}

fn rows(threads: u32, rows: u32, unroll: u32, team: Team, fixed_k: bool) -> KernelChoice {
    KernelChoice::RowsNk(RowsNk { threads, rows, unroll, team, fixed_k })
}

fn tile(b: [u32; 3], t: [u32; 2], stages: u32, unroll: u32, slices: u32) -> KernelChoice {
    let ([bm, bn, bk], [tm, tn]) = (b, t);
    KernelChoice::Tiled(Tiled { bm, bn, bk, tm, tn, stages, unroll, slices })
}

fn gemv_choices() -> Vec<KernelChoice> {
    let mut all = Vec::new();
    for threads in [32, 64, 128, 256] {
        for r in [1, 2, 4] {
            for unroll in [2, 4, 5, 10] {
                for fixed in [false, true] {
                    all.push(rows(threads, r, unroll, Team::Subgroup, fixed));
                }
            }
        }
    }
    for threads in [64, 128, 256] {
        for r in [1, 2, 4, 8] {
            for unroll in [1, 2, 5] {
                all.push(rows(threads, r, unroll, Team::Workgroup, true));
            }
        }
    }
    all
}

fn few_rows_choices() -> Vec<KernelChoice> {
    let mut all = Vec::new();
    for threads in [64, 128, 256] {
        for r in [1, 2, 4, 8] {
            for unroll in [1, 2, 4] {
                all.push(rows(threads, r, unroll, Team::Subgroup, false));
            }
        }
    }
    for slices in [2, 4, 5, 8] {
        all.push(tile([16, 128, 16], [4, 8], 2, 16, slices));
        all.push(tile([16, 128, 32], [4, 8], 1, 32, slices));
        all.push(tile([16, 64, 32], [4, 4], 2, 8, slices));
        all.push(tile([16, 256, 16], [4, 8], 2, 16, slices));
    }
    all
}

fn low_tiles() -> Vec<KernelChoice> {
    let mut all = Vec::new();
    for slices in [1, 2, 3, 4, 5, 6, 8, 10] {
        all.push(tile([32, 128, 16], [8, 8], 2, 16, slices));
        all.push(tile([32, 128, 16], [8, 8], 2, 4, slices));
        all.push(tile([32, 128, 32], [8, 8], 1, 8, slices));
        all.push(tile([32, 128, 16], [4, 8], 2, 16, slices));
        all.push(tile([32, 64, 16], [8, 8], 2, 16, slices));
        all.push(tile([32, 64, 32], [4, 8], 2, 8, slices));
        all.push(tile([32, 256, 16], [8, 8], 2, 16, slices));
        all.push(tile([32, 64, 32], [4, 4], 2, 8, slices));
    }
    all
}

fn middle_tiles() -> Vec<KernelChoice> {
    let mut all = Vec::new();
    for slices in [1, 2, 3, 4, 6, 7, 10, 13] {
        all.push(tile([128, 128, 16], [8, 8], 2, 16, slices));
        all.push(tile([128, 128, 8], [8, 8], 2, 8, slices));
        all.push(tile([128, 128, 8], [16, 8], 2, 8, slices));
        all.push(tile([64, 128, 16], [8, 8], 2, 16, slices));
        all.push(tile([64, 128, 16], [8, 8], 1, 16, slices));
        all.push(tile([64, 64, 16], [8, 8], 2, 16, slices));
        all.push(tile([64, 64, 16], [4, 8], 2, 16, slices));
        all.push(tile([128, 64, 16], [8, 8], 2, 16, slices));
    }
    all
}

fn large_tiles() -> Vec<KernelChoice> {
    let mut all = Vec::new();
    for bk in [8, 16] {
        for stages in [1, 2] {
            for unroll in [1, 4, bk] {
                all.push(tile([128, 128, bk], [8, 8], stages, unroll, 1));
                all.push(tile([128, 128, bk], [16, 8], stages, unroll, 1));
            }
            all.push(tile([128, 128, bk], [8, 16], stages, bk, 1));
            all.push(tile([128, 64, bk], [8, 8], stages, bk, 1));
            all.push(tile([64, 128, bk], [8, 8], stages, bk, 1));
            all.push(tile([64, 64, bk], [8, 8], stages, bk, 1));
            all.push(tile([256, 128, bk], [16, 8], stages, bk, 1));
            all.push(tile([128, 256, bk], [16, 8], stages, bk, 1));
        }
    }
    all.push(tile([128, 128, 32], [8, 8], 1, 8, 1));
    all.push(tile([128, 128, 32], [8, 8], 1, 32, 1));
    all
}

fn kn_choices() -> Vec<KernelChoice> {
    let mut all = Vec::new();
    for (lanes, groups) in [(32, 8), (32, 4), (16, 16), (64, 4)] {
        for unroll in [4, 8] {
            for slices in [1, 2, 4, 8, 16] {
                all.push(KernelChoice::RowsKn(RowsKn { lanes, groups, unroll, slices }));
            }
        }
    }
    all
}

fn works(shrink: u32) -> Vec<Work> {
    use Layout::{Kn, Nk};
    let work = |name, (m, k, n): (u32, u32, u32), b, choices| Work {
        name,
        shape: MatmulShape::f32(m.min(8192 / shrink), k / shrink, n / shrink, b),
        pair: false,
        choices,
    };
    let pair = |name, m, choices| Work {
        name,
        shape: MatmulShape::f32(m, 2560 / shrink, 9728 / shrink, Nk),
        pair: true,
        choices,
    };
    vec![
        work("gemv up", (1, 2560, 9728), Nk, gemv_choices()),
        work("gemv down", (1, 9728, 2560), Nk, gemv_choices()),
        pair("gemv pair", 1, gemv_choices()),
        work("gemv kn", (1, 2560, 9728), Kn, kn_choices()),
        work("m2 up", (2, 2560, 9728), Nk, few_rows_choices()),
        work("m4 up", (4, 2560, 9728), Nk, few_rows_choices()),
        work("m8 up", (8, 2560, 9728), Nk, few_rows_choices()),
        work("m16 up", (16, 2560, 9728), Nk, few_rows_choices()),
        work("m8 kn", (8, 2560, 9728), Kn, kn_choices()),
        work("m32 up", (32, 2560, 9728), Nk, low_tiles()),
        work("m32 down", (32, 9728, 2560), Nk, low_tiles()),
        work("m256 up", (256, 2560, 9728), Nk, middle_tiles()),
        work("m256 down", (256, 9728, 2560), Nk, middle_tiles()),
        work("m1024 up", (1024, 2560, 9728), Nk, large_tiles()),
        work("4096", (4096, 4096, 4096), Nk, large_tiles()),
        work("4096 kn", (4096, 4096, 4096), Kn, vec![tile([128, 128, 16], [8, 8], 2, 16, 1)]),
        work(
            "8192",
            (8192, 8192, 8192),
            Nk,
            vec![
                tile([128, 128, 16], [8, 8], 2, 16, 1),
                tile([128, 128, 8], [8, 8], 2, 8, 1),
                tile([128, 128, 16], [16, 8], 2, 16, 1),
                tile([128, 128, 8], [16, 8], 2, 8, 1),
                tile([256, 128, 8], [16, 8], 2, 8, 1),
            ],
        ),
    ]
}
