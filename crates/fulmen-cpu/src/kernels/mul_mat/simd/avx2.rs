//! AVX2 with FMA and F16C.

use super::Simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// The dot products of four signed bytes each. `w` may have any values; `x` must not be -128, so that no sum
/// of two products overflows 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn dot4_signed(abs_w: __m256i, w: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(abs_w, _mm256_sign_epi8(x, w)), _mm256_set1_epi16(1))
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const X_FLIP: u8 = 0;
    const F32_MR: usize = 6;
    const F32_NV: usize = 2;
    const Q8_MR: usize = 4;
    const Q8_NV: usize = 1;

    type F = __m256;
    type I = __m256i;
    /// The weights and their magnitudes.
    type W = (__m256i, __m256i);
    type X = __m256i;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: readable by the contract of the trait.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        // SAFETY: readable by the contract of the trait.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        // SAFETY: readable by the contract of the trait.
        let words = unsafe { _mm_loadu_si128(p.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: writable by the contract of the trait.
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn sum(v: __m256) -> f32 {
        let quad = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_i(p: *const i32) -> __m256i {
        // SAFETY: readable by the contract of the trait.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn splat_i(x: i32) -> __m256i {
        _mm256_set1_epi32(x)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store_negated(p: *mut i32, v: __m256i) {
        let negated = _mm256_sub_epi32(_mm256_setzero_si256(), v);
        // SAFETY: writable by the contract of the trait.
        unsafe { _mm256_storeu_si256(p.cast(), negated) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_w(p: *const i8) -> (__m256i, __m256i) {
        // SAFETY: readable by the contract of the trait.
        let w = unsafe { _mm256_loadu_si256(p.cast()) };
        (w, _mm256_abs_epi8(w))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn splat4(p: *const u8) -> __m256i {
        // SAFETY: readable by the contract of the trait.
        _mm256_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dot4(acc: __m256i, (w, abs_w): (__m256i, __m256i), x: __m256i) -> __m256i {
        _mm256_add_epi32(acc, dot4_signed(abs_w, w, x))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn to_f(v: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(v)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn dot256(w: *const i8, x: *const i8, s: *const f32, mut acc: __m256) -> __m256 {
        for i in 0..8 {
            // SAFETY: 256 quants and 16 scales are readable by the contract.
            let (w, x, low, high) = unsafe {
                (
                    _mm256_loadu_si256(w.add(32 * i).cast()),
                    _mm256_loadu_si256(x.add(32 * i).cast()),
                    _mm_set1_ps(*s.add(2 * i)),
                    _mm_set1_ps(*s.add(2 * i + 1)),
                )
            };
            let dot = _mm256_cvtepi32_ps(dot4_signed(_mm256_abs_epi8(w), w, x));
            acc = _mm256_fmadd_ps(dot, _mm256_set_m128(high, low), acc);
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn transpose(src: *const u32, src_stride: usize, dst: *mut u32, dst_stride: usize) {
        let mut a = [_mm256_setzero_si256(); 8];
        for (i, row) in a.iter_mut().enumerate() {
            // SAFETY: the source tile is readable by the contract.
            *row = unsafe { _mm256_loadu_si256(src.add(i * src_stride).cast()) };
        }
        let mut b = a;
        for i in 0..4 {
            b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
        }
        // a[4g + c] holds, in each half p, column 4p + c of the rows 4g .. 4g + 4.
        for g in 0..2 {
            a[4 * g] = _mm256_unpacklo_epi64(b[4 * g], b[4 * g + 2]);
            a[4 * g + 1] = _mm256_unpackhi_epi64(b[4 * g], b[4 * g + 2]);
            a[4 * g + 2] = _mm256_unpacklo_epi64(b[4 * g + 1], b[4 * g + 3]);
            a[4 * g + 3] = _mm256_unpackhi_epi64(b[4 * g + 1], b[4 * g + 3]);
        }
        for c in 0..4 {
            b[c] = _mm256_permute2x128_si256::<0x20>(a[c], a[4 + c]);
            b[4 + c] = _mm256_permute2x128_si256::<0x31>(a[c], a[4 + c]);
        }
        for (i, column) in b.into_iter().enumerate() {
            // SAFETY: the destination tile is writable by the contract.
            unsafe { _mm256_storeu_si256(dst.add(i * dst_stride).cast(), column) };
        }
    }
}
