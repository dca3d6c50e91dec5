//! GEMV kernels of the formats with blocks of 32: two (Q8_0) or four (Q4 and Q5) blocks per vector.

use super::{dot_fn, load_2x256, quad_epi16};
use crate::kernels::mul_mat::{
    activations::Q8Rows,
    gemv::{ActivationRows, DotTile, ROWS, WeightRows, by_rows, prefetch},
    unpack::{Format, Q4_1},
};
use std::arch::x86_64::*;

dot_fn!(dot_q8_0, q8_0_rows);
dot_fn!(dot_q4_0<F>, q4_0_rows);

/// `Q8_0`: two blocks per vector. 128 is added to each quant to make it unsigned.
///
/// # Safety
///
/// As [`dot_q8_0`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q8_0_rows<const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    const BYTES: usize = 34;
    let Some(q8) = x.q8 else { return };
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
                xs[a] = _mm512_loadu_si512(q8.quants.as_ptr().add(at).cast());
                let d = _mm_castsi128_ps(_mm_loadl_epi64(q8.d.as_ptr().add(at / 32).cast()));
                ds[a] = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(d));
                // Each of a block's eight lanes subtracts an eighth of the excess of the added 128.
                let sums = _mm_loadl_epi64(q8.sums.as_ptr().add(at / 16).cast());
                let sums = _mm_madd_epi16(sums, _mm_set1_epi16(-16));
                starts[a] = _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(sums));
            }
        }
        for row in 0..R {
            let src = w.data.wrapping_add(row * w.row_bytes + pair * 2 * BYTES);
            prefetch(src, 2 * BYTES, w.row_bytes);
            // SAFETY: both blocks are within the row of weights.
            let (d0, d1, quants) = unsafe {
                let scale = |at: usize| src.add(at).cast::<i16>().read_unaligned();
                (scale(0), scale(BYTES), load_2x256(src.add(2), src.add(2 + BYTES)))
            };
            let d = _mm512_cvtph_ps(_mm256_mask_set1_epi16(_mm256_set1_epi16(d0), 0xff00, d1));
            let quants = _mm512_xor_si512(quants, flip);
            for a in 0..M {
                let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(starts[a], quants, xs[a]));
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

/// Permutation indices that arrange the bytes of four blocks.
#[derive(Clone, Copy)]
struct Shuffles {
    /// The quants of one block to each 128-bit lane, by 16-bit words of two overlapping loads.
    gather: __m512i,
    /// Each of four values to a 128-bit lane.
    lanes: __m512i,
    /// Scales and minima, for formats whose first load contains those of all four blocks.
    d_words: __m512i,
    m_words: __m512i,
    /// Activations: the first 16 of each of the four blocks, and the second 16.
    low_high: [__m512i; 2],
}

/// 16-bit words between the two loads of four blocks.
const fn back<F: Format>() -> usize {
    F::BYTES * 2 - 32
}

/// Whether a format has 5-bit quants.
const fn fifth_bit<F: Format>() -> bool {
    F::BYTES > Q4_1::BYTES
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn shuffles<F: Format>() -> Shuffles {
    let (words, back) = (F::BYTES as i16 / 2, back::<F>() as i16);
    let head = if F::MINS { 2 } else { 1 } + if fifth_bit::<F>() { 2 } else { 0 };
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
    let starts = quad_epi16(head, words + head, 2 * words + head - back, 3 * words + head - back);
    let heads = |w: i16| {
        let spread = quad_epi16(w, words + w, 2 * words + w, 3 * words + w);
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), spread)
    };
    Shuffles {
        gather: _mm512_add_epi16(count, starts),
        lanes: _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        d_words: heads(0),
        m_words: heads(1),
        low_high: [
            _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13),
            _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15),
        ],
    }
}

/// 64 bytes, of which the first `n` are read and the others are zero.
///
/// # Safety
///
/// The first `n` must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_first(src: *const u8, n: usize) -> __m512i {
    let mask = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    // SAFETY: by the contract.
    unsafe { _mm512_maskz_loadu_epi8(mask, src.cast()) }
}

/// `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1`: four blocks per vector, one in each 128-bit lane. At the end of a row
/// there may be fewer; missing ones are zero-filled.
///
/// # Safety
///
/// As [`dot_q4_0`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q4_0_rows<F: Format, const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    let Some(q8) = x.q8 else { return };
    let shuffles = shuffles::<F>();
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    let (whole, remaining) = (x.k / 128, x.k % 128 / 32);
    for group in 0..whole {
        // SAFETY: by the contract; the four blocks are within the rows.
        unsafe { four_blocks::<F, R, M, true>(&shuffles, w, &q8, first * x.k, x.k, group, 4, &mut acc) };
    }
    if remaining > 0 {
        // SAFETY: by the contract; this many blocks remain in the rows.
        unsafe {
            four_blocks::<F, R, M, false>(&shuffles, w, &q8, first * x.k, x.k, whole, remaining, &mut acc)
        };
    }
    for a in 0..M {
        for row in 0..R {
            out[a][r + row] = _mm512_reduce_add_ps(acc[a][row]);
        }
    }
}

