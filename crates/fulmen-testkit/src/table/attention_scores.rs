//! Attention with sliding windows, chunks, soft capping, attention temperature and sinks.

use fulmen_core::{
    AttentionRows, DType, Heads, KV_PAGE, PrefillChunk, RopePairing, RopeSpec, Rotation, Scores, Sharing,
    Temperature, attention_work,
};

use super::{heads, kv_cache, pages_used};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

/// A rule of scores and its name; whether it has sinks.
#[derive(Clone, Copy)]
struct Rule {
    name: &'static str,
    window: Option<u32>,
    chunk: Option<u32>,
    softcap: Option<f32>,
    temperature: Option<Temperature>,
    sinks: bool,
}

const PLAIN: Rule =
    Rule { name: "", window: None, chunk: None, softcap: None, temperature: None, sinks: false };

/// Windows and chunks shorter than a tile, around a tile and a page and longer than the context; the caps of
/// real models; everything at once.
const RULES: [Rule; 16] = [
    Rule { name: "window1", window: Some(1), ..PLAIN },
    Rule { name: "window3", window: Some(3), ..PLAIN },
    Rule { name: "window64", window: Some(64), ..PLAIN },
    Rule { name: "window200", window: Some(200), ..PLAIN },
    Rule { name: "window5000", window: Some(5000), ..PLAIN },
    Rule { name: "chunk1", chunk: Some(1), ..PLAIN },
    Rule { name: "chunk5", chunk: Some(5), ..PLAIN },
    Rule { name: "chunk64", chunk: Some(64), ..PLAIN },
    Rule { name: "chunk200", chunk: Some(200), ..PLAIN },
    Rule { name: "chunk5000", chunk: Some(5000), ..PLAIN },
    Rule {
        name: "chunk100_all",
        window: Some(70),
        chunk: Some(100),
        softcap: Some(2.0),
        sinks: true,
        ..PLAIN
    },
    Rule { name: "softcap50", softcap: Some(50.0), ..PLAIN },
    Rule { name: "softcap0.5", softcap: Some(0.5), ..PLAIN },
    Rule { name: "temperature", temperature: Some(Temperature { length: 50, beta: 0.3 }), ..PLAIN },
    Rule { name: "sinks", sinks: true, ..PLAIN },
    Rule {
        name: "all",
        window: Some(70),
        chunk: None,
        softcap: Some(2.0),
        temperature: Some(Temperature { length: 16, beta: 0.1 }),
        sinks: true,
    },
];

impl Rule {
    fn scores<T>(self, heads: Heads, sinks: Option<T>) -> Scores<T> {
        let Rule { window, chunk, softcap, temperature, .. } = self;
        Scores { scale: 1.0 / (heads.head_dim as f32).sqrt(), window, chunk, softcap, temperature, sinks }
    }

    fn name(self, rest: &str, heads: Heads) -> String {
        format!("{}/{rest}/{}:{}x{}", self.name, heads.n_heads, heads.n_kv_heads, heads.head_dim)
    }
}

/// Sinks around the largest scores, where their weight matters.
const SINKS: Draw = Draw::Normal(1.0, 2.0);

fn over_rows(rule: Rule, m: u32, heads: Heads) -> Case {
    let case = Case::new(rule.name(&format!("m{m}"), heads), |b| {
        let q = b.input("q", m, heads.q_width())?;
        let (k, v) = (b.input("k", m, heads.kv_width())?, b.input("v", m, heads.kv_width())?);
        let sinks = if rule.sinks { Some(b.vector("sinks", heads.n_heads)?) } else { None };
        let y = b.attention(q, k, v, heads, rule.scores(heads, sinks))?;
        b.output("y", y)
    });
    let case = case.tolerance(Tolerance::ATTENTION);
    if rule.sinks { case.draw("sinks", SINKS) } else { case }
}

/// Rows of a cache: (positions, sequences, kinds of rows).
struct Rows<'a> {
    name: &'a str,
    positions: Vec<u32>,
    sequences: Option<Vec<u32>>,
    kind: AttentionRows,
}

impl Rows<'_> {
    /// The pages of each sequence that no row sees. No kernel may read them.
    fn pages_behind(&self, scores: Scores, n_seqs: u32) -> Vec<u32> {
        let of = |sequence: u32| {
            let rows = (0..).zip(&self.positions);
            let own = rows.filter(|&(row, _): &(usize, _)| {
                self.sequences.as_ref().map_or(0, |sequences| sequences[row]) == sequence
            });
            own.map(|(_, &position)| scores.first_visible(position) / KV_PAGE).min().unwrap_or(0)
        };
        (0..n_seqs).map(of).collect()
    }

    /// Consecutive rows of one sequence.
    fn run(name: &str, first: u32, m: u32, kind: AttentionRows) -> Rows<'_> {
        Rows { name, positions: (first..first + m).collect(), sequences: None, kind }
    }
}

