//! AVX-512 with the VNNI dot products.

use super::Simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

impl Simd for Avx512 {
    const LANES: usize = 16;
    const X_FLIP: u8 = 0x80;
    const F32_MR: usize = 12;
    const F32_NV: usize = 2;
    const Q8_MR: usize = 6;
    const Q8_NV: usize = 2;

    type F = __m512;
    type I = __m512i;
    type W = __m512i;
    type X = __m512i;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: readable by the contract of the trait.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        // SAFETY: readable by the contract of the trait.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(p.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        // SAFETY: readable by the contract of the trait.
        let words = unsafe { _mm256_loadu_si256(p.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: writable by the contract of the trait.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn sum(v: __m512) -> f32 {
        _mm512_reduce_add_ps(v)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_i(p: *const i32) -> __m512i {
        // SAFETY: readable by the contract of the trait.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn splat_i(x: i32) -> __m512i {
        _mm512_set1_epi32(x)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_negated(p: *mut i32, v: __m512i) {
        let negated = _mm512_sub_epi32(_mm512_setzero_si512(), v);
        // SAFETY: writable by the contract of the trait.
        unsafe { _mm512_storeu_si512(p.cast(), negated) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load_w(p: *const i8) -> __m512i {
        // SAFETY: readable by the contract of the trait.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn splat4(p: *const u8) -> __m512i {
        // SAFETY: readable by the contract of the trait.
        _mm512_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot4(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        _mm512_dpbusd_epi32(acc, x, w)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn to_f(v: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(v)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot256(w: *const i8, x: *const i8, s: *const f32, mut acc: __m512) -> __m512 {
        let flip = _mm512_set1_epi8(-128);
        let zero = _mm512_setzero_si512();
        // SAFETY: 16 scales are readable by the contract.
        let scales = unsafe { _mm512_loadu_ps(s) };
        for i in 0..4 {
            // SAFETY: 256 quants are readable by the contract.
            let (w, x) = unsafe {
                (_mm512_loadu_si512(w.add(64 * i).cast()), _mm512_loadu_si512(x.add(64 * i).cast()))
            };
            // The instruction takes one operand unsigned: 128 is added to each activation, and its term
            // subtracted.
            let biased = _mm512_dpbusd_epi32(zero, _mm512_xor_si512(x, flip), w);
            let bias = _mm512_dpbusd_epi32(zero, flip, w);
            let index = _mm512_add_epi32(
                _mm512_set1_epi32(4 * i as i32),
                _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
            );
            let dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(biased, bias));
            acc = _mm512_fmadd_ps(dot, _mm512_permutexvar_ps(index, scales), acc);
        }
        acc
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn transpose(src: *const u32, src_stride: usize, dst: *mut u32, dst_stride: usize) {
        let mut a = [_mm512_setzero_si512(); 16];
        for (i, row) in a.iter_mut().enumerate() {
            // SAFETY: the source tile is readable by the contract.
            *row = unsafe { _mm512_loadu_si512(src.add(i * src_stride).cast()) };
        }
        let mut b = a;
        for i in 0..8 {
            b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
        }
        // a[4g + c] holds, in each 128-bit lane p, column 4p + c of the rows 4g .. 4g + 4.
        for g in 0..4 {
            a[4 * g] = _mm512_unpacklo_epi64(b[4 * g], b[4 * g + 2]);
            a[4 * g + 1] = _mm512_unpackhi_epi64(b[4 * g], b[4 * g + 2]);
            a[4 * g + 2] = _mm512_unpacklo_epi64(b[4 * g + 1], b[4 * g + 3]);
            a[4 * g + 3] = _mm512_unpackhi_epi64(b[4 * g + 1], b[4 * g + 3]);
        }
        for c in 0..4 {
            let even_low = _mm512_shuffle_i32x4::<0x88>(a[c], a[4 + c]);
            let odd_low = _mm512_shuffle_i32x4::<0xdd>(a[c], a[4 + c]);
            let even_high = _mm512_shuffle_i32x4::<0x88>(a[8 + c], a[12 + c]);
            let odd_high = _mm512_shuffle_i32x4::<0xdd>(a[8 + c], a[12 + c]);
            b[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
            b[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
            b[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
            b[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
        }
        for (i, column) in b.into_iter().enumerate() {
            // SAFETY: the destination tile is writable by the contract.
            unsafe { _mm512_storeu_si512(dst.add(i * dst_stride).cast(), column) };
        }
    }
}
