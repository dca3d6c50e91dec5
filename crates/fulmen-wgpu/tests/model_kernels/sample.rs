use fulmen_core::sampling::{NO_TOKEN, SampleState};
use fulmen_wgpu::{
    kernel::Caps,
    kernels::{LaunchList, sample::sample},
};

use crate::common_rows::gpu;

/// The rule in f64: every token that it allows where its bounds are moved by as much as sums may be off.
fn allowed(row: &[f32], state: &SampleState) -> Vec<u32> {
    let there = row.iter().enumerate().filter(|(_, l)| **l > f32::NEG_INFINITY);
    let mut sorted: Vec<(f32, u32)> = there.map(|(i, &l)| (l, i as u32)).collect();
    sorted.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
    match sorted.first() {
        Some(first) if first.0.is_finite() => {
            if state.temperature == 0.0 {
                return vec![first.1];
            }
        }
        _ => return vec![NO_TOKEN],
    }
    if state.top_k > 0 {
        sorted.truncate(state.top_k as usize);
    }
    let (top, temperature) = (sorted[0].0, f64::from(state.temperature));
    let weight = |l: f32| if l == top { 1.0 } else { ((f64::from(l) - f64::from(top)) / temperature).exp() };
    let weights: Vec<f64> = sorted.iter().map(|c| weight(c.0)).collect();
    let z: f64 = weights.iter().sum();
    let mut places = Vec::new();
    for bits in 0..8 {
        let tilt = |bit: u32| if bits >> bit & 1 == 1 { 1e-5 } else { -1e-5 };
        let least = f64::from(state.min_p) * (1.0 + tilt(0));
        let mut kept = weights.iter().take_while(|&&w| w >= least).count().max(1);
        let until = |weights: &[f64], enough: &dyn Fn(f64) -> bool| {
            let mut sum = 0.0;
            let at = weights.iter().position(|w| {
                sum += w;
                enough(sum)
            });
            at.map_or(weights.len(), |at| at + 1)
        };
        if state.top_p < 1.0 {
            let bound = f64::from(state.top_p) * (1.0 + tilt(1)) * z;
            kept = until(&weights[..kept], &|sum| sum >= bound);
        }
        let total: f64 = weights[..kept].iter().sum();
        let bound = (f64::from(state.uniform()) + tilt(2)) * total;
        places.push(until(&weights[..kept], &|sum| sum > bound) - 1);
    }
    let (first, last) = (*places.iter().min().unwrap(), *places.iter().max().unwrap());
    sorted[first..=last].iter().map(|c| c.1).collect()
}

fn normal(rng: &mut fastrand::Rng, n: usize, deviation: f32) -> Vec<f32> {
    (0..n).map(|_| (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0).map(|x| x * deviation).collect()
}

fn check(name: &str, x: &[f32], n: usize, states: &[SampleState], caps: &Caps) {
    let m = states.len();
    let plan = sample(m as u32, n as u32, false, caps).unwrap();
    let after = gpu().run_on(
        &plan,
        &[bytemuck::cast_slice(x)],
        &[&vec![0xa5; m * 4], bytemuck::cast_slice(states), &[0; 16]],
    );
    let got: Vec<u32> = bytemuck::pod_collect_to_vec(&after.outputs[0]);
    for (row, x) in x.chunks(n).enumerate() {
        let want = allowed(x, &states[row]);
        assert!(
            want.contains(&got[row]),
            "{name} of {n}, row {row} {:?}: {} not in {want:?}",
            states[row],
            got[row]
        );
    }
    let stepped: Vec<SampleState> =
        states.iter().map(|s| SampleState { step: s.step.wrapping_add(1), ..*s }).collect();
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, SampleState>(&after.outputs[1]), stepped, "{name}");
    assert_eq!(after.outputs[2], [0; 16], "{name}");
}

fn settings() -> Vec<(&'static str, SampleState)> {
    let plain = SampleState { temperature: 1.0, seed_lo: 12_345, seed_hi: 678, ..SampleState::greedy() };
    vec![
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
        ("wrapping", SampleState { step: u32::MAX, ..plain }),
    ]
}

