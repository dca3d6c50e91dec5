//! Products with many rows of activations: weights are packed into panels, which are used for every row.
//!
//! A panel is one vector of output columns wide, so that a lane is a column: no sum over lanes is ever needed,
//! and the scales of the columns are vectors as well. Kernels compute a tile of a few rows by a few panels with
//! all accumulators in registers.

use super::{
    dots::Float,
    formats::{Canon, Format},
    simd::Simd,
};

/// Elements of `k` that the integer kernel takes at once, so that its panels stay in the first-level cache for
/// all rows.
pub(super) const INT_DEPTH: usize = 512;

/// Elements of `k` that a packed float panel holds: 256 of them for a vector of columns and a tile of rows
/// fit the first-level cache together.
pub(super) const FLOAT_DEPTH: usize = 256;

/// Where the parts of a packed integer panel are. All lengths are in bytes.
///
/// `quants` is `[k / 4][lanes][4]`, padded to whole 256 elements; `s`, `m` and `correction` are
/// `[k / SUB][lanes]`. The correction takes off what [`Simd::X_FLIP`] adds.
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

/// Packs up to `LANES` rows of `k` weights to a panel at `out`; missing rows become zeros.
pub(super) type PackIntFn = unsafe fn(w: *const u8, row_bytes: usize, rows: usize, k: usize, out: *mut u8);

/// One tile of activations, as [`IntTiles`](super::activations::IntTiles) has them.
#[derive(Clone, Copy)]
pub(super) struct IntTile {
    pub(super) quants: *const u8,
    pub(super) d: *const f32,
    pub(super) sums16: *const f32,
    pub(super) sums32: *const f32,
}

/// Computes the tile `c[INT_ROWS][INT_VECTORS * LANES]`, rows `ldc` apart, of the elements `from .. to` of `k`.
/// It adds to what is there, unless `from` is 0.
pub(super) type IntKernelFn =
    unsafe fn(panel: *const u8, tile: IntTile, k: usize, from: usize, to: usize, c: *mut f32, ldc: usize);

/// Packs up to `LANES` rows of `k` float weights (at most [`FLOAT_DEPTH`]) to `out[k][LANES]`, which must have
/// room for `k` rounded up to whole `LANES`; missing rows become zeros.
pub(super) type PackFloatFn = unsafe fn(w: *const u8, row_bytes: usize, rows: usize, k: usize, out: *mut f32);

/// Computes the tile `c[FLOAT_ROWS][FLOAT_VECTORS * LANES]`, rows `ldc` apart, from packed panels that are
/// `panel_stride` floats apart, or adds to what is there.
pub(super) type FloatKernelFn = unsafe fn(
    panel: *const f32,
    panel_stride: usize,
    tile: *const f32,
    k: usize,
    c: *mut f32,
    ldc: usize,
    add: bool,
);

/// See [`PackIntFn`].
///
/// # Safety
///
/// The instruction set, the rows of weights and room for [`PanelLayout::bytes`] must be there.
#[inline(always)]
pub(super) unsafe fn pack_int<S: Simd, F: Format>(
    w: *const u8,
    row_bytes: usize,
    rows: usize,
    k: usize,
    out: *mut u8,
) {
    let layout = PanelLayout::new(S::LANES, k);
    let mut canons = [const { Canon::ZERO }; 16];
    // SAFETY: by the contract; lanes and rows are 16 at most, and every write is within the layout.
    unsafe {
        let canon: *const Canon = canons.as_ptr();
        let mut scales = [0f32; 16 * 16];
        for part in 0..k.div_ceil(256) {
            let len = (k - part * 256).min(256);
            for (r, canon) in canons.iter_mut().enumerate().take(rows) {
                F::unpack(w.add(r * row_bytes + part * 256 / F::BLOCK * F::BYTES), len / F::BLOCK, canon);
            }
            let quants = out.add(part * 256 * S::LANES);
            transpose_all::<S>((&raw const (*canon).quants).cast(), 64, quants.cast());
            let first = part * 256 / F::SUB * S::LANES;
            let mut spread = |from: *const [f32; 16], to: *mut f32| {
                transpose_all::<S>(from.cast(), 16, scales.as_mut_ptr().cast());
                for sub in 0..len / F::SUB {
                    let v = S::load(scales.as_ptr().add(sub * (F::SUB / 16) * S::LANES));
                    S::store(to.add(first + sub * S::LANES), v);
                }
            };
            spread(&raw const (*canon).s, out.add(layout.s).cast());
            if F::MINS {
                spread(&raw const (*canon).m, out.add(layout.m).cast());
            }
            if S::X_FLIP != 0 {
                let flip = S::splat4([S::X_FLIP; 4].as_ptr());
                for sub in 0..len / F::SUB {
                    let mut sum = S::splat_i(0);
                    for four in 0..F::SUB / 4 {
                        let at = (sub * (F::SUB / 4) + four) * S::LANES * 4;
                        sum = S::dot4(sum, S::load_w(quants.add(at).cast()), flip);
                    }
                    let to = out.add(layout.correction).cast::<i32>().add(first + sub * S::LANES);
                    S::store_negated(to, sum);
                }
            }
        }
    }
}

