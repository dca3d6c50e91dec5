//! GEMV kernels of the K-quants: one block of 256 elements of four rows per iteration.

use super::{broadcast_128, dot_fn, load_2x256, pair_epi16, quad_epi16};
use crate::kernels::mul_mat::{
    gemv::{ActivationRows, DotTile, ROWS, WeightRows, by_rows, prefetch},
    unpack::{Format, Q5K},
};
use std::arch::x86_64::*;

dot_fn!(dot_q4_k<F>, q4_k_rows);
dot_fn!(dot_q6_k, q6_k_rows);

/// `_mm512_dpwssd_epi32`. The compiler splits the intrinsic into a multiplication and an addition to reduce
/// latency; here throughput matters.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction is part of the enabled features and accesses only its registers.
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

/// The 256 quants of a `Q4_K` or `Q5_K` block, of which `src` is the address after the scales.
///
/// # Safety
///
/// The quants must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn load_q4_k_quants<F: Format>(src: *const u8) -> [__m512i; 4] {
    let fifth_bit = F::BYTES == Q5K::BYTES;
    let low_nibbles = _mm512_set1_epi8(15);
    // SAFETY: by the contract.
    let (q0, q1, bits) = unsafe {
        let bits = if fifth_bit { _mm256_loadu_si256(src.cast()) } else { _mm256_setzero_si256() };
        let src = if fifth_bit { src.add(32) } else { src };
        (_mm512_loadu_si512(src.cast()), _mm512_loadu_si512(src.add(64).cast()), bits)
    };
    let mut quants = [
        _mm512_and_si512(q0, low_nibbles),
        _mm512_and_si512(_mm512_srli_epi16::<4>(q0), low_nibbles),
        _mm512_and_si512(q1, low_nibbles),
        _mm512_and_si512(_mm512_srli_epi16::<4>(q1), low_nibbles),
    ];
    if fifth_bit {
        let bits = _mm512_broadcast_i64x4(bits);
        let bit = _mm512_set1_epi8(16);
        let shifted = [
            _mm512_sllv_epi16(bits, pair_epi16(4, 2)),
            _mm512_sllv_epi16(bits, pair_epi16(3, 1)),
            _mm512_srlv_epi16(bits, pair_epi16(0, 2)),
            _mm512_srlv_epi16(bits, pair_epi16(1, 3)),
        ];
        for (quant, shifted) in quants.iter_mut().zip(shifted) {
            *quant = _mm512_ternarylogic_epi32::<0xf8>(*quant, shifted, bit);
        }
    }
    quants
}

