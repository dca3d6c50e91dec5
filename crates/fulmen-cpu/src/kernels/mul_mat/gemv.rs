//! GEMV and small-M matmul (decode): dot products straight from the rows of the weight.
//!
//! A kernel computes a tile of up to [`ROWS`] weight rows by up to [`ROWS`] activation rows. Weights stream
//! from memory once in their block format and are unpacked in registers or, for the generic block kernel, 256
//! elements at a time into [`UnpackedBlocks`]; activations (f32 or q8, row-major) stay in L1. Memory
//! bandwidth bounds it.

use super::{
    activations::Q8Rows,
    simd::{Simd, f16_to_f32},
    unpack::{Format, UnpackedBlocks},
};

/// Rows of weights, and of activations, in a tile.
pub(super) const ROWS: usize = 4;

/// Dot products, `[activation row][weight row]`.
pub(super) type DotTile = [[f32; ROWS]; ROWS];

/// The activations of a dot product: f32 for floating-point weights, q8 for quantized ones.
#[derive(Clone, Copy)]
pub(super) struct ActivationRows<'a> {
    pub(super) k: usize,
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
    pub(super) q8: Option<Q8Rows<'a>>,
}

/// Consecutive rows of the weight.
#[derive(Clone, Copy)]
pub(super) struct WeightRows {
    pub(super) data: *const u8,
    pub(super) row_bytes: usize,
    /// Number of rows, 1 to [`ROWS`].
    pub(super) rows: usize,
}

/// Dot products of `w` with the rows `first .. first + count` of activations, `count` at most [`ROWS`].
///
/// The bits of a dot product do not depend on the other rows of the tile.
pub(super) type DotFn =
    unsafe fn(w: WeightRows, x: &ActivationRows<'_>, first: usize, count: usize, out: &mut DotTile);

/// A floating-point type of weights.
pub(super) trait Float: 'static {
    const BYTES: usize;

    /// # Safety
    ///
    /// As [`Simd::load`].
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;

    /// # Safety
    ///
    /// `p` must be readable for `BYTES`.
    unsafe fn one(p: *const u8) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: by the contract.
        unsafe { S::load(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: by the contract.
        unsafe { p.cast::<f32>().read_unaligned() }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: by the contract.
        unsafe { S::load_f16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: by the contract.
        f16_to_f32(unsafe { p.cast::<u16>().read_unaligned() })
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: by the contract.
        unsafe { S::load_bf16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: by the contract.
        f32::from_bits(u32::from(unsafe { p.cast::<u16>().read_unaligned() }) << 16)
    }
}

/// Calls a kernel that is generic over the numbers of weight rows and activation rows: with four weight rows
/// at once if the tile is full, otherwise with one after the other.
macro_rules! by_rows {
    ($kernel:ident $(::<$($t:ty),*>)?, $w:expr, $x:expr, $first:expr, $count:expr, $out:expr) => {{
        let (w, x, first, count, out): (WeightRows, &ActivationRows<'_>, usize, usize, &mut DotTile) =
            ($w, $x, $first, $count, $out);
        let (step, each) = if w.rows == ROWS { (ROWS, w) } else { (1, WeightRows { rows: 1, ..w }) };
        for r in (0..w.rows).step_by(step) {
            let w = WeightRows { data: each.data.wrapping_add(r * w.row_bytes), ..each };
            // SAFETY: `w.rows` and `count` are the constants; the rest is the contract of the caller.
            unsafe {
                match (w.rows, count) {
                    (ROWS, 1) => $kernel::<$($($t,)*)? ROWS, 1>(w, x, first, r, out),
                    (ROWS, 2) => $kernel::<$($($t,)*)? ROWS, 2>(w, x, first, r, out),
                    (ROWS, 3) => $kernel::<$($($t,)*)? ROWS, 3>(w, x, first, r, out),
                    (ROWS, _) => $kernel::<$($($t,)*)? ROWS, 4>(w, x, first, r, out),
                    (_, 1) => $kernel::<$($($t,)*)? 1, 1>(w, x, first, r, out),
                    (_, 2) => $kernel::<$($($t,)*)? 1, 2>(w, x, first, r, out),
                    (_, 3) => $kernel::<$($($t,)*)? 1, 3>(w, x, first, r, out),
                    (_, _) => $kernel::<$($($t,)*)? 1, 4>(w, x, first, r, out),
                }
            }
        }
    }};
}
#[cfg(target_arch = "x86_64")]
pub(super) use by_rows;

/// Prefetches the block that is [`ROWS`] rows ahead, which the next tile reads. Rows are too short for the
/// hardware prefetcher.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch(src: *const u8, bytes: usize, row_bytes: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let next = src.wrapping_add(ROWS * row_bytes);
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: SSE is part of the architecture, and a prefetch of any address touches nothing but caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast()) };
    }
}

