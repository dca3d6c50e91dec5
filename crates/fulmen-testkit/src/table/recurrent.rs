//! Layers with a recurrent state: causal convolution, the gated delta rule, sigmoid gates.

use fulmen_core::{
    BuildError, DeltaHeads, DeltaInputs, GraphBuilder, KeyHeadOrder, NO_STATE, RecurrentRows, Sharing,
};

use super::Batch;
use crate::case::Case;
use crate::draw::Draw;

/// Rows with states: one sequence and several, decode rows and prompts, from zeros and from a state.
fn batches() -> Vec<Batch> {
    let batch =
        |name, positions: &[u32], sequences, n_seqs| Batch::new(name, positions, sequences, n_seqs, 0);
    vec![
        batch("start", &[0], None, 1),
        batch("decode", &[17], None, 1),
        batch("prompt7", &[0, 1, 2, 3, 4, 5, 6], None, 1),
        batch("chunk5", &[9, 10, 11, 12, 13], None, 1),
        batch("decode3", &[5, 0, 8], Some(&[2, 0, 3]), 5),
        // Decode rows, a chunk, a prompt, and rows that start over in one slot.
        batch("mixed", &[4, 7, 30, 31, 32, 0, 1, 0, 0], Some(&[1, 0, 3, 3, 3, 2, 2, 4, 4]), 5),
        batch("inactive", &[4, 0, 7, 0, 1, 0], Some(&[1, NO_STATE, NO_STATE, 0, 0, NO_STATE]), 3),
        batch("all_inactive", &[0, 3], Some(&[NO_STATE; 2]), 2),
        // Rows of two sequences in turn.
        batch("in_turn", &[3, 0, 4, 1, 5, 2], Some(&[1, 0, 1, 0, 1, 0]), 2),
        batch("empty", &[], None, 2),
    ]
}

fn placed(case: Case, batch: &Batch) -> Case {
    let case = case.draw("positions", Draw::Ints(batch.positions.clone()));
    match &batch.sequences {
        Some(sequences) => case.draw("sequences", Draw::Ints(sequences.clone())),
        None => case,
    }
}

fn rows(b: &mut GraphBuilder, batch: &Batch) -> Result<RecurrentRows, BuildError> {
    let m = batch.positions.len() as u32;
    let positions = b.indices("positions", m)?;
    let sequences = batch.sequences.as_ref().map(|_| b.indices("sequences", m)).transpose()?;
    Ok(RecurrentRows::new(positions, sequences))
}

fn causal_conv(batch: &Batch, channels: u32, taps: u32) -> Case {
    let m = batch.positions.len() as u32;
    let case = Case::new(format!("{}/{channels}x{taps}", batch.name), |b| {
        let (x, weight) =
            (b.input("x", m, channels)?, b.weight("w", fulmen_core::DType::F32, channels, taps)?);
        let state = b.recurrent_state("state", batch.n_seqs, (taps - 1) * channels)?;
        let rows = rows(b, batch)?;
        let y = b.causal_conv(x, weight, state, rows)?;
        b.output("y", y)
    });
    placed(case, batch)
}

fn gated_delta_rule(name: &str, batch: &Batch, heads: DeltaHeads, epsilon: f32) -> Case {
    let DeltaHeads { n_k_heads, n_v_heads, head_dim, .. } = heads;
    let m = batch.positions.len() as u32;
    let name = format!("{name}{}/{n_k_heads}:{n_v_heads}x{head_dim}", batch.name);
    let case = Case::new(name, |b| {
        let inputs = DeltaInputs {
            qkv: b.input("x", m, heads.width())?,
            alpha: b.input("alpha", m, n_v_heads)?,
            beta: b.input("beta", m, n_v_heads)?,
            decay: b.vector("decay", n_v_heads)?,
            dt: b.vector("dt", n_v_heads)?,
        };
        let state = b.recurrent_state("state", batch.n_seqs, heads.state_width())?;
        let rows = rows(b, batch)?;
        let y = b.gated_delta_rule(inputs, heads, epsilon, state, rows)?;
        b.output("y", y)
    });
    placed(case.draw("decay", Draw::Normal(-1.0, 0.3)), batch)
}

