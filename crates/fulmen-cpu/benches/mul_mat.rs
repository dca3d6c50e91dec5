//! Speed of the matmul kernels, compared with a baseline in the same run:
//!
//! - GEMV with a multi-threaded read of the same bytes;
//! - the `f32` GEMM with the `gemm` crate on as many threads (`--features gemm`).
//!
//! Kernel and baseline are measured alternately, several times; the best medians are printed.
//!
//! `cargo bench -p fulmen-cpu --bench mul_mat [-- FILTER]` runs the benchmarks whose names contain the
//! filter.

use fulmen_core::DType;
use fulmen_cpu::{
    isa::Isa,
    kernels::mul_mat::{Activations, Epilogue, Out, Scratch, Weight, mul_mat},
    threads::Pool,
};
use std::{
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

const ROUNDS: usize = 12;
const SAMPLES: usize = 9;

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let bench = Bench { pool: Pool::default(), isa: Isa::best(), rng: fastrand::Rng::with_seed(1) };
    println!("{} threads, {}", bench.pool.threads(), bench.isa);
    bench.run(&filter);
}

struct Bench {
    pool: Pool,
    isa: Isa,
    rng: fastrand::Rng,
}

/// The median seconds of a call, over [`SAMPLES`] calls.
fn median(f: &mut dyn FnMut()) -> f64 {
    f();
    let mut times: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[SAMPLES / 2]
}

/// The best median of each, measured alternately under the same conditions.
fn compare(a: &mut dyn FnMut(), b: &mut dyn FnMut()) -> (f64, f64) {
    (0..ROUNDS).fold((f64::MAX, f64::MAX), |best, _| (best.0.min(median(a)), best.1.min(median(b))))
}

impl Bench {
    fn run(mut self, filter: &str) {
        type Benchmark = (&'static str, fn(&mut Bench));
        let benchmarks: &[Benchmark] = &[
            ("region", Bench::region),
            ("gemv", Bench::gemv),
            #[cfg(feature = "gemm")]
            ("gemm-f32", Bench::gemm_f32),
            ("gemm-quantized", Bench::gemm_quantized),
        ];
        for (_, run) in benchmarks.iter().filter(|(name, _)| name.contains(filter)) {
            run(&mut self);
        }
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.rng.f32() - 0.5).collect()
    }

    /// Arbitrary weights that are finite and, for floating-point types, not subnormal.
    fn weights(&mut self, dtype: DType, n: usize, k: usize) -> Vec<u8> {
        let bytes = dtype.bytes(n * k).expect("whole blocks");
        let least = if dtype.is_float() { 0x20 } else { 0 };
        (0..bytes).map(|_| self.rng.u8(..) & 0x3b | least).collect()
    }

    /// The time of a region that all threads enter and leave.
    fn region(&mut self) {
        let (pool, threads) = (&self.pool, self.pool.threads());
        let mut regions = || {
            for _ in 0..100 {
                let inside = AtomicUsize::new(0);
                pool.run(threads, &|_| {
                    inside.fetch_add(1, Ordering::Relaxed);
                    while inside.load(Ordering::Relaxed) < threads {
                        std::hint::spin_loop();
                    }
                });
            }
        };
        let best = (0..ROUNDS).map(|_| median(&mut regions)).fold(f64::MAX, f64::min);
        println!("\nparallel region that all threads join: {:.2} us", best / 100.0 * 1e6);
    }

    fn gemv(&mut self) {
        let (n, k) = (9728, 2560);
        println!("\n{n} x {k}, GEMV: GB/s of weights, fraction of a plain read of them");
        let x = self.floats(k);
        for dtype in [
            DType::Q4_K,
            DType::Q5_K,
            DType::Q6_K,
            DType::Q8_0,
            DType::Q4_0,
            DType::Q4_1,
            DType::Q3_K,
            DType::F16,
            DType::BF16,
            DType::F32,
        ] {
            let data = self.weights(dtype, n, k);
            let weight = Weight::new(dtype, &data, n, k);
            let mut out = vec![0.0; n];
            let mut scratch = Scratch::new();
            let (pool, isa) = (&self.pool, self.isa);
            let mut matmul = || {
                let mut x = Activations::new(&mut scratch, &x, 1, k);
                mul_mat(pool, isa, weight, &mut x, Epilogue::default(), Out::rows(&mut out, n));
            };
            let (ours, read) = compare(&mut matmul, &mut || plain_read(pool, &data));
            let gb = data.len() as f64 * 1e-9;
            println!(
                "{dtype:>5}: {:6.1} of {:6.1} GB/s, {:5.1} %, {:7.1} us",
                gb / ours,
                gb / read,
                100.0 * read / ours,
                ours * 1e6
            );
        }
    }

