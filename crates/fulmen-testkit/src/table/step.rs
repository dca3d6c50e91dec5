//! Between decode steps: token penalties, and the tokens and positions of the next step.

use fulmen_core::Sharing;
use fulmen_core::sampling::{NO_TOKEN, Penalties};

use super::{Batch, MODELS};
use crate::case::{Case, Tolerance};
use crate::draw::Draw;

fn batches() -> Vec<Batch> {
    let batch = Batch::new;
    vec![
        batch("m1", &[0], None, 1, 2),
        batch("m1/long", &[299], None, 1, 4096),
        batch("batch3", &[7, 0, 12], Some(&[2, 0, 3]), 4, 14),
        batch("batch5", &[300, 5, 64, 63, 200], Some(&[4, 3, 2, 1, 0]), 5, 302),
        batch("empty", &[], None, 1, 4),
    ]
}

fn placed(case: Case, batch: &Batch) -> Case {
    let case = case.draw("positions", Draw::Ints(batch.positions.clone()));
    match &batch.sequences {
        Some(sequences) => case.draw("sequences", Draw::Ints(sequences.clone())),
        None => case,
    }
}

/// Penalties as u32 words.
fn words(rows: &[Penalties]) -> Draw {
    Draw::Ints(bytemuck::cast_slice(rows).to_vec())
}

fn penalize(name: &str, batch: &Batch, n: u32, penalties: &[Penalties], sharing: Sharing) -> Case {
    let m = batch.positions.len() as u32;
    let case = Case::new(format!("{name}/{}/{n}", batch.name), |b| {
        let (mut x, positions) = (b.input("x", m, n)?, b.indices("positions", m)?);
        let sequences = batch.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let history = b.index_state("history", batch.n_seqs, batch.capacity)?;
        let states = b.penalties("penalties", m)?;
        if sharing == Sharing::InPlace {
            x = b.add(x, x)?;
        }
        let y = b.penalize(x, states, history, positions, sequences)?;
        b.output("y", y)
    });
    let rows: Vec<Penalties> = penalties.iter().copied().cycle().take(m as usize).collect();
    // A tenth of the vocabulary, so that tokens repeat.
    let case = case.draw("history", Draw::Below(n.div_ceil(10))).draw("penalties", words(&rows));
    placed(case.draw("x", Draw::Normal(0.0, 3.0)), batch).sharing(sharing)
}

/// Every seventh token of the history is `NO_TOKEN`.
fn gather_tokens(batch: &Batch) -> Case {
    let m = batch.positions.len() as u32;
    let case = Case::new(batch.name, |b| {
        let positions = b.indices("positions", m)?;
        let sequences = batch.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let history = b.index_state("history", batch.n_seqs, batch.capacity)?;
        let tokens = b.gather_tokens(history, positions, sequences)?;
        b.output("tokens", tokens)
    });
    let token = |at: u32| if at % 7 == 5 { NO_TOKEN } else { at.wrapping_mul(2_654_435_761) % 150_000 };
    let history = Draw::Ints((0..batch.n_seqs * batch.capacity).map(token).collect());
    placed(case.draw("history", history).tolerance(Tolerance::Exact), batch)
}

fn advance(batch: &Batch) -> Case {
    let m = batch.positions.len() as u32;
    let case = Case::new(batch.name, |b| {
        let (drawn, tokens) = (b.indices("drawn", m)?, b.index_state("tokens", m, 1)?);
        let positions = b.index_state("positions", m, 1)?;
        let sequences = batch.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
        let history = b.index_state("history", batch.n_seqs, batch.capacity)?;
        b.advance(drawn, tokens, positions, history, sequences)
    });
    let case = case.draw("drawn", Draw::Below(150_000)).draw("history", Draw::Below(150_000));
    placed(case.tolerance(Tolerance::Exact), batch)
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    let repeat = Penalties { repeat: 1.3, window: 64, ..Penalties::NONE };
    let settings = [
        ("repeat", repeat),
        ("none", Penalties::NONE),
        ("window_0", Penalties { window: 0, ..repeat }),
        ("window_1", Penalties { window: 1, ..repeat }),
        ("window_all", Penalties { window: u32::MAX, ..repeat }),
        ("reward", Penalties { repeat: 0.5, ..repeat }),
        ("frequency", Penalties { repeat: 1.0, frequency: 0.7, ..repeat }),
        ("presence", Penalties { repeat: 1.0, presence: -1.5, ..repeat }),
        ("all", Penalties { repeat: 1.1, frequency: 0.2, presence: 0.4, window: 256 }),
    ];
    for (name, penalties) in settings {
        for batch in batches() {
            for n in [1, 100, 1000] {
                cases.push(penalize(name, &batch, n, &[penalties], Sharing::Never));
            }
            // In place, a kernel without penalties writes nothing.
            if !matches!(name, "none" | "window_0") {
                let name = format!("in_place/{name}");
                cases.push(penalize(&name, &batch, 1000, &[penalties], Sharing::InPlace));
            }
        }
    }
    let each = settings.map(|(_, penalties)| penalties);
    cases.push(penalize("mixed_settings", &batches()[3], 500, &each, Sharing::Never));
    for model in &MODELS {
        let case = penalize(model.name, &batches()[1], model.vocabulary, &[repeat], Sharing::InPlace);
        cases.push(case.timed());
    }
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let special = penalize("special", &batches()[1], 6, &[settings[8].1], Sharing::Never);
    let special = special.draw("history", Draw::Below(6));
    cases.push(special.draw("x", Draw::Floats(vec![nan, inf, -inf, 0.0, -0.0, 1e-30])));

    cases.extend(batches().iter().map(gather_tokens));
    // Positions at the ends, `NO_TOKEN` found twice, and several rows of one sequence.
    let chunk = Batch {
        name: "chunk",
        positions: vec![13, 5, 6, 7, 5, 12, 0],
        sequences: Some(vec![1, 0, 0, 0, 0, 0, 2]),
        n_seqs: 3,
        capacity: 14,
    };
    cases.push(gather_tokens(&chunk));

    cases.extend(batches().iter().map(advance));
    // A position stays at the last one, and a position beyond it is clamped.
    let full = Batch {
        name: "full",
        positions: vec![12, 13, 11, 40, u32::MAX],
        sequences: Some(vec![0, 1, 2, 3, 4]),
        n_seqs: 5,
        capacity: 14,
    };
    cases.push(advance(&full));
}