/// Transposes `columns` 32-bit values, a multiple of 16, of a member of `LANES` [`Canon`]s.
///
/// # Safety
///
/// The instruction set, the members and the room for the result must be there.
#[inline(always)]
unsafe fn transpose_all<S: Simd>(src: *const u32, columns: usize, to: *mut u32) {
    for i in (0..columns).step_by(S::LANES) {
        // SAFETY: by the contract.
        unsafe { S::transpose(src.add(i), size_of::<Canon>() / 4, to.add(i * S::LANES), S::LANES) };
    }
}

/// See [`IntKernelFn`].
///
/// # Safety
///
/// The instruction set, `NV` packed panels one after the other, a tile of `MR` rows and the place for the
/// result must be there.
#[inline(always)]
pub(super) unsafe fn int_kernel<S: Simd, F: Format, const MR: usize, const NV: usize>(
    panel: *const u8,
    tile: IntTile,
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
            let mut part = [[S::splat(0.0); NV]; MR];
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
                for four in sub * (F::SUB / 4)..(sub + 1) * (F::SUB / 4) {
                    let mut w = [S::load_w(panel.add(four * lanes * 4).cast()); NV];
                    for (v, w) in w.iter_mut().enumerate().skip(1) {
                        *w = S::load_w(panel.add(v * layout.bytes + four * lanes * 4).cast());
                    }
                    for (i, row) in dots.iter_mut().enumerate() {
                        let x = S::splat4(tile.quants.add((four * MR + i) * 4));
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
                        part[i][v] =
                            if F::BLOCK == F::SUB { S::mul(dot, s) } else { S::fma(dot, s, part[i][v]) };
                    }
                    if F::MINS {
                        let m = S::load(at.add(layout.m).cast());
                        let sums = if F::SUB == 16 { tile.sums16 } else { tile.sums32 };
                        for i in 0..MR {
                            let sum = S::splat(*sums.add(sub * MR + i));
                            // The sums of blocks of 32 come with the scale of the activations in them.
                            let to = if F::BLOCK == 32 { &mut total[i][v] } else { &mut part[i][v] };
                            *to = S::fma(m, sum, *to);
                        }
                    }
                }
            }
            for i in 0..MR {
                let d = S::splat(*tile.d.add(block * MR + i));
                for v in 0..NV {
                    total[i][v] = S::fma(part[i][v], d, total[i][v]);
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

/// See [`PackFloatFn`].
///
/// # Safety
///
/// The instruction set, the rows of weights and the room for the panel must be there.
#[inline(always)]
pub(super) unsafe fn pack_float<S: Simd, T: Float>(
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

/// See [`FloatKernelFn`].
///
/// # Safety
///
/// The instruction set, `NV` packed panels, a tile of `MR` rows and the place for the result must be there.
#[inline(always)]
pub(super) unsafe fn float_kernel<S: Simd, const MR: usize, const NV: usize>(
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

/// Packs one tile of activations for the float kernel to `out[k][FLOAT_ROWS]`. `rows` is how many rows there
/// are from the first of the tile on; those that are missing become zeros.
///
/// # Safety
///
/// The instruction set, `rows` rows of `k` values `stride` apart and the room for the tile must be there.
#[inline(always)]
pub(super) unsafe fn pack_x<S: Simd>(x: *const f32, stride: usize, rows: usize, k: usize, out: *mut f32) {
    let mr = S::FLOAT_ROWS;
    const { assert!(S::FLOAT_ROWS <= S::LANES || S::FLOAT_ROWS.is_multiple_of(S::LANES)) };
    let mut done = 0;
    // SAFETY: by the contract. A transposed tile may be taller than ours: then it reads rows of the next one,
    // which are there, and writes over the column that comes next, which is written later and within `out`.
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
