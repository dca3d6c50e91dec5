//! AVX2 GEMV kernels for the common block formats; see [`gemv`](super::gemv) for the tiling.
//!
//! Q4_K, Q5_K and Q6_K use `maddubs` (unsigned quants times signed q8 activations) and multiply by the
//! integer scales with `madd` in 32 bits; offsets and minima go through the sums of the activations. Q8_0,
//! Q4_0, MXFP4 and the groups of IQ4_NL and IQ4_XS take one block per vector, the latter by a look-up of
//! bytes (`pshufb`). Bound by memory bandwidth.

use super::{
    gemv::{ActivationRows, DotFn, DotTile, ROWS, WeightRows, by_rows, prefetch},
    simd::dot4_signed,
    unpack::{Format, Q4K, Q5K, e8m0_halved, six_bit_scales},
};
use fulmen_core::DType;
use fulmen_core::quant::{IQ4_VALUES, MXFP4_VALUES};
use std::arch::x86_64::*;

/// The kernel for a type, if there is one here, and the number of elements that rows must be a multiple of.
pub(super) fn specialized(dtype: DType) -> Option<(DotFn, usize)> {
    match dtype {
        DType::Q4_K => Some((dot_q4_k::<Q4K>, 256)),
        DType::Q5_K => Some((dot_q4_k::<Q5K>, 256)),
        DType::Q6_K => Some((dot_q6_k, 256)),
        DType::Q8_0 => Some((dot_q8_0, 32)),
        DType::Q4_0 => Some((dot_q4_0, 32)),
        DType::MXFP4 => Some((dot_mxfp4, 32)),
        DType::IQ4_NL => Some((dot_iq4_nl, 32)),
        DType::IQ4_XS => Some((dot_iq4_xs, 256)),
        _ => None,
    }
}

/// See [`DotFn`].
///
/// # Safety
///
/// As the kernels of the module `gemv`; rows must be a multiple of the elements that [`specialized`] returns.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_q4_k<F: Format>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    count: usize,
    out: &mut DotTile,
) {
    by_rows!(q4_k_rows::<F>, w, x, first, count, out)
}

/// # Safety
///
/// As [`dot_q4_k`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_q6_k(w: WeightRows, x: &ActivationRows<'_>, first: usize, count: usize, out: &mut DotTile) {
    by_rows!(q6_k_rows, w, x, first, count, out)
}

/// # Safety
///
/// `p` must be readable for 2 bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: by the contract.
    let bits = unsafe { p.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(v: __m256) -> f32 {
    let quad = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
}

/// `Q4_K` and `Q5_K`.
///
/// # Safety
///
/// As [`dot_q4_k`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q4_k_rows<F: Format, const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    let Some(q8) = x.q8 else { return };
    let fifth_bit = F::BYTES == Q5K::BYTES;
    let low_nibbles = _mm256_set1_epi8(15);
    for row in 0..R {
        let mut acc = [_mm256_setzero_ps(); M];
        let mut mins = [_mm_setzero_ps(); M];
        for block in 0..x.k / 256 {
            let src = w.data.wrapping_add(row * w.row_bytes + block * F::BYTES);
            prefetch(src, F::BYTES, w.row_bytes);
            // SAFETY: all offsets are within the block of weights, or of activations.
            unsafe {
                let (scales, minima) = six_bit_scales(src.add(4).cast::<[u8; 12]>().read_unaligned());
                let scales = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(scales as i64)));
                let minima = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(minima as i64));
                let (d, dmin) = (f16_at(src), f16_at(src.add(2)));
                let bits = _mm256_loadu_si256(src.add(16).cast());
                let quants = if fifth_bit { src.add(48) } else { src.add(16) };
                let mut sums = [_mm256_setzero_si256(); M];
                for j in 0..4 {
                    let q = _mm256_loadu_si256(quants.add(32 * j).cast());
                    let mut low = _mm256_and_si256(q, low_nibbles);
                    let mut high = _mm256_and_si256(_mm256_srli_epi16::<4>(q), low_nibbles);
                    if fifth_bit {
                        let bit = _mm256_set1_epi8(16);
                        // Bit 2j or 2j + 1 of each byte to its bit 4. Bits shifted in from another byte are
                        // masked.
                        let move_bit = |from: usize| {
                            let left =
                                _mm256_sll_epi16(bits, _mm_cvtsi64_si128(4i64.saturating_sub(from as i64)));
                            let right = _mm256_srl_epi16(bits, _mm_cvtsi64_si128(from as i64 - 4));
                            _mm256_and_si256(if from < 4 { left } else { right }, bit)
                        };
                        low = _mm256_or_si256(low, move_bit(2 * j));
                        high = _mm256_or_si256(high, move_bit(2 * j + 1));
                    }
                    let pick = |i: i32| _mm256_set1_epi16(((2 * i) | ((2 * i + 1) << 8)) as i16);
                    let low_scale = _mm256_shuffle_epi8(scales, pick(2 * j as i32));
                    let high_scale = _mm256_shuffle_epi8(scales, pick(2 * j as i32 + 1));
                    for a in 0..M {
                        let at = (first + a) * x.k + block * 256 + 64 * j;
                        let x = q8.quants.as_ptr().add(at);
                        let (x0, x1) = (_mm256_loadu_si256(x.cast()), _mm256_loadu_si256(x.add(32).cast()));
                        let low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, x0), low_scale);
                        let high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, x1), high_scale);
                        sums[a] = _mm256_add_epi32(sums[a], _mm256_add_epi32(low, high));
                    }
                }
                for a in 0..M {
                    let at = (first + a) * x.k + block * 256;
                    let dx = *q8.d.as_ptr().add(at / 256);
                    acc[a] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[a]), _mm256_set1_ps(d * dx), acc[a]);
                    let x_sums = q8.sums.as_ptr().add(at / 16);
                    let x_sums =
                        _mm_hadd_epi16(_mm_loadu_si128(x_sums.cast()), _mm_loadu_si128(x_sums.add(8).cast()));
                    let min = _mm_cvtepi32_ps(_mm_madd_epi16(minima, x_sums));
                    mins[a] = _mm_fnmadd_ps(min, _mm_set1_ps(dmin * dx), mins[a]);
                }
            }
        }
        for a in 0..M {
            out[a][r + row] = sum(_mm256_add_ps(acc[a], _mm256_zextps128_ps256(mins[a])));
        }
    }
}

