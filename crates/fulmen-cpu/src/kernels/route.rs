//! Routing of a mixture of experts: the experts of each row and their weights.
//!
//! One pass over a row for the scores, one over its groups if experts are in groups, then `top` scans for the
//! largest key: `top · n_experts` comparisons, a few thousand per row.

use fulmen_core::{ExpertGroups, MAX_EXPERT_GROUPS, MIN_WEIGHT_SUM, RouteSpec, RouterScores};

use super::parallel::{self, SharedPtr};
use crate::threads::Pool;

/// Elements of logits per task.
const GRAIN: usize = 4096;

/// Chooses the experts of each row of `logits`, `[m, n_experts]`, and writes `[m, top]` weights and ids; see
/// [`RouteSpec`].
pub(crate) fn route(
    pool: &Pool,
    logits: &[f32],
    n_experts: usize,
    bias: Option<&[f32]>,
    spec: &RouteSpec,
    weights: &mut [f32],
    ids: &mut [u32],
) {
    let (top, m) = (spec.top as usize, logits.len() / n_experts);
    assert!(weights.len() == m * top && ids.len() == m * top && top <= n_experts, "route: wrong sizes");
    assert!(bias.is_none_or(|bias| bias.len() == n_experts), "route: wrong number of biases");
    let (weights, ids) = (SharedPtr::new(weights.as_mut_ptr()), SharedPtr::new(ids.as_mut_ptr()));
    parallel::rows(pool, m, n_experts, GRAIN, &|rows| {
        let (mut scores, mut keys) = (vec![0.0; n_experts], vec![0.0; n_experts]);
        for row in rows {
            let logits = &logits[row * n_experts..][..n_experts];
            // SAFETY: the sizes were checked, and each row is one task's.
            let (weights, ids) = unsafe { (weights.slice(row * top, top), ids.slice(row * top, top)) };
            route_row(logits, bias, spec, &mut scores, &mut keys, weights, ids);
        }
    });
}

fn route_row(
    logits: &[f32],
    bias: Option<&[f32]>,
    spec: &RouteSpec,
    scores: &mut [f32],
    keys: &mut [f32],
    weights: &mut [f32],
    ids: &mut [u32],
) {
    scores.copy_from_slice(logits);
    match spec.scores {
        RouterScores::Softmax => softmax(scores),
        RouterScores::Sigmoid => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
        RouterScores::SelectedSoftmax => {}
    }
    keys.copy_from_slice(if spec.groups.is_some() { &*scores } else { logits });
    if let Some(bias) = bias {
        keys.iter_mut().zip(&*scores).zip(bias).for_each(|((key, score), bias)| *key = score + bias);
    }
    if logits.iter().chain(&*keys).any(|x| !x.is_finite()) {
        weights.fill(f32::NAN);
        ids.iter_mut().zip(0..).for_each(|(id, at)| *id = at);
        return;
    }
    if let Some(groups) = spec.groups {
        leave_best_groups(keys, groups);
    }
    for (id, weight) in ids.iter_mut().zip(&mut *weights) {
        // The first of equal keys; those that were chosen or have left are -∞, which no other key is.
        let mut best = 0;
        for (at, key) in keys.iter().enumerate() {
            if *key > keys[best] {
                best = at;
            }
        }
        keys[best] = f32::NEG_INFINITY;
        (*id, *weight) = (best as u32, scores[best]);
    }
    if spec.scores == RouterScores::SelectedSoftmax {
        softmax(weights);
    }
    let sum = if spec.renormalize { weights.iter().sum::<f32>().max(MIN_WEIGHT_SUM) } else { 1.0 };
    weights.iter_mut().for_each(|weight| *weight = *weight / sum * spec.scale);
}

/// Makes the keys of all groups but the best -∞. Of equally good groups the first ones stay.
fn leave_best_groups(keys: &mut [f32], groups: ExpertGroups) {
    let (count, size) = (groups.count as usize, keys.len() / groups.count as usize);
    let mut sums = [f32::NEG_INFINITY; MAX_EXPERT_GROUPS as usize];
    for (sum, keys) in sums.iter_mut().zip(keys.chunks(size)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &key in keys {
            (first, second) = if key > first { (key, first) } else { (first, second.max(key)) };
        }
        *sum = first + second;
    }
    for (group, keys) in keys.chunks_mut(size).enumerate() {
        let better =
            |other: usize| sums[other] > sums[group] || (sums[other] == sums[group] && other < group);
        if (0..count).filter(|&other| better(other)).count() >= groups.used as usize {
            keys.fill(f32::NEG_INFINITY);
        }
    }
}

fn softmax(values: &mut [f32]) {
    let largest = values.iter().fold(f32::NEG_INFINITY, |largest, x| largest.max(*x));
    let mut sum = 0.0;
    for x in &mut *values {
        *x = (*x - largest).exp();
        sum += *x;
    }
    values.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_qwen3_sum_to_1_and_descend() {
        let pool = Pool::new(2);
        let (n, top, m) = (128, 8, 65);
        let mut random = fastrand::Rng::with_seed(3);
        let logits: Vec<f32> = (0..m * n).map(|_| random.f32() * 8.0 - 4.0).collect();
        let spec = RouteSpec { renormalize: true, ..RouteSpec::new(8, RouterScores::Softmax) };
        let (mut weights, mut ids) = (vec![0.0; m * top], vec![0; m * top]);
        route(&pool, &logits, n, None, &spec, &mut weights, &mut ids);
        for (row, (weights, ids)) in weights.chunks(top).zip(ids.chunks(top)).enumerate() {
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert!(weights.is_sorted_by(|a, b| a >= b), "{weights:?}");
            let logits = &logits[row * n..][..n];
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            assert_eq!(ids, &order[..top]);
        }
    }
}
