//! Element-wise ops: one SIMD pass over the operands, in parallel over ranges. Bound by memory bandwidth,
//! except for the activations on data in cache.
//!
//! Every function here may work in place: each input is either at the same address as `out` or does not
//! overlap it. NaN stays NaN. The activations have their limits at the infinities: 0 (of either sign) at
//! -inf, inf at inf; the soft cap has the cap with the sign of x.

use super::parallel::{SharedPtr, ranges};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch, math},
    threads::Pool,
};

/// Elements per task, of ops that only move memory and of those that compute.
const LIGHT: usize = 32 * 1024;
const HEAVY: usize = 8 * 1024;

trait Unary: Copy + Sync {
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V;
}

trait Binary: Copy + Sync {
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

struct Map1<O> {
    op: O,
    x: *const f32,
    out: *mut f32,
    n: usize,
}

impl<O: Unary> Kernel for Map1<O> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        lanes!(S, self.n, |at, io| {
            // SAFETY: `map1` passes arrays of `n`.
            unsafe {
                let x = io.load(s, self.x.add(at), 0.0);
                io.store(s, self.out.add(at), self.op.apply(s, x));
            }
        });
    }
}

struct Map2<O> {
    op: O,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    n: usize,
}

impl<O: Binary> Kernel for Map2<O> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        lanes!(S, self.n, |at, io| {
            // SAFETY: `map2` passes arrays of `n`.
            unsafe {
                let (a, b) = (io.load(s, self.a.add(at), 0.0), io.load(s, self.b.add(at), 0.0));
                io.store(s, self.out.add(at), self.op.apply(s, a, b));
            }
        });
    }
}

/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
unsafe fn map1<O: Unary>(pool: &Pool, isa: Isa, grain: usize, op: O, x: *const f32, out: *mut f32, n: usize) {
    let (x, out) = (SharedPtr::read(x), SharedPtr::new(out));
    ranges(pool, n, grain, &|r| {
        // SAFETY: the range lies in `0..n`, and no two ranges overlap.
        let (x, out) = unsafe { (x.at(r.start), out.at(r.start)) };
        dispatch(isa, Map1 { op, x, out, n: r.len() });
    });
}

/// # Safety
/// `a` and `b` must be readable and `out` writable for `n` values, each at the address of `out` or disjoint
/// from it.
#[expect(clippy::too_many_arguments, reason = "three arrays, and where to run")]
unsafe fn map2<O: Binary>(
    pool: &Pool,
    isa: Isa,
    grain: usize,
    op: O,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    n: usize,
) {
    let (a, b, out) = (SharedPtr::read(a), SharedPtr::read(b), SharedPtr::new(out));
    ranges(pool, n, grain, &|r| {
        // SAFETY: the range lies in `0..n`, and no two ranges overlap.
        let (a, b, out) = unsafe { (a.at(r.start), b.at(r.start), out.at(r.start)) };
        dispatch(isa, Map2 { op, a, b, out, n: r.len() });
    });
}

/// x * sigmoid(x), with -inf giving -0 instead of the NaN of the product.
#[inline(always)]
pub(super) fn silu_of<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(s.max(s.splat(f32::MIN), x), math::sigmoid(s, x))
}

#[derive(Clone, Copy)]
struct Add;
impl Binary for Add {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.add(a, b)
    }
}

#[derive(Clone, Copy)]
struct Mul;
impl Binary for Mul {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.mul(a, b)
    }
}

#[derive(Clone, Copy)]
struct SwiGlu;
impl Binary for SwiGlu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::V, up: S::V) -> S::V {
        s.mul(silu_of(s, gate), up)
    }
}

#[derive(Clone, Copy)]
struct Silu;
impl Unary for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        silu_of(s, x)
    }
}

#[derive(Clone, Copy)]
struct Gelu;
impl Unary for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.mul(s.max(s.splat(f32::MIN), x), math::normal_cdf(s, x))
    }
}

#[derive(Clone, Copy)]
struct GeluTanh;
impl Unary for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        // (1 + tanh(u)) / 2 is the logistic function of 2u, which keeps its precision where tanh approaches
        // -1.
        const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
        let cubic = s.fma(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
        let u = s.mul(s.mul(x, s.splat(TWICE_SQRT_2_OVER_PI)), cubic);
        s.mul(s.max(s.splat(f32::MIN), x), math::sigmoid(s, u))
    }
}

#[derive(Clone, Copy)]
struct Relu2;
impl Unary for Relu2 {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        // The operand that is not a constant comes second: it is the result where it is NaN.
        let positive = s.max(s.splat(0.0), x);
        s.mul(positive, positive)
    }
}

#[derive(Clone, Copy)]
struct Scale(f32);
impl Unary for Scale {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.mul(x, s.splat(self.0))
    }
}

