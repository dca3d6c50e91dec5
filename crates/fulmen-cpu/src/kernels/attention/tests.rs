//! Attention against f64, over types, shapes, positions and threads.

use fulmen_core::{DType, Temperature};

use super::*;
use crate::{
    kernels::kv_store::{KvStore, kv_store},
    kv_view::{KvLayout, KvViewMut},
};

/// A cache filled through `kv_store`, with what it holds as f64.
struct Cache {
    layout: KvLayout,
    pages: Vec<u32>,
    n_seqs: usize,
    bytes: Vec<u8>,
    exact: Vec<f64>,
}

impl Cache {
    /// `shift` bytes in front put the rows at odd addresses.
    fn pair(rng: &mut fastrand::Rng, layout: KvLayout, n_seqs: usize, shift: usize) -> (Cache, Cache) {
        let (seq_pages, hd) = (layout.n_pages / n_seqs, layout.head_dim);
        let capacity = seq_pages * layout.page_len;
        let mut pages: Vec<u32> = (0..layout.n_pages as u32).collect();
        rng.shuffle(&mut pages);
        let table = PageTable::new(&pages, n_seqs, seq_pages).unwrap();
        let width = layout.n_kv_heads * hd;
        let rows = n_seqs * capacity;
        let data: Vec<f32> = (0..2 * rows * width).map(|_| rng.f32() * 2.0 - 1.0).collect();
        let positions: Vec<u32> = (0..rows).map(|r| (r % capacity) as u32).collect();
        let sequences: Vec<u32> = (0..rows).map(|r| (r / capacity) as u32).collect();
        let mut bytes = [(); 2].map(|()| vec![0xFF; layout.bytes().unwrap() + shift]);
        let [k, v] = &mut bytes;
        let store = KvStore {
            k: &data,
            k_stride: 2 * width,
            v: &data[width..],
            v_stride: 2 * width,
            table,
            positions: &positions,
            sequences: Some(&sequences),
        };
        let mut k = KvViewMut::new(layout, &mut k[shift..]).unwrap();
        kv_store(&Pool::new(1), &store, &mut k, &mut KvViewMut::new(layout, &mut v[shift..]).unwrap())
            .unwrap();
        let [k, v] = bytes.map(|bytes| {
            let exact = decode(&layout, &bytes[shift..]);
            Cache { layout, pages: pages.clone(), n_seqs, bytes, exact }
        });
        (k, v)
    }

    fn view(&self) -> KvView<'_> {
        let shift = self.bytes.len() - self.layout.bytes().unwrap();
        KvView::new(self.layout, &self.bytes[shift..]).unwrap()
    }

    fn table(&self) -> PageTable<'_> {
        PageTable::new(&self.pages, self.n_seqs, self.layout.n_pages / self.n_seqs).unwrap()
    }

    /// The page and the position in it.
    fn place(&self, seq: usize, pos: usize) -> (usize, usize) {
        (self.table().page(seq, pos / self.layout.page_len), pos % self.layout.page_len)
    }

    /// Fills every row from a position on with NaN.
    fn poison(&mut self, from: usize) {
        let layout = self.layout;
        let shift = self.bytes.len() - layout.bytes().unwrap();
        for seq in 0..self.n_seqs {
            for pos in from..layout.n_pages / self.n_seqs * layout.page_len {
                let (page, at) = self.place(seq, pos);
                for head in 0..layout.n_kv_heads {
                    let offset = shift + layout.offset(page, head, at);
                    self.bytes[offset..][..layout.row_bytes()].fill(0xFF);
                    if layout.scale_bytes() > 0 {
                        let offset = shift + layout.scales_offset(page, head, at);
                        self.bytes[offset..][..layout.scale_bytes()].fill(0xFF);
                    }
                }
            }
        }
    }

    fn row(&self, seq: usize, head: usize, pos: usize) -> &[f64] {
        let (l, (page, at)) = (&self.layout, self.place(seq, pos));
        &self.exact[((page * l.n_kv_heads + head) * l.page_len + at) * l.head_dim..][..l.head_dim]
    }
}

