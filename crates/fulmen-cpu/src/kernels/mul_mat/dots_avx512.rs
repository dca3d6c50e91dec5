//! Dot products straight from the blocks of the common formats, for AVX-512 with VNNI.
//!
//! The kernels take four rows of weights at once, so that the work per block of activations is shared and the
//! sums of the rows do not wait for each other. Codes are unsigned bytes, multiplied with the signed codes of
//! the activations; what is to be subtracted from each code goes through the sums of the activations.

use super::{
    dots::{DotFn, Dots, ROWS, Rows, WeightRows, by_rows},
    formats::{Format, Q4_0, Q4_1, Q4K, Q5K},
};
use fulmen_core::DType;
use std::arch::x86_64::*;

/// The kernel for a type, if there is one here, and the multiple of elements that rows must have for it.
pub(super) fn specialised(dtype: DType) -> Option<(DotFn, usize)> {
    match dtype {
        DType::Q4_K => Some((dot_q4_k::<Q4K>, 256)),
        DType::Q5_K => Some((dot_q4_k::<Q5K>, 256)),
        DType::Q6_K => Some((dot_q6_k, 256)),
        DType::Q8_0 => Some((dot_q8_0, 64)),
        DType::Q4_0 => Some((dot_q4_0::<Q4_0>, 128)),
        DType::Q4_1 => Some((dot_q4_0::<Q4_1>, 128)),
        _ => None,
    }
}

/// The kernel of a format, whose rows are counted at run time, from the one that counts them at compile time.
macro_rules! dot_fn {
    ($name:ident $(<$f:ident>)?, $rows:ident) => {
        /// See [`DotFn`].
        ///
        /// # Safety
        ///
        /// As the kernels of the module `dots`; and rows must have the multiple of elements that
        /// [`specialised`] says.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        unsafe fn $name $(<$f: Format>)? (w: WeightRows, x: &Rows<'_>, first: usize, count: usize, out: &mut Dots) {
            by_rows!($rows::<$($f)?>, w, x, first, count, out)
        }
    };
}

dot_fn!(dot_q4_k<F>, q4_k_rows);
dot_fn!(dot_q6_k, q6_k_rows);
dot_fn!(dot_q8_0, q8_0_rows);
dot_fn!(dot_q4_0<F>, q4_0_rows);

/// A vector of 16-bit values, each of the four in turn for a quarter.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters_epi16(a: i16, b: i16, c: i16, d: i16) -> __m512i {
    let pair = |v: i16| (u32::from(v as u16) * 0x10001) as i32;
    let (a, b, c, d) = (pair(a), pair(b), pair(c), pair(d));
    _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d)
}

/// A vector of 16-bit values, each of the two in turn for a half.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves_epi16(a: i16, b: i16) -> __m512i {
    quarters_epi16(a, a, b, b)
}

/// The 128-bit part number `i` of a vector, in all four places.
#[inline]
#[target_feature(enable = "avx512f")]
fn spread_quarter(v: __m512i, i: usize) -> __m512i {
    match i {
        0 => _mm512_shuffle_i32x4::<0x00>(v, v),
        1 => _mm512_shuffle_i32x4::<0x55>(v, v),
        2 => _mm512_shuffle_i32x4::<0xaa>(v, v),
        _ => _mm512_shuffle_i32x4::<0xff>(v, v),
    }
}

/// Two times 32 bytes, from two places.
///
/// # Safety
///
/// Both must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_halves(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: by the contract.
    let (low, high) = unsafe { (_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(high.cast())) };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// `_mm512_dpwssd_epi32`. The compiler takes the intrinsic apart into a multiplication and an addition, for the
/// sake of latency; here it is throughput that counts.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction is part of the features, and touches nothing but its registers.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sum}, {a}, {b}",
            sum = inout(zmm_reg) sum,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Asks for the block that is four rows further on, which will be needed next.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(src: *const u8, bytes: usize, row_bytes: usize) {
    let next = src.wrapping_add(ROWS * row_bytes);
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch of any address is without effect but on the caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast()) };
    }
}

