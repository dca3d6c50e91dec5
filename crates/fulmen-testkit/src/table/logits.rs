//! Logit biases, token masks, the largest logits and log-probabilities.

use fulmen_core::Sharing;
use fulmen_core::sampling::{LogitEdits, NO_SLOT, NO_TOKEN};

use super::MODELS;
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

/// Room for biases in a slot.
const CAPACITY: u32 = 40;

/// The slots of a case and the slot of each row; `None` if row `r` has slot `r`.
#[derive(Clone)]
struct Edited {
    edits: Vec<LogitEdits>,
    rows: Option<Vec<u32>>,
}

impl Edited {
    fn m(&self) -> u32 {
        self.rows.as_ref().map_or(self.edits.len(), Vec::len) as u32
    }

    /// The words of all slots. Behind the biases are tokens that no row has.
    fn words(&self) -> Vec<u32> {
        let width = 2 + 2 * CAPACITY as usize;
        let mut words = Vec::new();
        for edits in &self.edits {
            let mut slot = edits.words();
            slot.resize(width, u32::MAX);
            words.extend(slot);
        }
        words
    }
}

fn mask_logits(name: &str, n: u32, edited: &Edited, sharing: Sharing) -> Case {
    let (m, slots) = (edited.m(), edited.edits.len() as u32);
    let case = Case::new(format!("{name}/{m}x{n}"), |b| {
        let mut x = b.input("x", m, n)?;
        let edits = b.logit_edits("edits", slots, CAPACITY)?;
        let masks = b.token_masks("masks", slots, n)?;
        let rows = edited.rows.as_ref().map(|_| b.indices("slots", m)).transpose()?;
        if sharing == Sharing::InPlace {
            x = b.add(x, x)?;
        }
        let y = b.mask_logits(x, edits, masks, rows)?;
        b.output("y", y)
    });
    let case = case.draw("x", Draw::Normal(0.0, 3.0)).draw("edits", Draw::Ints(edited.words()));
    // Mixed bits, those behind the last token included; the first token of each word is excluded, so that a
    // mask always has an effect.
    let masks = (0..slots * n.div_ceil(32)).map(|i| i.wrapping_mul(0x9e37_79b9).rotate_left(i % 32) & !1);
    let case = case.draw("masks", Draw::Ints(masks.collect()));
    let case = match &edited.rows {
        Some(rows) => case.draw("slots", Draw::Ints(rows.clone())),
        None => case,
    };
    case.sharing(sharing).tolerance(Tolerance::Exact)
}

/// `count` biases of different tokens of a vocabulary of `n`, the last token among them.
fn biases(n: u32, count: u32) -> Vec<(u32, f32)> {
    let count = count.min(n);
    let token = |i: u32| n - 1 - (u64::from(i) * u64::from(n) / u64::from(count)) as u32;
    (0..count).map(|i| (token(i), i as f32 - 4.5)).collect()
}