/// All rows, `[page][head][pos][i]`.
fn decode(layout: &KvLayout, bytes: &[u8]) -> Vec<f64> {
    let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f64();
    let mut all = Vec::new();
    for page in 0..layout.n_pages {
        for head in 0..layout.n_kv_heads {
            for pos in 0..layout.page_len {
                let row = &bytes[layout.offset(page, head, pos)..][..layout.row_bytes()];
                match layout.dtype {
                    DType::F32 => all
                        .extend(row.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))),
                    DType::F16 => all.extend(row.chunks(2).map(half)),
                    _ => {
                        let scales = bytes[layout.scales_offset(page, head, pos)..].chunks(2);
                        for (row, scale) in row.chunks(32).zip(scales) {
                            all.extend(row.iter().map(|&q| half(scale) * f64::from(q as i8)));
                        }
                    }
                }
            }
        }
    }
    all
}

/// One head of one row in f64. `at`: its sequence and KV head.
fn reference(
    k: &Cache,
    v: &Cache,
    q: &[f32],
    rule: &Scores<f32>,
    at: (usize, usize),
    position: u32,
) -> Vec<f64> {
    let scale = f64::from(rule.scale) * rule.temperature.map_or(1.0, |t| t.factor(position));
    let seen = rule.first_visible(position) as usize..position as usize + 1;
    let score = |pos: usize| {
        let products = k.row(at.0, at.1, pos).iter().zip(q).map(|(k, &q)| k * f64::from(q));
        let score = products.sum::<f64>() * scale;
        rule.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = seen.clone().map(score).collect();
    let sink = rule.sinks.map_or(f64::NEG_INFINITY, f64::from);
    let max = scores.iter().copied().fold(sink, f64::max);
    let mut out = vec![0.0; q.len()];
    let mut sum = (sink - max).exp();
    for (pos, score) in seen.zip(&scores) {
        let weight = (score - max).exp();
        sum += weight;
        for (out, v) in out.iter_mut().zip(v.row(at.0, at.1, pos)) {
            *out += weight * v;
        }
    }
    out.iter().map(|x| x / sum).collect()
}

const POISON: f32 = -12345.0;

/// Runs with poisoned outputs and checks that the gaps between the rows stay.
fn run(isa: Isa, pool: &Pool, scratch: &mut AttentionScratch, args: &Attention<'_>) -> Vec<f32> {
    let width = args.n_heads * args.k.layout().head_dim;
    let (m, stride) = (args.positions.len(), width + 5);
    let mut out = vec![POISON; m * stride + 3];
    attention(isa, pool, scratch, args, &mut out, stride).unwrap();
    assert!(out[m * stride..].iter().all(|&x| x == POISON));
    let rows = out[..m * stride].chunks(stride);
    rows.flat_map(|row| {
        assert!(row[width..].iter().all(|&x| x == POISON));
        row[..width].to_vec()
    })
    .collect()
}

/// Checks all instruction sets against the reference, for a few heads.
fn check(scratch: &mut AttentionScratch, args: &Attention<'_>, k: &Cache, v: &Cache) {
    let (n_heads, hd) = (args.n_heads, k.layout.head_dim);
    let group = n_heads / k.layout.n_kv_heads;
    let heads: Vec<usize> = if n_heads <= 4 { (0..n_heads).collect() } else { vec![0, 4, n_heads - 1] };
    let mut want = Vec::new();
    for (r, &position) in args.positions.iter().enumerate() {
        let seq = args.sequences.map_or(0, |s| s[r]) as usize;
        for &head in &heads {
            let q = &args.q[r * args.q_stride + head * hd..][..hd];
            let rule = args.scores.map(|sinks| sinks[head]);
            want.push(reference(k, v, q, &rule, (seq, head / group), position));
        }
    }
    for isa in Isa::available() {
        let got = run(isa, &Pool::new(3), scratch, args);
        assert!(got.iter().all(|x| x.is_finite() && *x != POISON), "{isa}");
        for (i, want) in want.iter().enumerate() {
            let at = i / heads.len() * n_heads + heads[i % heads.len()];
            let got = &got[at * hd..][..hd];
            let error: f64 = want.iter().zip(got).map(|(w, &g)| (w - f64::from(g)).powi(2)).sum();
            // Over a long context the values may cancel; what is left of them is no measure then.
            let norm = want.iter().map(|w| w * w).sum::<f64>().max(1e-4 * hd as f64);
            assert!(
                error <= 1e-10 * norm,
                "{isa} {} heads {n_heads}/{} of {hd}, row {i}, positions {:?}: {:e}",
                k.layout.dtype,
                k.layout.n_kv_heads,
                args.positions,
                error / norm
            );
        }
    }
}

#[test]
fn matches_the_reference() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut scratch = AttentionScratch::new();
    let types = [(DType::F32, 1), (DType::F16, 1), (DType::Q8_0, 32)];
    for (dtype, block) in types {
        for (n_heads, n_kv) in [(1, 1), (4, 4), (8, 2), (9, 3), (32, 8)] {
            for hd in [1, 3, 32, 64, 80, 128].into_iter().filter(|hd| hd % block == 0) {
                let layout = KvLayout::pages(dtype, 2 * 8, n_kv, hd).unwrap();
                let (mut k, mut v) = Cache::pair(&mut rng, layout, 2, hd % 3);
                let q_stride = n_heads * hd + 7;
                let q: Vec<f32> = (0..17 * q_stride).map(|_| rng.f32() * 4.0 - 2.0).collect();
                for context in [1000, 257, 256, 255, 3, 2, 1] {
                    k.poison(context);
                    v.poison(context);
                    for (m, mixed) in [(0, false), (1, false), (3, true), (17, context % 2 == 1)] {
                        let position = |r: usize| match mixed {
                            true => context - 1 - r * 37 % context,
                            false => (context + r).saturating_sub(m),
                        };
                        let positions: Vec<u32> = (0..m).map(|r| position(r) as u32).collect();
                        let sequences: Vec<u32> = (0..m).map(|r| u32::from(r * r % 7 == 2)).collect();
                        let args = Attention {
                            by_position: m == 17 && hd % 64 == 0,
                            q: &q,
                            q_stride,
                            n_heads,
                            scores: (1.0 / (hd as f32).sqrt()).into(),
                            k: k.view(),
                            v: v.view(),
                            table: k.table(),
                            positions: &positions,
                            sequences: mixed.then_some(&sequences),
                        };
                        check(&mut scratch, &args, &k, &v);
                    }
                }
            }
        }
    }
}