/// Accumulates the dot products of the blocks from `4 * group` on: `count` of them, four if `WHOLE`.
///
/// # Safety
///
/// As [`q4_0_rows`]; the blocks must be within the rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[expect(clippy::too_many_arguments, reason = "the body of one loop")]
unsafe fn four_blocks<F: Format, const R: usize, const M: usize, const WHOLE: bool>(
    shuffles: &Shuffles,
    w: WeightRows,
    q8: &Q8Rows<'_>,
    start: usize,
    k: usize,
    group: usize,
    count: usize,
    acc: &mut [[__m512; R]; M],
) {
    let Shuffles { gather, lanes, d_words, m_words, low_high } = *shuffles;
    let fifth_bit = const { fifth_bit::<F>() };
    let back = const { 2 * back::<F>() };
    let bits_at = if F::MINS { 4 } else { 2 };
    let low_nibbles = _mm512_set1_epi8(15);
    let mut xs = [[_mm512_setzero_si512(); 2]; M];
    let mut ds = [_mm512_setzero_ps(); M];
    let mut starts = [_mm512_setzero_si512(); M];
    let mut sums = [_mm512_setzero_ps(); M];
    for a in 0..M {
        let at = start + a * k + group * 128;
        // SAFETY: the blocks are within the row of activations, and no more of it is read.
        unsafe {
            let (quants, d) = (q8.quants.as_ptr().add(at).cast::<u8>(), q8.d.as_ptr().add(at / 32));
            let sum = q8.sums.as_ptr().add(at / 16);
            let (c0, c1, d, sum) = if WHOLE {
                let (c0, c1) = (_mm512_loadu_si512(quants.cast()), _mm512_loadu_si512(quants.add(64).cast()));
                (c0, c1, _mm_loadu_ps(d), _mm_loadu_si128(sum.cast()))
            } else {
                let mask = (1u8 << count) - 1;
                let (c0, c1) = (
                    load_first(quants, 32 * count),
                    load_first(quants.wrapping_add(64), (32 * count).saturating_sub(64)),
                );
                let pairs = (1u8 << (2 * count)) - 1;
                (c0, c1, _mm_maskz_loadu_ps(mask, d), _mm_maskz_loadu_epi16(pairs, sum))
            };
            xs[a] = low_high.map(|index| _mm512_permutex2var_epi64(c0, index, c1));
            ds[a] = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(d));
            // Each of a block's four lanes takes a quarter of the term of the zero point (8 or 16) or of the
            // minimum.
            if F::MINS {
                let sum = _mm_cvtepi32_ps(_mm_madd_epi16(sum, _mm_set1_epi16(1)));
                let sum = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(sum));
                sums[a] = _mm512_mul_ps(_mm512_mul_ps(sum, ds[a]), _mm512_set1_ps(0.25));
            } else {
                let sum = _mm_madd_epi16(sum, _mm_set1_epi16(if fifth_bit { -4 } else { -2 }));
                starts[a] = _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(sum));
            }
        }
    }
    for row in 0..R {
        let src = w.data.wrapping_add(row * w.row_bytes + group * 4 * F::BYTES);
        prefetch(src, count * F::BYTES, w.row_bytes);
        // SAFETY: the blocks are within the row of weights, and both loads within the blocks.
        let (front, rear) = unsafe {
            if WHOLE {
                (_mm512_loadu_si512(src.cast()), _mm512_loadu_si512(src.add(back).cast()))
            } else {
                let bytes = count * F::BYTES;
                (load_first(src, bytes), load_first(src.wrapping_add(back), bytes.saturating_sub(back)))
            }
        };
        let q = _mm512_permutexvar_epi16(gather, front);
        let q = _mm512_mask_permutexvar_epi16(q, 0xffff_0000, gather, rear);
        let mut low = _mm512_and_si512(q, low_nibbles);
        let mut high = _mm512_and_si512(_mm512_srli_epi16::<4>(q), low_nibbles);
        let four_words = |at: usize| {
            let word = |b: usize| {
                if !WHOLE && b >= count {
                    return 0;
                }
                // SAFETY: the word is within the blocks.
                u64::from(unsafe { src.add(b * F::BYTES + at).cast::<u16>().read_unaligned() })
            };
            word(0) | word(1) << 16 | word(2) << 32 | word(3) << 48
        };
        let f16_fields = |at: usize| {
            // Fewer instructions, if the first load contains the fields of all blocks.
            if !fifth_bit {
                let words = _mm512_permutexvar_epi16(if at == 0 { d_words } else { m_words }, front);
                return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
            }
            let fields = _mm_cvtsi64_si128(four_words(at) as i64);
            _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_cvtph_ps(fields)))
        };
        let d = f16_fields(0);
        if fifth_bit {
            let bit = _mm512_set1_epi8(16);
            low = _mm512_mask_add_epi8(low, four_words(bits_at), low, bit);
            high = _mm512_mask_add_epi8(high, four_words(bits_at + 2), high, bit);
        }
        for a in 0..M {
            let dot = _mm512_dpbusd_epi32(starts[a], low, xs[a][0]);
            let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(dot, high, xs[a][1]));
            acc[a][row] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, ds[a]), acc[a][row]);
            if F::MINS {
                acc[a][row] = _mm512_fmadd_ps(f16_fields(2), sums[a], acc[a][row]);
            }
        }
    }
}
