//! Log-probabilities of a token of each row and of the row's most likely tokens, as
//! [`fulmen_core::sampling`](fulmen_core::sampling#log-probabilities) defines them.
//!
//! Three passes over a row, with the kernels of sampling: the largest logit, the sum of the weights, and the
//! selection of the most likely tokens, which is left out where none are wanted. In parallel over rows; bound
//! by memory bandwidth and `exp`.

use fulmen_core::sampling::NO_TOKEN;

use super::argmax::Find;
use super::parallel::SharedPtr;
use super::sample::{Above, GRAIN, Total, Weigh};
use crate::isa::Isa;
use crate::simd::dispatch;
use crate::threads::Pool;

/// For each row of `width` logits and its token: the log-probability of the token and those of the `top` most
/// likely ones, `[rows, 1 + top]`, and in `indices` the tokens of all of them.
#[allow(clippy::too_many_arguments)] // Two outputs of one shape.
pub fn log_probs(
    pool: &Pool,
    isa: Isa,
    logits: &[f32],
    width: usize,
    tokens: &[u32],
    top: usize,
    values: &mut [f32],
    indices: &mut [u32],
) {
    let (rows, results) = (tokens.len(), 1 + top);
    assert_eq!(logits.len(), width * rows, "the rows of log_probs");
    assert_eq!((values.len(), indices.len()), (results * rows, results * rows), "the outputs of log_probs");
    let (values, indices) = (SharedPtr::new(values.as_mut_ptr()), SharedPtr::new(indices.as_mut_ptr()));
    let job = |row: usize| {
        // SAFETY: each row belongs to one call, so its results do, too.
        let (values, indices) = unsafe {
            let values = std::slice::from_raw_parts_mut(values.at(row * results), results);
            (values, std::slice::from_raw_parts_mut(indices.at(row * results), results))
        };
        log_probs_of_row(isa, &logits[row * width..][..width], tokens[row], values, indices);
    };
    if rows == 1 || logits.len() <= GRAIN {
        (0..rows).for_each(job);
    } else {
        pool.run(rows, &job);
    }
}

fn log_probs_of_row(isa: Isa, row: &[f32], token: u32, values: &mut [f32], indices: &mut [u32]) {
    indices.fill(NO_TOKEN);
    indices[0] = token;
    let largest = dispatch(isa, Find(row)).value;
    if !largest.is_finite() {
        values.fill(f32::NAN);
        return;
    }
    let total = dispatch(isa, Total(Weigh { largest, temperature: 1.0 }, row));
    let log_total = f64::from(largest) + total.ln();
    let log_prob = |logit: f32| (f64::from(logit) - log_total) as f32;
    values.fill(f32::NEG_INFINITY);
    values[0] = match row.get(token as usize) {
        Some(logit) if logit.is_nan() => f32::NEG_INFINITY,
        Some(&logit) => log_prob(logit),
        None => f32::NAN,
    };
    let top = values.len() - 1;
    if top == 0 {
        return;
    }
    let mut found = Vec::new();
    dispatch(isa, Above { row, bound: f32::NEG_INFINITY, found: &mut found, keep: Some(top) });
    found.sort_unstable_by_key(|candidate| candidate.key);
    for (at, candidate) in found.iter().enumerate() {
        (indices[1 + at], values[1 + at]) = (candidate.index(), log_prob(candidate.logit()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_softmax() {
        let (pool, nan, inf) = (Pool::new(2), f32::NAN, f32::INFINITY);
        let logits = [1.0, 3.0, nan, 3.0, -inf, 2.0];
        let (mut values, mut indices) = ([0.0; 5 * 6], [0; 5 * 6]);
        let rows: Vec<f32> = [logits; 5].concat();
        let mut rows = rows;
        rows[24] = inf;
        log_probs(&pool, Isa::best(), &rows, 6, &[0, 2, 9, 4, 0], 5, &mut values, &mut indices);
        let total: f64 = [1.0f64, 3.0, 3.0, 2.0].iter().map(|x| x.exp()).sum();
        let value = |x: f64| (x - total.ln()) as f32;
        for (row, (token, first)) in [(0, value(1.0)), (2, -inf), (9, nan), (4, -inf)].into_iter().enumerate()
        {
            let (values, indices) = (&values[6 * row..][..6], &indices[6 * row..][..6]);
            assert_eq!(indices, [token, 1, 3, 5, 0, NO_TOKEN], "row {row}");
            // The sum is in f32.
            let close = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() < 1e-6;
            assert!(close(values[0], first), "row {row}: {} and {first}", values[0]);
            for (&got, expected) in values[1..].iter().zip([3.0, 3.0, 2.0, 1.0, f64::NEG_INFINITY]) {
                assert!(close(got, value(expected)), "row {row}: {got}");
            }
        }
        assert!(values[24..].iter().all(|value| value.is_nan()));
        assert_eq!(indices[24..], [0, NO_TOKEN, NO_TOKEN, NO_TOKEN, NO_TOKEN, NO_TOKEN]);
    }
}