#[test]
fn windows_caps_temperatures_and_sinks() {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut scratch = AttentionScratch::new();
    let temperature = Some(Temperature { length: 100, beta: 0.3 });
    for (dtype, n_heads, n_kv, hd) in
        [(DType::F32, 3, 1, 5), (DType::F16, 8, 2, 64), (DType::Q8_0, 4, 4, 32), (DType::F32, 6, 1, 32)]
    {
        let layout = KvLayout::pages(dtype, 2 * 8, n_kv, hd).unwrap();
        let (k, v) = Cache::pair(&mut rng, layout, 2, 0);
        let q: Vec<f32> = (0..60 * n_heads * hd).map(|_| rng.f32() * 4.0 - 2.0).collect();
        let sinks: Vec<f32> = (0..n_heads).map(|_| rng.f32() * 6.0 - 3.0).collect();
        let masks = [None, Some(1), Some(5), Some(64), Some(200), Some(512), Some(5000)];
        let windows = masks.map(|window| (window, None));
        let chunks = masks.map(|chunk| (None, chunk));
        for (window, chunk) in windows.into_iter().chain(chunks).chain([(Some(70), Some(100))]) {
            for (softcap, temperature, sinks) in [
                (None, None, None),
                (Some(1.5), None, None),
                (None, temperature, None),
                (None, None, Some(&sinks[..])),
                (Some(50.0), temperature, Some(&sinks[..])),
            ] {
                for (m, last, mixed) in [(1, 0, false), (1, 999, false), (3, 700, true), (60, 300, false)] {
                    let position =
                        |r: usize| if mixed { last - 37 * r } else { (last + r + 1).saturating_sub(m) };
                    let positions: Vec<u32> = (0..m).map(|r| position(r) as u32).collect();
                    let sequences: Vec<u32> = (0..m).map(|r| u32::from(r * r % 7 == 2)).collect();
                    let args = Attention {
                        by_position: hd == 64,
                        q: &q,
                        q_stride: n_heads * hd,
                        n_heads,
                        scores: Scores {
                            scale: 1.0 / (hd as f32).sqrt(),
                            window,
                            chunk,
                            softcap,
                            temperature,
                            sinks,
                        },
                        k: k.view(),
                        v: v.view(),
                        table: k.table(),
                        positions: &positions,
                        sequences: mixed.then_some(&sequences),
                    };
                    check(&mut scratch, &args, &k, &v);
                }
            }
        }
    }
}