/// `Q6_K`.
///
/// # Safety
///
/// As [`dot_q6_k`], with `R` rows of weights and `M` of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q6_k_rows<const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    const BYTES: usize = 210;
    let Some(q8) = x.q8 else { return };
    let low_nibbles = _mm256_set1_epi8(15);
    let high_bits = _mm256_set1_epi8(0x30);
    for row in 0..R {
        let mut acc = [_mm256_setzero_ps(); M];
        for block in 0..x.k / 256 {
            let src = w.data.wrapping_add(row * w.row_bytes + block * BYTES);
            prefetch(src, BYTES, w.row_bytes);
            // SAFETY: all offsets are within the block of weights, or of activations.
            unsafe {
                let scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(src.add(192).cast()));
                let d = f16_at(src.add(208));
                let mut sums = [_mm256_setzero_si256(); M];
                for a in 0..M {
                    // 32, the zero point, times the sums of the activations.
                    let at = (first + a) * x.k + block * 256;
                    let x_sums = _mm256_loadu_si256(q8.sums.as_ptr().add(at / 16).cast());
                    let offset = _mm256_slli_epi32::<5>(_mm256_madd_epi16(scales, x_sums));
                    sums[a] = _mm256_sub_epi32(_mm256_setzero_si256(), offset);
                }
                for h in 0..2 {
                    let q0 = _mm256_loadu_si256(src.add(64 * h).cast());
                    let q1 = _mm256_loadu_si256(src.add(64 * h + 32).cast());
                    let bits = _mm256_loadu_si256(src.add(128 + 32 * h).cast());
                    let with = |low: __m256i, high: __m256i| {
                        _mm256_or_si256(_mm256_and_si256(low, low_nibbles), _mm256_and_si256(high, high_bits))
                    };
                    let quants = [
                        with(q0, _mm256_slli_epi16::<4>(bits)),
                        with(q1, _mm256_slli_epi16::<2>(bits)),
                        with(_mm256_srli_epi16::<4>(q0), bits),
                        with(_mm256_srli_epi16::<4>(q1), _mm256_srli_epi16::<2>(bits)),
                    ];
                    // The eight scales of these 128 elements, in both 128-bit lanes.
                    let eight = if h == 0 {
                        _mm256_permute4x64_epi64::<0b01_00_01_00>(scales)
                    } else {
                        _mm256_permute4x64_epi64::<0b11_10_11_10>(scales)
                    };
                    for (c, &quants) in quants.iter().enumerate() {
                        let pick = |i: i32| _mm_set1_epi16(((2 * i) | ((2 * i + 1) << 8)) as i16);
                        let c = c as i32;
                        let scale =
                            _mm256_shuffle_epi8(eight, _mm256_set_m128i(pick(2 * c + 1), pick(2 * c)));
                        for a in 0..M {
                            let at = (first + a) * x.k + block * 256 + 128 * h + 32 * c as usize;
                            let x = _mm256_loadu_si256(q8.quants.as_ptr().add(at).cast());
                            let dot = _mm256_madd_epi16(_mm256_maddubs_epi16(quants, x), scale);
                            sums[a] = _mm256_add_epi32(sums[a], dot);
                        }
                    }
                }
                for a in 0..M {
                    let dx = *q8.d.as_ptr().add((first + a) * (x.k / 256) + block);
                    acc[a] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[a]), _mm256_set1_ps(d * dx), acc[a]);
                }
            }
        }
        for a in 0..M {
            out[a][r + row] = sum(acc[a]);
        }
    }
}