/// The same state in two ops: what the first leaves is what the second starts from.
fn carried(name: &str, positions: [&[u32]; 2]) -> Case {
    let heads = grouped(1, 2, 20);
    let case = Case::new(format!("carried/{name}"), |b| {
        let state = b.recurrent_state("state", 1, heads.state_width())?;
        let (decay, dt) = (b.vector("decay", 2)?, b.vector("dt", 2)?);
        for (run, positions) in positions.iter().enumerate() {
            let (name, m) = (|what: &str| format!("{what}{run}"), positions.len() as u32);
            let inputs = DeltaInputs {
                qkv: b.input(&name("x"), m, heads.width())?,
                alpha: b.input(&name("alpha"), m, 2)?,
                beta: b.input(&name("beta"), m, 2)?,
                decay,
                dt,
            };
            let rows = RecurrentRows::new(b.indices(&name("positions"), m)?, None);
            let y = b.gated_delta_rule(inputs, heads, 1e-6, state, rows)?;
            b.output(&name("y"), y)?;
        }
        Ok(())
    });
    let case = case.draw("decay", Draw::Normal(-1.0, 0.3));
    let case = case.draw("positions0", Draw::Ints(positions[0].to_vec()));
    case.draw("positions1", Draw::Ints(positions[1].to_vec()))
}

fn sigmoid_gate(name: &str, m: u32, n: u32, gates: u32, sharing: Sharing) -> Case {
    let case = Case::new(format!("{name}m{m}/{n}:{gates}"), |b| {
        let (mut x, gate) = (b.input("x", m, n)?, b.input("gate", m, gates)?);
        if sharing == Sharing::InPlace {
            x = b.add(x, x)?;
        }
        let y = b.sigmoid_gate(x, gate)?;
        b.output("y", y)
    });
    case.draw("gate", Draw::Normal(0.0, 3.0)).sharing(sharing)
}

const fn grouped(n_k_heads: u32, n_v_heads: u32, head_dim: u32) -> DeltaHeads {
    DeltaHeads { n_k_heads, n_v_heads, head_dim, order: KeyHeadOrder::Grouped }
}

const fn tiled(n_k_heads: u32, n_v_heads: u32, head_dim: u32) -> DeltaHeads {
    DeltaHeads { order: KeyHeadOrder::Tiled, ..grouped(n_k_heads, n_v_heads, head_dim) }
}

fn special(cases: &mut Vec<Case>) {
    // A NaN in a state is gone at position 0, and stays otherwise; one in a row stays in its sequence.
    let states = Draw::With(vec![(0, f32::NAN), (7, f32::INFINITY)]);
    for at in [0, 1] {
        let batch = &batches()[at];
        cases.push(named(causal_conv(batch, 5, 3), "nan_state").draw("state", states.clone()));
        let rule = gated_delta_rule("nan_state/", batch, grouped(1, 1, 4), 1e-6);
        cases.push(rule.draw("state", states.clone()));
    }
    let rows = Draw::With(vec![(2, f32::NAN)]);
    let batch = &batches()[4];
    cases.push(named(causal_conv(batch, 5, 3), "nan_row").draw("x", rows.clone()));
    let rule = gated_delta_rule("nan_row/", batch, tiled(1, 2, 4), 1e-6);
    cases.push(rule.draw("x", rows));
    // Gates that close and open completely; no decay at all, and a state that vanishes at once.
    let prompt = &batches()[3];
    for (name, alpha, beta) in [("open", -90.0, 90.0), ("closed", 90.0, -90.0), ("steps", 3.0, 1.0)] {
        let name = format!("gates_{name}/");
        let case = gated_delta_rule(&name, prompt, grouped(2, 4, 8), 1e-6);
        cases.push(case.draw("alpha", Draw::Normal(alpha, 1.0)).draw("beta", Draw::Normal(beta, 1.0)));
    }
    // Keys of zeros, and keys below epsilon.
    let zeros = Draw::Floats(vec![0.0; 5 * 24]);
    cases.push(gated_delta_rule("zeros/", prompt, grouped(1, 1, 8), 1e-6).draw("x", zeros));
    cases.push(gated_delta_rule("epsilon/", prompt, grouped(1, 1, 8), 0.5).draw("x", Draw::Normal(0.0, 0.1)));
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let case = sigmoid_gate("special/", 1, 8, 8, Sharing::Never);
    let case = case.draw("x", Draw::Floats(vec![nan, 1.0, inf, -inf, 0.0, -0.0, 3e38, 1e-30]));
    cases.push(case.draw("gate", Draw::Floats(vec![0.0, nan, 2.0, 2.0, inf, 4.0, 20.0, -3.0])));
}

