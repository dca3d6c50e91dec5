//! RMS norm of rows whose columns are divided among ranks: the mean squares of this rank's columns, and the
//! norm by means that were added up over the ranks. One SIMD pass each, in parallel over rows; bound by
//! memory bandwidth.
//!
//! Means are f32: one above its largest value is infinite, and the row becomes 0.

use super::parallel::{SharedPtr, rows};
use super::rms_norm::{mean_square, squares};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch},
    threads::Pool,
};

/// Elements per task.
const GRAIN: usize = 16 * 1024;

/// Consecutive rows of both inputs, and their means, two of each row.
struct MeanRows<'a> {
    inputs: [&'a [f32]; 2],
    widths: [usize; 2],
    means: &'a mut [f32],
}

impl Kernel for MeanRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, means) in self.means.chunks_mut(2).enumerate() {
            for (at, mean) in means.iter_mut().enumerate() {
                let n = self.widths[at];
                let x = self.inputs[at][row * n..][..n].as_ptr();
                let none = std::ptr::null_mut();
                // SAFETY: the row has `n` values, and nothing is added to it.
                *mean = mean_square(unsafe { squares::<S, false>(s, x, none, none, n) }, x, n) as f32;
            }
        }
    }
}

/// The mean squares of each row of both inputs, which have these `widths`.
pub(crate) fn mean_squares(
    pool: &Pool,
    isa: Isa,
    inputs: [&[f32]; 2],
    widths: [usize; 2],
    means: &mut [f32],
) {
    let m = means.len() / 2;
    assert!((0..2).all(|at| inputs[at].len() == m * widths[at]), "mean_squares: wrong sizes");
    let means = SharedPtr::new(means.as_mut_ptr());
    rows(pool, m, widths[0] + widths[1], GRAIN, &|rows| {
        let inputs = [0, 1].map(|at| &inputs[at][rows.start * widths[at]..rows.end * widths[at]]);
        // SAFETY: the sizes were checked, and each row is one task's.
        let means = unsafe { means.slice(2 * rows.start, 2 * rows.len()) };
        dispatch(isa, MeanRows { inputs, widths, means });
    });
}

/// What the mean of a row is: an element of its means, which are sums over ranks.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    /// `[m, columns]`.
    pub(crate) sums: &'a [f32],
    pub(crate) columns: usize,
    pub(crate) column: usize,
    pub(crate) ranks: u32,
    /// Added to the mean.
    pub(crate) epsilon: f32,
}

struct ScaleRows<'a> {
    x: *const f32,
    out: *mut f32,
    gamma: &'a [f32],
    means: Means<'a>,
    rows: std::ops::Range<usize>,
}

impl Kernel for ScaleRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (n, Means { sums, columns, column, ranks, epsilon }) = (self.gamma.len(), self.means);
        for row in self.rows {
            let mean = f64::from(sums[row * columns + column]) / f64::from(ranks);
            let factor = s.splat((1.0 / (mean + f64::from(epsilon)).sqrt()) as f32);
            // SAFETY: the callers pass operands that have the rows.
            unsafe {
                let (x, out) = (self.x.add(row * n), self.out.add(row * n));
                lanes!(S, n, |at, io| {
                    let v = s.mul(io.load(s, x.add(at), 0.0), factor);
                    io.store(s, out.add(at), s.mul(v, io.load(s, self.gamma.as_ptr().add(at), 0.0)));
                });
            }
        }
    }
}

/// `out = x / sqrt(mean + epsilon) * gamma` for each row, as wide as `gamma`.
///
/// # Safety
/// `x` must be readable and `out` writable for as many rows as there are means, at the same address or
/// disjoint.
pub(crate) unsafe fn rms_scale(
    pool: &Pool,
    isa: Isa,
    x: *const f32,
    means: Means<'_>,
    gamma: &[f32],
    out: *mut f32,
) {
    let (x, out) = (SharedPtr::read(x), SharedPtr::new(out));
    rows(pool, means.sums.len() / means.columns, gamma.len(), GRAIN, &|rows| {
        // SAFETY: the rows are within the operands, and each is one task's.
        let (x, out) = unsafe { (x.at(0), out.at(0)) };
        dispatch(isa, ScaleRows { x, out, gamma, means, rows });
    });
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    #[test]
    fn parts_of_rows_have_the_norm_of_the_whole() {
        let (mut rng, rows) = (rng(), 5);
        for n in [1, 3, 8, 17, 257] {
            let [x, y] = [normal(&mut rng, rows * n, 2.0), normal(&mut rng, rows * n, 0.1)];
            let gamma = normal(&mut rng, n, 1.0);
            for (pool, isa) in machines() {
                let mut sums = vec![0.0; rows * 2];
                // The parts of a row lie in different inputs.
                mean_squares(&pool, isa, [&x, &y], [n, n], &mut sums);
                sums.chunks_mut(2).for_each(|pair| pair.fill(pair[0] + pair[1]));
                let means = Means { sums: &sums, columns: 2, column: 1, ranks: 2, epsilon: 1e-6 };
                let got = poisoned(x.len(), |out| {
                    // SAFETY: the input and the output hold the rows.
                    unsafe { rms_scale(&pool, isa, x.as_ptr(), means, &gamma, out) }
                });
                let mut want = Vec::new();
                for (x, y) in x.chunks(n).zip(y.chunks(n)) {
                    let all = x.iter().chain(y).map(|&x| f64::from(x).powi(2)).sum::<f64>();
                    let factor = 1.0 / (all / (2 * n) as f64 + 1e-6).sqrt();
                    want.extend(x.iter().zip(&gamma).map(|(&x, &g)| f64::from(x) * factor * f64::from(g)));
                }
                assert!(nmse(&got, &want) < 1e-12, "{n} on {isa}: {}", nmse(&got, &want));
            }
        }
    }
}
