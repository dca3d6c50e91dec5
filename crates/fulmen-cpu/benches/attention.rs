//! Speed of attention: cache bytes read per second in decode, and operations per second in prefill.
//!
//! `cargo bench -p fulmen-cpu --bench attention`, with `FULMEN_CPU_ISA` and `FULMEN_BENCH_THREADS` to choose.

use std::time::{Duration, Instant};

use fulmen_core::DType;
use fulmen_cpu::{
    isa::Isa,
    kernels::{
        attention::{Attention, AttentionScratch, attention},
        kv_store::{KvStore, kv_store},
    },
    kv_view::{KvLayout, KvView, KvViewMut, PageTable},
    threads::Pool,
};

const N_HEADS: usize = 32;
const N_KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// The shortest time of `f` within a second.
fn time(mut f: impl FnMut()) -> Duration {
    f();
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < Duration::from_secs(1) {
        let before = Instant::now();
        f();
        best = best.min(before.elapsed());
    }
    best
}

fn main() {
    let named = std::env::var("FULMEN_BENCH_THREADS").ok().and_then(|n| n.parse().ok());
    let threads = named.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (pool, isa) = (Pool::new(threads), Isa::best());
    println!("{isa}, {} threads, {N_HEADS}/{N_KV_HEADS} heads of {HEAD_DIM}", pool.threads());
    let mut scratch = AttentionScratch::new();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut random = |n: usize| (0..n).map(|_| rng.f32() - 0.5).collect::<Vec<f32>>();
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        for (m, context) in [(1, 1024), (1, 8192), (512, 512), (512, 4096)] {
            let layout = KvLayout::pages(dtype, context / 128, N_KV_HEADS, HEAD_DIM).unwrap();
            let pages: Vec<u32> = (0..context as u32 / 128).collect();
            let table = PageTable::new(&pages, 1, pages.len()).unwrap();
            let mut bytes = [(); 2].map(|()| vec![0u8; layout.bytes().unwrap()]);
            let width = N_KV_HEADS * HEAD_DIM;
            let (k, v) = (random(context * width), random(context * width));
            let positions: Vec<u32> = (0..context as u32).collect();
            let [k_bytes, v_bytes] = &mut bytes;
            let rows = KvStore {
                k: &k,
                k_stride: width,
                v: &v,
                v_stride: width,
                table,
                positions: &positions,
                sequences: None,
            };
            let store = time(|| {
                let mut k_cache = KvViewMut::new(layout, k_bytes).unwrap();
                let mut v_cache = KvViewMut::new(layout, v_bytes).unwrap();
                kv_store(&pool, &rows, &mut k_cache, &mut v_cache).unwrap();
            });

            let width = N_HEADS * HEAD_DIM;
            let (q, mut out) = (random(m * width), vec![0.0; m * width]);
            let args = Attention {
                by_position: false,
                q: &q,
                q_stride: width,
                n_heads: N_HEADS,
                scores: (1.0 / (HEAD_DIM as f32).sqrt()).into(),
                k: KvView::new(layout, &bytes[0]).unwrap(),
                v: KvView::new(layout, &bytes[1]).unwrap(),
                table,
                positions: &positions[context - m..],
                sequences: None,
            };
            let took = time(|| attention(isa, &pool, &mut scratch, &args, &mut out, width).unwrap());
            let seconds = took.as_secs_f64();
            let seen: usize = args.positions.iter().map(|&p| p as usize + 1).sum();
            let flops = 4.0 * (seen * N_HEADS * HEAD_DIM) as f64;
            println!(
                "{dtype:<5} {m:>4} rows over {context:>5}: {took:>10.1?} {:>7.1} GB/s of cache \
                 {:>7.1} GFLOP/s; store {:>6.2} ns per element",
                2.0 * layout.bytes().unwrap() as f64 / seconds / 1e9,
                flops / seconds / 1e9,
                store.as_secs_f64() * 1e9 / (2 * context * N_KV_HEADS * HEAD_DIM) as f64,
            );
        }
    }
}
