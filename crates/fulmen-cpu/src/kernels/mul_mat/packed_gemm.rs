//! Packing and micro-kernels of the GEMM for many rows of activations (prefill).
//!
//! Weights are packed into panels one vector of output columns wide, so that a lane is a column: no
//! horizontal sums, and the scales of the columns are vectors, too. A micro-kernel computes an MR x NR tile
//! (`MR` rows of activations by `NV` panels) with all accumulators in registers; MR x NV is 12 x 2 (f32) and
//! 6 x 2 (q8) for AVX-512, see [`Simd`]. The q8 kernel multiplies int8 quants four at a time ([`Simd::dot4`])
//! and applies the scales of weights and activations per 16 or 32 elements in f32.
//!
//! Operand layouts: f32 panel `[KC][lanes]`, f32 activations `[tile][k][MR]`; q8 panel as [`PanelLayout`], q8
//! activations as [`Q8Tiles`](super::activations::Q8Tiles). Bound by the multiply-add throughput; panels stay
//! in L1, activations of a task in L2.

use super::{
    gemv::Float,
    simd::Simd,
    unpack::{Format, UnpackedBlocks},
};

/// KC of the q8 kernel: its panels stay in the L1 cache for all rows.
pub(super) const Q8_KC: usize = 512;

/// KC of the f32 kernel: a panel of this depth and a tile of activations fit the L1 cache together.
pub(super) const F32_KC: usize = 256;

/// Byte offsets of the arrays in a packed q8 panel, and its size.
///
/// `quants` is `[k / 4][lanes][4]`, padded to whole 256 elements; `s`, `m` and `correction` are
/// `[k / SUB][lanes]`. The correction compensates for [`Simd::X_FLIP`].
#[derive(Clone, Copy)]
pub(super) struct PanelLayout {
    pub(super) s: usize,
    pub(super) m: usize,
    pub(super) correction: usize,
    pub(super) bytes: usize,
}

impl PanelLayout {
    pub(super) const fn new(lanes: usize, k: usize) -> PanelLayout {
        let k = k.next_multiple_of(256);
        let quants = k * lanes;
        let scales = k / 16 * lanes * 4;
        PanelLayout {
            s: quants,
            m: quants + scales,
            correction: quants + 2 * scales,
            bytes: quants + 3 * scales,
        }
    }
}

/// Packs up to `LANES` rows of `k` weights to a panel at `out`; missing rows are zero-filled.
pub(super) type PackQ8Fn = unsafe fn(w: *const u8, row_bytes: usize, rows: usize, k: usize, out: *mut u8);

/// One tile of q8 activations; see [`Q8Tiles`](super::activations::Q8Tiles).
#[derive(Clone, Copy)]
pub(super) struct Q8Tile {
    pub(super) quants: *const u8,
    pub(super) d: *const f32,
    pub(super) sums16: *const f32,
    pub(super) sums32: *const f32,
}

/// q8 micro-kernel: computes the tile `c[Q8_MR][Q8_NV * LANES]`, rows `ldc` apart, over the elements `from ..
/// to` of `k`. It accumulates to `c` unless `from` is 0.
pub(super) type Q8KernelFn =
    unsafe fn(panel: *const u8, tile: Q8Tile, k: usize, from: usize, to: usize, c: *mut f32, ldc: usize);

/// Packs up to `LANES` rows of `k` floating-point weights (at most [`F32_KC`]) to `out[k][LANES]` as f32.
/// `out` must have room for `k` rounded up to whole `LANES`; missing rows are zero-filled.
pub(super) type PackF32Fn = unsafe fn(w: *const u8, row_bytes: usize, rows: usize, k: usize, out: *mut f32);

/// f32 micro-kernel: computes the tile `c[F32_MR][F32_NV * LANES]`, rows `ldc` apart, from packed panels that
/// are `panel_stride` values apart; with `add` it accumulates to `c`.
pub(super) type F32KernelFn = unsafe fn(
    panel: *const f32,
    panel_stride: usize,
    tile: *const f32,
    k: usize,
    c: *mut f32,
    ldc: usize,
    add: bool,
);

