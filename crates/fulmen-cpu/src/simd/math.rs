//! Vectorized `exp`, `tanh`, `erf`, sigmoid and normal CDF.
//!
//! The polynomials are minimax fits, weighted so that the relative error of the function is even over its
//! interval. The relative errors given below are the largest against f64 that the tests find over every 997th
//! f32 and a dense grid around the interval boundaries. NaN gives NaN.

use super::Simd;

/// `c[0] + c[1] x + c[2] x² + …`
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, c: [f32; N]) -> S::V {
    let mut y = s.splat(c[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = s.fma(y, x, s.splat(c[i]));
    }
    y
}

/// e^x.
///
/// Relative error at most 8.1e-8 where the result is a normal number, half a unit in the last place more
/// where it is subnormal. Exactly 0 for -inf and below -104, inf above 88.73, exactly 1 for ±0.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // Past these the result is 0 or inf anyway, and the exponent stays in the range of `ldexp`. With this
    // order of the operands a NaN passes.
    let x = s.min(s.splat(89.0), s.max(s.splat(-105.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts: the first has so few bits that its product with n is exact even unfused.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let p = polynomial(s, r, [0.499_999_94, 0.166_665_2, 4.166_839_3e-2, 8.368_781e-3, 1.381_446_5e-3]);
    let y = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    s.ldexp(y, n)
}

/// 1 / (1 + e^-x).
///
/// Relative error at most 1.8e-7 where the result is a normal number. 0 for -inf and 1 for inf.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    // The exponential of the negative magnitude never overflows, so no precision is lost on either side.
    let e = exp(s, s.neg(s.abs(x)));
    let one = s.splat(1.0);
    let top = s.select(s.lt(x, s.splat(0.0)), e, one);
    s.div(top, s.add(one, e))
}

/// The hyperbolic tangent.
///
/// Relative error at most 1.4e-7, near 0 too. ±1 for ±inf; ±0 stays itself.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let z = s.mul(x, x);
    let p = polynomial(s, z, [-0.333_332_8, 0.133_314_42, -5.373_971e-2, 2.063_907_9e-2, -5.704_978_5e-3]);
    let near = s.fma(s.mul(z, p), x, x);
    let one = s.splat(1.0);
    let e = exp(s, s.add(a, a));
    let far = s.sub(one, s.div(s.splat(2.0), s.add(e, one)));
    s.copysign(s.select(s.lt(a, s.splat(0.625)), near, far), x)
}

/// The error function for arguments within ±1.
#[inline(always)]
fn erf_near<S: Simd>(s: S, x: S::V) -> S::V {
    let z = s.mul(x, x);
    let p = polynomial(
        s,
        z,
        [
            0.128_379_17,
            -0.376_126_26,
            0.112_835_854,
            -2.685_381_1e-2,
            5.188_325_4e-3,
            -8.010_174_5e-4,
            7.853_798e-5,
        ],
    );
    s.fma(x, p, x)
}

/// The error function.
///
/// Relative error at most 8.4e-8, near 0 too. ±1 for ±inf; ±0 stays itself.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let near = erf_near(s, x);
    // ln(erfc) is almost a parabola; from 4 on, erf is 1 in f32.
    let l = polynomial(
        s,
        s.min(s.splat(4.0), a),
        [
            -3.415_190_4e-4,
            -1.127_089_3,
            -0.638_144_8,
            -0.103_106_77,
            2.183_806_7e-2,
            -2.947_658e-3,
            1.863_791_1e-4,
        ],
    );
    let far = s.sub(s.splat(1.0), exp(s, l));
    s.copysign(s.select(s.lt(a, s.splat(1.0)), near, far), x)
}

