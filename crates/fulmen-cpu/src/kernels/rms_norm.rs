//! RMS norm, alone and fused with a residual addition: one SIMD pass for the sum of squares, one to scale. In
//! parallel over rows; bound by memory bandwidth, since a row stays in L1 between the passes.
//!
//! The squares of a row are summed in f32 with four accumulators. If the sum overflows or almost vanishes, it
//! is recomputed in f64, so that any finite row is correct. A NaN makes its whole row NaN; an infinity
//! becomes NaN and the rest of its row 0.

use super::parallel::{SharedPtr, rows};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch},
    threads::Pool,
};

/// Elements per task.
const GRAIN: usize = 16 * 1024;

/// The mean square of a row whose squares have this sum.
pub(super) fn mean_square(sum: f32, row: *const f32, n: usize) -> f64 {
    let mut sum = f64::from(sum);
    // Squares of values below 1e-19 are subnormal or zero; a sum in this range lost nothing significant.
    if !(1e-28..=f64::from(f32::MAX)).contains(&sum) {
        sum = 0.0;
        for i in 0..n {
            // SAFETY: the callers' rows have `n` values.
            sum += unsafe { f64::from(*row.add(i)) }.powi(2);
        }
    }
    sum / n as f64
}

/// The factor that makes the mean square of a row 1.
fn factor(sum: f32, eps: f32, row: *const f32, n: usize) -> f32 {
    (1.0 / (mean_square(sum, row, n) + f64::from(eps)).sqrt()) as f32
}

/// The sum of squares of `n` values of `x` or, with `ADD`, of `x + b`, which is written to `sum_out`.
///
/// # Safety
/// The pointers must be valid for `n` values.
#[inline(always)]
pub(super) unsafe fn squares<S: Simd, const ADD: bool>(
    s: S,
    x: *const f32,
    b: *const f32,
    sum_out: *mut f32,
    n: usize,
) -> f32 {
    macro_rules! take {
        ($io:expr, $at:expr) => {{
            // SAFETY: `io` covers lanes below `n`.
            unsafe {
                let mut v = $io.load(s, x.add($at), 0.0);
                if ADD {
                    v = s.add(v, $io.load(s, b.add($at), 0.0));
                    $io.store(s, sum_out.add($at), v);
                }
                v
            }
        }};
    }
    let mut sums = [s.splat(0.0); 4];
    let mut at = 0;
    while n - at >= 4 * S::LANES {
        for sum in &mut sums {
            let v = take!(crate::simd::AllLanes, at);
            *sum = s.fma(v, v, *sum);
            at += S::LANES;
        }
    }
    lanes!(S, at, n, |at, io| {
        let v = take!(io, at);
        sums[0] = s.fma(v, v, sums[0]);
    });
    s.reduce_sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

struct Rows<'a, const ADD: bool> {
    x: *const f32,
    b: *const f32,
    sum_out: *mut f32,
    out: *mut f32,
    gamma: &'a [f32],
    eps: f32,
    rows: usize,
}

impl<const ADD: bool> Kernel for Rows<'_, ADD> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.gamma.len();
        for row in 0..self.rows {
            // SAFETY: the callers pass `rows` rows of `n`. Each row is read whole before `out` is written,
            // which may be the memory of `x` or `b` but not of `sum_out`.
            unsafe {
                let x = self.x.add(row * n);
                let (b, sum_out) = if ADD {
                    (self.b.add(row * n), self.sum_out.add(row * n))
                } else {
                    (self.b, self.sum_out)
                };
                let sum = squares::<S, ADD>(s, x, b, sum_out, n);
                let row_in = if ADD { sum_out.cast_const() } else { x };
                let scale = s.splat(factor(sum, self.eps, row_in, n));
                let (out, gamma) = (self.out.add(row * n), self.gamma.as_ptr());
                lanes!(S, n, |at, io| {
                    let v = s.mul(io.load(s, row_in.add(at), 0.0), scale);
                    io.store(s, out.add(at), s.mul(v, io.load(s, gamma.add(at), 0.0)));
                });
            }
        }
    }
}

/// Each of `n_rows` rows as wide as `gamma`: `out = x / sqrt(mean(x²) + eps) * gamma`.
///
/// # Safety
/// `x` must be readable and `out` writable for the rows, at the same address or disjoint, and `gamma`
/// disjoint from `out`.
pub unsafe fn rms_norm(
    pool: &Pool,
    isa: Isa,
    x: *const f32,
    gamma: &[f32],
    eps: f32,
    n_rows: usize,
    out: *mut f32,
) {
    let n = gamma.len();
    let (x, out) = (SharedPtr::read(x), SharedPtr::new(out));
    rows(pool, n_rows, n, GRAIN, &|r| {
        // SAFETY: the range lies in `0..n_rows`, and no two ranges overlap.
        let (x, out) = unsafe { (x.at(r.start * n), out.at(r.start * n)) };
        let none = std::ptr::null_mut();
        dispatch(isa, Rows::<false> { x, b: none, sum_out: none, out, gamma, eps, rows: r.len() });
    });
}

