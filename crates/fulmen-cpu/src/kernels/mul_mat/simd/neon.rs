//! 128-bit vectors of AArch64, without the later dot-product instructions.

use super::Simd;
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// The dot products of four signed bytes each, added to `acc`. `x` must not be -128, so that no sum of two
/// products overflows 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn dot4_signed(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    let high = vmull_high_s8(w, x);
    vpadalq_s16(acc, vpaddq_s16(low, high))
}

impl Simd for Neon {
    const LANES: usize = 4;
    const X_FLIP: u8 = 0;
    const F32_MR: usize = 8;
    const F32_NV: usize = 3;
    const Q8_MR: usize = 4;
    const Q8_NV: usize = 2;

    type F = float32x4_t;
    type I = int32x4_t;
    type W = int8x16_t;
    type X = int8x16_t;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn splat(x: f32) -> float32x4_t {
        vdupq_n_f32(x)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<float32x4_t>().read_unaligned() }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        // SAFETY: readable by the contract of the trait.
        let h = vmovl_u16(unsafe { p.cast::<uint16x4_t>().read_unaligned() });
        // As `f16_to_f32`, four at a time.
        let magnitude = vshlq_n_u32::<13>(vandq_u32(h, vdupq_n_u32(0x7fff)));
        let scale = vreinterpretq_f32_u32(vdupq_n_u32(0x7780_0000));
        let scaled = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(magnitude), scale));
        let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
        let special = vandq_u32(special, vdupq_n_u32(0x7f80_0000));
        let sign = vshlq_n_u32::<16>(vandq_u32(h, vdupq_n_u32(0x8000)));
        vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(scaled, special), sign))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        // SAFETY: readable by the contract of the trait.
        let h = vmovl_u16(unsafe { p.cast::<uint16x4_t>().read_unaligned() });
        vreinterpretq_f32_u32(vshlq_n_u32::<16>(h))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        // SAFETY: writable by the contract of the trait.
        unsafe { p.cast::<float32x4_t>().write_unaligned(v) }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmulq_f32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vaddq_f32(a, b)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sum(v: float32x4_t) -> f32 {
        vaddvq_f32(v)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_i(p: *const i32) -> int32x4_t {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<int32x4_t>().read_unaligned() }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn splat_i(x: i32) -> int32x4_t {
        vdupq_n_s32(x)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn store_negated(p: *mut i32, v: int32x4_t) {
        // SAFETY: writable by the contract of the trait.
        unsafe { p.cast::<int32x4_t>().write_unaligned(vnegq_s32(v)) }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_w(p: *const i8) -> int8x16_t {
        // SAFETY: readable by the contract of the trait.
        unsafe { p.cast::<int8x16_t>().read_unaligned() }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn splat4(p: *const u8) -> int8x16_t {
        // SAFETY: readable by the contract of the trait.
        vreinterpretq_s8_u32(vdupq_n_u32(unsafe { p.cast::<u32>().read_unaligned() }))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn dot4(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        dot4_signed(acc, w, x)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn to_f(v: int32x4_t) -> float32x4_t {
        vcvtq_f32_s32(v)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn dot256(w: *const i8, x: *const i8, s: *const f32, mut acc: float32x4_t) -> float32x4_t {
        for i in 0..16 {
            // SAFETY: 256 quants and 16 scales are readable by the contract.
            let (w, x, s) = unsafe {
                (
                    w.add(16 * i).cast::<int8x16_t>().read_unaligned(),
                    x.add(16 * i).cast::<int8x16_t>().read_unaligned(),
                    s.add(i).read_unaligned(),
                )
            };
            acc = vfmaq_n_f32(acc, vcvtq_f32_s32(dot4_signed(vdupq_n_s32(0), w, x)), s);
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn transpose(src: *const u32, src_stride: usize, dst: *mut u32, dst_stride: usize) {
        let mut a = [vdupq_n_u32(0); 4];
        for (i, row) in a.iter_mut().enumerate() {
            // SAFETY: the source tile is readable by the contract.
            *row = unsafe { src.add(i * src_stride).cast::<uint32x4_t>().read_unaligned() };
        }
        let (x, y) = (vtrn1q_u32(a[0], a[1]), vtrn2q_u32(a[0], a[1]));
        let (z, w) = (vtrn1q_u32(a[2], a[3]), vtrn2q_u32(a[2], a[3]));
        let pair = |lo: uint32x4_t, hi: uint32x4_t| (vreinterpretq_u64_u32(lo), vreinterpretq_u64_u32(hi));
        let ((x, z), (y, w)) = (pair(x, z), pair(y, w));
        let columns = [vtrn1q_u64(x, z), vtrn1q_u64(y, w), vtrn2q_u64(x, z), vtrn2q_u64(y, w)];
        for (c, column) in columns.into_iter().enumerate() {
            // SAFETY: the destination tile is writable by the contract.
            unsafe {
                dst.add(c * dst_stride).cast::<uint32x4_t>().write_unaligned(vreinterpretq_u32_u64(column))
            };
        }
    }
}