#[derive(Clone, Copy)]
struct SoftCap(f32);
impl Unary for SoftCap {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        // Below this, tanh(z) is z to less than half an ulp. Returning x itself keeps the digits that a
        // quotient near the end of the range would lose.
        const LINEAR: f32 = 2.9e-4;
        let cap = s.splat(self.0);
        let z = s.div(x, cap);
        s.select(s.lt(s.abs(z), s.splat(LINEAR)), x, s.mul(cap, math::tanh(s, z)))
    }
}

/// `out = a + b`.
///
/// # Safety
/// `a` and `b` must be readable and `out` writable for `n` values, each at the address of `out` or disjoint
/// from it.
pub unsafe fn add(pool: &Pool, isa: Isa, a: *const f32, b: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map2(pool, isa, LIGHT, Add, a, b, out, n) }
}

/// `out = a * b`.
///
/// # Safety
/// `a` and `b` must be readable and `out` writable for `n` values, each at the address of `out` or disjoint
/// from it.
pub unsafe fn mul(pool: &Pool, isa: Isa, a: *const f32, b: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map2(pool, isa, LIGHT, Mul, a, b, out, n) }
}

/// `out = silu(gate) * up`.
///
/// # Safety
/// `gate` and `up` must be readable and `out` writable for `n` values, each at the address of `out` or
/// disjoint from it.
pub unsafe fn swiglu(pool: &Pool, isa: Isa, gate: *const f32, up: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map2(pool, isa, HEAVY, SwiGlu, gate, up, out, n) }
}

/// `out = x / (1 + e^-x)`.
///
/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
pub unsafe fn silu(pool: &Pool, isa: Isa, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map1(pool, isa, HEAVY, Silu, x, out, n) }
}

/// `out = x * (1 + erf(x / √2)) / 2`.
///
/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
pub unsafe fn gelu(pool: &Pool, isa: Isa, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map1(pool, isa, HEAVY, Gelu, x, out, n) }
}

/// `out = x * (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`.
///
/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
pub unsafe fn gelu_tanh(pool: &Pool, isa: Isa, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map1(pool, isa, HEAVY, GeluTanh, x, out, n) }
}

/// `out = max(x, 0)²`.
///
/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
pub unsafe fn relu2(pool: &Pool, isa: Isa, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map1(pool, isa, LIGHT, Relu2, x, out, n) }
}

/// `out = x * factor`.
///
/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
pub unsafe fn scale(pool: &Pool, isa: Isa, x: *const f32, factor: f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map1(pool, isa, LIGHT, Scale(factor), x, out, n) }
}

