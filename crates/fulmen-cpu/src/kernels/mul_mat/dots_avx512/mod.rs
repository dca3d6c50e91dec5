//! Dot products straight from the blocks of the common formats, for AVX-512 with VNNI.
//!
//! The kernels take four rows of weights at once, so that the work per block of activations is shared and the
//! sums of the rows do not wait for each other. Codes are unsigned bytes, multiplied with the signed quants of
//! the activations; what is to be subtracted from each code goes through the sums of the activations.

mod block256;
mod block32;

use super::{
    dots::DotFn,
    formats::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K},
};
use fulmen_core::DType;
use std::arch::x86_64::*;

/// The kernel for a type, if there is one here, and the multiple of elements that rows must have for it.
pub(super) fn specialized(dtype: DType) -> Option<(DotFn, usize)> {
    match dtype {
        DType::Q4_K => Some((block256::dot_q4_k::<Q4K>, 256)),
        DType::Q5_K => Some((block256::dot_q4_k::<Q5K>, 256)),
        DType::Q6_K => Some((block256::dot_q6_k, 256)),
        DType::Q8_0 => Some((block32::dot_q8_0, 64)),
        DType::Q4_0 => Some((block32::dot_q4_0::<Q4_0>, 32)),
        DType::Q4_1 => Some((block32::dot_q4_0::<Q4_1>, 32)),
        DType::Q5_0 => Some((block32::dot_q4_0::<Q5_0>, 32)),
        DType::Q5_1 => Some((block32::dot_q4_0::<Q5_1>, 32)),
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
        /// [`specialized`](super::specialized) says.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        pub(super) unsafe fn $name $(<$f: Format>)? (w: WeightRows, x: &Rows<'_>, first: usize, count: usize, out: &mut Dots) {
            by_rows!($rows::<$($f)?>, w, x, first, count, out)
        }
    };
}

use dot_fn;

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
