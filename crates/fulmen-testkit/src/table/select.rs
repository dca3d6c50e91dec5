//! Argmax and sampling.

use fulmen_core::sampling::SampleState;

use super::MODELS;
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

fn argmax(name: &str, m: u32, n: u32) -> Case {
    let case = Case::new(name, |b| {
        let x = b.input("x", m, n)?;
        let y = b.argmax(x)?;
        b.output("y", y)
    });
    case.tolerance(Tolerance::Exact)
}

fn sample(name: &str, n: u32, states: Vec<SampleState>) -> Case {
    let m = states.len() as u32;
    let case = Case::new(format!("{name}/{m}x{n}"), |b| {
        let (x, states) = (b.input("x", m, n)?, b.sample_states("states", m)?);
        let y = b.sample(x, states)?;
        b.output("y", y)
    });
    // Logits of models have a larger spread than standard normal values.
    let case = case.draw("x", Draw::Normal(0.0, 3.0));
    case.draw("states", Draw::States(states)).tolerance(Tolerance::Exact)
}

/// Samples from the largest logits of `parts` parts of rows, as ranks that have a part of the vocabulary each
/// do.
fn sample_of_parts(name: &str, (parts, k): (u32, u32), states: Vec<SampleState>) -> Case {
    let (m, n) = (states.len() as u32, parts * k);
    let case = Case::new(format!("of_parts/{name}/{m}x{n}"), |b| {
        let (x, tokens) = (b.input("x", m, n)?, b.index_state("tokens", m, n)?);
        let states = b.sample_states("states", m)?;
        let y = b.sample_tokens(x, tokens, states)?;
        b.output("y", y)
    });
    // Parts are sorted; their logits overlap, and some are equal.
    let logits = (0..m * n).map(|i| 4.0 - (i % k) as f32 * 0.25 + (i / k % parts % 3) as f32 * 0.5);
    let tokens = (0..m * n).map(|i| (i % n / k) * 1000 + (i * 7 % k) + i % k * 10);
    let case = case.draw("x", Draw::Floats(logits.collect())).draw("tokens", Draw::Ints(tokens.collect()));
    case.draw("states", Draw::States(states)).tolerance(Tolerance::Exact)
}