/// Prompts of one sequence, which backends may compute in chunks: lengths around the borders of chunks, from
/// zeros and from a state, and gates that close so much that a row forgets everything before it.
fn prompts(cases: &mut Vec<Case>) {
    let positions = |first: u32, m: u32| (first..first + m).collect::<Vec<u32>>();
    for m in [31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 600] {
        let name = format!("m{m}/");
        let start = Batch::new("prompt", &positions(0, m), None, 1, 0);
        cases.push(gated_delta_rule(&name, &start, grouped(1, 2, 32), 1e-6));
        let chunk = Batch::new("chunk", &positions(70, m), None, 1, 0);
        cases.push(gated_delta_rule(&name, &chunk, tiled(2, 4, 64), 1e-6));
    }
    let chunk = Batch::new("chunk130", &positions(9, 130), None, 1, 0);
    // 24 is no multiple of 32.
    cases.push(gated_delta_rule("", &chunk, grouped(1, 1, 24), 1e-6));
    cases.push(
        gated_delta_rule("epsilon/", &chunk, grouped(1, 1, 32), 0.5).draw("x", Draw::Normal(0.0, 0.05)),
    );
    for (name, alpha, beta) in [("open", -90.0, 90.0), ("closed", 90.0, -90.0), ("steps", 3.0, 1.0)] {
        let case = gated_delta_rule(&format!("gates_{name}/"), &chunk, grouped(1, 2, 32), 1e-6);
        cases.push(case.draw("alpha", Draw::Normal(alpha, 1.0)).draw("beta", Draw::Normal(beta, 1.0)));
    }
    let (before, after) = (positions(5, 70), positions(0, 60));
    let restart = Batch::new("restart", &[before, after].concat(), None, 1, 0);
    cases.push(gated_delta_rule("", &restart, grouped(1, 1, 64), 1e-6));
    let long = Batch::new("prompt512", &positions(0, 512), None, 1, 0);
    cases.push(gated_delta_rule("qwen3.5-4b/", &long, tiled(16, 32, 128), 1e-6).timed().large());
}

/// Rows of an engine's step: consecutive ones of a sequence, or inactive ones.
fn step(name: &'static str, parts: &[(u32, u32, u32)], n_seqs: u32) -> Batch {
    let (mut positions, mut sequences) = (Vec::new(), Vec::new());
    for &(sequence, position, rows) in parts {
        let active = sequence != NO_STATE;
        positions.extend((0..rows).map(|row| if active { position + row } else { 0 }));
        sequences.extend((0..rows).map(|_| sequence));
    }
    Batch::new(name, &positions, Some(&sequences), n_seqs, 0)
}