/// `Q4_K` and `Q5_K`. Pairs of quant times activation are summed in 16 bits (`vpmaddubsw`), multiplied by the
/// 6-bit scales and accumulated in 32 bits for the whole block (`vpdpwssd`), and converted to f32 once per
/// block.
///
/// # Safety
///
/// As [`dot_q4_k`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q4_k_rows<F: Format, const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    let Some(q8) = x.q8 else { return };
    // Masks for the packed scales: dwords are scales 0..4, scales 4..8, minima 0..4 and minima 4..8.
    let low_shift = _mm512_set4_epi32(4, 0, 0, 0);
    let low_mask = _mm512_set4_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f);
    let high_mask = _mm512_set4_epi32(0x3030_3030, 0, 0x3030_3030, 0);
    // Bytes of a 128-bit lane as 16-bit values: the minima, and the scales of each vector of quants.
    let minima = _mm512_set4_epi32(
        0x800f_800eu32 as i32,
        0x800d_800cu32 as i32,
        0x800b_800au32 as i32,
        0x8009_8008u32 as i32,
    );
    let zx = |i: i16| i | 0x8000u16 as i16;
    let scales = [
        pair_epi16(zx(0), zx(2)),
        pair_epi16(zx(1), zx(3)),
        pair_epi16(zx(4), zx(6)),
        pair_epi16(zx(5), zx(7)),
    ];
    let heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    let dmins = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    let mut mins = [_mm512_setzero_ps(); M];
    for block in 0..x.k / 256 {
        let src = w.data.wrapping_add(block * F::BYTES);
        // SAFETY: the first 16 bytes of the block are within each row.
        let head = |row: usize| unsafe { _mm_loadu_si128(src.add(row * w.row_bytes).cast()) };
        // One row in each 128-bit lane: d, dmin and the packed scales.
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
                let quants = q8.quants.as_ptr().add(at).cast::<u8>();
                xs[a] = [
                    load_2x256(quants, quants.add(64)),
                    load_2x256(quants.add(32), quants.add(96)),
                    load_2x256(quants.add(128), quants.add(192)),
                    load_2x256(quants.add(160), quants.add(224)),
                ];
                let sums = _mm256_loadu_si256(q8.sums.as_ptr().add(at / 16).cast());
                let sums = _mm256_cvtepi32_epi16(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
                let min = _mm512_madd_epi16(block_mins, _mm512_broadcast_i32x4(sums));
                let d = _mm256_mul_ps(d, _mm256_set1_ps(*q8.d.as_ptr().add(at / 256)));
                ds[a] = _mm512_castps256_ps512(d);
                let dmin = _mm512_permutexvar_ps(dmins, ds[a]);
                mins[a] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), dmin, mins[a]);
            }
        }
        for row in 0..R {
            let spread = broadcast_128(packed, row);
            prefetch(src.wrapping_add(row * w.row_bytes), F::BYTES, w.row_bytes);
            // SAFETY: the block is within the row of weights.
            let quants = unsafe { load_q4_k_quants::<F>(src.add(row * w.row_bytes + 16)) };
            for a in 0..M {
                let mut sum = _mm512_setzero_si512();
                for c in 0..4 {
                    let pairs = _mm512_maddubs_epi16(quants[c], xs[a][c]);
                    sum = dpwssd(sum, pairs, _mm512_shuffle_epi8(spread, scales[c]));
                }
                let d = _mm512_permutexvar_ps(_mm512_set1_epi32(2 * row as i32), ds[a]);
                acc[a][row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), d, acc[a][row]);
            }
        }
    }
    for a in 0..M {
        let mut lanes = [0f32; 16];
        // SAFETY: the array is as long as the vector.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), mins[a]) };
        for row in 0..R {
            let min: f32 = lanes[4 * row..4 * row + 4].iter().sum();
            out[a][r + row] = _mm512_reduce_add_ps(acc[a][row]) + min;
        }
    }
}

/// `Q6_K`: as `Q4_K`, with a scale per 16 elements and the zero point 32.
///
/// # Safety
///
/// As [`dot_q6_k`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn q6_k_rows<const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    const BYTES: usize = 210;
    let Some(q8) = x.q8 else { return };
    let low_nibbles = _mm512_set1_epi8(15);
    let high_bits = _mm512_set1_epi8(0x30);
    let (left, right) = (pair_epi16(4, 2), pair_epi16(0, 2));
    let scale_of = [
        quad_epi16(0, 1, 2, 3),
        quad_epi16(4, 5, 6, 7),
        quad_epi16(8, 9, 10, 11),
        quad_epi16(12, 13, 14, 15),
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
            let mut quants = [_mm512_setzero_si512(); 4];
            for (i, (low, high)) in [(low0, high0), (low1, high1)].into_iter().enumerate() {
                quants[2 * i] = _mm512_ternarylogic_epi32::<0xf8>(
                    _mm512_and_si512(low, low_nibbles),
                    _mm512_sllv_epi16(high, left),
                    high_bits,
                );
                quants[2 * i + 1] = _mm512_ternarylogic_epi32::<0xf8>(
                    _mm512_and_si512(_mm512_srli_epi16::<4>(low), low_nibbles),
                    _mm512_srlv_epi16(high, right),
                    high_bits,
                );
            }
            for a in 0..M {
                let at = (first + a) * x.k + block * 256;
                // SAFETY: the block is within the row of activations.
                unsafe {
                    let sums = _mm256_loadu_si256(q8.sums.as_ptr().add(at / 16).cast());
                    let offset = _mm256_slli_epi32::<5>(_mm256_madd_epi16(scales, sums));
                    let offset = _mm256_sub_epi32(_mm256_setzero_si256(), offset);
                    let mut sum = _mm512_zextsi256_si512(offset);
                    for c in 0..4 {
                        let xs = _mm512_loadu_si512(q8.quants.as_ptr().add(at + 64 * c).cast());
                        let scale = _mm512_permutexvar_epi16(scale_of[c], wide);
                        sum = dpwssd(sum, _mm512_maddubs_epi16(quants[c], xs), scale);
                    }
                    let d = _mm512_mul_ps(d, _mm512_set1_ps(*q8.d.as_ptr().add(at / 256)));
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