fn over_cache(rule: Rule, dtype: DType, rows: &Rows<'_>, heads: Heads, stored: bool) -> Case {
    over_cache_of(400, rule, dtype, rows, heads, stored)
}

/// With caches of `capacity` positions.
fn over_cache_of(
    capacity: u32,
    rule: Rule,
    dtype: DType,
    rows: &Rows<'_>,
    heads: Heads,
    stored: bool,
) -> Case {
    let m = rows.positions.len() as u32;
    let n_seqs = rows.sequences.as_ref().map_or(1, |sequences| sequences.iter().max().map_or(1, |s| s + 1));
    let chunk = PrefillChunk { first_row: 2, rows: m.saturating_sub(2), sequence: 2, first_position: 30 };
    let case = Case::new(rule.name(rows.name, heads), |b| {
        let mut q = b.input("q", m, heads.q_width())?;
        let positions = b.indices("positions", m)?;
        let sequences = rows.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let cache = kv_cache(b, dtype, heads, n_seqs, capacity)?;
        if stored {
            let (k, v) = (b.input("k", m, heads.kv_width())?, b.input("v", m, heads.kv_width())?);
            let [a, k, v] = [b.add(q, q)?, b.add(k, k)?, b.add(v, v)?];
            let spec = RopeSpec::new(RopePairing::NeoX, heads.head_dim, 1e6);
            let rotation = Rotation { spec, positions, factors: None };
            q = b.rope_store([a, k, v], [None; 2], 1e-6, rotation, cache, sequences)?;
        }
        let sinks = if rule.sinks { Some(b.vector("sinks", heads.n_heads)?) } else { None };
        let kind = match rows.kind {
            AttentionRows::Mixed { .. } => b.attention_work("work", 2)?,
            AttentionRows::Decode => AttentionRows::Decode,
            AttentionRows::Prefill => AttentionRows::Prefill,
            AttentionRows::Any => AttentionRows::Any,
        };
        let scores = rule.scores(heads, sinks);
        let y = b.step_attention(q, cache, positions, sequences, kind, scores)?;
        b.output("y", y)
    });
    let tolerance = match (dtype, stored) {
        (DType::Q8_0, true) => Tolerance::STORED_Q8_0_ATTENTION,
        _ => Tolerance::ATTENTION,
    };
    let mut pages = pages_used(&rows.positions, rows.sequences.as_deref(), n_seqs, capacity, 0);
    if let Draw::Pages { behind, .. } = &mut pages {
        *behind = rows.pages_behind(rule.scores(heads, None), n_seqs);
    }
    let mut case = case.dtype(dtype).tolerance(tolerance).draw("pages", pages);
    case = case.draw("positions", Draw::Ints(rows.positions.clone()));
    if let Some(sequences) = &rows.sequences {
        case = case.draw("sequences", Draw::Ints(sequences.clone()));
    }
    if rows.kind.work().is_some() {
        case = case.draw("work", Draw::Ints(attention_work(2, &[chunk], 2).unwrap_or_default()));
    }
    if stored {
        case = case.sharing(Sharing::InPlace);
    }
    if rule.sinks { case.draw("sinks", SINKS) } else { case }
}

