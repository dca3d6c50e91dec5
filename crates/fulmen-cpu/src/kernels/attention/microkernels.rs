//! The inner loops of attention: dequantization of KV tiles, and register-tiled QK and PV micro-kernels.

#![allow(clippy::needless_range_loop, reason = "blocks of registers read best by index")]

use fulmen_core::DType;

use super::DOT_CHUNK;
use crate::{
    kv_view::Q8_BLOCK,
    simd::{Simd, math},
};

/// Rows of f32 values: the address of the first, and the stride.
#[derive(Clone, Copy)]
pub(super) struct Tile(pub(super) *const f32, pub(super) usize);

/// e^x of one value.
#[inline(always)]
pub(super) fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    s.reduce_max(math::exp(s, s.splat(x)))
}

/// Dequantizes a row of the cache to `f32`. `scales` are those of `Q8_0`.
#[inline(always)]
pub(super) fn dequantize_row<S: Simd>(s: S, dtype: DType, from: &[u8], scales: &[u8], to: &mut [f32]) {
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut(to).copy_from_slice(from),
        DType::F16 => {
            let whole =
                if from.as_ptr().cast::<u16>().is_aligned() { to.len() / S::LANES * S::LANES } else { 0 };
            for i in (0..whole).step_by(S::LANES) {
                // SAFETY: both rows hold as many elements, and the vector ends inside them.
                unsafe { s.store(to.as_mut_ptr().add(i), s.load_f16(from.as_ptr().cast::<u16>().add(i))) };
            }
            for (to, from) in to.iter_mut().zip(from.as_chunks().0).skip(whole) {
                *to = f16_to_f32(u16::from_ne_bytes(*from));
            }
        }
        _ => {
            let blocks = from.as_chunks::<Q8_BLOCK>().0.iter().zip(scales.as_chunks().0);
            for (to, (from, scale)) in to.as_chunks_mut::<Q8_BLOCK>().0.iter_mut().zip(blocks) {
                let d = s.splat(f16_to_f32(u16::from_le_bytes(*scale)));
                for i in (0..Q8_BLOCK).step_by(S::LANES) {
                    // SAFETY: a block is a whole number of vectors on both sides.
                    unsafe {
                        let quants = s.load_i8(from.as_ptr().add(i).cast());
                        s.store(to.as_mut_ptr().add(i), s.mul(d, quants));
                    }
                }
            }
        }
    }
}

/// Converts f16 to f32 without F16C.
#[inline(always)]
fn f16_to_f32(f16: u16) -> f32 {
    let bits = u32::from(f16 & 0x7FFF) << 13;
    // The exponent is off by the difference of the biases; a multiplication corrects it, subnormals included.
    let finite = f32::from_bits(bits) * f32::from_bits(0x7780_0000);
    let magnitude = if f16 & 0x7C00 == 0x7C00 { f32::from_bits(bits | 0x7F80_0000) } else { finite };
    f32::from_bits(magnitude.to_bits() | u32::from(f16 & 0x8000) << 16)
}

/// The dot products of `Q` queries and `K` keys: `out[query * chunk + key]`. Returns `Q`.
///
/// # Safety
/// `q` and `k` have that many padded rows, and `out` has room for the results.
#[inline(always)]
pub(super) unsafe fn dot_scores<S: Simd, const Q: usize, const K: usize>(
    s: S,
    q: *const f32,
    hd_pad: usize,
    k: Tile,
    out: *mut f32,
) -> usize {
    let mut sums = [[s.splat(0.0); K]; Q];
    let mut i = 0;
    while i < hd_pad {
        // SAFETY: by the contract; a padded row is a whole number of vectors.
        unsafe {
            let mut keys = [s.splat(0.0); K];
            for b in 0..K {
                keys[b] = s.load(k.0.add(b * k.1 + i));
            }
            for a in 0..Q {
                let query = s.load(q.add(a * hd_pad + i));
                for b in 0..K {
                    sums[a][b] = s.fma(query, keys[b], sums[a][b]);
                }
            }
        }
        i += S::LANES;
    }
    for a in 0..Q {
        // SAFETY: by the contract.
        unsafe {
            let out = out.add(a * DOT_CHUNK.0);
            if K == 4 {
                let quad = [sums[a][0], sums[a][1 % K], sums[a][2 % K], sums[a][3 % K]];
                out.cast::<[f32; 4]>().write(s.reduce_sum4(quad));
            } else {
                for b in 0..K {
                    *out.add(b) = s.reduce_sum(sums[a][b]);
                }
            }
        }
    }
    Q
}