/// See [`PackQ8Fn`].
///
/// # Safety
///
/// The instruction set must be available, the rows of weights readable and `out` writable for
/// [`PanelLayout::bytes`].
#[inline(always)]
pub(super) unsafe fn pack_q8<S: Simd, F: Format>(
    w: *const u8,
    row_bytes: usize,
    rows: usize,
    k: usize,
    out: *mut u8,
) {
    let layout = PanelLayout::new(S::LANES, k);
    let mut unpacked = [const { UnpackedBlocks::ZERO }; 16];
    // SAFETY: by the contract; lanes and rows are 16 at most, and every write is within the layout.
    unsafe {
        let base: *const UnpackedBlocks = unpacked.as_ptr();
        let mut scales = [0f32; 16 * 16];
        for group in 0..k.div_ceil(256) {
            let len = (k - group * 256).min(256);
            for (r, row) in unpacked.iter_mut().enumerate().take(rows) {
                F::unpack(w.add(r * row_bytes + group * 256 / F::BLOCK * F::BYTES), len / F::BLOCK, row);
            }
            let quants = out.add(group * 256 * S::LANES);
            transpose_all::<S>((&raw const (*base).quants).cast(), 64, quants.cast());
            let first = group * 256 / F::SUB * S::LANES;
            let mut spread = |from: *const [f32; 16], to: *mut f32| {
                transpose_all::<S>(from.cast(), 16, scales.as_mut_ptr().cast());
                for sub in 0..len / F::SUB {
                    let v = S::load(scales.as_ptr().add(sub * (F::SUB / 16) * S::LANES));
                    S::store(to.add(first + sub * S::LANES), v);
                }
            };
            spread(&raw const (*base).s, out.add(layout.s).cast());
            if F::MINS {
                spread(&raw const (*base).m, out.add(layout.m).cast());
            }
            if S::X_FLIP != 0 {
                let flip = S::splat4([S::X_FLIP; 4].as_ptr());
                for sub in 0..len / F::SUB {
                    let mut sum = S::splat_i(0);
                    for quad in 0..F::SUB / 4 {
                        let at = (sub * (F::SUB / 4) + quad) * S::LANES * 4;
                        sum = S::dot4(sum, S::load_w(quants.add(at).cast()), flip);
                    }
                    let to = out.add(layout.correction).cast::<i32>().add(first + sub * S::LANES);
                    S::store_negated(to, sum);
                }
            }
        }
    }
}

/// Transposes `columns` 32-bit values, a multiple of 16, of one field of `LANES` consecutive
/// [`UnpackedBlocks`].
///
/// # Safety
///
/// The instruction set must be available, the fields readable and the result writable.
#[inline(always)]
unsafe fn transpose_all<S: Simd>(src: *const u32, columns: usize, to: *mut u32) {
    for i in (0..columns).step_by(S::LANES) {
        // SAFETY: by the contract.
        unsafe { S::transpose(src.add(i), size_of::<UnpackedBlocks>() / 4, to.add(i * S::LANES), S::LANES) };
    }
}

/// See [`Q8KernelFn`].
///
/// # Safety
///
/// The instruction set must be available, `NV` consecutive packed panels and a tile of `MR` rows readable,
/// and the result writable.
#[inline(always)]
pub(super) unsafe fn q8_kernel<S: Simd, F: Format, const MR: usize, const NV: usize>(
    panel: *const u8,
    tile: Q8Tile,
    k: usize,
    from: usize,
    to: usize,
    c: *mut f32,
    ldc: usize,
) {
    let layout = PanelLayout::new(S::LANES, k);
    let lanes = S::LANES;
    // SAFETY: by the contract; every offset is within the panel, the tile and the result.
    unsafe {
        let mut total = [[S::splat(0.0); NV]; MR];
        if from > 0 {
            for (i, row) in total.iter_mut().enumerate() {
                for (v, total) in row.iter_mut().enumerate() {
                    *total = S::load(c.add(i * ldc + v * lanes));
                }
            }
        }
        for block in from / F::BLOCK..to / F::BLOCK {
            let mut block_sum = [[S::splat(0.0); NV]; MR];
            for sub in 0..F::BLOCK / F::SUB {
                let sub = block * (F::BLOCK / F::SUB) + sub;
                let mut dots = [[S::splat_i(0); NV]; MR];
                if S::X_FLIP != 0 {
                    for v in 0..NV {
                        let at = layout.correction + v * layout.bytes + sub * lanes * 4;
                        let correction = S::load_i(panel.add(at).cast());
                        for row in &mut dots {
                            row[v] = correction;
                        }
                    }
                }
                for quad in sub * (F::SUB / 4)..(sub + 1) * (F::SUB / 4) {
                    let mut w = [S::load_w(panel.add(quad * lanes * 4).cast()); NV];
                    for (v, w) in w.iter_mut().enumerate().skip(1) {
                        *w = S::load_w(panel.add(v * layout.bytes + quad * lanes * 4).cast());
                    }
                    for (i, row) in dots.iter_mut().enumerate() {
                        let x = S::splat4(tile.quants.add((quad * MR + i) * 4));
                        for v in 0..NV {
                            row[v] = S::dot4(row[v], w[v], x);
                        }
                    }
                }
                for v in 0..NV {
                    let at = panel.add(v * layout.bytes + sub * lanes * 4);
                    let s = S::load(at.add(layout.s).cast());
                    for i in 0..MR {
                        let dot = S::to_f(dots[i][v]);
                        block_sum[i][v] =
                            if F::BLOCK == F::SUB { S::mul(dot, s) } else { S::fma(dot, s, block_sum[i][v]) };
                    }
                    if F::MINS {
                        let m = S::load(at.add(layout.m).cast());
                        let sums = if F::SUB == 16 { tile.sums16 } else { tile.sums32 };
                        for i in 0..MR {
                            let sum = S::splat(*sums.add(sub * MR + i));
                            // The sums of blocks of 32 are already multiplied by the scale of the
                            // activations.
                            let to = if F::BLOCK == 32 { &mut total[i][v] } else { &mut block_sum[i][v] };
                            *to = S::fma(m, sum, *to);
                        }
                    }
                }
            }
            for i in 0..MR {
                let d = S::splat(*tile.d.add(block * MR + i));
                for v in 0..NV {
                    total[i][v] = S::fma(block_sum[i][v], d, total[i][v]);
                }
            }
        }
        for (i, row) in total.iter().enumerate() {
            for (v, &value) in row.iter().enumerate() {
                S::store(c.add(i * ldc + v * lanes), value);
            }
        }
    }
}