/// States that differ only in the position of their random sequence.
fn rows(state: SampleState, m: u32) -> Vec<SampleState> {
    (0..m).map(|row| SampleState { row, step: 7 * row, seed_lo: 12_345, seed_hi: 678, ..state }).collect()
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for n in [1, 2, 3, 255, 256, 257, 1000, 32_000] {
        for m in [1, 4] {
            cases.push(argmax(&format!("{m}x{n}"), m, n));
        }
    }
    cases.push(argmax("0x256", 0, 256));
    for model in &MODELS {
        let name = format!("{}/1x{}", model.name, model.vocabulary);
        cases.push(argmax(&name, 1, model.vocabulary).timed());
    }
    // The lowest index on a tie; NaN and -inf never win.
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let mut ties = vec![0.5; 6 * 300];
    (ties[7], ties[290], ties[0]) = (2.0, 2.0, nan);
    ties[300..600].fill(nan);
    ties[600..900].fill(-inf);
    (ties[900 + 299], ties[900 + 150]) = (inf, inf);
    (ties[1200 + 8], ties[1200 + 4]) = (nan, 0.75);
    ties[1500..1800].fill(-3.0);
    (ties[1500], ties[1502]) = (-inf, nan);
    cases.push(argmax("special/6x300", 6, 300).draw("x", Draw::Floats(ties.clone())));
    let zeros = (0..600).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
    cases.push(argmax("zeros/2x300", 2, 300).draw("x", Draw::Floats(zeros)));

    let plain = SampleState { temperature: 1.0, ..SampleState::greedy() };
    let settings = [
        ("greedy", SampleState::greedy()),
        ("plain", plain),
        ("cold", SampleState { temperature: 0.3, ..plain }),
        ("hot", SampleState { temperature: 3.0, ..plain }),
        ("top_k_1", SampleState { top_k: 1, ..plain }),
        ("top_k_40", SampleState { top_k: 40, ..plain }),
        ("top_k_all", SampleState { top_k: u32::MAX, ..plain }),
        ("top_p", SampleState { top_p: 0.9, ..plain }),
        ("top_p_0", SampleState { top_p: 0.0, ..plain }),
        ("min_p", SampleState { min_p: 0.05, ..plain }),
        ("min_p_1", SampleState { min_p: 1.0, ..plain }),
        ("all", SampleState { temperature: 0.7, top_k: 50, top_p: 0.95, min_p: 0.02, ..plain }),
        ("qwen3", SampleState { temperature: 0.6, top_k: 20, top_p: 0.95, ..plain }),
        ("default", SampleState { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..plain }),
    ];
    for (name, state) in settings {
        for n in [1, 2, 100, 257, 5000] {
            cases.push(sample(name, n, rows(state, 8)));
        }
        let model = &MODELS[0];
        let case = sample(&format!("{name}/{}", model.name), model.vocabulary, rows(state, 1));
        cases.push(if matches!(name, "greedy" | "qwen3" | "plain" | "default") {
            case.timed()
        } else {
            case
        });
    }
    // Thousands of equal or nearly equal candidates, which no short list holds.
    let n = 20_000;
    let crowded = [
        ("plain", plain),
        ("top_k", SampleState { top_k: 7001, ..plain }),
        ("top_p", SampleState { top_p: 0.6, ..plain }),
        ("min_p", SampleState { min_p: 0.9995, temperature: 0.5, ..plain }),
        ("all", SampleState { temperature: 50.0, top_k: 15_000, top_p: 0.7, min_p: 0.1, ..plain }),
    ];
    for (name, state) in crowded {
        let equal = sample(&format!("equal_logits/{name}"), n, rows(state, 3));
        cases.push(equal.draw("x", Draw::Floats(vec![-0.25; 3 * n as usize])));
        let close = sample(&format!("close_logits/{name}"), n, rows(state, 3));
        cases.push(close.draw("x", Draw::Normal(1.0, 1e-4)));
    }
    // Numbers of candidates around those that a short list, or a sort, holds; and likely ones side by side.
    for top_k in [255, 256, 257, 300, 1024, 1025] {
        let state = SampleState { top_k, min_p: 1e-4, ..plain };
        cases.push(sample(&format!("top_k_{top_k}"), n, rows(state, 2)));
        let cluster = (0..2 * n).map(|i| ((i * 37 % 1009) as f32) * if i % n < 900 { 0.02 } else { 0.005 });
        let case = sample(&format!("cluster/top_k_{top_k}"), n, rows(state, 2));
        cases.push(case.draw("x", Draw::Floats(cluster.collect())));
    }
    for (name, state) in settings {
        for parts in [(1, 1), (2, 1), (4, 64), (64, 64)] {
            cases.push(sample_of_parts(name, parts, rows(state, 5)));
        }
    }
    cases.push(sample_of_parts("empty", (2, 64), Vec::new()));
    let nothing = sample_of_parts("nothing", (2, 3), rows(plain, 1));
    cases.push(nothing.draw("x", Draw::Floats(vec![-inf; 6])));
    cases.push(sample("empty", 256, Vec::new()));
    // The step wraps, and every row of a batch has its own settings.
    let wrapping = SampleState { step: u32::MAX, ..plain };
    let each: Vec<SampleState> = settings.map(|(_, state)| state).into_iter().chain([wrapping]).collect();
    cases.push(sample("mixed_settings", 1000, each));
    for (name, state) in [("greedy", SampleState::greedy()), ("plain", plain), ("top_p", settings[7].1)] {
        let case = sample(&format!("special/{name}"), 300, rows(state, 6));
        cases.push(case.draw("x", Draw::Floats(ties.clone())));
        cases.push(no_finite_maximum(name, state));
    }
}

/// Rows without a finite maximum between ordinary ones, wide enough for several parts: all NaN, all -inf,
/// both of them, a +inf at the end, a +inf between NaN; then one number among NaN, which wins.
fn no_finite_maximum(name: &str, state: SampleState) -> Case {
    const WIDTH: usize = 9001;
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let row = |value: f32| vec![value; WIDTH];
    let mut rows_of = [row(nan), row(0.5), row(-inf), row(nan), row(-1.0), row(nan), row(nan), row(3e38)];
    rows_of[3][WIDTH / 2..].fill(-inf);
    rows_of[4][WIDTH - 1] = inf;
    rows_of[5][4100] = inf;
    rows_of[6][8999] = -2.0;
    let case = sample(&format!("no_finite_maximum/{name}"), WIDTH as u32, rows(state, 8));
    case.draw("x", Draw::Floats(rows_of.concat()))
}