    #[cfg(feature = "gemm")]
    fn gemm_f32(&mut self) {
        println!("\nf32 GEMM, ours and the gemm crate: GFLOP/s");
        for (m, n, k) in [(1024, 1024, 1024), (512, 4096, 1024), (64, 2048, 2048)] {
            let (x, w) = (self.floats(m * k), self.floats(n * k));
            let (mut out, mut theirs) = (vec![0.0; m * n], vec![0.0; m * n]);
            let bytes: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
            let weight = Weight::new(DType::F32, &bytes, n, k);
            let mut scratch = Scratch::new();
            let (pool, isa) = (&self.pool, self.isa);
            let mut matmul = || {
                let mut x = Activations::new(&mut scratch, &x, m, k);
                mul_mat(pool, isa, weight, &mut x, Epilogue::default(), Out::rows(&mut out, n));
            };
            let mut gemm_crate = || gemm_f32(pool.threads(), &x, &w, &mut theirs, [m, n, k]);
            let (ours, crates) = compare(&mut matmul, &mut gemm_crate);
            let error = out.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error < 1e-2, "the results differ by {error}");
            let flops = 2e-9 * (m * n * k) as f64;
            println!(
                "{m:>4} x {n} x {k}: {:6.1} and {:6.1}, {:5.1} %",
                flops / ours,
                flops / crates,
                100.0 * crates / ours
            );
        }
    }

    fn gemm_quantized(&mut self) {
        let (n, k) = (9728, 2560);
        println!("\n{n} x {k}, several rows of activations: GFLOP/s (ms)");
        for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::Q4_0, DType::F16] {
            let data = self.weights(dtype, n, k);
            let weight = Weight::new(dtype, &data, n, k);
            print!("{dtype:>5}:");
            for m in [2, 4, 8, 12, 16, 64, 512] {
                let x = self.floats(m * k);
                let mut out = vec![0.0; m * n];
                let mut scratch = Scratch::new();
                let (pool, isa) = (&self.pool, self.isa);
                let mut matmul = || {
                    let mut x = Activations::new(&mut scratch, &x, m, k);
                    mul_mat(pool, isa, weight, &mut x, Epilogue::default(), Out::rows(&mut out, n));
                };
                let time = median(&mut matmul).min(median(&mut matmul));
                let flops = 2e-9 * (m * n * k) as f64;
                print!("  m={m} {:.0} ({:.2})", flops / time, time * 1e3);
            }
            println!();
        }
    }
}

/// Reads all bytes with all threads.
fn plain_read(pool: &Pool, data: &[u8]) {
    pool.run_ranges(data.len(), 4096, &|range| {
        let (words, _) = data[range].as_chunks::<64>();
        let mut sums = [0u64; 32];
        for lines in words.as_chunks::<4>().0 {
            for (i, line) in lines.iter().enumerate() {
                for (j, word) in line.as_chunks::<8>().0.iter().enumerate() {
                    sums[8 * i + j] ^= u64::from_le_bytes(*word);
                }
            }
        }
        black_box(sums);
    });
}

/// The same GEMM by the `gemm` crate.
#[cfg(feature = "gemm")]
fn gemm_f32(threads: usize, x: &[f32], w: &[f32], out: &mut [f32], [m, n, k]: [usize; 3]) {
    assert!(x.len() == m * k && w.len() == n * k && out.len() == m * n);
    let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    // SAFETY: the strides are those of contiguous matrices of these sizes, as checked above.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            x.as_ptr(),
            1,
            k as isize,
            w.as_ptr(),
            k as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
