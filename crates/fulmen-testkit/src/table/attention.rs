//! Attention among the rows of a batch and over a KV cache.

use fulmen_core::{
    AttentionRows, DType, Heads, KV_PAGE, PrefillChunk, RopePairing, RopeSpec, Rotation, Sharing, Work,
    attention_work,
};

use super::{CACHES, MODELS, QWEN3_4B, fits, heads, kv_cache, pages_used, pool};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

fn scale(heads: Heads) -> f32 {
    1.0 / (heads.head_dim as f32).sqrt()
}

fn shape(heads: Heads) -> String {
    format!("{}:{}x{}", heads.n_heads, heads.n_kv_heads, heads.head_dim)
}

fn over_rows(name: &str, m: u32, heads: Heads, scale: f32) -> Case {
    let case = Case::new(format!("{name}m{m}/{}", shape(heads)), |b| {
        let q = b.input("q", m, heads.q_width())?;
        let (k, v) = (b.input("k", m, heads.kv_width())?, b.input("v", m, heads.kv_width())?);
        let y = b.attention(q, k, v, heads, scale)?;
        b.output("y", y)
    });
    case.tolerance(Tolerance::ATTENTION)
}

/// Positions and sequences of the rows of a batch.
struct Rows {
    positions: Vec<u32>,
    sequences: Option<Vec<u32>>,
}

impl Rows {
    /// Consecutive rows of one sequence.
    fn run(start: u32, m: u32) -> Rows {
        Rows { positions: (start..start + m).collect(), sequences: None }
    }

    /// The table and the slots of the rows.
    fn draw(&self, case: Case, n_seqs: u32, capacity: u32) -> Case {
        let pages = pages_used(&self.positions, self.sequences.as_deref(), n_seqs, capacity, 0);
        let case = case.draw("pages", pages).draw("positions", Draw::Ints(self.positions.clone()));
        match &self.sequences {
            Some(sequences) => case.draw("sequences", Draw::Ints(sequences.clone())),
            None => case,
        }
    }
}

fn over_cache(name: &str, dtype: DType, rows: &Rows, heads: Heads, n_seqs: u32, capacity: u32) -> Case {
    let m = rows.positions.len() as u32;
    let case = Case::new(format!("{name}/{}", shape(heads)), |b| {
        let q = b.input("q", m, heads.q_width())?;
        let positions = b.indices("positions", m)?;
        let sequences = rows.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let cache = kv_cache(b, dtype, heads, n_seqs, capacity)?;
        let y = b.cache_attention(q, cache, positions, sequences, scale(heads))?;
        b.output("y", y)
    });
    // Each row reads all keys and values up to its position; rows of one sequence share the reads.
    let seen: u64 = rows.positions.iter().map(|&p| u64::from(p) + 1).sum();
    let read = match &rows.sequences {
        None => u64::from(rows.positions.iter().max().map_or(0, |p| p + 1)),
        Some(_) => seen,
    };
    let row = dtype.bytes(heads.head_dim as usize).unwrap_or(0) as u64 * u64::from(heads.n_kv_heads);
    let work = Work {
        flops: 4 * seen * u64::from(heads.q_width()),
        bytes: 2 * read * row + 8 * u64::from(m) * u64::from(heads.q_width()),
    };
    rows.draw(case.dtype(dtype).tolerance(Tolerance::ATTENTION).work(work), n_seqs, capacity)
}

/// Index of an element of KV head 0 with the table `0, 1, 2, …`.
fn element(heads: Heads, position: u32, i: u32) -> usize {
    let row = position / KV_PAGE * heads.n_kv_heads * KV_PAGE + position % KV_PAGE;
    (row * heads.head_dim + i) as usize
}

