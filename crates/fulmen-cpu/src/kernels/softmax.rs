//! Softmax over rows in three SIMD passes: maximum, exponentials with their sum (f32 in blocks of `BLOCK`,
//! f64 across blocks), and scaling. In parallel over rows. Bound by memory bandwidth and the exponential.

use super::parallel::{SharedPtr, rows};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch, math},
    threads::Pool,
};

/// Elements per task.
const GRAIN: usize = 8 * 1024;
/// Elements whose sum is kept in f32; the sums of the blocks are added in f64.
const BLOCK: usize = 1024;

struct Rows {
    x: *const f32,
    out: *mut f32,
    width: usize,
    scale: f32,
    rows: usize,
}

impl Kernel for Rows {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            // SAFETY: `softmax` passes `rows` rows of `width`.
            unsafe {
                let (x, out) = (self.x.add(row * self.width), self.out.add(row * self.width));
                one_row(s, x, out, self.width, self.scale);
            }
        }
    }
}

/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
#[inline(always)]
unsafe fn one_row<S: Simd>(s: S, x: *const f32, out: *mut f32, n: usize, scale: f32) {
    // The maximum is subtracted before the scale is applied, which rounds least; with a negative scale it is
    // the maximum of -x.
    let (sign, factor) = (s.splat(1f32.copysign(scale)), s.splat(scale.abs()));
    let mut max = s.splat(f32::NEG_INFINITY);
    lanes!(S, n, |at, io| {
        // SAFETY: `io` covers lanes below `n`. NaN leaves the maximum as it is, and so do the lanes outside.
        let v = unsafe { io.load(s, x.add(at), f32::NAN) };
        max = s.max(s.mul(v, sign), max);
    });
    let max = s.reduce_max(max);
    if max == f32::NEG_INFINITY {
        // Only -inf and NaN.
        // SAFETY: both have `n` values.
        let nan = (0..n).any(|i| unsafe { (*x.add(i)).is_nan() });
        for i in 0..n {
            // SAFETY: as above.
            unsafe { *out.add(i) = if nan { f32::NAN } else { 0.0 } };
        }
        return;
    }
    let max = s.splat(max);
    let mut total = 0.0;
    let mut from = 0;
    while from < n {
        let to = n.min(from + BLOCK);
        let mut sum = s.splat(0.0);
        lanes!(S, from, to, |at, io| {
            // SAFETY: `io` covers lanes below `n`.
            unsafe {
                let v = s.sub(s.mul(io.load(s, x.add(at), 0.0), sign), max);
                io.store(s, out.add(at), math::exp(s, s.mul(v, factor)));
                // Reloaded, with zeros in the lanes outside.
                sum = s.add(sum, io.load(s, out.add(at), 0.0));
            }
        });
        total += f64::from(s.reduce_sum(sum));
        from = to;
    }
    let inverse = s.splat((1.0 / total) as f32);
    lanes!(S, n, |at, io| {
        // SAFETY: `io` covers lanes below `n`.
        unsafe { io.store(s, out.add(at), s.mul(io.load(s, out.add(at), 0.0), inverse)) };
    });
}

/// Each of `n_rows` rows of `width`: `out = e^(scale x) / sum(e^(scale x))`.
///
/// A row in which every `scale x` is -inf gives zeros: it is fully masked. A row with a NaN gives NaN, and so
/// does one where `scale x` is +inf, or where x is infinite and `scale` is 0.
///
/// # Safety
/// `x` must be readable and `out` writable for the rows, at the same address or disjoint.
pub unsafe fn softmax(
    pool: &Pool,
    isa: Isa,
    x: *const f32,
    scale: f32,
    n_rows: usize,
    width: usize,
    out: *mut f32,
) {
    let (x, out) = (SharedPtr::read(x), SharedPtr::new(out));
    rows(pool, n_rows, width, GRAIN, &|r| {
        // SAFETY: the range lies in `0..n_rows`, and no two ranges overlap.
        let (x, out) = unsafe { (x.at(r.start * width), out.at(r.start * width)) };
        dispatch(isa, Rows { x, out, width, scale, rows: r.len() });
    });
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn reference(x: &[f32], scale: f32) -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x) * f64::from(scale)).collect();
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
        x.iter().map(|x| (x - max).exp() / sum).collect()
    }

    fn run(pool: &Pool, isa: Isa, x: &[f32], scale: f32, rows: usize, width: usize) -> Vec<f32> {
        poisoned(rows * width, |out| {
            // SAFETY: `x` and the output hold the rows.
            unsafe { softmax(pool, isa, x.as_ptr(), scale, rows, width, out) }
        })
    }

    #[test]
    fn match_the_reference_in_place_and_not() {
        let mut rng = rng();
        for n in LENGTHS.into_iter().chain([151_936]) {
            for rows in if n > 10_000 { vec![1] } else { vec![0, 1, 3, 40] } {
                for (spread, scale) in [(1.0, 1.0), (30.0, 0.125), (2.0, -1.0), (1000.0, 1.0)] {
                    let x = normal(&mut rng, rows * n, spread);
                    let want: Vec<f64> = x.chunks(n.max(1)).flat_map(|row| reference(row, scale)).collect();
                    let mut serial = Vec::new();
                    for (pool, isa) in machines() {
                        let what = format!("{rows} rows of {n} on {isa}");
                        let got = run(&pool, isa, &x, scale, rows, n);
                        assert!(nmse(&got, &want) < 1e-11, "{what}: {}", nmse(&got, &want));
                        let mut over = x.clone();
                        // SAFETY: the array holds the rows.
                        unsafe { softmax(&pool, isa, over.as_ptr(), scale, rows, n, over.as_mut_ptr()) };
                        assert_same(&over, &got, &what);
                        if pool.threads() == 1 {
                            serial = got;
                        } else {
                            assert_same(&got, &serial, &what);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn special_rows() {
        const NEG: f32 = f32::NEG_INFINITY;
        for (pool, isa) in machines() {
            for n in [1, 5, 16, 33] {
                assert_same(&run(&pool, isa, &vec![NEG; n], 1.0, 1, n), &vec![0.0; n], "masked");
                for special in [f32::NAN, f32::INFINITY] {
                    for rest in [NEG, 1.0] {
                        let mut x = vec![rest; n];
                        x[n / 2] = special;
                        let got = run(&pool, isa, &x, 0.5, 1, n);
                        assert!(got.iter().all(|x| x.is_nan()), "{special} {rest} on {isa}: {got:?}");
                    }
                }
                let mut x = vec![NEG; n];
                x[n - 1] = 1e30;
                let mut want = vec![0.0; n];
                want[n - 1] = 1.0;
                assert_same(&run(&pool, isa, &x, 1.0, 1, n), &want, "one left");
            }
        }
    }
}
