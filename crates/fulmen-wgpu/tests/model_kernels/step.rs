use std::collections::HashMap;

use fulmen_core::sampling::Penalties;
use fulmen_wgpu::kernels::{
    LaunchList,
    argmax::argmax,
    history_rows::{HistoryRows, advance},
    penalize::{Penalize, penalize},
};

use crate::common_rows::{draw, gpu};

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn largest(row: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (i, &x) in row.iter().enumerate() {
        if x > best.0 {
            best = (x, i as u32);
        }
    }
    best.1
}

fn check_argmax(x: &[f32], n: usize) {
    let want: Vec<u32> = x.chunks(n).map(largest).collect();
    let plan = argmax(want.len() as u32, n as u32, &gpu().caps).unwrap();
    let after = gpu().run(&plan, &[bytemuck::cast_slice(x)], &[want.len() * 4]);
    assert_eq!(words(&after.outputs[0]), want, "{n}");
}

#[test]
fn the_largest_is_found() {
    let mut rng = fastrand::Rng::with_seed(1);
    for n in [1usize, 2, 3, 255, 256, 257, 1000, 1025, 5000, 151_936, 300_001] {
        let m = if n > 10_000 { 2 } else { 5 };
        let mut x = draw(&mut rng, m * n, -9.0, -1.0);
        check_argmax(&x, n);
        // Equals, far from each other.
        x.iter_mut().step_by(n.div_ceil(3)).for_each(|x| *x = 2.0);
        check_argmax(&x, n);
    }
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for n in [300usize, 4000] {
        let mut x = vec![0.5; 6 * n];
        (x[7], x[290], x[0]) = (2.0, 2.0, nan);
        x[n..2 * n].fill(nan);
        x[2 * n..3 * n].fill(-inf);
        (x[3 * n + 299], x[3 * n + 150]) = (inf, inf);
        (x[4 * n + 8], x[4 * n + 4]) = (-nan, 0.75);
        x[5 * n..].fill(-3.0);
        (x[5 * n], x[5 * n + 2]) = (-inf, nan);
        check_argmax(&x, n);
        let zeros: Vec<f32> = (0..2 * n).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
        check_argmax(&zeros, n);
    }
    assert_eq!(argmax(0, 5, &gpu().caps).unwrap(), LaunchList::default());
    assert!(argmax(1, 0, &gpu().caps).is_err());
}

#[test]
fn steps_advance() {
    for sequences in [None, Some(vec![0u32, 1, 2, 3, 4, 7])] {
        let (n_seqs, capacity) = (5u32, 14u32);
        let mut positions = vec![12, 13, 11, 40, u32::MAX, 3];
        let mut drawn = vec![9u32, 8, 7, 6, 5, 4];
        if sequences.is_none() {
            positions.truncate(1);
            drawn.truncate(1);
        }
        let m = drawn.len();
        let history: Vec<u32> = (100..100 + n_seqs * capacity).collect();
        let tokens = vec![77u32; m];
        let (mut want_tokens, mut want_positions, mut want_history) =
            (tokens.clone(), positions.clone(), history.clone());
        for row in 0..m {
            let sequence = sequences.as_ref().map_or(0, |s| s[row]);
            if sequence < n_seqs {
                want_positions[row] = positions[row].saturating_add(1).min(capacity - 1);
                want_tokens[row] = drawn[row];
                want_history[(sequence * capacity + want_positions[row]) as usize] = drawn[row];
            }
        }
        let spec = HistoryRows { m: m as u32, n_seqs, capacity, sequences: sequences.is_some() };
        let plan = advance(&spec, &gpu().caps).unwrap();
        let none = vec![0; m];
        let given = sequences.as_ref().unwrap_or(&none);
        let after = gpu().run_on(
            &plan,
            &[bytemuck::cast_slice(&drawn), bytemuck::cast_slice(given)],
            &[
                bytemuck::cast_slice(&tokens),
                bytemuck::cast_slice(&positions),
                bytemuck::cast_slice(&history),
                &[0; 16],
            ],
        );
        assert_eq!(words(&after.outputs[0]), want_tokens);
        assert_eq!(words(&after.outputs[1]), want_positions);
        assert_eq!(words(&after.outputs[2]), want_history);
        let fault = if sequences.is_some() { [3, 5, 7, 5] } else { [0; 4] };
        assert_eq!(words(&after.outputs[3]), fault);
    }
    let none = HistoryRows { m: 0, n_seqs: 1, capacity: 1, sequences: false };
    assert_eq!(advance(&none, &gpu().caps).unwrap(), LaunchList::default());
    assert!(advance(&HistoryRows { m: 1, capacity: 0, ..none }, &gpu().caps).is_err());
}