/// `Q4_K` and `Q5_K`. A code times an activation is a byte product, two of them make a 16-bit sum, and these
/// are multiplied by the 6-bit scales in 32 bits for the whole block; floats only come in per block.
///
/// # Safety
///
/// As [`dot_q4_k`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q4_k_rows<F: Format, const R: usize, const M: usize>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    r: usize,
    out: &mut Dots,
) {
    let Some(int) = x.int else { return };
    let fifth_bit = F::BYTES == Q5K::BYTES;
    let low_nibbles = _mm512_set1_epi8(15);
    // The masks of the packed scales: dwords are scales 0..4, scales 4..8, minima 0..4 and minima 4..8.
    let low_shift = _mm512_set4_epi32(4, 0, 0, 0);
    let low_mask = _mm512_set4_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f);
    let high_mask = _mm512_set4_epi32(0x3030_3030, 0, 0x3030_3030, 0);
    // Bytes of a quarter as 16-bit values: the minima, and the scales of each vector of codes.
    let minima = _mm512_set4_epi32(
        0x800f_800eu32 as i32,
        0x800d_800cu32 as i32,
        0x800b_800au32 as i32,
        0x8009_8008u32 as i32,
    );
    let zx = |i: i16| i | 0x8000u16 as i16;
    let scales = [
        halves_epi16(zx(0), zx(2)),
        halves_epi16(zx(1), zx(3)),
        halves_epi16(zx(4), zx(6)),
        halves_epi16(zx(5), zx(7)),
    ];
    let heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    let dmins = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    let mut mins = [_mm512_setzero_ps(); M];
    for block in 0..x.k / 256 {
        let src = w.data.wrapping_add(block * F::BYTES);
        // SAFETY: the first 16 bytes of the block are within each row.
        let head = |row: usize| unsafe { _mm_loadu_si128(src.add(row * w.row_bytes).cast()) };
        // One row in each quarter: d, dmin and the packed scales.
        let mut h = _mm512_zextsi128_si512(head(0));
        if R == ROWS {
            h = _mm512_inserti32x4::<1>(h, head(1));
            h = _mm512_inserti32x4::<2>(h, head(2));
            h = _mm512_inserti32x4::<3>(h, head(3));
        }
        let low = _mm512_srlv_epi32(_mm512_shuffle_epi32::<0b11_10_11_01>(h), low_shift);
        let high = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(h));
        let packed = _mm512_ternarylogic_epi32::<0xf8>(_mm512_and_si512(low, low_mask), high, high_mask);
        let d = _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi32(heads, h)));
        let block_mins = _mm512_shuffle_epi8(packed, minima);

        let mut xs = [[_mm512_setzero_si512(); 4]; M];
        let mut ds = [_mm512_setzero_ps(); M];
        for a in 0..M {
            let at = (first + a) * x.k + block * 256;
            // SAFETY: the block is within the row of activations.
            unsafe {
                let codes = int.codes.as_ptr().add(at).cast::<u8>();
                xs[a] = [
                    load_halves(codes, codes.add(64)),
                    load_halves(codes.add(32), codes.add(96)),
                    load_halves(codes.add(128), codes.add(192)),
                    load_halves(codes.add(160), codes.add(224)),
                ];
                let sums = _mm256_loadu_si256(int.sums.as_ptr().add(at / 16).cast());
                let sums = _mm256_cvtepi32_epi16(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
                let min = _mm512_madd_epi16(block_mins, _mm512_broadcast_i32x4(sums));
                let d = _mm256_mul_ps(d, _mm256_set1_ps(*int.d.as_ptr().add(at / 256)));
                ds[a] = _mm512_castps256_ps512(d);
                let dmin = _mm512_permutexvar_ps(dmins, ds[a]);
                mins[a] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), dmin, mins[a]);
            }
        }
        for row in 0..R {
            let spread = spread_quarter(packed, row);
            prefetch(src.wrapping_add(row * w.row_bytes), F::BYTES, w.row_bytes);
            // SAFETY: the block is within the row of weights.
            let (q0, q1, bits) = unsafe {
                let src = src.add(row * w.row_bytes + 16);
                let bits = if fifth_bit { _mm256_loadu_si256(src.cast()) } else { _mm256_setzero_si256() };
                let src = if fifth_bit { src.add(32) } else { src };
                (_mm512_loadu_si512(src.cast()), _mm512_loadu_si512(src.add(64).cast()), bits)
            };
            let mut codes = [
                _mm512_and_si512(q0, low_nibbles),
                _mm512_and_si512(_mm512_srli_epi16::<4>(q0), low_nibbles),
                _mm512_and_si512(q1, low_nibbles),
                _mm512_and_si512(_mm512_srli_epi16::<4>(q1), low_nibbles),
            ];
            if fifth_bit {
                let bits = _mm512_broadcast_i64x4(bits);
                let bit = _mm512_set1_epi8(16);
                let shifted = [
                    _mm512_sllv_epi16(bits, halves_epi16(4, 2)),
                    _mm512_sllv_epi16(bits, halves_epi16(3, 1)),
                    _mm512_srlv_epi16(bits, halves_epi16(0, 2)),
                    _mm512_srlv_epi16(bits, halves_epi16(1, 3)),
                ];
                for (code, shifted) in codes.iter_mut().zip(shifted) {
                    *code = _mm512_ternarylogic_epi32::<0xf8>(*code, shifted, bit);
                }
            }
            for a in 0..M {
                let mut sum = _mm512_setzero_si512();
                for c in 0..4 {
                    let pairs = _mm512_maddubs_epi16(codes[c], xs[a][c]);
                    sum = dpwssd(sum, pairs, _mm512_shuffle_epi8(spread, scales[c]));
                }
                let d = _mm512_permutexvar_ps(_mm512_set1_epi32(2 * row as i32), ds[a]);
                acc[a][row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), d, acc[a][row]);
            }
        }
    }
    for a in 0..M {
        let mut parts = [0f32; 16];
        // SAFETY: the array is as long as the vector.
        unsafe { _mm512_storeu_ps(parts.as_mut_ptr(), mins[a]) };
        for row in 0..R {
            let min: f32 = parts[4 * row..4 * row + 4].iter().sum();
            out[a][r + row] = _mm512_reduce_add_ps(acc[a][row]) + min;
        }
    }
}

