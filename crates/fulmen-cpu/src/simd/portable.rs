//! Vectors as arrays of eight f32, which the compiler vectorizes for the baseline target.

use half::f16;

use super::Simd;

const LANES: usize = 8;

/// 1.5 * 2^23: adding and subtracting it rounds a value of at most 2^22 to the nearest integer; the low bits
/// of the sum are that integer.
const ROUND: f32 = 12_582_912.0;

/// The token of the portable vectors, which every processor has.
#[derive(Clone, Copy)]
pub struct Portable(());

impl Portable {
    /// The token.
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "tokens are made by dispatch")]
    pub const fn new() -> Portable {
        Portable(())
    }
}

macro_rules! each {
    (|$i:ident| $e:expr) => {{
        let mut out = [Default::default(); LANES];
        let mut $i = 0;
        while $i < LANES {
            out[$i] = $e;
            $i += 1;
        }
        out
    }};
}

/// 2^n for a whole `n` of magnitude at most 126.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

impl Simd for Portable {
    type V = [f32; LANES];
    type M = [bool; LANES];
    const LANES: usize = LANES;

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: by the contract.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: by the contract.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> Self::V {
        let mut v = [fill; LANES];
        for (i, lane) in v.iter_mut().enumerate().take(n) {
            // SAFETY: `i < n`, and by the contract.
            *lane = unsafe { p.add(i).read() };
        }
        v
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: Self::V, n: usize) {
        for (i, lane) in v.into_iter().enumerate().take(n) {
            // SAFETY: `i < n`, and by the contract.
            unsafe { p.add(i).write(lane) };
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: by the contract.
        let h = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each!(|i| f16::from_bits(h[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::V) {
        let h: [u16; LANES] = each!(|i| f16::from_f32(v[i]).to_bits());
        // SAFETY: by the contract.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(h) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: by the contract.
        let h = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each!(|i| f32::from_bits(u32::from(h[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: by the contract.
        let b = unsafe { p.cast::<[i8; LANES]>().read() };
        each!(|i| f32::from(b[i]))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // `mul_add` is a library call of tens of instructions where the target has no such instruction.
        each!(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn neg(self, x: Self::V) -> Self::V {
        each!(|i| -x[i])
    }
    #[inline(always)]
    fn abs(self, x: Self::V) -> Self::V {
        each!(|i| x[i].abs())
    }
    #[inline(always)]
    fn copysign(self, x: Self::V, sign: Self::V) -> Self::V {
        each!(|i| x[i].copysign(sign[i]))
    }
    #[inline(always)]
    fn lt(self, a: Self::V, b: Self::V) -> Self::M {
        each!(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn eq(self, a: Self::V, b: Self::V) -> Self::M {
        each!(|i| a[i] == b[i])
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V {
        each!(|i| if m[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn bits(self, m: Self::M) -> u32 {
        let mut bits = 0;
        for (i, &set) in m.iter().enumerate() {
            bits |= u32::from(set) << i;
        }
        bits
    }
    #[inline(always)]
    fn round(self, x: Self::V) -> Self::V {
        each!(|i| (x[i] + ROUND) - ROUND)
    }
    #[inline(always)]
    fn ldexp(self, x: Self::V, n: Self::V) -> Self::V {
        // In two steps, because 2^n itself may be out of range; the first product is exact.
        each!(|i| {
            let n = ((n[i] + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
            let half = n >> 1;
            x[i] * power_of_two(half) * power_of_two(n.wrapping_sub(half))
        })
    }
    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        each!(|i| v[i ^ 1])
    }
    #[inline(always)]
    fn reduce_sum(self, v: Self::V) -> f32 {
        let [a, b, c, d, e, f, g, h] = v;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn reduce_sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        let [a, b, c, d] = v;
        [self.reduce_sum(a), self.reduce_sum(b), self.reduce_sum(c), self.reduce_sum(d)]
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        let mut max = v[0];
        for x in v {
            max = if x > max { x } else { max };
        }
        max
    }
}