/// Steps with the prompts of several sequences, which backends may compute in chunks: decode rows, prompts
/// that begin and prompts that go on, of lengths around the borders of chunks, and inactive rows.
fn steps(cases: &mut Vec<Case>) {
    let inactive = |rows| (NO_STATE, 0, rows);
    let prompts = [(0, 0, 2), (1, 5, 63), (2, 0, 64), (3, 40, 65), (4, 0, 130), (8, 128, 300)];
    let decoding = [(5, 9, 1), (6, 0, 1), (7, 70, 1)];
    let mixed = [&decoding[..], &prompts[..], &[inactive(20)]].concat();
    let decode: Vec<(u32, u32, u32)> = (0..100).map(|row| (99 - row, row % 7, 1)).collect();
    let batches = [
        step("step", &mixed, 9),
        step(
            "step_inactive_between",
            &[(0, 3, 1), inactive(40), (1, 0, 33), inactive(1), (2, 7, 32), (3, 0, 31)],
            4,
        ),
        // No engine has these: rows of a sequence in two places, and rows that start over.
        step("step_interleaved", &[(0, 0, 40), (1, 0, 40), (0, 40, 40), (2, 9, 64), (1, 40, 1)], 3),
        step("step_restart", &[(2, 3, 1), (0, 9, 40), (0, 0, 50), (1, 0, 32)], 3),
        step("step_one", &[(1, 6, 200)], 3),
        step("step_inactive", &[inactive(70)], 2),
        step("step_decode", &decode, 100),
    ];
    for batch in &batches {
        for heads in [grouped(1, 2, 32), tiled(2, 4, 64), grouped(1, 1, 128), grouped(1, 2, 24)] {
            cases.push(gated_delta_rule("", batch, heads, 1e-6));
        }
        for (channels, taps) in [(5, 2), (257, 4), (64, 8)] {
            cases.push(causal_conv(batch, channels, taps));
        }
    }
    let first = &batches[0];
    for (name, alpha, beta) in [("open", -90.0, 90.0), ("closed", 90.0, -90.0), ("steps", 3.0, 1.0)] {
        let case = gated_delta_rule(&format!("gates_{name}/"), first, grouped(1, 2, 32), 1e-6);
        cases.push(case.draw("alpha", Draw::Normal(alpha, 1.0)).draw("beta", Draw::Normal(beta, 1.0)));
    }
    // A NaN in the first row of a chunk stays in its sequence: in chunks it would reach the rows before it.
    let row = Draw::With(vec![(68 * 128 + 70, f32::NAN)]);
    cases.push(gated_delta_rule("nan_row/", first, grouped(1, 2, 32), 1e-6).draw("x", row));
    let decoding: Vec<(u32, u32, u32)> = (0..8).map(|sequence| (sequence, 20, 1)).collect();
    let long = step("step512", &[&decoding[..], &[(8, 0, 300), (9, 128, 204)]].concat(), 10);
    let heads = tiled(16, 32, 128);
    cases.push(gated_delta_rule("qwen3.5-4b/", &long, heads, 1e-6).timed().large());
    let prompt = Batch::new("prompt512", &(0..512).collect::<Vec<u32>>(), None, 1, 0);
    for batch in [&long, &prompt] {
        cases.push(named(causal_conv(batch, heads.width(), 4), "qwen3.5-4b").timed().large());
    }
}

/// Puts another variant into the name of a case.
fn named(case: Case, variant: &str) -> Case {
    let rest = case.name[case.op.len()..].to_owned();
    Case { name: format!("{}/{variant}{rest}", case.op), ..case }
}

pub(super) fn cases(cases: &mut Vec<Case>) {
    for batch in batches() {
        for (channels, taps) in [(1, 2), (5, 3), (257, 4), (64, 8)] {
            cases.push(causal_conv(&batch, channels, taps));
        }
        for heads in [grouped(1, 1, 1), grouped(1, 3, 5), grouped(2, 4, 33), grouped(1, 2, 64)] {
            cases.push(gated_delta_rule("", &batch, heads, 1e-6));
        }
        cases.push(gated_delta_rule("tiled/", &batch, tiled(2, 6, 16), 1e-6));
    }
    // The shapes of models: Qwen3.5 9B and Qwen3-Next.
    for (name, heads) in [("qwen3.5-9b/", tiled(16, 32, 128)), ("qwen3-next/", grouped(16, 32, 128))] {
        for at in [1, 5] {
            let batch = &batches()[at];
            cases.push(gated_delta_rule(name, batch, heads, 1e-6).timed().large());
            cases.push(named(causal_conv(batch, heads.width(), 4), &name[..name.len() - 1]).timed());
        }
    }
    cases.push(gated_delta_rule("large_head/", &batches()[2], grouped(1, 1, 256), 1e-6));
    cases.push(gated_delta_rule("large_head/", &batches()[2], grouped(1, 1, 129), 1e-6));
    cases.push(carried("decode", [&[0], &[1]]));
    cases.push(carried("chunks", [&[0, 1, 2, 3], &[4, 5, 6]]));
    cases.push(carried("restart", [&[0, 1, 2], &[0, 1]]));
    special(cases);
    prompts(cases);
    steps(cases);
    for m in [1, 3, 33] {
        for (n, gates) in [(1, 1), (3, 1), (255, 255), (256, 1), (257, 257), (768, 3)] {
            cases.push(sigmoid_gate("", m, n, gates, Sharing::Never));
        }
        cases.push(sigmoid_gate("in_place/", m, 320, 320, Sharing::InPlace));
        cases.push(sigmoid_gate("in_place/", m, 320, 1, Sharing::InPlace));
    }
    cases.push(sigmoid_gate("", 0, 64, 64, Sharing::Never));
    cases.push(sigmoid_gate("qwen3.5-9b/", 1, 4096, 4096, Sharing::Never).timed());
}
