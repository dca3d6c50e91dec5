//! Products with few rows of activations: dot products straight from the rows of weights, which are read once.

use super::{
    activations::IntRows,
    formats::{Canon, Format},
    simd::{Simd, f16_to_f32},
};

/// Rows of weights that are taken at once, and rows of activations likewise.
pub(super) const ROWS: usize = 4;

/// Dot products, `[activation row][weight row]`.
pub(super) type Dots = [[f32; ROWS]; ROWS];

/// The activations of a dot product: floats for float weights, bytes for quantized ones.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) k: usize,
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
    pub(super) int: Option<IntRows<'a>>,
}

/// Weights of a block, from the first of some rows.
#[derive(Clone, Copy)]
pub(super) struct WeightRows {
    pub(super) data: *const u8,
    pub(super) row_bytes: usize,
    /// How many, 1 to [`ROWS`].
    pub(super) rows: usize,
}

/// Dot products of `w` with the rows `first .. first + count` of activations, `count` at most [`ROWS`].
///
/// The bits of a dot product do not depend on what is computed beside it.
pub(super) type DotFn = unsafe fn(w: WeightRows, x: &Rows<'_>, first: usize, count: usize, out: &mut Dots);

/// A float type of weights.
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

/// Calls a kernel that is generic over the numbers of rows of weights and of activations: four rows of weights
/// at once, or else one after the other.
macro_rules! by_rows {
    ($kernel:ident $(::<$($t:ty),*>)?, $w:expr, $x:expr, $first:expr, $count:expr, $out:expr) => {{
        let (w, x, first, count, out): (WeightRows, &Rows<'_>, usize, usize, &mut Dots) =
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

/// Asks for the block that is [`ROWS`] rows further on, which will be needed next. Rows are too short for the
/// processor to see that coming.
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
/// The instruction set, `w.rows` rows of `x.k` weights, and the rows of activations must be there.
#[inline(always)]
pub(super) unsafe fn dot_float<S: Simd, T: Float>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    count: usize,
    out: &mut Dots,
) {
    by_rows!(dot_float_rows::<S, T>, w, x, first, count, out)
}

/// # Safety
///
/// As [`dot_float`]. The results go to `out[..M][r..r + R]`.
#[inline(always)]
unsafe fn dot_float_rows<S: Simd, T: Float, const R: usize, const M: usize>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    r: usize,
    out: &mut Dots,
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
/// The instruction set, `w.rows` rows of `x.k` weights, and the quantized rows of activations must be there.
#[inline(always)]
pub(super) unsafe fn dot_blocks<S: Simd, F: Format>(
    w: WeightRows,
    x: &Rows<'_>,
    first: usize,
    count: usize,
    out: &mut Dots,
) {
    let Some(int) = x.int else { return };
    let mut canon = Canon::ZERO;
    for r in 0..w.rows {
        // SAFETY: by the contract; all reads of activations are within the rows, except that of the quants of a
        // last part, which are padded.
        unsafe {
            let row = w.data.add(r * w.row_bytes);
            let mut acc = [S::splat(0.0); ROWS];
            let mut mins = [[0f32; 16]; ROWS];
            for part in 0..x.k.div_ceil(256) {
                let len = (x.k - part * 256).min(256);
                if len < 256 {
                    canon = Canon::ZERO;
                }
                F::unpack(row.add(part * 256 / F::BLOCK * F::BYTES), len / F::BLOCK, &mut canon);
                for a in 0..count {
                    let at = (first + a) * x.k + part * 256;
                    let mut s = canon.s;
                    if F::BLOCK == 256 {
                        let d = *int.d.as_ptr().add(at / 256);
                        for s in &mut s {
                            *s *= d;
                        }
                    } else {
                        for (i, s) in s.iter_mut().enumerate().take(len / 16) {
                            *s *= *int.d.as_ptr().add(at / 32 + i / 2);
                        }
                    }
                    acc[a] =
                        S::dot256(canon.quants.as_ptr(), int.quants.as_ptr().add(at), s.as_ptr(), acc[a]);
                    if F::MINS {
                        let sums = int.scaled_sums.as_ptr().add(at / 16);
                        if len == 256 {
                            for i in 0..16 {
                                mins[a][i] += canon.m[i] * *sums.add(i);
                            }
                        } else {
                            for i in 0..len / 16 {
                                mins[a][i] += canon.m[i] * *sums.add(i);
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