#[test]
fn what_is_behind_the_window_has_no_influence() {
    let mut rng = fastrand::Rng::with_seed(12);
    let layout = KvLayout::pages(DType::F32, 4, 1, 32).unwrap();
    for m in [1, 40] {
        let (mut k, mut v) = Cache::pair(&mut rng, layout, 1, 0);
        let q: Vec<f32> = (0..m * 32).map(|_| rng.f32()).collect();
        let positions: Vec<u32> = (0..m as u32).map(|r| 400 + r).collect();
        // The first row sees positions 301 to 400; the page of those below 128 is missing.
        for cache in [&mut k, &mut v] {
            for position in 0..301 {
                let (page, at) = cache.place(0, position);
                let offset = layout.offset(page, 0, at);
                cache.bytes[offset..][..layout.row_bytes()].fill(0xFF);
            }
        }
        let mut pages = k.pages.clone();
        pages[0] = u32::MAX;
        let args = Attention {
            by_position: false,
            q: &q,
            q_stride: 32,
            n_heads: 1,
            scores: Scores { window: Some(100), ..1.0.into() },
            k: k.view(),
            v: v.view(),
            table: PageTable::new(&pages, 1, 4).unwrap(),
            positions: &positions,
            sequences: None,
        };
        check(&mut AttentionScratch::new(), &args, &k, &v);
    }
}

#[test]
fn threads_do_not_matter() {
    let mut rng = fastrand::Rng::with_seed(3);
    let layout = KvLayout::pages(DType::F16, 2 * 313, 2, 32).unwrap();
    let (k, v) = Cache::pair(&mut rng, layout, 2, 0);
    let q: Vec<f32> = (0..40 * 8 * 32).map(|_| rng.f32() * 2.0 - 1.0).collect();
    // One long row (spans longer than the shortest), and many rows over a few spans.
    for (m, last) in [(1, 39_999), (40, 2_000)] {
        let positions: Vec<u32> = (0..m).map(|r| last + 1 - m + r).collect();
        let args = Attention {
            by_position: false,
            q: &q,
            q_stride: 256,
            n_heads: 8,
            scores: 3.0.into(),
            k: k.view(),
            v: v.view(),
            table: k.table(),
            positions: &positions,
            sequences: None,
        };
        check(&mut AttentionScratch::new(), &args, &k, &v);
        for isa in Isa::available() {
            let one = run(isa, &Pool::new(1), &mut AttentionScratch::new(), &args);
            let mut scratch = AttentionScratch::new();
            for threads in [2, 3, 8] {
                assert_eq!(one, run(isa, &Pool::new(threads), &mut scratch, &args), "{isa} {threads}");
            }
        }
    }
}