/// The rows of a head over the borders of pages, decoding and prefilling, and sequences that share pages.
fn page_borders(cases: &mut Vec<Case>, dtype: DType) {
    let shapes = [heads(4, 2, 64), heads(7, 1, 80), heads(6, 6, 96), heads(16, 2, 128), heads(12, 3, 256)];
    for heads in shapes.into_iter().filter(|heads| fits(dtype, heads.head_dim)) {
        for (start, m) in [(127, 1), (128, 1), (129, 1), (255, 1), (256, 1), (257, 1), (120, 20), (250, 40)] {
            let name = format!("pages/m{m}/at{start}");
            cases.push(over_cache(&name, dtype, &Rows::run(start, m), heads, 1, 400));
        }
        let (positions, sequences) = (vec![383, 127, 300, 128], vec![2, 0, 1, 3]);
        let shared = pages_used(&positions, Some(&sequences), 4, 400, 2);
        let rows = Rows { positions, sequences: Some(sequences) };
        let case = over_cache("pages/shared", dtype, &rows, heads, 4, 400);
        cases.push(case.draw("pages", shared));
    }
    // The widest heads there are, of Gemma 4.
    for (start, m) in [(0, 1), (129, 1), (120, 20)] {
        let name = format!("pages/m{m}/at{start}");
        cases.push(over_cache(&name, dtype, &Rows::run(start, m), heads(8, 2, 512), 1, 400));
    }
}

/// Attention after the fused norm, RoPE and KV store, which a device may fuse further.
fn over_stored(name: &str, dtype: DType, rows: &Rows, heads: Heads, n_seqs: u32, capacity: u32) -> Case {
    over_stored_with(RopePairing::NeoX, name, dtype, rows, heads, n_seqs, capacity)
}

fn over_stored_with(
    pairing: RopePairing,
    name: &str,
    dtype: DType,
    rows: &Rows,
    heads: Heads,
    n_seqs: u32,
    capacity: u32,
) -> Case {
    let m = rows.positions.len() as u32;
    let case = Case::new(format!("after_rope_store/{name}/{}", shape(heads)), |b| {
        let q = b.input("q", m, heads.q_width())?;
        let (k, v) = (b.input("k", m, heads.kv_width())?, b.input("v", m, heads.kv_width())?);
        // Inputs keep their values; computed tensors may be overwritten.
        let [q, k, v] = [b.add(q, q)?, b.add(k, k)?, b.add(v, v)?];
        let positions = b.indices("positions", m)?;
        let sequences = rows.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let gains = [b.vector("q_gamma", heads.head_dim)?, b.vector("k_gamma", heads.head_dim)?];
        let cache = kv_cache(b, dtype, heads, n_seqs, capacity)?;
        let spec = RopeSpec::new(pairing, heads.head_dim, 1_000_000.0);
        let rotation = Rotation { spec, positions, factors: None };
        let q = b.rope_store([q, k, v], gains.map(Some), 1e-6, rotation, cache, sequences)?;
        let y = b.cache_attention(q, cache, positions, sequences, scale(heads))?;
        b.output("y", y)
    });
    let tolerance = match dtype {
        DType::Q8_0 => Tolerance::STORED_Q8_0_ATTENTION,
        _ => Tolerance::ATTENTION,
    };
    let case = case.dtype(dtype).tolerance(tolerance).sharing(Sharing::InPlace);
    rows.draw(case.draw("q_gamma", Draw::GAIN).draw("k_gamma", Draw::GAIN), n_seqs, capacity)
}

/// A step whose rows are known to decode, to prefill, or to do both by a work list.
fn of_step(
    name: &str,
    dtype: DType,
    rows: &Rows,
    step: (u32, &[PrefillChunk]),
    heads: Heads,
    n_seqs: u32,
) -> Case {
    let (m, capacity, max_chunks) = (rows.positions.len() as u32, 400, 4);
    let (decode_rows, chunks) = step;
    let mixed = decode_rows > 0 && !chunks.is_empty();
    let case = Case::new(format!("step/{name}/{}", shape(heads)), |b| {
        let q = b.input("q", m, heads.q_width())?;
        let positions = b.indices("positions", m)?;
        let sequences = rows.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let cache = kv_cache(b, dtype, heads, n_seqs, capacity)?;
        let kinds = match chunks {
            _ if mixed => b.attention_work("work", max_chunks)?,
            [] => AttentionRows::Decode,
            _ => AttentionRows::Prefill,
        };
        let y = b.step_attention(q, cache, positions, sequences, kinds, scale(heads))?;
        b.output("y", y)
    });
    let case = rows.draw(case.dtype(dtype).tolerance(Tolerance::ATTENTION), n_seqs, capacity);
    let work = attention_work(decode_rows, chunks, max_chunks).unwrap_or_default();
    if mixed { case.draw("work", Draw::Ints(work)) } else { case }
}