/// Contexts of several rounds of tiles, with windows and chunks that begin in the first, in a middle and in
/// the last of them, over every cache and head size that has decode kernels; the row's own key is stored by
/// the kernel or is in the cache.
fn long_contexts(cases: &mut Vec<Case>) {
    const CAPACITY: u32 = 3000;
    let rules = [
        Rule { name: "window128", window: Some(128), sinks: true, ..PLAIN },
        Rule { name: "window1024", window: Some(1024), ..PLAIN },
        Rule { name: "window2500", window: Some(2500), softcap: Some(30.0), ..PLAIN },
        Rule { name: "chunk1024", chunk: Some(1024), ..PLAIN },
        Rule { name: "chunk700", chunk: Some(700), softcap: Some(30.0), sinks: true, ..PLAIN },
        Rule { name: "sinks", sinks: true, ..PLAIN },
    ];
    let shapes = [
        (DType::F16, heads(8, 4, 256)),
        (DType::F16, heads(8, 1, 256)),
        (DType::F16, heads(64, 8, 64)),
        (DType::F16, heads(8, 2, 128)),
        (DType::F16, heads(9, 1, 128)),
        (DType::F16, heads(4, 2, 80)),
        (DType::F16, heads(4, 2, 96)),
        (DType::Q8_0, heads(8, 2, 128)),
        (DType::Q8_0, heads(16, 2, 64)),
        (DType::Q8_0, heads(4, 2, 96)),
        (DType::F32, heads(8, 2, 128)),
        (DType::F32, heads(8, 2, 64)),
    ];
    for rule in rules {
        for (dtype, heads) in shapes {
            for (position, stored) in [(2900, true), (2047, true), (1500, false)] {
                let name = format!("{}m1/at{position}", if stored { "stored/" } else { "" });
                let rows = Rows::run(&name, position, 1, AttentionRows::Decode);
                cases.push(over_cache_of(CAPACITY, rule, dtype, &rows, heads, stored).large());
            }
            // Sequences of a row each, and several new rows of one sequence that see each other.
            let batch = Rows {
                name: "stored/batch4",
                positions: vec![2999, 5, 1030, 2048],
                sequences: Some(vec![1, 0, 3, 2]),
                kind: AttentionRows::Decode,
            };
            cases.push(over_cache_of(CAPACITY, rule, dtype, &batch, heads, true).large());
            let rows = Rows::run("stored/m6/at1100", 1100, 6, AttentionRows::Any);
            cases.push(over_cache_of(CAPACITY, rule, dtype, &rows, heads, true).large());
        }
        for (dtype, heads) in [(DType::F16, heads(4, 2, 256)), (DType::Q8_0, heads(4, 2, 128))] {
            let rows = Rows::run("m70/at1300", 1300, 70, AttentionRows::Prefill);
            cases.push(over_cache_of(CAPACITY, rule, dtype, &rows, heads, false).large());
        }
    }
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for rule in RULES {
        for (m, heads) in [(1, heads(2, 1, 64)), (33, heads(3, 1, 5)), (150, heads(4, 2, 64))] {
            cases.push(over_rows(rule, m, heads));
        }
        for (dtype, shapes) in [
            (DType::F32, &[heads(16, 2, 64), heads(3, 1, 5)][..]),
            (DType::F16, &[heads(8, 4, 256), heads(8, 2, 128)]),
            (DType::Q8_0, &[heads(16, 2, 64)]),
        ] {
            for &heads in shapes {
                // A decode step, alone and after the store; a decode batch; prefill chunks of one and of
                // several sequences; a mixed step.
                for position in [0, 63, 130, 399] {
                    let name = format!("m1/at{position}");
                    let rows = Rows::run(&name, position, 1, AttentionRows::Decode);
                    cases.push(over_cache(rule, dtype, &rows, heads, false));
                }
                if heads.head_dim.is_multiple_of(2) {
                    let rows = Rows::run("stored/m1/at200", 200, 1, AttentionRows::Decode);
                    cases.push(over_cache(rule, dtype, &rows, heads, true));
                }
                let batch = Rows {
                    name: "batch5",
                    positions: vec![5, 399, 128, 0, 257],
                    sequences: Some(vec![2, 0, 1, 4, 3]),
                    kind: AttentionRows::Decode,
                };
                cases.push(over_cache(rule, dtype, &batch, heads, false));
                let rows = Rows::run("m20/at120", 120, 20, AttentionRows::Prefill);
                cases.push(over_cache(rule, dtype, &rows, heads, false));
                let mixed = Rows {
                    name: "mixed/2+60",
                    positions: [300, 7].into_iter().chain(30..90).collect(),
                    sequences: Some([0, 1].into_iter().chain([2; 60]).collect()),
                    kind: AttentionRows::Mixed { work: 0, max_chunks: 2 },
                };
                cases.push(over_cache(rule, dtype, &mixed, heads, false));
            }
        }
        // Enough rows for the kernels of long prompts.
        for dtype in [DType::F16, DType::F32] {
            for heads in [heads(32, 8, 64), heads(16, 4, 128)] {
                let rows = Rows::run("m300/at90", 90, 300, AttentionRows::Prefill);
                cases.push(over_cache(rule, dtype, &rows, heads, false));
            }
            let sequences = (0..290).map(|row| row % 2).collect();
            let rows = Rows {
                name: "m290/interleaved",
                positions: (0..290).map(|row| row / 2 + 100 * (row % 2)).collect(),
                sequences: Some(sequences),
                kind: AttentionRows::Prefill,
            };
            cases.push(over_cache(rule, dtype, &rows, heads(32, 8, 64), false));
        }
    }
    long_contexts(cases);
}