/// The normal distribution's cumulative function, `(1 + erf(x / √2)) / 2`.
///
/// Relative error at most 4e-6 where the result is a normal number, most of it from the rounding of x² in the
/// far left tail. 0 for -inf and 1 for inf.
#[inline(always)]
pub fn normal_cdf<S: Simd>(s: S, x: S::V) -> S::V {
    let (half, one) = (s.splat(0.5), s.splat(1.0));
    let z = s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let a = s.abs(z);
    let near = s.fma(erf_near(s, z), half, half);
    // erfc(a) e^(a²) is almost a straight line over this t.
    let t = s.div(one, s.fma(a, s.splat(0.4), one));
    let p = polynomial(
        s,
        t,
        [0.225_627_2, 0.226_690_02, 0.198_795_69, 0.213_018_12, 8.299_003e-3, 0.243_591_6, -0.116_262_54],
    );
    let e = exp(s, s.mul(s.mul(x, x), s.splat(-0.5)));
    let tail = s.mul(s.mul(s.mul(t, half), p), e);
    let far = s.select(s.lt(x, s.splat(0.0)), tail, s.sub(one, tail));
    s.select(s.lt(a, one), near, far)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        isa::Isa,
        lanes,
        simd::{Kernel, LaneIo, dispatch},
    };

    #[derive(Clone, Copy, Debug)]
    enum F {
        Exp,
        Sigmoid,
        Tanh,
        Erf,
        NormalCdf,
    }

    struct Apply<'a>(F, &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let p = self.1.as_mut_ptr();
            lanes!(S, self.1.len(), |at, io| {
                // SAFETY: `io` covers lanes below the slice's length.
                let x = unsafe { io.load(s, p.add(at), 0.0) };
                let y = match self.0 {
                    F::Exp => exp(s, x),
                    F::Sigmoid => sigmoid(s, x),
                    F::Tanh => tanh(s, x),
                    F::Erf => erf(s, x),
                    F::NormalCdf => normal_cdf(s, x),
                };
                // SAFETY: as above.
                unsafe { io.store(s, p.add(at), y) };
            });
        }
    }

    /// 1 - erf in f64: the series of erf near 0, the continued fraction of erfc further out.
    pub(crate) fn erfc_f64(x: f64) -> f64 {
        let a = x.abs();
        if a < 2.5 {
            return 1.0 - erf_f64(x);
        }
        let mut f = 0.0;
        for k in (1..if a < 30.0 { 100 } else { 1 }).rev() {
            f = f64::from(k) / 2.0 / (a + f);
        }
        let y = (-a * a).exp() / ((a + f) * std::f64::consts::PI.sqrt());
        if x < 0.0 { 2.0 - y } else { y }
    }

    fn erf_f64(x: f64) -> f64 {
        let a = x.abs();
        let y = if a < 2.5 {
            let (mut term, mut sum, mut n) = (a, a, 0.0);
            while term.abs() > 1e-18 * sum.abs() {
                n += 1.0;
                term *= -a * a / n;
                sum += term / (2.0 * n + 1.0);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            1.0 - erfc_f64(a)
        };
        y.copysign(x)
    }

    fn reference(f: F, x: f32) -> f64 {
        let x = f64::from(x);
        match f {
            F::Exp => x.exp(),
            F::Sigmoid if x < 0.0 => x.exp() / (1.0 + x.exp()),
            F::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            F::Tanh => x.tanh(),
            F::Erf => erf_f64(x),
            F::NormalCdf => 0.5 * erfc_f64(-x / 2f64.sqrt()),
        }
    }

    #[test]
    fn errors_stay_below_the_documented() {
        // Every 997th float covers all exponents of both signs, subnormals and NaNs among them.
        let mut sweep: Vec<f32> = (0..=u32::MAX).step_by(997).map(f32::from_bits).collect();
        for seam in [0.0, 0.34657, 0.625, 1.0, 4.0, 87.34, 88.72, 103.97] {
            for i in -20_000..20_000 {
                let x = seam + f64::from(i) * 1e-5;
                sweep.extend([x as f32, -x as f32]);
            }
        }
        for (f, limit) in [
            (F::Exp, 8.1e-8),
            (F::Sigmoid, 1.8e-7),
            (F::Tanh, 1.4e-7),
            (F::Erf, 8.4e-8),
            (F::NormalCdf, 4e-6),
        ] {
            let wanted: Vec<f64> = sweep.iter().map(|&x| reference(f, x)).collect();
            for isa in Isa::available() {
                let mut y = sweep.clone();
                dispatch(isa, Apply(f, &mut y));
                let (mut worst, mut at) = (0.0, 0.0);
                for ((&x, &y), &want) in sweep.iter().zip(&y).zip(&wanted) {
                    if want.is_nan() || want > 3.402_823_5e38 {
                        assert!(
                            y.is_nan() == want.is_nan() && (y.is_nan() || y == f32::INFINITY),
                            "{f:?}({x})"
                        );
                        continue;
                    }
                    // Half a unit in the last place of a subnormal is its own rounding.
                    let off = ((f64::from(y) - want).abs() - 0.7 * f64::from(f32::from_bits(1))).max(0.0);
                    let relative = if off == 0.0 { 0.0 } else { off / want.abs() };
                    if relative > worst {
                        (worst, at) = (relative, x);
                    }
                }
                println!("{f:?} {isa}: {worst:.3e} at {at}");
                assert!(worst <= limit, "{f:?} {isa}: {worst:.3e} at {at}");
            }
        }
    }

    #[test]
    fn special_values() {
        const INF: f32 = f32::INFINITY;
        let table: [(F, &[(f32, f32)]); 5] = [
            (F::Exp, &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (88.8, INF), (-104.1, 0.0)]),
            (F::Sigmoid, &[(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e30, 1.0), (-1e30, 0.0)]),
            (F::Tanh, &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e-45, 1e-45), (-1e30, -1.0)]),
            (F::NormalCdf, &[(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (9.0, 1.0), (-1e30, 0.0)]),
            (F::Erf, &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (5.0, 1.0), (-1e30, -1.0)]),
        ];
        for isa in Isa::available() {
            for (f, rows) in table {
                for &(x, want) in rows {
                    let mut y = [x; 17];
                    dispatch(isa, Apply(f, &mut y));
                    assert_eq!(y.map(f32::to_bits), [want.to_bits(); 17], "{f:?}({x}) on {isa}");
                }
                let mut y = [f32::NAN; 17];
                dispatch(isa, Apply(f, &mut y));
                assert!(y.iter().all(|y| y.is_nan()), "{f:?}(NaN) on {isa}");
            }
        }
    }
}
