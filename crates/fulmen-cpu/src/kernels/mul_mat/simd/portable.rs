//! Vectors as arrays, which the compiler vectorizes for the baseline target.

use super::{Simd, f16_to_f32};

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    const LANES: usize = LANES;
    const X_FLIP: u8 = 0;
    const F32_MR: usize = 4;
    const F32_NV: usize = 1;
    const Q8_MR: usize = 4;
    const Q8_NV: usize = 1;

    type F = [f32; LANES];
    type I = [i32; LANES];
    type W = [[i8; 4]; LANES];
    type X = [i8; 4];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: readable by the contract of the trait.
        let words = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        words.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: readable by the contract of the trait.
        let words = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        words.map(|h| f32::from_bits(u32::from(h) << 16))
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: writable by the contract of the trait.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, mut c: Self::F) -> Self::F {
        // `mul_add` would be a function call per element on targets without the instruction.
        for i in 0..LANES {
            c[i] += a[i] * b[i];
        }
        c
    }

    #[inline(always)]
    unsafe fn mul(mut a: Self::F, b: Self::F) -> Self::F {
        for i in 0..LANES {
            a[i] *= b[i];
        }
        a
    }

    #[inline(always)]
    unsafe fn add(mut a: Self::F, b: Self::F) -> Self::F {
        for i in 0..LANES {
            a[i] += b[i];
        }
        a
    }

    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        let [a, b, c, d, e, f, g, h] = v;
        ((a + e) + (b + f)) + ((c + g) + (d + h))
    }

    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn store_negated(p: *mut i32, v: Self::I) {
        // SAFETY: writable by the contract of the trait.
        unsafe { p.cast::<Self::I>().write_unaligned(v.map(|x| -x)) }
    }

    #[inline(always)]
    unsafe fn load_w(p: *const i8) -> Self::W {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<Self::W>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn splat4(p: *const u8) -> Self::X {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<Self::X>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn dot4(mut acc: Self::I, w: Self::W, x: Self::X) -> Self::I {
        for i in 0..LANES {
            for j in 0..4 {
                acc[i] += i32::from(w[i][j]) * i32::from(x[j]);
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn to_f(v: Self::I) -> Self::F {
        v.map(|x| x as f32)
    }

    #[inline(always)]
    unsafe fn dot256(w: *const i8, x: *const i8, s: *const f32, mut acc: Self::F) -> Self::F {
        for b in 0..16 {
            // SAFETY: 256 quants and 16 scales are readable by the contract.
            let (w, x, s) = unsafe {
                (
                    w.add(16 * b).cast::<[i8; 16]>().read_unaligned(),
                    x.add(16 * b).cast::<[i8; 16]>().read_unaligned(),
                    s.add(b).read_unaligned(),
                )
            };
            let mut dot = 0;
            for i in 0..16 {
                dot += i32::from(w[i]) * i32::from(x[i]);
            }
            acc[b % LANES] += dot as f32 * s;
        }
        acc
    }

    #[inline(always)]
    unsafe fn transpose(src: *const u32, src_stride: usize, dst: *mut u32, dst_stride: usize) {
        for j in 0..LANES {
            for i in 0..LANES {
                // SAFETY: both tiles are within reach by the contract.
                unsafe { dst.add(j * dst_stride + i).write(src.add(i * src_stride + j).read_unaligned()) };
            }
        }
    }
}
