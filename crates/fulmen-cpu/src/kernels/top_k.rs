//! The largest values of each row in descending order, and their columns.
//!
//! One pass over a row with the selection of sampling, then a sort of the few that are left. In parallel over
//! rows; bound by memory bandwidth.

use fulmen_core::sampling::NO_TOKEN;

use super::argmax::Find;
use super::parallel::SharedPtr;
use super::sample::{Above, GRAIN};
use crate::isa::Isa;
use crate::simd::dispatch;
use crate::threads::Pool;

/// For each row of `width` elements the `k` largest, `[rows, k]`, and in `indices` their columns plus
/// `first`: of equal ones the lowest column first, never NaN or -inf. Where a row has fewer, -inf and
/// [`NO_TOKEN`].
#[allow(clippy::too_many_arguments)] // Two outputs of one shape.
pub fn top_k(
    pool: &Pool,
    isa: Isa,
    x: &[f32],
    width: usize,
    k: usize,
    first: u32,
    values: &mut [f32],
    indices: &mut [u32],
) {
    let rows = x.len().checked_div(width).unwrap_or(0);
    assert_eq!(x.len(), width * rows, "the rows of top_k");
    assert_eq!((values.len(), indices.len()), (k * rows, k * rows), "the outputs of top_k");
    let (values, indices) = (SharedPtr::new(values.as_mut_ptr()), SharedPtr::new(indices.as_mut_ptr()));
    let job = |row: usize| {
        // SAFETY: each row belongs to one call, so its results do, too.
        let (values, indices) = unsafe { (values.slice(row * k, k), indices.slice(row * k, k)) };
        of_row(isa, &x[row * width..][..width], first, values, indices);
    };
    if rows == 1 || x.len() <= GRAIN {
        (0..rows).for_each(job);
    } else {
        pool.run(rows, &job);
    }
}

fn of_row(isa: Isa, row: &[f32], first: u32, values: &mut [f32], indices: &mut [u32]) {
    values.fill(f32::NEG_INFINITY);
    indices.fill(NO_TOKEN);
    if let ([value], [index]) = (&mut *values, &mut *indices) {
        let largest = dispatch(isa, Find(row));
        if largest.value > f32::NEG_INFINITY {
            (*value, *index) = (row[largest.index], first + largest.index as u32);
        }
        return;
    }
    let mut found = Vec::new();
    let keep = Some(values.len());
    dispatch(isa, Above { row, bound: f32::NEG_INFINITY, found: &mut found, keep });
    found.sort_unstable_by_key(|candidate| candidate.key);
    for (candidate, (value, index)) in found.iter().zip(values.iter_mut().zip(indices)) {
        (*value, *index) = (row[candidate.index() as usize], first + candidate.index());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    #[test]
    fn values_are_those_of_a_sort() {
        let mut rng = rng();
        for width in LENGTHS.into_iter().filter(|&width| width > 0) {
            for k in [1, 2, 5, 20, 64] {
                for levels in [0, 3] {
                    let mut rows = normal(&mut rng, 3 * width, 2.0);
                    for x in &mut rows {
                        if levels > 0 {
                            *x = rng.u32(0..levels) as f32;
                        }
                        if rng.u8(..) < 30 {
                            *x = SPECIAL[rng.usize(..SPECIAL.len())];
                        }
                    }
                    let mut expected = Vec::new();
                    for row in rows.chunks(width) {
                        let mut sorted: Vec<(f32, u32)> = (1000..).zip(row).map(|(i, &x)| (x, i)).collect();
                        sorted.retain(|(x, _)| *x > f32::NEG_INFINITY);
                        sorted.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
                        sorted.resize(k.max(sorted.len()), (f32::NEG_INFINITY, NO_TOKEN));
                        expected.extend_from_slice(&sorted[..k]);
                    }
                    for (pool, isa) in machines() {
                        let (mut values, mut indices) = (vec![POISON; 3 * k], vec![7; 3 * k]);
                        top_k(&pool, isa, &rows, width, k, 1000, &mut values, &mut indices);
                        let found: Vec<(f32, u32)> = values.into_iter().zip(indices).collect();
                        assert_eq!(found, expected, "{k} of {width} on {isa}");
                    }
                }
            }
        }
    }
}