#[test]
fn plain_rows_are_a_cache() {
    let mut rng = fastrand::Rng::with_seed(5);
    for (m, n_heads, n_kv, hd) in [(20, 4, 2, 64), (5, 3, 3, 5)] {
        let layout = KvLayout::rows(m, n_kv, hd).unwrap();
        let (k, v) = Cache::pair(&mut rng, layout, 1, 0);
        let q: Vec<f32> = (0..m * n_heads * hd).map(|_| rng.f32() * 40.0 - 20.0).collect();
        let positions: Vec<u32> = (0..m as u32).collect();
        let args = Attention {
            by_position: false,
            q: &q,
            q_stride: n_heads * hd,
            n_heads,
            scores: 1.0.into(),
            k: k.view(),
            v: v.view(),
            table: k.table(),
            positions: &positions,
            sequences: None,
        };
        check(&mut AttentionScratch::new(), &args, &k, &v);
    }
}

#[test]
fn nan_and_infinite_scores() {
    let (n_kv, hd, capacity) = (2, 32, 600);
    let mut rng = fastrand::Rng::with_seed(9);
    let layout = KvLayout::pages(DType::F32, 5, n_kv, hd).unwrap();
    let (mut k, v) = Cache::pair(&mut rng, layout, 1, 0);
    // The first element of every key is positive, so -inf in the query makes all scores -inf.
    for (at, x) in bytemuck::cast_slice_mut::<u8, f32>(&mut k.bytes).iter_mut().enumerate() {
        *x = if at % hd == 0 { 1.0 } else { *x };
    }
    // Few queries and many.
    for m in [1, 2, 20] {
        let width = 4 * hd;
        let mut q: Vec<f32> = (0..m * width).map(|_| rng.f32()).collect();
        let last = (m - 1) * width;
        q[last + 5] = f32::NAN;
        q[last + 2 * hd] = f32::NEG_INFINITY;
        let positions: Vec<u32> = (0..m).map(|r| (capacity - m + r) as u32).collect();
        let args = Attention {
            by_position: false,
            q: &q,
            q_stride: width,
            n_heads: 4,
            scores: 0.5.into(),
            k: k.view(),
            v: v.view(),
            table: k.table(),
            positions: &positions,
            sequences: None,
        };
        for isa in Isa::available() {
            let out = run(isa, &Pool::new(2), &mut AttentionScratch::new(), &args);
            let (before, heads) = out.split_at(last);
            assert!(before.iter().all(|x| x.is_finite()), "{isa}");
            for (head, row) in heads.chunks(hd).enumerate() {
                let good = row.iter().all(|x| match head {
                    0 => x.is_nan(),
                    2 => *x == 0.0,
                    _ => x.is_finite() && *x != 0.0,
                });
                assert!(good, "{isa} {m} rows, head {head}: {row:?}");
            }
        }
    }
}

