//! NEON.

use std::arch::{aarch64::*, asm};

use super::{Kernel, Simd};

/// The token of AArch64's 128-bit vectors: four lanes.
#[derive(Clone, Copy)]
pub struct Neon(());

impl Neon {
    /// The token.
    ///
    /// # Safety
    /// The processor must have NEON.
    #[inline(always)]
    pub const unsafe fn new() -> Neon {
        Neon(())
    }
}

/// Runs `kernel` compiled for NEON.
///
/// # Safety
/// The processor must have NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract.
    kernel.run(unsafe { Neon::new() })
}

/// Intrinsics that touch no memory, which the token makes safe to call.
macro_rules! have {
    ($e:expr) => {{
        // SAFETY: the token is proof that the processor has the instructions.
        unsafe { $e }
    }};
}

impl Simd for Neon {
    type V = float32x4_t;
    type M = uint32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        // SAFETY: by the contract.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: float32x4_t) {
        // SAFETY: by the contract.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> float32x4_t {
        let mut lanes = [fill; 4];
        // SAFETY: by the contract; `n <= 4`.
        unsafe {
            p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n);
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0; 4];
        // SAFETY: by the contract; `n <= 4`.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), v);
            p.copy_from_nonoverlapping(lanes.as_ptr(), n);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> float32x4_t {
        let wide: float32x4_t;
        // SAFETY: by the contract for the load; the conversion is part of the base instruction set.
        unsafe {
            let half = vld1_u16(p);
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half,
                options(pure, nomem, nostack, preserves_flags));
        }
        wide
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: float32x4_t) {
        let half: uint16x4_t;
        // SAFETY: by the contract for the store; the conversion is part of the base instruction set.
        unsafe {
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) half, in(vreg) v,
                options(pure, nomem, nostack, preserves_flags));
            vst1_u16(p, half);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> float32x4_t {
        // SAFETY: by the contract.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> float32x4_t {
        // SAFETY: by the contract; only four bytes are read.
        unsafe {
            let bytes = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        have!(vdupq_n_f32(x))
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        have!(vfmaq_f32(c, a, b))
    }
    // NEON's own maximum and minimum treat NaN otherwise than the trait promises.
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn neg(self, x: float32x4_t) -> float32x4_t {
        have!(vnegq_f32(x))
    }
    #[inline(always)]
    fn abs(self, x: float32x4_t) -> float32x4_t {
        have!(vabsq_f32(x))
    }
    #[inline(always)]
    fn copysign(self, x: float32x4_t, sign: float32x4_t) -> float32x4_t {
        have!(vbslq_f32(vdupq_n_u32(1 << 31), sign, x))
    }
    #[inline(always)]
    fn lt(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        have!(vcltq_f32(a, b))
    }
    #[inline(always)]
    fn eq(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        have!(vceqq_f32(a, b))
    }
    #[inline(always)]
    fn select(self, m: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        have!(vbslq_f32(m, a, b))
    }
    #[inline(always)]
    fn bits(self, m: uint32x4_t) -> u32 {
        let weights = [1u32, 2, 4, 8];
        // SAFETY: the token for the instructions; the array holds four words.
        unsafe { vaddvq_u32(vandq_u32(m, vld1q_u32(weights.as_ptr()))) }
    }
    #[inline(always)]
    fn round(self, x: float32x4_t) -> float32x4_t {
        have!(vrndnq_f32(x))
    }
    #[inline(always)]
    fn ldexp(self, x: float32x4_t, n: float32x4_t) -> float32x4_t {
        // In two steps, because 2^n itself may be out of range; the first product is exact.
        have!({
            let n = vcvtq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let rest = vsubq_s32(n, half);
            let bias = vdupq_n_s32(127);
            let first = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(half, bias)));
            let second = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(rest, bias)));
            vmulq_f32(vmulq_f32(x, first), second)
        })
    }
    #[inline(always)]
    fn swap_pairs(self, v: float32x4_t) -> float32x4_t {
        have!(vrev64q_f32(v))
    }
    #[inline(always)]
    fn reduce_sum(self, v: float32x4_t) -> f32 {
        have!(vaddvq_f32(v))
    }
    #[inline(always)]
    fn reduce_sum4(self, v: [float32x4_t; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        have!(vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]))));
        sums
    }
    #[inline(always)]
    fn reduce_max(self, v: float32x4_t) -> f32 {
        have!(vmaxnmvq_f32(v))
    }
}