/// A kernel for blocks of 32 elements that are one vector of signed quants, and its entry. `at` gives the
/// offset of the block of 32 with this number in a row; `scale` and `quants` read it.
macro_rules! signed_blocks {
    ($entry:ident, $rows:ident, q8 blocks of $q8:literal, bytes $bytes:literal, |$block:ident| $at:expr,
     scale $scale:expr, |$src:ident| $quants:expr) => {
        /// # Safety
        ///
        /// As [`dot_q4_k`].
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) unsafe fn $entry(
            w: WeightRows,
            x: &ActivationRows<'_>,
            first: usize,
            count: usize,
            out: &mut DotTile,
        ) {
            by_rows!($rows, w, x, first, count, out)
        }

        /// # Safety
        ///
        /// As the entry, with `R` rows of weights and `M` of activations.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $rows<const R: usize, const M: usize>(
            w: WeightRows,
            x: &ActivationRows<'_>,
            first: usize,
            r: usize,
            out: &mut DotTile,
        ) {
            let Some(q8) = x.q8 else { return };
            let mut acc = [[_mm256_setzero_ps(); R]; M];
            for $block in 0..x.k / 32 {
                for row in 0..R {
                    let row_start = w.data.wrapping_add(row * w.row_bytes);
                    let $src = row_start.wrapping_add($at);
                    prefetch($src, $bytes, w.row_bytes);
                    // SAFETY: all offsets are within the block of weights, or of activations.
                    unsafe {
                        let d = $scale(row_start, $block);
                        let quants = $quants;
                        let magnitudes = _mm256_abs_epi8(quants);
                        for a in 0..M {
                            let at = (first + a) * x.k + $block * 32;
                            let x = _mm256_loadu_si256(q8.quants.as_ptr().add(at).cast());
                            let dot = _mm256_cvtepi32_ps(dot4_signed(magnitudes, quants, x));
                            let d = _mm256_set1_ps(d * *q8.d.as_ptr().add(at / $q8));
                            acc[a][row] = _mm256_fmadd_ps(dot, d, acc[a][row]);
                        }
                    }
                }
            }
            for a in 0..M {
                for row in 0..R {
                    out[a][r + row] = sum(acc[a][row]);
                }
            }
        }
    };
}

/// The f16 at the start of a block of `BYTES`.
///
/// # Safety
///
/// The block must be readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn f16_scale<const BYTES: usize>(row: *const u8, block: usize) -> f32 {
    // SAFETY: by the contract.
    unsafe { f16_at(row.add(block * BYTES)) }
}

/// # Safety
///
/// The block must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn mxfp4_scale(row: *const u8, block: usize) -> f32 {
    // SAFETY: by the contract.
    e8m0_halved(unsafe { *row.add(block * 17) })
}

/// # Safety
///
/// The block of 256 that contains the group must be readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn iq4_xs_scale(row: *const u8, group: usize) -> f32 {
    let (src, j) = (row.wrapping_add(group / 8 * 136), group % 8);
    // SAFETY: by the contract.
    unsafe {
        let (low, high) = (*src.add(4 + j / 2) >> (j % 2 * 4) & 15, *src.add(2 + j / 4) >> (j % 4 * 2) & 3);
        f16_at(src) * f32::from((low | high << 4) as i8 - 32)
    }
}

/// The low nibbles of 16 bytes, then the high ones.
///
/// # Safety
///
/// `src` must be readable for 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles(src: *const u8) -> __m256i {
    // SAFETY: by the contract.
    let q = unsafe { _mm_loadu_si128(src.cast()) };
    _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(q), q), _mm256_set1_epi8(15))
}

/// The values of a table at the nibbles of 16 bytes.
///
/// # Safety
///
/// `src` must be readable for 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn look_up(table: &[i8; 16], src: *const u8) -> __m256i {
    // SAFETY: by the contract; the table has 16 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles(src))
    }
}

signed_blocks!(dot_q8_0, q8_0_rows, q8 blocks of 32, bytes 34, |block| block * 34, scale f16_scale::<34>,
    |src| _mm256_loadu_si256(src.add(2).cast()));
signed_blocks!(dot_q4_0, q4_0_rows, q8 blocks of 32, bytes 18, |block| block * 18, scale f16_scale::<18>,
    |src| _mm256_sub_epi8(nibbles(src.add(2)), _mm256_set1_epi8(8)));
signed_blocks!(dot_mxfp4, mxfp4_rows, q8 blocks of 32, bytes 17, |block| block * 17, scale mxfp4_scale,
    |src| look_up(&MXFP4_VALUES, src.add(1)));
signed_blocks!(dot_iq4_nl, iq4_nl_rows, q8 blocks of 32, bytes 18, |block| block * 18,
    scale f16_scale::<18>, |src| look_up(&IQ4_VALUES, src.add(2)));
signed_blocks!(dot_iq4_xs, iq4_xs_rows, q8 blocks of 256, bytes 16,
    |block| block / 8 * 136 + 8 + block % 8 * 16, scale iq4_xs_scale, |src| look_up(&IQ4_VALUES, src));