/// See [`DotFn`].
///
/// # Safety
///
/// The instruction set must be available; `w.rows` rows of `x.k` weights and the rows of activations must be
/// readable.
#[inline(always)]
pub(super) unsafe fn dot_f32<S: Simd, T: Float>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    count: usize,
    out: &mut DotTile,
) {
    by_rows!(dot_f32_rows::<S, T>, w, x, first, count, out)
}

/// # Safety
///
/// As [`dot_f32`]. The results go to `out[..M][r..r + R]`.
#[inline(always)]
unsafe fn dot_f32_rows<S: Simd, T: Float, const R: usize, const M: usize>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    r: usize,
    out: &mut DotTile,
) {
    // SAFETY: by the contract; `i` stays below `k`, by whole vectors in the first loop.
    unsafe {
        let xs = x.x.as_ptr().add(first * x.stride);
        let mut acc = [[S::splat(0.0); R]; M];
        let vectors = x.k / S::LANES;
        for v in 0..vectors {
            let i = v * S::LANES;
            let mut ws = [S::splat(0.0); R];
            for (j, wv) in ws.iter_mut().enumerate() {
                *wv = T::load::<S>(w.data.add(j * w.row_bytes + i * T::BYTES));
            }
            for (a, row) in acc.iter_mut().enumerate() {
                let xv = S::load(xs.add(a * x.stride + i));
                for j in 0..R {
                    row[j] = S::fma(ws[j], xv, row[j]);
                }
            }
        }
        for (a, row) in acc.iter().enumerate() {
            for j in 0..R {
                let mut dot = S::sum(row[j]);
                for i in vectors * S::LANES..x.k {
                    dot += T::one(w.data.add(j * w.row_bytes + i * T::BYTES)) * *xs.add(a * x.stride + i);
                }
                out[a][r + j] = dot;
            }
        }
    }
}

/// See [`DotFn`]; for any block format.
///
/// # Safety
///
/// The instruction set must be available; `w.rows` rows of `x.k` weights and the q8 activations must be
/// readable.
#[inline(always)]
pub(super) unsafe fn dot_blocks<S: Simd, F: Format>(
    w: WeightRows,
    x: &ActivationRows<'_>,
    first: usize,
    count: usize,
    out: &mut DotTile,
) {
    let Some(q8) = x.q8 else { return };
    let mut unpacked = UnpackedBlocks::ZERO;
    for r in 0..w.rows {
        // SAFETY: by the contract; all reads of activations are within the rows, except those of the quants
        // of a last partial group, which are padded.
        unsafe {
            let row = w.data.add(r * w.row_bytes);
            let mut acc = [S::splat(0.0); ROWS];
            let mut mins = [[0f32; 16]; ROWS];
            for group in 0..x.k.div_ceil(256) {
                let len = (x.k - group * 256).min(256);
                if len < 256 {
                    unpacked = UnpackedBlocks::ZERO;
                }
                F::unpack(row.add(group * 256 / F::BLOCK * F::BYTES), len / F::BLOCK, &mut unpacked);
                for a in 0..count {
                    let at = (first + a) * x.k + group * 256;
                    let mut s = unpacked.s;
                    if F::BLOCK == 256 {
                        let d = *q8.d.as_ptr().add(at / 256);
                        for s in &mut s {
                            *s *= d;
                        }
                    } else {
                        for (i, s) in s.iter_mut().enumerate().take(len / 16) {
                            *s *= *q8.d.as_ptr().add(at / 32 + i / 2);
                        }
                    }
                    acc[a] =
                        S::dot256(unpacked.quants.as_ptr(), q8.quants.as_ptr().add(at), s.as_ptr(), acc[a]);
                    if F::MINS {
                        let sums = q8.scaled_sums.as_ptr().add(at / 16);
                        if len == 256 {
                            for i in 0..16 {
                                mins[a][i] += unpacked.m[i] * *sums.add(i);
                            }
                        } else {
                            for i in 0..len / 16 {
                                mins[a][i] += unpacked.m[i] * *sums.add(i);
                            }
                        }
                    }
                }
            }
            for a in 0..count {
                let mut dot = S::sum(acc[a]);
                if F::MINS {
                    dot += mins[a].iter().sum::<f32>();
                }
                out[a][r] = dot;
            }
        }
    }
}
