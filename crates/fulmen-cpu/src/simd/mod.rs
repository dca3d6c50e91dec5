//! `f32` vectors for every instruction set, so that one generic kernel serves them all.
//!
//! A kernel is a type with a [`Kernel::run`] generic over a [`Simd`] token. [`dispatch`] selects the token
//! for an [`Isa`] and calls `run` inside a function compiled for those instructions. Everything between that
//! function and the intrinsics must be `#[inline(always)]`: code that is not inlined there is compiled for
//! the baseline target and passes vectors through memory. Closures cannot carry the attribute, so hot loops
//! use none.
//!
//! ```
//! use fulmen_cpu::{isa::Isa, lanes, simd::{Kernel, LaneIo, Simd, dispatch}};
//!
//! struct Dot<'a>(&'a [f32], &'a [f32]);
//!
//! impl Kernel for Dot<'_> {
//!     type Output = f32;
//!     #[inline(always)]
//!     fn run<S: Simd>(self, s: S) -> f32 {
//!         let (a, b, n) = (self.0.as_ptr(), self.1.as_ptr(), self.0.len().min(self.1.len()));
//!         let mut sum = s.splat(0.0);
//!         lanes!(S, n, |at, io| {
//!             // SAFETY: `io` covers lanes at `at` that lie below `n`.
//!             let (x, y) = unsafe { (io.load(s, a.add(at), 0.0), io.load(s, b.add(at), 0.0)) };
//!             sum = s.fma(x, y, sum);
//!         });
//!         s.reduce_sum(sum)
//!     }
//! }
//!
//! assert_eq!(dispatch(Isa::best(), Dot(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0])), 32.0);
//! ```

use std::sync::OnceLock;

use crate::isa::Isa;

pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// A token that proves that the processor has an instruction set, with that set's vector operations.
///
/// The operations on registers are safe because the token exists; those on memory are unsafe because of the
/// pointers, which need no more alignment than their element type.
pub trait Simd: Copy + Send + Sync + 'static {
    /// A vector of [`Simd::LANES`] f32 values.
    type V: Copy;
    /// A mask: one boolean per lane.
    type M: Copy;
    /// f32 lanes per vector.
    const LANES: usize;

    /// Loads `LANES` values from `p`.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` values.
    unsafe fn load(self, p: *const f32) -> Self::V;

    /// Stores `LANES` values to `p`.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` values.
    unsafe fn store(self, p: *mut f32, v: Self::V);

    /// Loads the first `n` values from `p`; the other lanes are `fill`. Reads no memory past `n`.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` must be readable for `n` values.
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> Self::V;

    /// Writes the first `n` lanes to `p`, and nothing past them.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` must be writable for `n` values.
    unsafe fn store_part(self, p: *mut f32, v: Self::V, n: usize);

    /// Loads `LANES` f16 values from `p`.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` f16 values.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;

    /// Stores `LANES` values to `p` as f16, rounded to nearest (ties to even).
    ///
    /// # Safety
    /// `p` must be writable for `LANES` f16 values.
    unsafe fn store_f16(self, p: *mut u16, v: Self::V);

    /// Loads `LANES` bf16 values from `p`.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` bf16 values.
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;

    /// Loads `LANES` signed bytes from `p` as f32.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` bytes.
    unsafe fn load_i8(self, p: *const i8) -> Self::V;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`, correctly rounded.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused if the processor has the instruction; the portable version rounds twice.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: with a NaN in either, `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: with a NaN in either, `b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `x` with its sign bit flipped.
    fn neg(self, x: Self::V) -> Self::V;
    /// `x` with its sign bit cleared.
    fn abs(self, x: Self::V) -> Self::V;
    /// The magnitude of `x` with the sign bit of `sign`.
    fn copysign(self, x: Self::V, sign: Self::V) -> Self::V;
    /// `a < b`; false with a NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a == b`; false with a NaN.
    fn eq(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a` where the mask is set and `b` elsewhere.
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// The mask as bits, lane 0 lowest.
    fn bits(self, m: Self::M) -> u32;
    /// The nearest integer, ties to even, for `|x| <= 2^22`; NaN stays NaN.
    fn round(self, x: Self::V) -> Self::V;
    /// `x * 2^n`, rounded once, for integers `n` with `|n| <= 250` and `|x|` in `[0.5, 2]`; NaN stays NaN.
    fn ldexp(self, x: Self::V, n: Self::V) -> Self::V;
    /// Swaps lanes 0 and 1, 2 and 3, and so on.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// The sum of the lanes, in an order fixed for each instruction set.
    fn reduce_sum(self, v: Self::V) -> f32;
    /// The sums of four vectors, cheaper than four times [`Simd::reduce_sum`]. The order of the sums may
    /// differ.
    fn reduce_sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// The largest lane. With a NaN in a lane the result is any lane.
    fn reduce_max(self, v: Self::V) -> f32;
}

/// Which lanes of a vector are inside the array: all of them, or the first few at its end. See [`lanes!`].
///
/// [`lanes!`]: crate::lanes
pub trait LaneIo: Copy {
    /// The lanes from `p`, with `fill` in those outside the array.
    ///
    /// # Safety
    /// `p` must be readable for the covered lanes.
    unsafe fn load<S: Simd>(self, s: S, p: *const f32, fill: f32) -> S::V;

    /// Writes the covered lanes to `p`.
    ///
    /// # Safety
    /// `p` must be writable for the covered lanes.
    unsafe fn store<S: Simd>(self, s: S, p: *mut f32, v: S::V);
}

/// Every lane is inside the array.
#[derive(Clone, Copy)]
pub struct AllLanes;

/// Only the first `n` lanes are inside the array.
#[derive(Clone, Copy)]
pub struct FirstLanes(pub usize);

impl LaneIo for AllLanes {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, p: *const f32, _fill: f32) -> S::V {
        // SAFETY: by the contract.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, p: *mut f32, v: S::V) {
        // SAFETY: by the contract.
        unsafe { s.store(p, v) }
    }
}

impl LaneIo for FirstLanes {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, p: *const f32, fill: f32) -> S::V {
        // SAFETY: by the contract.
        unsafe { s.load_part(p, self.0, fill) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(self, s: S, p: *mut f32, v: S::V) {
        // SAFETY: by the contract.
        unsafe { s.store_part(p, v, self.0) }
    }
}

/// `lanes!(S, n, |at, io| { … })` runs the body for each full vector of `0..n`, then once for the remainder.
///
/// `at` is the index of the first lane and `io` a [`LaneIo`](crate::simd::LaneIo) that covers the lanes below
/// `n`. The body is compiled twice, so that full vectors need no mask. `lanes!(S, from, n, …)` starts later.
#[macro_export]
macro_rules! lanes {
    ($s:ty, $n:expr, |$at:ident, $io:ident| $body:block) => {
        $crate::lanes!($s, 0, $n, |$at, $io| $body)
    };
    ($s:ty, $from:expr, $n:expr, |$at:ident, $io:ident| $body:block) => {{
        let (mut next, end): (usize, usize) = ($from, $n);
        while end - next >= <$s as $crate::simd::Simd>::LANES {
            let ($at, $io) = (next, $crate::simd::AllLanes);
            $body
            next += <$s as $crate::simd::Simd>::LANES;
        }
        if next < end {
            let ($at, $io) = (next, $crate::simd::FirstLanes(end - next));
            $body
        }
    }};
}

/// Work that [`dispatch`] runs with the vectors of one instruction set.
pub trait Kernel {
    /// What the work returns.
    type Output;

    /// Does the work. Mark the implementation `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`.
///
/// # Panics
/// If this processor does not have `isa`.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    static AVAILABLE: OnceLock<Vec<Isa>> = OnceLock::new();
    if isa == Isa::Portable {
        return kernel.run(Portable::new());
    }
    assert!(AVAILABLE.get_or_init(Isa::available).contains(&isa), "this processor has no {isa}");
    match isa {
        #[cfg(target_arch = "aarch64")]
        // SAFETY: asserted above.
        Isa::Neon => unsafe { neon::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: asserted above.
        Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: asserted above.
        Isa::Avx512 => unsafe { x86::run_avx512(kernel) },
        _ => unreachable!("{isa} belongs to another architecture"),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Runs every operation on two vectors and returns the lanes of each result.
    struct EveryOp<'a>(&'a [f32], &'a [f32]);

    impl Kernel for EveryOp<'_> {
        type Output = Vec<(&'static str, Vec<f32>)>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            assert!(self.0.len() >= S::LANES && self.1.len() >= S::LANES);
            // SAFETY: both slices hold a vector.
            let (a, b) = unsafe { (s.load(self.0.as_ptr()), s.load(self.1.as_ptr())) };
            let results = [
                ("add", s.add(a, b)),
                ("sub", s.sub(a, b)),
                ("mul", s.mul(a, b)),
                ("div", s.div(a, b)),
                ("max", s.max(a, b)),
                ("min", s.min(a, b)),
                ("neg", s.neg(a)),
                ("abs", s.abs(a)),
                ("copysign", s.copysign(a, b)),
                ("lt", s.select(s.lt(a, b), a, b)),
                ("swap", s.swap_pairs(a)),
                ("eq", s.select(s.eq(a, b), s.splat(1.0), s.splat(2.0))),
            ];
            let mut out = Vec::new();
            for (name, v) in results {
                let mut lanes = vec![0.0; S::LANES];
                // SAFETY: `lanes` holds a vector.
                unsafe { s.store(lanes.as_mut_ptr(), v) };
                out.push((name, lanes));
            }
            let bits = s.bits(s.lt(a, b));
            out.push(("bits", (0..S::LANES).map(|i| (bits >> i & 1) as f32).collect()));
            out
        }
    }

    fn expected(name: &str, a: f32, b: f32) -> f32 {
        match name {
            "add" => a + b,
            "sub" => a - b,
            "mul" => a * b,
            "div" => a / b,
            "max" => [b, a][usize::from(a > b)],
            "min" | "lt" => [b, a][usize::from(a < b)],
            "neg" => -a,
            "abs" => a.abs(),
            "copysign" => a.copysign(b),
            "eq" => [2.0, 1.0][usize::from(a == b)],
            "bits" => f32::from(a < b),
            _ => unreachable!("{name}"),
        }
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn operations_match_scalars() {
        let special =
            [0.0, -0.0, 1.0, -1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -3e38, 7.25, 0.1];
        for isa in Isa::available() {
            for start in 0..special.len() {
                for shift in 0..special.len() {
                    let a: Vec<f32> = (0..16).map(|i| special[(start + i) % special.len()]).collect();
                    let b: Vec<f32> = (0..16).map(|i| special[(start + shift + i) % special.len()]).collect();
                    for (name, lanes) in dispatch(isa, EveryOp(&a, &b)) {
                        for (i, &got) in lanes.iter().enumerate() {
                            let want = if name == "swap" { a[i ^ 1] } else { expected(name, a[i], b[i]) };
                            assert!(same(got, want), "{isa} {name}({}, {}): {got} not {want}", a[i], b[i]);
                        }
                    }
                }
            }
        }
    }

    struct Reduce<'a>(&'a [f32]);

    impl Kernel for Reduce<'_> {
        type Output = (f32, f32, f32);
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            // SAFETY: the slice has 16 values, and no vector is longer.
            let v = unsafe { s.load(self.0.as_ptr()) };
            (s.reduce_sum(v), s.reduce_max(v), S::LANES as f32)
        }
    }

    #[test]
    fn reductions() {
        for isa in Isa::available() {
            for at in 0..16 {
                let mut v: Vec<f32> = (0..16).map(|i| -(i as f32) - 1.0).collect();
                v[at] = 100.0;
                let (sum, max, lanes) = dispatch(isa, Reduce(&v));
                let v = &v[..lanes as usize];
                assert_eq!(sum, v.iter().sum::<f32>(), "{isa}");
                assert_eq!(max, v.iter().copied().fold(f32::MIN, f32::max), "{isa}");
            }
        }
    }

    struct Bytes<'a>(&'a [i8]);

    impl Kernel for Bytes<'_> {
        type Output = (usize, [f32; 4], Vec<f32>);
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            assert!(self.0.len() >= S::LANES + 3);
            let mut lanes = vec![0.0; S::LANES];
            // SAFETY: the slice holds three bytes more than a vector, and `lanes` a vector.
            unsafe {
                let v = [0, 1, 2, 3].map(|i| s.load_i8(self.0.as_ptr().add(i)));
                s.store(lanes.as_mut_ptr(), v[1]);
                (S::LANES, s.reduce_sum4(v), lanes)
            }
        }
    }

    #[test]
    fn bytes_and_four_sums() {
        let bytes: Vec<i8> = (0..19i32).map(|i| (i * i * 37 % 256 - 128) as i8).collect();
        for isa in Isa::available() {
            let (n, sums, lanes) = dispatch(isa, Bytes(&bytes));
            assert!(lanes.iter().zip(&bytes[1..]).all(|(&x, &b)| x == f32::from(b)), "{isa}");
            for (i, sum) in sums.into_iter().enumerate() {
                let want: i32 = bytes[i..i + n].iter().map(|&b| i32::from(b)).sum();
                assert_eq!(sum, want as f32, "{isa} {i}");
            }
        }
    }

    struct CopyPlusOne<'a>(&'a [f32], &'a mut [f32], usize);

    impl Kernel for CopyPlusOne<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let (from, to) = (self.0.as_ptr(), self.1.as_mut_ptr());
            lanes!(S, self.2, self.0.len(), |at, io| {
                // SAFETY: `io` covers lanes below the slices' length.
                unsafe { io.store(s, to.add(at), s.add(io.load(s, from.add(at), 0.0), s.splat(1.0))) };
            });
        }
    }

    #[test]
    fn lanes_cover_each_length_once_and_nothing_past_it() {
        for isa in Isa::available() {
            for n in 0..70 {
                for from in 0..n.min(3) {
                    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
                    let mut y = vec![-7.0; n + 16];
                    dispatch(isa, CopyPlusOne(&x, &mut y[..n], from));
                    for (i, &y) in y.iter().enumerate() {
                        let want = if (from..n).contains(&i) { i as f32 + 1.0 } else { -7.0 };
                        assert_eq!(y, want, "{isa} {n} at {i}");
                    }
                }
            }
        }
    }

    struct Widen<'a>(&'a [u16], bool);

    impl Kernel for Widen<'_> {
        type Output = (Vec<f32>, Vec<u16>);
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let (mut wide, mut back) = (vec![0.0; self.0.len()], vec![0; self.0.len()]);
            for at in (0..self.0.len()).step_by(S::LANES) {
                // SAFETY: the length is a multiple of every vector length, and all three are of that length.
                unsafe {
                    let p = self.0.as_ptr().add(at);
                    let v = if self.1 { s.load_bf16(p) } else { s.load_f16(p) };
                    s.store(wide.as_mut_ptr().add(at), v);
                    s.store_f16(back.as_mut_ptr().add(at), v);
                }
            }
            (wide, back)
        }
    }

    #[test]
    fn every_half_widens_and_narrows() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for isa in Isa::available() {
            let (wide, back) = dispatch(isa, Widen(&all, false));
            for (i, &h) in all.iter().enumerate() {
                assert!(same(wide[i], f16::from_bits(h).to_f32()), "{isa} f16 {h:#06x}");
                let narrowed = f16::from_bits(back[i]);
                assert!(back[i] == h || narrowed.is_nan() && wide[i].is_nan(), "{isa} f16 {h:#06x} back");
            }
            let (wide, back) = dispatch(isa, Widen(&all, true));
            for (i, &h) in all.iter().enumerate() {
                let want = bf16::from_bits(h).to_f32();
                assert!(same(wide[i], want), "{isa} bf16 {h:#06x}");
                let (narrowed, want) = (f16::from_bits(back[i]), f16::from_f32(want));
                assert!(narrowed == want || narrowed.is_nan() && want.is_nan(), "{isa} rounding {h:#06x}");
            }
        }
    }
}