#[test]
fn tokens_that_came_before_become_less_likely() {
    let mut rng = fastrand::Rng::with_seed(2);
    let repeat = Penalties { repeat: 1.3, window: 64, ..Penalties::NONE };
    let settings = [
        repeat,
        Penalties { window: 0, ..repeat },
        Penalties { window: u32::MAX, repeat: 0.5, ..repeat },
        Penalties { repeat: 1.1, frequency: 0.2, presence: 0.4, window: 256 },
        Penalties { repeat: f32::NAN, ..repeat },
        repeat,
        repeat,
    ];
    let (m, n, n_seqs, capacity) = (settings.len(), 1000usize, 7usize, 400usize);
    let positions = [300u32, 5, 399, 200, 9, 400, 30];
    let sequences = [6u32, 3, 2, 1, 0, 5, 4];
    let mut history: Vec<u32> = (0..n_seqs * capacity).map(|_| rng.u32(0..100)).collect();
    history[4 * capacity + 7] = 1000;
    let mut logits = draw(&mut rng, m * n, -5.0, 5.0);
    (logits[3], logits[4], logits[5], logits[6]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0);
    let mut want = logits.clone();
    for row in 0..4 {
        let end = positions[row] as usize + 1;
        let start = end.saturating_sub(settings[row].window as usize);
        let mut counts = HashMap::<u32, u32>::new();
        for &token in &history[sequences[row] as usize * capacity..][start..end] {
            *counts.entry(token).or_default() += 1;
        }
        for (token, count) in counts {
            let logit = &mut want[row * n + token as usize];
            *logit = settings[row].apply(*logit, count);
        }
    }
    let inputs: [&[u8]; 5] = [
        bytemuck::cast_slice(&logits),
        bytemuck::cast_slice(&settings),
        bytemuck::cast_slice(&history),
        bytemuck::cast_slice(&positions),
        bytemuck::cast_slice(&sequences),
    ];
    for in_place in [false, true] {
        let spec = Penalize {
            m: m as u32,
            n: n as u32,
            n_seqs: n_seqs as u32,
            capacity: capacity as u32,
            sequences: true,
            in_place,
        };
        let plan = penalize(&spec, &gpu().caps).unwrap();
        let aliases: &[(usize, usize)] = if in_place { &[(0, 0)] } else { &[] };
        let after = gpu().run_aliased(&plan, &inputs, &[&vec![0xa5; m * n * 4], &[0; 16]], aliases);
        let got: Vec<f32> = bytemuck::pod_collect_to_vec(&after.outputs[0][..m * n * 4]);
        for (i, (&got, &want)) in got.iter().zip(&want).enumerate() {
            let same = got == want
                || got.is_nan() && want.is_nan()
                || (got - want).abs() <= 1e-6 * want.abs() + 1e-6;
            assert!(same, "{in_place} {i}: {got} {want}");
        }
        let fault = words(&after.outputs[1]);
        assert!(matches!(fault[..], [7, 4, _, 0] | [2, 5, 400, 400] | [1, 6, 1000, 1000]), "{fault:?}");
    }
}