fn rows(state: SampleState, m: u32) -> Vec<SampleState> {
    (0..m).map(|row| SampleState { row, step: state.step.wrapping_add(7 * row), ..state }).collect()
}

#[test]
fn tokens_are_drawn_by_the_rule() {
    let mut rng = fastrand::Rng::with_seed(1);
    for (name, state) in settings() {
        for n in [1usize, 257, 5000] {
            let states = rows(state, 3);
            let x = normal(&mut rng, 3 * n, 3.0);
            check(name, &x, n, &states, &gpu().caps);
        }
    }
    let states: Vec<SampleState> = settings().into_iter().map(|(_, state)| state).collect();
    let n = 151_936;
    let x = normal(&mut rng, n, 3.0).repeat(states.len());
    check("each", &x, n, &states, &gpu().caps);
}

#[test]
fn crowds_of_candidates_are_told_apart() {
    let mut rng = fastrand::Rng::with_seed(2);
    let plain = settings()[1].1;
    let n = 20_000;
    let near: Vec<f32> = normal(&mut rng, 3 * n, 1e-4).iter().map(|x| x + 1.0).collect();
    let small = Caps { max_invocations: 128, workgroup_memory: 16 << 10, ..gpu().caps };
    for (name, state) in [
        ("plain", plain),
        ("top_k", SampleState { top_k: 7001, ..plain }),
        ("top_p", SampleState { top_p: 0.6, ..plain }),
        ("min_p", SampleState { min_p: 0.9995, temperature: 0.5, ..plain }),
        ("all", SampleState { temperature: 50.0, top_k: 15_000, top_p: 0.7, min_p: 0.1, ..plain }),
    ] {
        check(&format!("equal {name}"), &vec![-0.25; 3 * n], n, &rows(state, 3), &gpu().caps);
        check(&format!("near {name}"), &near, n, &rows(state, 3), &gpu().caps);
        check(&format!("near {name}, few threads"), &near[..n], n, &rows(state, 1), &small);
    }
}

#[test]
fn special_logits_and_states() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let n = 300;
    let mut x = vec![0.5; 6 * n];
    (x[7], x[290], x[0]) = (2.0, 2.0, nan);
    x[n..2 * n].fill(nan);
    x[2 * n..3 * n].fill(-inf);
    (x[3 * n + 299], x[3 * n + 150]) = (inf, inf);
    (x[4 * n + 8], x[4 * n + 4]) = (nan, 0.75);
    x[5 * n..].fill(-3.0);
    (x[5 * n], x[5 * n + 2]) = (-inf, nan);
    for (name, state) in settings() {
        check(name, &x, n, &rows(state, 6), &gpu().caps);
    }
    let good = settings()[1].1;
    for (state, code) in [
        (SampleState { temperature: nan, ..good }, 4),
        (SampleState { temperature: -1.0, ..good }, 4),
        (SampleState { temperature: inf, ..good }, 4),
        (SampleState { top_p: -0.5, ..good }, 5),
        (SampleState { min_p: 1.5, ..good }, 6),
    ] {
        let states = [good, state];
        let plan = sample(2, n as u32, false, &gpu().caps).unwrap();
        let before = [&vec![0xa5; 8][..], bytemuck::cast_slice(&states), &[0; 16]];
        let after = gpu().run_on(&plan, &[bytemuck::cast_slice(&x[..2 * n])], &before);
        let fault: Vec<u32> = bytemuck::pod_collect_to_vec(&after.outputs[2]);
        assert_eq!(fault[..2], [code, 1], "{state:?}");
        assert_eq!(after.outputs[0][4..], [0xa5; 4]);
        assert_eq!(after.outputs[1][32..], before[1][32..]);
    }
    assert_eq!(sample(0, 5, false, &gpu().caps).unwrap(), LaunchList::default());
    assert!(sample(1, 0, false, &gpu().caps).is_err());
}