/// Each of `n_rows` rows as wide as `gamma`: `sum_out = a + b` and
/// `out = sum_out / sqrt(mean(sum_out²) + eps) * gamma`.
///
/// # Safety
/// `a` and `b` must be readable and `sum_out` and `out` writable for the rows. Each of `a` and `b` is at the
/// address of `sum_out`, at that of `out`, or disjoint from both; `sum_out`, `out` and `gamma` are disjoint.
#[expect(clippy::too_many_arguments, reason = "five arrays, and where to run")]
pub unsafe fn add_rms_norm(
    pool: &Pool,
    isa: Isa,
    a: *const f32,
    b: *const f32,
    gamma: &[f32],
    eps: f32,
    n_rows: usize,
    sum_out: *mut f32,
    out: *mut f32,
) {
    let n = gamma.len();
    let (a, b, sum_out, out) =
        (SharedPtr::read(a), SharedPtr::read(b), SharedPtr::new(sum_out), SharedPtr::new(out));
    rows(pool, n_rows, n, GRAIN, &|r| {
        let at = r.start * n;
        // SAFETY: the range lies in `0..n_rows`, and no two ranges overlap.
        let (x, b, sum_out, out) = unsafe { (a.at(at), b.at(at), sum_out.at(at), out.at(at)) };
        dispatch(isa, Rows::<true> { x, b, sum_out, out, gamma, eps, rows: r.len() });
    });
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    const EPS: f32 = 1e-6;

    fn reference(x: &[f32], gamma: &[f32], eps: f32) -> Vec<f64> {
        let mut out = Vec::new();
        for row in x.chunks(gamma.len().max(1)) {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (mean + f64::from(eps)).sqrt();
            out.extend(row.iter().zip(gamma).map(|(&x, &g)| f64::from(x) * factor * f64::from(g)));
        }
        out
    }

    fn norm(pool: &Pool, isa: Isa, x: &[f32], gamma: &[f32], eps: f32, rows: usize) -> Vec<f32> {
        poisoned(x.len(), |out| {
            // SAFETY: `x` and the output hold the rows.
            unsafe { rms_norm(pool, isa, x.as_ptr(), gamma, eps, rows, out) }
        })
    }

    #[test]
    fn match_the_reference_in_place_and_not() {
        let mut rng = rng();
        for n in LENGTHS {
            for rows in [0, 1, 2, 37] {
                let gamma = normal(&mut rng, n, 1.0);
                let (a, b) = (normal(&mut rng, n * rows, 2.0), normal(&mut rng, n * rows, 1.0));
                let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                let (want, want_sum) = (reference(&a, &gamma, EPS), reference(&sum, &gamma, EPS));
                let mut serial = Vec::new();
                for (pool, isa) in machines() {
                    let what = format!("{rows} rows of {n} on {isa}");
                    let got = norm(&pool, isa, &a, &gamma, EPS, rows);
                    assert!(nmse(&got, &want) < 1e-12, "{what}: {}", nmse(&got, &want));
                    let mut over = a.clone();
                    // SAFETY: the array holds the rows.
                    unsafe { rms_norm(&pool, isa, over.as_ptr(), &gamma, EPS, rows, over.as_mut_ptr()) };
                    assert_same(&over, &got, &what);

                    // The sum over `a` or over `b`, and the result apart or over the other one.
                    for (sum_over, out_over) in [("", ""), ("a", ""), ("b", ""), ("a", "b"), ("b", "a")] {
                        let (mut a, mut b) = (a.clone(), b.clone());
                        let (mut s, mut o) = (vec![POISON; n * rows], vec![POISON; n * rows]);
                        let (pa, pb) = (a.as_mut_ptr(), b.as_mut_ptr());
                        let sum_out = [s.as_mut_ptr(), pa, pb]
                            [["", "a", "b"].iter().position(|&x| x == sum_over).unwrap()];
                        let out = [o.as_mut_ptr(), pa, pb]
                            [["", "a", "b"].iter().position(|&x| x == out_over).unwrap()];
                        // SAFETY: all hold the rows, and the addresses are as the contract allows.
                        unsafe { add_rms_norm(&pool, isa, pa, pb, &gamma, EPS, rows, sum_out, out) };
                        let s = match sum_over {
                            "a" => &a,
                            "b" => &b,
                            _ => &s,
                        };
                        let o = match out_over {
                            "a" => &a,
                            "b" => &b,
                            _ => &o,
                        };
                        assert_same(s, &sum, &what);
                        assert!(nmse(o, &want_sum) < 1e-12, "{what}: {}", nmse(o, &want_sum));
                        assert_same(o, &norm(&pool, isa, &sum, &gamma, EPS, rows), &what);
                    }
                    if pool.threads() == 1 {
                        serial = got;
                    } else {
                        assert_same(&got, &serial, &what);
                    }
                }
            }
        }
    }

    #[test]
    fn extreme_rows() {
        let gamma = vec![1.0; 35];
        for (pool, isa) in machines() {
            for size in [1e-40, 1e-30, 1e-18, 1e-10, 1e19, 1e30, 3e38] {
                let x: Vec<f32> = (0..35).map(|i| size * [1.0, -0.5, 0.25][i % 3]).collect();
                for eps in [0.0, EPS] {
                    let got = norm(&pool, isa, &x, &gamma, eps, 1);
                    let want = reference(&x, &gamma, eps);
                    // At 1e-40 the factor itself is out of range without an epsilon.
                    if size > 1e-38 || eps > 0.0 {
                        assert!(nmse(&got, &want) < 1e-8, "{size:e} {eps} on {isa}");
                    }
                }
            }
            let zeros = norm(&pool, isa, &[0.0; 35], &gamma, EPS, 1);
            assert_same(&zeros, &[0.0; 35], "zeros");
            let mut x = vec![1.0; 70];
            x[36] = f32::NAN;
            let got = norm(&pool, isa, &x, &gamma, EPS, 2);
            assert!(got[..35].iter().all(|x| x.is_finite()) && got[35..].iter().all(|x| x.is_nan()));
            x[36] = f32::INFINITY;
            let got = norm(&pool, isa, &x, &gamma, EPS, 2);
            assert!(got[36].is_nan() && got[37..].iter().all(|&x| x == 0.0));
        }
    }
}