/// Steps with `decode` rows of as many sequences, then chunks of further sequences: (rows, first position).
fn step(decode: u32, chunks: &[(u32, u32)]) -> (Rows, Vec<PrefillChunk>) {
    let mut positions: Vec<u32> = (0..decode).map(|row| row * 67 % 399).collect();
    let mut sequences: Vec<u32> = (0..decode).rev().collect();
    let mut list = Vec::new();
    for (sequence, &(rows, first_position)) in (decode..).zip(chunks) {
        let first_row = positions.len() as u32;
        list.push(PrefillChunk { first_row, rows, sequence, first_position });
        positions.extend(first_position..first_position + rows);
        sequences.extend(std::iter::repeat_n(sequence, rows as usize));
    }
    (Rows { positions, sequences: Some(sequences) }, list)
}

fn steps_of_kinds(cases: &mut Vec<Case>, dtype: DType) {
    for heads in [heads(6, 2, 64), heads(8, 2, 128), heads(3, 1, 96)] {
        for (name, decode, chunks) in [
            ("decode70", 70, &[][..]),
            ("prefill50", 0, &[(50, 100)][..]),
            ("mixed/3+20", 3, &[(20, 100)][..]),
            ("mixed/1+1", 1, &[(1, 127)][..]),
            ("mixed/20+90+40", 20, &[(90, 50), (40, 0)][..]),
            ("mixed/5+33+1+64+130", 5, &[(33, 95), (1, 0), (64, 128), (130, 3)][..]),
        ] {
            let (rows, list) = step(decode, chunks);
            let n_seqs = decode + chunks.len() as u32;
            cases.push(of_step(name, dtype, &rows, (decode, &list), heads, n_seqs));
        }
    }
}

/// Two decode steps of a sequence in one graph: the second must see what the first has stored.
fn steps(dtype: DType, position: u32, heads: Heads) -> Case {
    let case = Case::new(format!("after_rope_store/two_steps/at{position}/{}", shape(heads)), |b| {
        let cache = kv_cache(b, dtype, heads, 1, position + 2)?;
        let spec = RopeSpec::new(RopePairing::NeoX, heads.head_dim, 10_000.0);
        for at in ["0", "1"] {
            let q = b.input(&format!("q{at}"), 1, heads.q_width())?;
            let k = b.input(&format!("k{at}"), 1, heads.kv_width())?;
            let v = b.input(&format!("v{at}"), 1, heads.kv_width())?;
            let positions = b.indices(&format!("positions{at}"), 1)?;
            let rotation = Rotation { spec, positions, factors: None };
            let q = b.rope_store([q, k, v], [None; 2], 1e-6, rotation, cache, None)?;
            let y = b.cache_attention(q, cache, positions, None, scale(heads))?;
            b.output(&format!("y{at}"), y)?;
        }
        Ok(())
    });
    let case = case.dtype(dtype).tolerance(Tolerance::ATTENTION);
    case.draw("positions0", Draw::Ints(vec![position])).draw("positions1", Draw::Ints(vec![position + 1]))
}

/// The fused store with other head sizes, numbers of query heads per KV head and pairs of RoPE, and a full
/// decode batch.
fn odd_heads_after_store(cases: &mut Vec<Case>, dtype: DType) {
    let shapes = [
        heads(7, 1, 80),
        heads(6, 6, 96),
        heads(12, 3, 256),
        heads(9, 1, 64),
        heads(24, 2, 128),
        heads(17, 1, 128),
        heads(20, 2, 96),
    ];
    for heads in shapes.into_iter().filter(|heads| fits(dtype, heads.head_dim)) {
        for (start, m) in [(0, 1), (143, 1), (290, 1), (120, 5)] {
            let name = format!("m{m}/at{start}");
            cases.push(over_stored(&name, dtype, &Rows::run(start, m), heads, 1, 300));
        }
        let rows = Rows { positions: vec![5, 299, 128], sequences: Some(vec![2, 0, 1]) };
        cases.push(over_stored("batch3", dtype, &rows, heads, 3, 300));
    }
    for heads in [heads(4, 2, 64), heads(2, 1, 128)] {
        for (start, m) in [(0, 1), (200, 1), (130, 3)] {
            let (name, rows) = (format!("interleaved/m{m}/at{start}"), Rows::run(start, m));
            cases.push(over_stored_with(RopePairing::Interleaved, &name, dtype, &rows, heads, 1, 300));
        }
        for m in [129, 256] {
            let positions = (0..m).map(|row| row * 37 % 200).collect();
            let rows = Rows { positions, sequences: Some((0..m).rev().collect()) };
            cases.push(over_stored(&format!("batch{m}"), dtype, &rows, heads, m, 200));
        }
    }
}