/// `Q6_K`: as `Q4_K`, with a scale per 16 elements, and 32 subtracted from each code.
///
/// # Safety
///
/// As [`dot_q6_k`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q6_k_rows<const R: usize, const M: usize>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    r: usize,
    out: &mut Dots,
) {
    const BYTES: usize = 210;
    let Some(int) = x.int else { return };
    let low_nibbles = _mm512_set1_epi8(15);
    let high_bits = _mm512_set1_epi8(0x30);
    let (left, right) = (halves_epi16(4, 2), halves_epi16(0, 2));
    let scale_of = [
        quarters_epi16(0, 1, 2, 3),
        quarters_epi16(4, 5, 6, 7),
        quarters_epi16(8, 9, 10, 11),
        quarters_epi16(12, 13, 14, 15),
    ];
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    for block in 0..x.k / 256 {
        for row in 0..R {
            let src = w.data.wrapping_add(row * w.row_bytes + block * BYTES);
            prefetch(src, BYTES, w.row_bytes);
            // SAFETY: all offsets are within the block.
            let (low0, low1, high0, high1, scales, d) = unsafe {
                (
                    _mm512_loadu_si512(src.cast()),
                    _mm512_loadu_si512(src.add(64).cast()),
                    _mm512_broadcast_i64x4(_mm256_loadu_si256(src.add(128).cast())),
                    _mm512_broadcast_i64x4(_mm256_loadu_si256(src.add(160).cast())),
                    _mm256_cvtepi8_epi16(_mm_loadu_si128(src.add(192).cast())),
                    _mm512_cvtph_ps(_mm256_set1_epi16(src.add(208).cast::<i16>().read_unaligned())),
                )
            };
            let wide = _mm512_castsi256_si512(scales);
            let mut codes = [_mm512_setzero_si512(); 4];
            for (i, (low, high)) in [(low0, high0), (low1, high1)].into_iter().enumerate() {
                codes[2 * i] = _mm512_ternarylogic_epi32::<0xf8>(
                    _mm512_and_si512(low, low_nibbles),
                    _mm512_sllv_epi16(high, left),
                    high_bits,
                );
                codes[2 * i + 1] = _mm512_ternarylogic_epi32::<0xf8>(
                    _mm512_and_si512(_mm512_srli_epi16::<4>(low), low_nibbles),
                    _mm512_srlv_epi16(high, right),
                    high_bits,
                );
            }
            for a in 0..M {
                let at = (first + a) * x.k + block * 256;
                // SAFETY: the block is within the row of activations.
                unsafe {
                    let sums = _mm256_loadu_si256(int.sums.as_ptr().add(at / 16).cast());
                    let offset = _mm256_slli_epi32::<5>(_mm256_madd_epi16(scales, sums));
                    let offset = _mm256_sub_epi32(_mm256_setzero_si256(), offset);
                    let mut sum = _mm512_zextsi256_si512(offset);
                    for c in 0..4 {
                        let xs = _mm512_loadu_si512(int.codes.as_ptr().add(at + 64 * c).cast());
                        let scale = _mm512_permutexvar_epi16(scale_of[c], wide);
                        sum = dpwssd(sum, _mm512_maddubs_epi16(codes[c], xs), scale);
                    }
                    let d = _mm512_mul_ps(d, _mm512_set1_ps(*int.d.as_ptr().add(at / 256)));
                    acc[a][row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), d, acc[a][row]);
                }
            }
        }
    }
    for a in 0..M {
        for row in 0..R {
            out[a][r + row] = _mm512_reduce_add_ps(acc[a][row]);
        }
    }
}