fn settings(n: u32) -> [(&'static str, LogitEdits); 5] {
    let mut excluded = biases(n, 3);
    excluded[0].1 = f32::NEG_INFINITY;
    [
        ("mask", LogitEdits { masked: true, biases: Vec::new() }),
        ("bias", LogitEdits { masked: false, biases: biases(n, 7) }),
        ("full", LogitEdits { masked: false, biases: biases(n, CAPACITY) }),
        ("both", LogitEdits { masked: true, biases: biases(n, 17) }),
        ("exclude", LogitEdits { masked: false, biases: excluded }),
    ]
}

fn mask_cases(cases: &mut Vec<Case>) {
    for n in [1, 31, 32, 33, 255, 1000, 4097, 9001] {
        for (name, edits) in settings(n) {
            let one = Edited { edits: vec![edits.clone()], rows: None };
            cases.push(mask_logits(name, n, &one, Sharing::Never));
            // In place, only the last row of three is changed.
            let none = LogitEdits::default;
            let three = Edited { edits: vec![none(), none(), edits], rows: None };
            cases.push(mask_logits(&format!("in_place/{name}"), n, &three, Sharing::InPlace));
        }
        // Slots in any order, several rows of one slot, rows without a slot, slots without a row.
        let mut edits: Vec<LogitEdits> = settings(n).map(|(_, edits)| edits).into();
        edits.push(LogitEdits::default());
        let rows = Some(vec![4, 0, NO_SLOT, 2, 5, 3, 0, NO_SLOT, 3]);
        cases.push(mask_logits("slots", n, &Edited { edits, rows }, Sharing::Never));
    }
    let none = Edited { edits: vec![LogitEdits::default(); 3], rows: None };
    cases.push(mask_logits("none", 5000, &none, Sharing::Never));
    cases.push(mask_logits("empty", 256, &Edited { edits: Vec::new(), rows: None }, Sharing::Never));
    let unused = Edited { edits: vec![LogitEdits::default()], rows: Some(Vec::new()) };
    cases.push(mask_logits("empty_slots", 256, &unused, Sharing::Never));
    // Masks of all and of no tokens, and logits that are no numbers.
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let masked = LogitEdits { masked: true, biases: vec![(1, 2.0), (4, -inf)] };
    let special = Edited { edits: vec![masked; 3], rows: None };
    let case = mask_logits("special", 6, &special, Sharing::Never);
    let case = case.draw("x", Draw::Floats([nan, inf, -inf, 0.0, inf, -0.0].repeat(3)));
    cases.push(case.draw("masks", Draw::Ints(vec![0, 0x3f, 0x2a])));
    for model in &MODELS {
        let edits = LogitEdits { masked: true, biases: biases(model.vocabulary, 20) };
        let one = Edited { edits: vec![edits], rows: None };
        cases.push(mask_logits(model.name, model.vocabulary, &one, Sharing::InPlace).timed());
    }
}

fn log_probs(name: &str, n: u32, tokens: Vec<u32>, top: u32) -> Case {
    let m = tokens.len() as u32;
    let case = Case::new(format!("{name}/top{top}/{m}x{n}"), |b| {
        let (x, tokens) = (b.input("x", m, n)?, b.indices("tokens", m)?);
        let (values, indices) = b.log_probs(x, tokens, top)?;
        b.output("values", values)?;
        b.output("indices", indices)
    });
    case.draw("x", Draw::Normal(0.0, 3.0)).draw("tokens", Draw::Ints(tokens)).tolerance(Tolerance::SOFTMAX)
}

fn log_prob_cases(cases: &mut Vec<Case>) {
    for n in [1, 2, 19, 21, 255, 256, 257, 1000, 4097, 9001, 32_000] {
        for top in [0, 1, 5, 20] {
            cases.push(log_probs("normal", n, vec![n - 1, n / 2, 0], top));
        }
    }
    cases.push(log_probs("empty", 300, Vec::new(), 5));
    // Ties, the largest side by side, and far apart.
    let n = 9001;
    let ties = log_probs("equal", n, vec![7, n], 20);
    cases.push(ties.draw("x", Draw::Floats(vec![-0.25; 2 * n as usize])));
    let peaks = (0..2 * n).map(|i| if i % n >= 4090 && i % n < 4102 { 30.0 } else { (i % 37) as f32 * 0.1 });
    let cluster = log_probs("cluster", n, vec![4095, 0], 20);
    cases.push(cluster.draw("x", Draw::Floats(peaks.collect())));
    let far = (0..2 * n).map(|i| if i == 5 || i == n + 8000 { 3e38 } else { -3e38 });
    cases.push(log_probs("far", n, vec![5, 5], 3).draw("x", Draw::Floats(far.collect())));
    cases.push(special());
    for model in &MODELS {
        cases.push(log_probs(model.name, model.vocabulary, vec![model.vocabulary / 3], 5).timed());
        cases.push(log_probs(model.name, model.vocabulary, vec![1], 20).timed());
    }
}

/// All NaN, all -inf, a +inf, one number among NaN, fewer numbers than are wanted, and a token that does not
/// exist.
fn special() -> Case {
    const WIDTH: usize = 4100;
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let row = |value: f32| vec![value; WIDTH];
    let mut rows = [row(nan), row(-inf), row(0.5), row(nan), row(-inf), row(1.0)];
    rows[2][4099] = inf;
    rows[3][4098] = -2.0;
    (rows[4][0], rows[4][4097], rows[4][2000]) = (1.0, 1.0, nan);
    let tokens = vec![0, 1, 4099, 4098, 2000, NO_TOKEN];
    log_probs("special", WIDTH as u32, tokens, 4).draw("x", Draw::Floats(rows.concat()))
}

fn top_k(name: &str, m: u32, n: u32, k: u32, first: u32) -> Case {
    let case = Case::new(format!("{name}/k{k}/{m}x{n}"), |b| {
        let x = b.input("x", m, n)?;
        let (values, indices) = b.top_k(x, k, first)?;
        b.output("values", values)?;
        b.output("indices", indices)
    });
    case.draw("x", Draw::Normal(0.0, 3.0)).tolerance(Tolerance::Exact)
}

fn top_k_cases(cases: &mut Vec<Case>) {
    for n in [1, 2, 63, 64, 65, 255, 256, 257, 1000, 4097, 9001, 32_000] {
        for (m, k) in [(3, 1), (2, 7), (3, 64)] {
            cases.push(top_k("normal", m, n, k, 0));
        }
    }
    cases.push(top_k("empty", 0, 300, 5, 0));
    cases.push(top_k("first", 2, 5000, 20, 70_000));
    let n = 9001;
    cases.push(top_k("equal", 2, n, 64, 9001).draw("x", Draw::Floats(vec![-0.25; 2 * n as usize])));
    let peaks = (0..2 * n).map(|i| if i % n >= 4050 && i % n < 4130 { 30.0 } else { (i % 37) as f32 * 0.1 });
    cases.push(top_k("cluster", 2, n, 64, 0).draw("x", Draw::Floats(peaks.collect())));
    // Rows without numbers, with fewer than are wanted, and with infinities, which win and do not.
    let (nan, inf, width) = (f32::NAN, f32::INFINITY, 5000);
    let row = |value: f32| vec![value; width];
    let mut rows = [row(nan), row(-inf), row(0.5), row(nan), row(-inf)];
    (rows[2][4999], rows[2][17]) = (inf, nan);
    (rows[3][4098], rows[3][1]) = (-2.0, -inf);
    (rows[4][0], rows[4][4097], rows[4][2000]) = (1.0, 1.0, nan);
    for k in [1, 4] {
        cases.push(top_k("special", 5, width as u32, k, 0).draw("x", Draw::Floats(rows.concat())));
    }
    for model in &MODELS {
        for k in [1, 64] {
            cases.push(top_k(model.name, 1, model.vocabulary / 2, k, model.vocabulary / 2).timed());
        }
    }
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    mask_cases(cases);
    top_k_cases(cases);
    log_prob_cases(cases);
}