/// The scores of up to `vectors` vectors of queries, as many as registers hold, and `K` keys: `out[key *
/// stride + query]` with the stride of `q`. Returns the number of queries.
///
/// # Safety
/// `q` has `hd` rows of that many queries, `k` has `K` rows of `hd`, and `out` has room for the scores.
#[inline(always)]
pub(super) unsafe fn lane_scores<S: Simd, const K: usize>(
    s: S,
    q: Tile,
    vectors: usize,
    hd: usize,
    k: Tile,
    out: *mut f32,
) -> usize {
    // SAFETY: by the contract.
    unsafe {
        match vectors {
            4.. if S::LANES != 8 => lane_scores_block::<S, K, 4>(s, q, hd, k, out),
            2.. => lane_scores_block::<S, K, 2>(s, q, hd, k, out),
            _ => lane_scores_block::<S, K, 1>(s, q, hd, k, out),
        }
    }
}

/// [`lane_scores`] for `V` vectors.
///
/// # Safety
/// As for [`lane_scores`].
#[inline(always)]
unsafe fn lane_scores_block<S: Simd, const K: usize, const V: usize>(
    s: S,
    q: Tile,
    hd: usize,
    k: Tile,
    out: *mut f32,
) -> usize {
    let mut sums = [[s.splat(0.0); V]; K];
    for i in 0..hd {
        // SAFETY: by the contract.
        unsafe {
            let mut queries = [s.splat(0.0); V];
            for v in 0..V {
                queries[v] = s.load(q.0.add(i * q.1 + v * S::LANES));
            }
            for a in 0..K {
                let key = s.splat(*k.0.add(a * k.1 + i));
                for v in 0..V {
                    sums[a][v] = s.fma(key, queries[v], sums[a][v]);
                }
            }
        }
    }
    for a in 0..K {
        for v in 0..V {
            // SAFETY: by the contract.
            unsafe { s.store(out.add(a * q.1 + v * S::LANES), sums[a][v]) };
        }
    }
    V * S::LANES
}

/// Multiplies each row of `acc` by its factor.
///
/// # Safety
/// `acc` has that many padded rows, and `alpha` a factor for each.
#[inline(always)]
pub(super) unsafe fn rescale<S: Simd>(s: S, queries: usize, hd_pad: usize, alpha: *const f32, acc: *mut f32) {
    for query in 0..queries {
        // SAFETY: by the contract.
        unsafe {
            let factor = *alpha.add(query);
            if factor == 1.0 {
                continue;
            }
            for i in (0..hd_pad).step_by(S::LANES) {
                let at = acc.add(query * hd_pad + i);
                s.store(at, s.mul(s.splat(factor), s.load(at)));
            }
        }
    }
}

/// Adds `n` weighted values to `Q` padded rows of `acc`; the strides are those of `Task::values`.
///
/// # Safety
/// The tile has `n` padded rows, and there are that many weights and rows of `acc`.
#[inline(always)]
pub(super) unsafe fn accumulate_values<S: Simd, const Q: usize>(
    s: S,
    v: Tile,
    n: usize,
    weights: *const f32,
    strides: (usize, usize),
    acc: *mut f32,
    hd_pad: usize,
) {
    let mut i = 0;
    while i < hd_pad {
        // SAFETY: by the contract; the vectors end inside the padded rows.
        i += unsafe {
            let (v, acc) = (Tile(v.0.add(i), v.1), acc.add(i));
            match (hd_pad - i) / S::LANES {
                4.. if S::LANES != 8 => accumulate_block::<S, Q, 4>(s, v, n, weights, strides, acc, hd_pad),
                2.. => accumulate_block::<S, Q, 2>(s, v, n, weights, strides, acc, hd_pad),
                _ => accumulate_block::<S, Q, 1>(s, v, n, weights, strides, acc, hd_pad),
            }
        };
    }
}

/// [`accumulate_values`] for `V` vectors of each row. Returns their number of elements.
///
/// # Safety
/// As for [`accumulate_values`].
#[inline(always)]
unsafe fn accumulate_block<S: Simd, const Q: usize, const V: usize>(
    s: S,
    values: Tile,
    n: usize,
    weights: *const f32,
    strides: (usize, usize),
    acc: *mut f32,
    hd_pad: usize,
) -> usize {
    let mut sums = [[s.splat(0.0); V]; Q];
    // SAFETY: by the contract.
    unsafe {
        for q in 0..Q {
            for v in 0..V {
                sums[q][v] = s.load(acc.add(q * hd_pad + v * S::LANES));
            }
        }
        for key in 0..n {
            let mut row = [s.splat(0.0); V];
            for v in 0..V {
                row[v] = s.load(values.0.add(key * values.1 + v * S::LANES));
            }
            for q in 0..Q {
                let weight = s.splat(*weights.add(q * strides.0 + key * strides.1));
                for v in 0..V {
                    sums[q][v] = s.fma(weight, row[v], sums[q][v]);
                }
            }
        }
        for q in 0..Q {
            for v in 0..V {
                s.store(acc.add(q * hd_pad + v * S::LANES), sums[q][v]);
            }
        }
    }
    V * S::LANES
}