/// `Q8_0`: two blocks make a vector. 128 is added to each code to make it unsigned.
///
/// # Safety
///
/// As [`dot_q8_0`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q8_0_rows<const R: usize, const M: usize>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    r: usize,
    out: &mut Dots,
) {
    const BYTES: usize = 34;
    let Some(int) = x.int else { return };
    let flip = _mm512_set1_epi8(-128);
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    for pair in 0..x.k / 64 {
        let mut xs = [_mm512_setzero_si512(); M];
        let mut ds = [_mm512_setzero_ps(); M];
        let mut starts = [_mm512_setzero_si512(); M];
        for a in 0..M {
            let at = (first + a) * x.k + pair * 64;
            // SAFETY: both blocks are within the row of activations.
            unsafe {
                xs[a] = _mm512_loadu_si512(int.codes.as_ptr().add(at).cast());
                let d = _mm_castsi128_ps(_mm_loadl_epi64(int.d.as_ptr().add(at / 32).cast()));
                ds[a] = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(d));
                // Each of a block's eight lanes takes an eighth of what the 128 are too much.
                let sums = _mm_loadl_epi64(int.sums.as_ptr().add(at / 16).cast());
                let sums = _mm_madd_epi16(sums, _mm_set1_epi16(-16));
                starts[a] = _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(sums));
            }
        }
        for row in 0..R {
            let src = w.data.wrapping_add(row * w.row_bytes + pair * 2 * BYTES);
            prefetch(src, 2 * BYTES, w.row_bytes);
            // SAFETY: both blocks are within the row of weights.
            let (d0, d1, codes) = unsafe {
                let half = |at: usize| src.add(at).cast::<i16>().read_unaligned();
                (half(0), half(BYTES), load_halves(src.add(2), src.add(2 + BYTES)))
            };
            let d = _mm512_cvtph_ps(_mm256_mask_set1_epi16(_mm256_set1_epi16(d0), 0xff00, d1));
            let codes = _mm512_xor_si512(codes, flip);
            for a in 0..M {
                let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(starts[a], codes, xs[a]));
                acc[a][row] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, ds[a]), acc[a][row]);
            }
        }
    }
    for a in 0..M {
        for row in 0..R {
            out[a][r + row] = _mm512_reduce_add_ps(acc[a][row]);
        }
    }
}