/// `out = cap * tanh(x / cap)` for a finite cap above 0. Relative error at most 4e-7.
///
/// # Safety
/// `x` must be readable and `out` writable for `n` values, at the same address or disjoint.
pub unsafe fn softcap(pool: &Pool, isa: Isa, x: *const f32, cap: f32, out: *mut f32, n: usize) {
    // SAFETY: by the contract.
    unsafe { map1(pool, isa, HEAVY, SoftCap(cap), x, out, n) }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use crate::simd::math::tests::erfc_f64;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Op {
        Add,
        Mul,
        SwiGlu,
        Silu,
        Gelu,
        GeluTanh,
        Relu2,
        Scale,
        SoftCap,
    }

    const OPS: [Op; 9] =
        [Op::Add, Op::Mul, Op::SwiGlu, Op::Silu, Op::Gelu, Op::GeluTanh, Op::Relu2, Op::Scale, Op::SoftCap];

    fn soft_cap_f64(x: f64, cap: f32) -> f64 {
        f64::from(cap) * (x / f64::from(cap)).tanh()
    }

    impl Op {
        /// Runs the kernel on pointers that the test answers for.
        fn run(self, pool: &Pool, isa: Isa, a: *const f32, b: *const f32, out: *mut f32, n: usize) {
            // SAFETY: the tests pass arrays of `n` or more.
            unsafe {
                match self {
                    Op::Add => add(pool, isa, a, b, out, n),
                    Op::Mul => mul(pool, isa, a, b, out, n),
                    Op::SwiGlu => swiglu(pool, isa, a, b, out, n),
                    Op::Silu => silu(pool, isa, a, out, n),
                    Op::Gelu => gelu(pool, isa, a, out, n),
                    Op::GeluTanh => gelu_tanh(pool, isa, a, out, n),
                    Op::Relu2 => relu2(pool, isa, a, out, n),
                    Op::Scale => scale(pool, isa, a, -1.7, out, n),
                    Op::SoftCap => softcap(pool, isa, a, 1.7, out, n),
                }
            }
        }

        fn reference(self, a: f32, b: f32) -> f64 {
            let (x, b) = (f64::from(a), f64::from(b));
            match self {
                Op::Add => x + b,
                Op::Mul => x * b,
                Op::SwiGlu => x / (1.0 + (-x).exp()) * b,
                Op::Silu => x / (1.0 + (-x).exp()),
                Op::Gelu => 0.5 * x * erfc_f64(-x / 2f64.sqrt()),
                Op::GeluTanh => {
                    x / (1.0
                        + (-2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).exp())
                }
                Op::Relu2 if x < 0.0 => 0.0,
                Op::Relu2 => x * x,
                Op::Scale => x * f64::from(-1.7f32),
                Op::SoftCap => soft_cap_f64(x, 1.7),
            }
        }
    }

    #[test]
    fn match_the_reference_in_place_and_not() {
        let mut rng = rng();
        for op in OPS {
            // Past every grain, so that several threads have something to do.
            for n in LENGTHS.into_iter().chain([3 * LIGHT + 5]) {
                let (a, b) = (normal(&mut rng, n, 3.0), normal(&mut rng, n, 3.0));
                let want: Vec<f64> = a.iter().zip(&b).map(|(&a, &b)| op.reference(a, b)).collect();
                let mut serial = Vec::new();
                for (pool, isa) in machines() {
                    let what = format!("{op:?} of {n} on {isa}");
                    let got = poisoned(n, |out| op.run(&pool, isa, a.as_ptr(), b.as_ptr(), out, n));
                    // A single element may lie far out in the tail of an activation.
                    let limit = if n < 64 { 1e-10 } else { 1e-13 };
                    assert!(nmse(&got, &want) < limit, "{what}: {}", nmse(&got, &want));
                    let (mut over_a, mut over_b) = (a.clone(), b.clone());
                    op.run(&pool, isa, over_a.as_ptr(), b.as_ptr(), over_a.as_mut_ptr(), n);
                    assert_same(&over_a, &got, &what);
                    if matches!(op, Op::Add | Op::Mul | Op::SwiGlu) {
                        op.run(&pool, isa, a.as_ptr(), over_b.as_ptr(), over_b.as_mut_ptr(), n);
                        assert_same(&over_b, &got, &what);
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
    fn a_soft_cap_keeps_its_digits_for_any_cap() {
        // Every exponent of both signs, and a grid over the bend.
        let sweep: Vec<f32> = (0..=u32::MAX).step_by(99_991).map(f32::from_bits).collect();
        let bend: Vec<f32> = (-4000..=4000).map(|i| i as f32 / 400.0).collect();
        for cap in [f32::MIN_POSITIVE, 1e-20, 0.37, 1.0, 30.0, 50.0, 1e20, f32::MAX] {
            let mut x = sweep.clone();
            x.extend(bend.iter().map(|x| x * cap).filter(|x| x.is_finite()));
            // Either side of where the formula changes.
            x.extend((0..200).map(|i| (2.8e-4 + f64::from(i) * 1e-7) as f32 * cap));
            x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0]);
            for (pool, isa) in machines() {
                // SAFETY: both arrays have as many values.
                let got = poisoned(x.len(), |out| unsafe {
                    softcap(&pool, isa, x.as_ptr(), cap, out, x.len());
                });
                for (&x, &got) in x.iter().zip(&got) {
                    let want = soft_cap_f64(f64::from(x), cap);
                    let off = (f64::from(got) - want).abs() - 0.7 * f64::from(f32::from_bits(1));
                    let near = off <= 4e-7 * want.abs() || x.is_nan() && got.is_nan();
                    assert!(near, "{x:e} capped by {cap:e} on {isa}: {got:e} not {want:e}");
                    if x == 0.0 || x.is_infinite() {
                        let limit = if x == 0.0 { x } else { cap.copysign(x) };
                        assert_eq!(got.to_bits(), limit.to_bits(), "{x} capped by {cap:e} on {isa}");
                    }
                }
            }
        }
    }

    #[test]
    fn special_values() {
        let n = SPECIAL.len() * SPECIAL.len();
        let a: Vec<f32> = (0..n).map(|i| SPECIAL[i / SPECIAL.len()]).collect();
        let b: Vec<f32> = (0..n).map(|i| SPECIAL[i % SPECIAL.len()]).collect();
        for (pool, isa) in machines() {
            for op in OPS {
                let got = poisoned(n, |out| op.run(&pool, isa, a.as_ptr(), b.as_ptr(), out, n));
                for (i, &got) in got.iter().enumerate() {
                    let (a, b) = (a[i], b[i]);
                    let activation =
                        |x: f32| if x == f32::NEG_INFINITY { -0.0 } else { op.reference(x, 1.0) };
                    let want = match op {
                        Op::Silu | Op::Gelu | Op::GeluTanh => activation(a) as f32,
                        Op::SwiGlu => activation(a) as f32 * b,
                        _ => op.reference(a, b) as f32,
                    };
                    let near = got == want
                        || got.is_nan() && want.is_nan()
                        || (got - want).abs() <= want.abs() * 1e-6 + f32::from_bits(1);
                    assert!(near, "{op:?}({a:e}, {b:e}) on {isa}: {got:e} not {want:e}");
                }
            }
        }
    }
}
