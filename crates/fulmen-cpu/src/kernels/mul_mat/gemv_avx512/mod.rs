//! AVX-512 VNNI GEMV kernels for the common block formats.
//!
//! The kernels compute four weight rows at once, so that the loads of the activations are shared and the
//! accumulators of the rows are independent. Weight quants are unsigned bytes, multiplied with the signed q8
//! activations (`vpdpbusd`, `vpmaddubsw`); the zero point of the quants goes through the sums of the
//! activations. Bound by memory bandwidth.

mod block256;
mod block32;

use super::{
    gemv::DotFn,
    gemv_avx2,
    unpack::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K},
};
use fulmen_core::DType;
use std::arch::x86_64::*;

/// The kernel for a type, if there is one here, and the number of elements that rows must be a multiple of.
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
        // A block per 256-bit vector: look-ups of bytes are as wide as there.
        DType::MXFP4 | DType::IQ4_NL | DType::IQ4_XS => gemv_avx2::specialized(dtype),
        _ => None,
    }
}

/// The kernel of a format for any number of rows, from the one that is generic over it.
macro_rules! dot_fn {
    ($name:ident $(<$f:ident>)?, $rows:ident) => {
        /// See [`DotFn`].
        ///
        /// # Safety
        ///
        /// As the kernels of the module `gemv`; rows must be a multiple of the elements that
        /// [`specialized`](super::specialized) returns.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        pub(super) unsafe fn $name $(<$f: Format>)? (
            w: WeightRows,
            x: &ActivationRows<'_>,
            first: usize,
            count: usize,
            out: &mut DotTile,
        ) {
            by_rows!($rows::<$($f)?>, w, x, first, count, out)
        }
    };
}

use dot_fn;

/// 32 16-bit lanes: each of the four values fills a 128-bit lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn quad_epi16(a: i16, b: i16, c: i16, d: i16) -> __m512i {
    let pair = |v: i16| (u32::from(v as u16) * 0x10001) as i32;
    let (a, b, c, d) = (pair(a), pair(b), pair(c), pair(d));
    _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d)
}

/// 32 16-bit lanes: each of the two values fills 256 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_epi16(a: i16, b: i16) -> __m512i {
    quad_epi16(a, a, b, b)
}

/// The 128-bit lane `i` of a vector, broadcast to all four.
#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast_128(v: __m512i, i: usize) -> __m512i {
    match i {
        0 => _mm512_shuffle_i32x4::<0x00>(v, v),
        1 => _mm512_shuffle_i32x4::<0x55>(v, v),
        2 => _mm512_shuffle_i32x4::<0xaa>(v, v),
        _ => _mm512_shuffle_i32x4::<0xff>(v, v),
    }
}

/// A vector of 32 bytes from each of two addresses.
///
/// # Safety
///
/// Both must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_2x256(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: by the contract.
    let (low, high) = unsafe { (_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(high.cast())) };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}