/// Prefill: many rows, for which kernels may tile rows and positions.
fn prefill(cases: &mut Vec<Case>) {
    let capacity = 400;
    for heads in [heads(10, 5, 128), heads(8, 2, 64), heads(7, 1, 128), heads(3, 1, 64)] {
        for (start, m) in [(0, 128), (77, 129), (127, 129), (100, 300)] {
            let name = format!("prefill/m{m}/at{start}");
            cases.push(over_cache(&name, DType::F16, &Rows::run(start, m), heads, 1, capacity));
        }
        // Three interleaved sequences, and one that starts later.
        let positions = (0..150).map(|row| row / 3 + 40 * (row % 3)).chain(200..230).collect();
        let sequences = (0..150).map(|row| row % 3).chain([3; 30]).collect();
        let rows = Rows { positions, sequences: Some(sequences) };
        cases.push(over_cache("prefill/sequences", DType::F16, &rows, heads, 4, capacity));
        // A value that only the rows from 60 on see, and one that no row sees.
        let infinite = vec![(element(heads, 60, 5), f32::INFINITY), (element(heads, 170, 0), f32::NAN)];
        let case = over_cache("prefill/infinite", DType::F16, &Rows::run(0, 140), heads, 1, capacity);
        let case = case.draw("pages", Draw::Ints((0..pool(1, capacity) - 2).collect()));
        cases.push(case.draw("kv.v", Draw::With(infinite)));
    }
    // Many heads, also in Q8_0.
    for dtype in [DType::F16, DType::Q8_0] {
        for heads in [heads(24, 8, 64), heads(24, 2, 128), heads(32, 8, 64)] {
            for (start, m) in [(0, 130), (40, 257)] {
                let name = format!("prefill/m{m}/at{start}");
                cases.push(over_cache(&name, dtype, &Rows::run(start, m), heads, 1, capacity));
            }
        }
        let (heads, rows) = (QWEN3_4B.heads, Rows::run(100, 300));
        cases.push(over_cache("qwen3-4b/m300/at100", dtype, &rows, heads, 1, capacity).large());
    }
    let (heads, rows) = (QWEN3_4B.heads, Rows::run(512, 512));
    cases.push(over_cache("qwen3-4b/m512/at512", DType::F16, &rows, heads, 1, 1024).large().timed());
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    let odd =
        [heads(1, 1, 1), heads(1, 1, 3), heads(3, 1, 5), heads(4, 4, 32), heads(6, 2, 80), heads(7, 7, 33)];
    for heads in odd.into_iter().chain(MODELS.iter().map(|model| model.heads)) {
        for m in [1, 2, 7, 33] {
            cases.push(over_rows("", m, heads, scale(heads)));
        }
    }
    cases.push(over_rows("", 0, heads(2, 1, 64), 0.125));
    cases.push(over_rows("", 128, heads(9, 3, 64), 0.125));
    cases.push(over_rows("", 257, heads(4, 1, 64), 0.125));
    cases.push(over_rows("sharp/", 33, heads(4, 2, 64), 4.0));
    cases.push(over_rows("flat/", 33, heads(4, 2, 64), 0.0));
    cases.push(over_rows("", 256, QWEN3_4B.heads, scale(QWEN3_4B.heads)).large().timed());

    for dtype in CACHES {
        for heads in odd.into_iter().filter(|heads| fits(dtype, heads.head_dim)) {
            for (start, m) in [(0, 1), (1, 1), (31, 1), (40, 3), (0, 17)] {
                let name = format!("m{m}/at{start}");
                cases.push(over_cache(&name, dtype, &Rows::run(start, m), heads, 1, 64));
            }
        }
        for model in &MODELS {
            for (start, m) in [(0, 1), (7, 1), (255, 1), (256, 1), (300, 5), (0, 33), (1000, 1)] {
                let name = format!("{}/m{m}/at{start}", model.name);
                cases.push(over_cache(&name, dtype, &Rows::run(start, m), model.heads, 1, 1024));
            }
            // Four sequences of different lengths, each with one row.
            let rows = Rows { positions: vec![5, 0, 77, 63], sequences: Some(vec![2, 0, 3, 1]) };
            cases.push(over_cache(&format!("{}/batch4", model.name), dtype, &rows, model.heads, 4, 96));
            for position in [1023, 4095] {
                let name = format!("{}/m1/at{position}/of4096", model.name);
                let rows = Rows::run(position, 1);
                cases.push(over_cache(&name, dtype, &rows, model.heads, 1, 4096).large().timed());
            }
        }
        steps_of_kinds(cases, dtype);
        // F16 and Q8_0 caches may have special kernels.
        let many = [heads(10, 5, 128), heads(10, 5, 64), heads(6, 2, 64)];
        for &heads in if dtype == DType::F32 { &many[2..] } else { &many[..] } {
            for (start, m) in [(0, 1), (16, 1), (299, 1), (0, 5), (130, 16)] {
                let name = format!("m{m}/at{start}");
                cases.push(over_stored(&name, dtype, &Rows::run(start, m), heads, 1, 300));
            }
            for position in [0, 200] {
                cases.push(steps(dtype, position, heads));
            }
            // Long contexts may be partitioned differently, from some thousand positions on.
            for position in [3071, 3072, 5000] {
                let name = format!("m1/at{position}");
                cases.push(over_stored(&name, dtype, &Rows::run(position, 1), heads, 1, 5001).large());
            }
            // Sequences in another order than the rows, of lengths around tiles.
            let lengths = [5, 0, 299, 16, 127, 128, 31, 255, 256, 1, 144, 15, 17, 200, 63, 298];
            let batches = if dtype == DType::F32 { &[2, 4, 16] } else { &[2, 4, 16, 17, 32, 33, 64][..] };
            for &m in batches {
                let positions = lengths.into_iter().cycle().take(m).collect();
                let rows = Rows { positions, sequences: Some((0..m as u32).rev().collect()) };
                cases.push(over_stored(&format!("batch{m}"), dtype, &rows, heads, m as u32, 300));
            }
            // A full decode batch in which some sequences have several rows.
            let positions = (0..32).map(|row| (row * 37) % 290).collect();
            let sequences = (0..32).map(|row| row / 3 * 3).collect();
            let rows = Rows { positions, sequences: Some(sequences) };
            cases.push(over_stored("scattered32", dtype, &rows, heads, 32, 300));
            // Rows of one sequence with gaps between them, two of them at one position, and a row of another
            // sequence.
            let rows = Rows {
                positions: vec![200, 33, 3, 33, 40, 47, 201, 3],
                sequences: Some(vec![1, 1, 0, 1, 1, 1, 1, 2]),
            };
            cases.push(over_stored("scattered", dtype, &rows, heads, 3, 202));
        }
        odd_heads_after_store(cases, dtype);
        // Rows of one sequence that are not consecutive, and two rows at one position.
        let rows = Rows { positions: vec![9, 3, 3, 40, 0], sequences: Some(vec![1, 1, 0, 1, 0]) };
        cases.push(over_cache("scattered", dtype, &rows, heads(4, 2, 32), 2, 41));
        let none = Rows { positions: vec![], sequences: None };
        cases.push(over_cache("m0", dtype, &none, heads(4, 2, 32), 1, 8));
        let only = Rows::run(0, 1);
        cases.push(over_cache("capacity1", dtype, &only, heads(4, 2, 32), 1, 1));
        page_borders(cases, dtype);
    }
    prefill(cases);
    // Data beyond a row's position does not affect it.
    let heads = heads(2, 1, 32);
    let beyond: Vec<(usize, f32)> = (4 * 32..128 * 32).map(|i| (i, f32::NAN)).collect();
    let case = over_cache("nan_beyond", DType::F32, &Rows::run(3, 1), heads, 1, 16);
    let case = case.draw("pages", Draw::Ints(vec![0]));
    cases.push(case.draw("kv.k", Draw::With(beyond.clone())).draw("kv.v", Draw::With(beyond)));
    let case = over_cache("nan_query", DType::F32, &Rows::run(3, 2), heads, 1, 16);
    cases.push(case.draw("q", Draw::With(vec![(1, f32::NAN)])));
}
