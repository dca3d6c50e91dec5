//! KV store, alone and fused with norm and RoPE.

use fulmen_core::{DType, Heads, RopePairing, RopeSpec, Rotation, Sharing};

use super::{Batch, CACHES, MODELS, fits, heads, kv_cache, pages_used};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

fn batches() -> Vec<Batch> {
    let batch = Batch::new;
    vec![
        batch("m1", &[0], None, 1, 1),
        batch("m1/last", &[16], None, 1, 17),
        batch("m5", &[3, 4, 5, 6, 7], None, 1, 17),
        batch("m33", &(0..33).collect::<Vec<_>>(), None, 1, 40),
        batch("batch3", &[7, 0, 12], Some(&[2, 0, 1]), 3, 13),
        batch("m0", &[], None, 1, 4),
        // Across the borders of pages, in one sequence and in several.
        batch("m300", &(100..400).collect::<Vec<_>>(), None, 1, 400),
        batch("borders", &[127, 128, 255, 256, 257, 0], Some(&[1, 0, 2, 1, 0, 3]), 4, 300),
    ]
}

fn kv_store(prefix: &str, batch: &Batch, dtype: DType, heads: Heads) -> Case {
    let m = batch.positions.len() as u32;
    let name = format!("{prefix}{}/{}x{}", batch.name, heads.n_kv_heads, heads.head_dim);
    let case = Case::new(name, |b| {
        let (k, v) = (b.input("k", m, heads.kv_width())?, b.input("v", m, heads.kv_width())?);
        let positions = b.indices("positions", m)?;
        let sequences = batch.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let &Batch { n_seqs, capacity, .. } = batch;
        let cache = kv_cache(b, dtype, heads, n_seqs, capacity)?;
        b.kv_store(k, v, cache, positions, sequences)
    });
    // Q8_0 encoders may round the scale before or after they compute the quants.
    let tolerance = if dtype == DType::Q8_0 { Tolerance::REENCODED } else { Tolerance::Exact };
    placed(case.dtype(dtype).tolerance(tolerance), batch)
}

fn placed(case: Case, batch: &Batch) -> Case {
    let (positions, sequences) = (&batch.positions, batch.sequences.as_deref());
    let pages = pages_used(positions, sequences, batch.n_seqs, batch.capacity, 0);
    let case = case.draw("pages", pages).draw("positions", Draw::Ints(positions.clone()));
    match &batch.sequences {
        Some(sequences) => case.draw("sequences", Draw::Ints(sequences.clone())),
        None => case,
    }
}

struct RopeStoreCase {
    pairing: RopePairing,
    gains: [bool; 2],
    factors: bool,
    /// Whether only half of a head is rotated.
    half: bool,
    sharing: Sharing,
}