/// See [`PackF32Fn`].
///
/// # Safety
///
/// The instruction set must be available, the rows of weights readable and the panel writable.
#[inline(always)]
pub(super) unsafe fn pack_f32<S: Simd, T: Float>(
    w: *const u8,
    row_bytes: usize,
    rows: usize,
    k: usize,
    out: *mut f32,
) {
    #[repr(align(64))]
    struct Tile([f32; 16 * 16]);
    let mut tile = Tile([0.0; 256]);
    let lanes = S::LANES;
    // SAFETY: by the contract; lanes and rows are 16 at most, and `i` stays below `k`.
    unsafe {
        for i in (0..k).step_by(lanes) {
            for r in 0..rows {
                let src = w.add(r * row_bytes + i * T::BYTES);
                let to = tile.0.as_mut_ptr().add(r * lanes);
                if i + lanes <= k {
                    S::store(to, T::load::<S>(src));
                } else {
                    for j in 0..lanes {
                        to.add(j).write(if i + j < k { T::one(src.add(j * T::BYTES)) } else { 0.0 });
                    }
                }
            }
            S::transpose(tile.0.as_ptr().cast(), lanes, out.add(i * lanes).cast(), lanes);
        }
    }
}

/// See [`F32KernelFn`].
///
/// # Safety
///
/// The instruction set must be available, `NV` packed panels and a tile of `MR` rows readable, and the result
/// writable.
#[inline(always)]
pub(super) unsafe fn f32_kernel<S: Simd, const MR: usize, const NV: usize>(
    panel: *const f32,
    panel_stride: usize,
    tile: *const f32,
    k: usize,
    c: *mut f32,
    ldc: usize,
    add: bool,
) {
    // SAFETY: by the contract; every offset is within the panels, the tile and the result.
    unsafe {
        let mut acc = [[S::splat(0.0); NV]; MR];
        for i in 0..k {
            let mut w = [S::load(panel.add(i * S::LANES)); NV];
            for (v, w) in w.iter_mut().enumerate().skip(1) {
                *w = S::load(panel.add(v * panel_stride + i * S::LANES));
            }
            for (r, row) in acc.iter_mut().enumerate() {
                let x = S::splat(*tile.add(i * MR + r));
                for v in 0..NV {
                    row[v] = S::fma(w[v], x, row[v]);
                }
            }
        }
        for (r, row) in acc.iter().enumerate() {
            for (v, &value) in row.iter().enumerate() {
                let to = c.add(r * ldc + v * S::LANES);
                S::store(to, if add { S::add(S::load(to), value) } else { value });
            }
        }
    }
}

/// Packs one tile of activations for the f32 kernel to `out[k][F32_MR]`. `rows` is the number of rows from
/// the first row of the tile on; missing ones are zero-filled.
///
/// # Safety
///
/// The instruction set must be available, `rows` rows of `k` values `stride` apart readable, and the tile
/// writable.
#[inline(always)]
pub(super) unsafe fn pack_x<S: Simd>(x: *const f32, stride: usize, rows: usize, k: usize, out: *mut f32) {
    let mr = S::F32_MR;
    const { assert!(S::F32_MR <= S::LANES || S::F32_MR.is_multiple_of(S::LANES)) };
    let mut done = 0;
    // SAFETY: by the contract. A transposed block may be taller than the tile: then it reads rows of the next
    // tile, which exist, and overwrites the next column, which is within `out` and written later.
    unsafe {
        if rows >= mr.next_multiple_of(S::LANES) {
            while done + S::LANES < k {
                for r in (0..mr).step_by(S::LANES) {
                    let (from, to) = (x.add(r * stride + done), out.add(done * mr + r));
                    S::transpose(from.cast(), stride, to.cast(), mr);
                }
                done += S::LANES;
            }
        }
        for i in done..k {
            for r in 0..mr {
                out.add(i * mr + r).write(if r < rows { *x.add(r * stride + i) } else { 0.0 });
            }
        }
    }
}