/// `Q4_0` and `Q4_1`: four blocks make a vector, one in each quarter.
///
/// # Safety
///
/// As [`dot_q4_0`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q4_0_rows<F: Format, const R: usize, const M: usize>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    r: usize,
    out: &mut Dots,
) {
    let Some(int) = x.int else { return };
    let low_nibbles = _mm512_set1_epi8(15);
    // The four blocks are gathered by 16-bit words from two overlapping loads of their bytes.
    let (words, back) = (F::BYTES as i16 / 2, F::BYTES as i16 * 2 - 32);
    let head = if F::MINS { 2 } else { 1 };
    let count = _mm512_set_epi64(
        0x0007_0006_0005_0004,
        0x0003_0002_0001_0000,
        0x0007_0006_0005_0004,
        0x0003_0002_0001_0000,
        0x0007_0006_0005_0004,
        0x0003_0002_0001_0000,
        0x0007_0006_0005_0004,
        0x0003_0002_0001_0000,
    );
    let starts = quarters_epi16(head, words + head, 2 * words + head - back, 3 * words + head - back);
    let gather = _mm512_add_epi16(count, starts);
    let spread = |w: i16| quarters_epi16(w, words + w, 2 * words + w, 3 * words + w);
    let half = |v: __m512i| {
        let even = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
        _mm512_permutexvar_epi64(even, v)
    };
    let (d_words, m_words) = (half(spread(0)), half(spread(1)));
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    // Activations: the first halves of the four blocks, and the second ones.
    let first_halves = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
    let second_halves = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    for four in 0..x.k / 128 {
        let mut xs = [[_mm512_setzero_si512(); 2]; M];
        let mut ds = [_mm512_setzero_ps(); M];
        let mut starts = [_mm512_setzero_si512(); M];
        let mut sums = [_mm512_setzero_ps(); M];
        for a in 0..M {
            let at = (first + a) * x.k + four * 128;
            // SAFETY: the four blocks are within the row of activations.
            unsafe {
                let codes = int.codes.as_ptr().add(at);
                let (c0, c1) = (_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast()));
                xs[a] = [
                    _mm512_permutex2var_epi64(c0, first_halves, c1),
                    _mm512_permutex2var_epi64(c0, second_halves, c1),
                ];
                let d = _mm_loadu_ps(int.d.as_ptr().add(at / 32));
                ds[a] = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(d));
                // Each of a block's four lanes takes a quarter of the sum: of 8 per code, or of the minimum.
                let sum = _mm_loadu_si128(int.sums.as_ptr().add(at / 16).cast());
                if F::MINS {
                    let sum = _mm_cvtepi32_ps(_mm_madd_epi16(sum, _mm_set1_epi16(1)));
                    let sum = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(sum));
                    sums[a] = _mm512_mul_ps(_mm512_mul_ps(sum, ds[a]), _mm512_set1_ps(0.25));
                } else {
                    let sum = _mm_madd_epi16(sum, _mm_set1_epi16(-2));
                    starts[a] = _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(sum));
                }
            }
        }
        for row in 0..R {
            let src = w.data.wrapping_add(row * w.row_bytes + four * 4 * F::BYTES);
            prefetch(src, 4 * F::BYTES, w.row_bytes);
            // SAFETY: the four blocks are within the row of weights, and both loads within the four blocks.
            let (front, rear) = unsafe {
                (_mm512_loadu_si512(src.cast()), _mm512_loadu_si512(src.add(2 * back as usize).cast()))
            };
            let q = _mm512_permutexvar_epi16(gather, front);
            let q = _mm512_mask_permutexvar_epi16(q, 0xffff_0000, gather, rear);
            let d = _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(d_words, front)));
            let low = _mm512_and_si512(q, low_nibbles);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(q), low_nibbles);
            for a in 0..M {
                let dot = _mm512_dpbusd_epi32(starts[a], low, xs[a][0]);
                let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(dot, high, xs[a][1]));
                acc[a][row] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, ds[a]), acc[a][row]);
                if F::MINS {
                    let m = _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(m_words, front)));
                    acc[a][row] = _mm512_fmadd_ps(m, sums[a], acc[a][row]);
                }
            }
        }
    }
    for a in 0..M {
        for row in 0..R {
            out[a][r + row] = _mm512_reduce_add_ps(acc[a][row]);
        }
    }
}