fn rope_store(prefix: &str, batch: &Batch, dtype: DType, heads: Heads, options: &RopeStoreCase) -> Case {
    let m = batch.positions.len() as u32;
    let shape = format!("{}:{}x{}", heads.n_heads, heads.n_kv_heads, heads.head_dim);
    let case = Case::new(format!("{prefix}{}/{shape}", batch.name), |b| {
        let q = b.input("q", m, heads.q_width())?;
        let (k, v) = (b.input("k", m, heads.kv_width())?, b.input("v", m, heads.kv_width())?);
        let positions = b.indices("positions", m)?;
        let sequences = batch.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let mut vector = |wanted: bool, name: &str, len: u32| {
            if wanted { b.vector(name, len).map(Some) } else { Ok(None) }
        };
        let gains = [
            vector(options.gains[0], "q_gamma", heads.head_dim)?,
            vector(options.gains[1], "k_gamma", heads.head_dim)?,
        ];
        let n_rot = if options.half { heads.head_dim / 2 } else { heads.head_dim };
        let factors = vector(options.factors, "factors", n_rot / 2)?;
        let &Batch { n_seqs, capacity, .. } = batch;
        let cache = kv_cache(b, dtype, heads, n_seqs, capacity)?;
        let spec = RopeSpec::new(options.pairing, n_rot, 1_000_000.0);
        let rotation = Rotation { spec, positions, factors };
        let q = if options.sharing == Sharing::InPlace { b.add(q, q)? } else { q };
        let y = b.rope_store([q, k, v], gains, 1e-6, rotation, cache, sequences)?;
        b.output("y", y)
    });
    let tolerance = if dtype == DType::Q8_0 { Tolerance::REENCODED } else { Tolerance::ELEMENT };
    let mut case = placed(case.dtype(dtype).tolerance(tolerance), batch).sharing(options.sharing);
    for (wanted, name, draw) in [
        (options.gains[0], "q_gamma", Draw::GAIN),
        (options.gains[1], "k_gamma", Draw::GAIN),
        (options.factors, "factors", Draw::Normal(4.0, 0.5)),
    ] {
        if wanted {
            case = case.draw(name, draw);
        }
    }
    case
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    let odd = [heads(1, 1, 1), heads(2, 2, 3), heads(4, 2, 33), heads(4, 2, 32), heads(3, 3, 80)];
    let real = MODELS.iter().map(|model| (model.name, model.heads));
    let all: Vec<(&str, Heads)> = odd.map(|heads| ("", heads)).into_iter().chain(real).collect();
    for dtype in CACHES {
        for &(model, heads) in all.iter().filter(|(_, heads)| fits(dtype, heads.head_dim)) {
            let prefix = if model.is_empty() { String::new() } else { format!("{model}/") };
            for batch in batches() {
                let case = kv_store(&prefix, &batch, dtype, heads);
                cases.push(if model == "qwen3-4b" && batch.name == "m33" { case.timed() } else { case });
            }
        }
        let big = kv_store("overflow/", &batches()[2], dtype, heads(4, 2, 32));
        if dtype == DType::F16 {
            cases.push(big.draw("k", Draw::Normal(0.0, 1e5)));
        }
    }

    let plain = RopeStoreCase {
        pairing: RopePairing::NeoX,
        gains: [true, true],
        factors: false,
        half: false,
        sharing: Sharing::Never,
    };
    for dtype in CACHES {
        for model in &MODELS {
            for batch in batches() {
                let prefix = format!("{}/", model.name);
                let case = rope_store(&prefix, &batch, dtype, model.heads, &plain);
                cases.push(if matches!(batch.name, "m1" | "m33") { case.timed() } else { case });
            }
        }
        for (name, options) in [
            ("interleaved/", RopeStoreCase { pairing: RopePairing::Interleaved, ..plain }),
            ("no_gains/", RopeStoreCase { gains: [false, false], ..plain }),
            ("q_gain/", RopeStoreCase { gains: [true, false], ..plain }),
            ("k_gain/", RopeStoreCase { gains: [false, true], ..plain }),
            ("factors/", RopeStoreCase { factors: true, gains: [false, false], ..plain }),
            (
                "llama/",
                RopeStoreCase {
                    pairing: RopePairing::Interleaved,
                    factors: true,
                    gains: [false, false],
                    ..plain
                },
            ),
            ("partial_rotary/", RopeStoreCase { half: true, ..plain }),
            (
                "partial_rotary_interleaved/",
                RopeStoreCase { half: true, factors: true, pairing: RopePairing::Interleaved, ..plain },
            ),
            ("in_place/", RopeStoreCase { sharing: Sharing::InPlace, ..plain }),
        ] {
            for batch in [&batches()[2], &batches()[4]] {
                // Head sizes 64 and 128 may have special kernels.
                for heads in [heads(6, 2, 32), heads(6, 2, 64), heads(4, 2, 128)] {
                    cases.push(rope_store(name, batch, dtype, heads, &options));
                }
            }
        }
    }
}