#[test]
fn errors_leave_the_output() {
    let layout = KvLayout::pages(DType::F32, 2, 2, 8).unwrap();
    let bytes = vec![0u8; layout.bytes().unwrap()];
    let view = |layout| KvView::new(layout, &bytes).unwrap();
    let q = [1f32; 96];
    let good = Attention {
        by_position: false,
        q: &q,
        q_stride: 32,
        n_heads: 4,
        scores: 1.0.into(),
        k: view(layout),
        v: view(layout),
        table: PageTable::new(&[1, 0], 2, 1).unwrap(),
        positions: &[0, 3, 1],
        sequences: Some(&[0, 1, 1]),
    };
    let length = |what, need, got| KvError::Length { what, unit: "elements", need, got };
    let cases = [
        (good, 95, length("output rows", 96, 95)),
        (Attention { q: &q[..90], ..good }, 96, length("q rows", 96, 90)),
        (Attention { q_stride: 31, ..good }, 96, KvError::Shape { what: "q rows", expected: 32, got: 31 }),
        (Attention { n_heads: 3, ..good }, 96, KvError::Heads { n_heads: 3, n_kv_heads: 2 }),
        (
            Attention { positions: &[0, 128, 1], ..good },
            96,
            KvError::Position { row: 1, position: 128, capacity: 128 },
        ),
        (
            Attention { table: PageTable::new(&[1, u32::MAX], 2, 1).unwrap(), ..good },
            96,
            KvError::Page { row: 1, page: u32::MAX, n_pages: 2 },
        ),
        (
            Attention { v: view(KvLayout { page_len: 3, ..layout }), ..good },
            96,
            KvError::Position { row: 1, position: 3, capacity: 3 },
        ),
        (
            Attention { sequences: Some(&[0, 1, 2]), ..good },
            96,
            KvError::Sequence { row: 2, sequence: 2, n_seqs: 2 },
        ),
        (
            Attention { sequences: Some(&[0, 1]), ..good },
            96,
            KvError::Shape { what: "sequences", expected: 3, got: 2 },
        ),
        (
            Attention { v: view(KvLayout { n_kv_heads: 1, ..layout }), ..good },
            96,
            KvError::Shape { what: "value heads", expected: 2, got: 1 },
        ),
        (
            Attention { v: view(KvLayout { head_dim: 4, ..layout }), ..good },
            96,
            KvError::Shape { what: "value head size", expected: 8, got: 4 },
        ),
    ];
    let mut scratch = AttentionScratch::new();
    for (args, len, error) in cases {
        let mut out = vec![POISON; len];
        let result = attention(Isa::best(), &Pool::new(1), &mut scratch, &args, &mut out, 32);
        assert_eq!(result, Err(error));
        assert!(out.iter().all(|&x| x == POISON));
    }
}

#[test]
fn by_position_other_sequences_and_chunks_do_not_matter() {
    let mut rng = fastrand::Rng::with_seed(11);
    for (n_heads, n_kv) in [(8, 2), (6, 2), (4, 4)] {
        let (hd, pool) = (32, Pool::new(2));
        let layout = KvLayout::pages(DType::F16, 2 * 8, n_kv, hd).unwrap();
        let (k, v) = Cache::pair(&mut rng, layout, 2, 0);
        let width = n_heads * hd;
        let q: Vec<f32> = (0..1024 * width).map(|_| rng.f32() * 2.0 - 1.0).collect();
        // The query of a row depends on its position alone.
        let run = |rows: &[(u32, u32)]| {
            let queries: Vec<f32> =
                rows.iter().flat_map(|&(_, at)| &q[at as usize * width..][..width]).copied().collect();
            let (sequences, positions): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
            let args = Attention {
                by_position: true,
                q: &queries,
                q_stride: width,
                n_heads,
                scores: (0.3).into(),
                k: k.view(),
                v: v.view(),
                table: k.table(),
                positions: &positions,
                sequences: Some(&sequences),
            };
            let mut out = vec![f32::NAN; rows.len() * width];
            let scratch = &mut AttentionScratch::new();
            attention(Isa::best(), &pool, scratch, &args, &mut out, width).unwrap();
            out
        };
        let row = |out: &[f32], at: usize| out[at * width..][..width].to_vec();
        // A decode row at position 900 beside decode rows; a prompt of 300 tokens in one and in two chunks.
        let alone = run(&[(1, 900)]);
        let chunk: Vec<(u32, u32)> = (0..300).map(|at| (0, at)).collect();
        let whole = run(&chunk);
        let mixed: Vec<(u32, u32)> = [(1, 900)].into_iter().chain(chunk[128..].iter().copied()).collect();
        let mixed = run(&mixed);
        assert_eq!(row(&mixed, 0), alone);
        let first = run(&chunk[..128]);
        for at in 0..300 {
            let found = if at < 128 { row(&first, at) } else { row(&mixed, at - 127) };
            assert_eq!(found, row(&whole, at), "position {at} with {n_heads} heads");
        }
    }
}
