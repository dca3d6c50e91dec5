//! Activations of a matmul: q8 quantization, and packing into the tiles of the GEMM kernels.
//!
//! A layout is produced when a matmul first needs it and kept for the following ones, so that the Q, K and V
//! projections, or the gate and up projections, quantize their common input once.

use super::{
    GEMV_MAX_ROWS, Isa,
    buffer::Buffer,
    gemv::ActivationRows,
    kernel_table::{KernelTable, kernel_table},
};
use crate::{kernels::parallel::SharedPtr, threads::Pool};

/// Memory for the quantized and packed layouts of [`Activations`], reused between calls. It only grows.
#[derive(Default)]
pub struct Scratch {
    rows: [RowBuffers; 2],
    tiles: [TileBuffers; 2],
    float: Buffer,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Empty scratch memory.
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

/// The block size of q8 activations: the elements that share a scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Q8Block {
    /// For the formats with blocks of 32.
    Block32 = 0,
    /// For the K-quants, with blocks of 256.
    Block256 = 1,
}

impl Q8Block {
    pub(super) const fn len(self) -> usize {
        match self {
            Q8Block::Block32 => 32,
            Q8Block::Block256 => 256,
        }
    }
}

#[derive(Default)]
struct RowBuffers {
    quants: Buffer,
    d: Buffer,
    sums: Buffer,
    scaled_sums: Buffer,
}

#[derive(Default)]
struct TileBuffers {
    quants: Buffer,
    d: Buffer,
    sums16: Buffer,
    sums32: Buffer,
}

/// Rows of q8 activations, row-major.
///
/// In each block `x ≈ d * q` with quants `q` in `-127..=127`. A block with an infinity or a NaN has `d =
/// NaN`, so that every dot product with it is NaN; a block whose largest magnitude is below 1e-35 is stored
/// as zeros.
#[derive(Clone, Copy)]
pub(super) struct Q8Rows<'a> {
    /// `[m][k]`, plus [`PAD`] bytes.
    pub(super) quants: &'a [i8],
    /// `[m][k / block]`.
    pub(super) d: &'a [f32],
    /// Sums of 16 quants, `[m][k / 16]`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "read by the x86-64 kernels"))]
    pub(super) sums: &'a [i16],
    /// The same times `d`, `[m][k / 16]`.
    pub(super) scaled_sums: &'a [f32],
}

/// Tiles of MR rows of q8 activations, interleaved by groups of four elements: the four bytes of each row in
/// turn.
///
/// The quants are XORed with the instruction set's `X_FLIP`. Rows beyond the last are zero-filled.
#[derive(Clone, Copy)]
pub(super) struct Q8Tiles<'a> {
    /// `[tile][k / 4][rows][4]`.
    pub(super) quants: &'a [u8],
    /// `[tile][k / block][rows]`.
    pub(super) d: &'a [f32],
    /// Sums of 16 quants, `[tile][k / 16][rows]`. Blocks of 256 only.
    pub(super) sums16: &'a [f32],
    /// Sums of 32 quants, times `d` for blocks of 32, `[tile][k / 32][rows]`.
    pub(super) sums32: &'a [f32],
}

/// Bytes that kernels may read after the last quant.
pub(super) const PAD: usize = 256;

/// Rows of activations, the left operand of a matmul.
#[derive(Debug)]
pub struct Activations<'a> {
    x: &'a [f32],
    m: usize,
    k: usize,
    stride: usize,
    /// Whether the GEMV kernels are used for any number of rows.
    by_rows: bool,
    scratch: &'a mut Scratch,
    /// The instruction set that the tiles were packed for, and which layouts are present.
    isa: Option<Isa>,
    has_rows: [bool; 2],
    has_tiles: [bool; 2],
    has_float: bool,
}

impl<'a> Activations<'a> {
    /// The rows `x[m, k]`, contiguous. `scratch` holds the quantized and packed layouts.
    ///
    /// # Panics
    ///
    /// If `x` is not `m * k` long.
    pub fn new(scratch: &'a mut Scratch, x: &'a [f32], m: usize, k: usize) -> Activations<'a> {
        assert_eq!(Some(x.len()), m.checked_mul(k), "activations: {m} rows of {k} in {} values", x.len());
        Activations::strided(scratch, x, m, k, k)
    }

    /// Rows of `k` values, `stride` values apart.
    ///
    /// # Panics
    ///
    /// If the rows overlap or `x` is too short for them.
    pub fn strided(
        scratch: &'a mut Scratch,
        x: &'a [f32],
        m: usize,
        k: usize,
        stride: usize,
    ) -> Activations<'a> {
        assert!(stride >= k, "activations: rows of {k} values overlap with stride {stride}");
        let need = if m == 0 { Some(0) } else { stride.checked_mul(m - 1).and_then(|v| v.checked_add(k)) };
        assert!(need.is_some_and(|n| n <= x.len()), "activations: {m} rows do not fit {} values", x.len());
        Activations {
            x,
            m,
            k,
            stride,
            by_rows: false,
            scratch,
            isa: None,
            has_rows: [false; 2],
            has_tiles: [false; 2],
            has_float: false,
        }
    }

    /// The same activations; with `by_rows` a row gives the same bits however many rows there are.
    pub fn by_rows(mut self, by_rows: bool) -> Activations<'a> {
        self.by_rows = by_rows;
        self
    }

    /// Whether the GEMV kernels are used.
    pub(super) fn uses_gemv(&self) -> bool {
        self.by_rows || self.m <= GEMV_MAX_ROWS
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// The number of values per row.
    pub fn cols(&self) -> usize {
        self.k
    }

    /// The rows for the GEMV kernels, with q8 rows if a block size is given.
    pub(super) fn dot_rows(&self, q8_block: Option<Q8Block>) -> ActivationRows<'_> {
        let q8 = q8_block.map(|q8_block| self.q8_rows(q8_block));
        ActivationRows { k: self.k, x: self.x, stride: self.stride, q8 }
    }

    fn use_isa(&mut self, isa: Isa) -> &'static KernelTable {
        if self.isa.replace(isa) != Some(isa) {
            self.has_tiles = [false; 2];
            self.has_float = false;
        }
        kernel_table(isa)
    }

    /// Quantizes the rows for [`q8_rows`](Activations::q8_rows), unless that is done.
    pub(super) fn quantize_rows(&mut self, pool: &Pool, isa: Isa, q8_block: Q8Block) {
        let table = self.use_isa(isa);
        let (m, k, block) = (self.m, self.k, q8_block.len());
        assert!(k.is_multiple_of(block), "activations: rows of {k} are not whole blocks of {block}");
        if std::mem::replace(&mut self.has_rows[q8_block as usize], true) {
            return;
        }
        let buffers = &mut self.scratch.rows[q8_block as usize];
        let quants = SharedPtr::new(buffers.quants.reserve::<i8>(m * k + PAD));
        let d = SharedPtr::new(buffers.d.reserve::<f32>(m * k / block));
        let sums = SharedPtr::new(buffers.sums.reserve::<i16>(m * k / 16));
        let scaled = SharedPtr::new(buffers.scaled_sums.reserve::<f32>(m * k / 16));
        let (x, stride) = (self.x, self.stride);
        let quantize = table.quantize[q8_block as usize];
        pool.run_ranges(m, 1, &|rows| {
            for i in rows {
                // SAFETY: the buffers have room for `m` rows, and each row is one task's. The instruction set
                // was detected.
                unsafe {
                    quantize(
                        &x[i * stride..i * stride + k],
                        quants.slice(i * k, k),
                        d.slice(i * (k / block), k / block),
                        sums.slice(i * (k / 16), k / 16),
                        scaled.slice(i * (k / 16), k / 16),
                    );
                }
            }
        });
    }

    /// The q8 rows. [`quantize_rows`](Activations::quantize_rows) must have been called.
    pub(super) fn q8_rows(&self, q8_block: Q8Block) -> Q8Rows<'_> {
        let (m, k, block) = (self.m, self.k, q8_block.len());
        assert!(self.has_rows[q8_block as usize]);
        let buffers = &self.scratch.rows[q8_block as usize];
        Q8Rows {
            quants: buffers.quants.get(m * k + PAD),
            d: buffers.d.get(m * k / block),
            sums: buffers.sums.get(m * k / 16),
            scaled_sums: buffers.scaled_sums.get(m * k / 16),
        }
    }

    /// Packs the tiles for [`q8_tiles`](Activations::q8_tiles), unless that is done.
    pub(super) fn pack_q8_tiles(&mut self, pool: &Pool, isa: Isa, q8_block: Q8Block) {
        let table = self.use_isa(isa);
        if std::mem::replace(&mut self.has_tiles[q8_block as usize], true) {
            return;
        }
        self.quantize_rows(pool, isa, q8_block);
        let (m, k, block, rows) = (self.m, self.k, q8_block.len(), table.q8_mr);
        let tiles = m.div_ceil(rows);
        let (from, to) = (&self.scratch.rows[q8_block as usize], &mut self.scratch.tiles[q8_block as usize]);
        let quants = SharedPtr::new(to.quants.reserve::<u8>(tiles * rows * k));
        let d = SharedPtr::new(to.d.reserve::<f32>(tiles * rows * (k / block)));
        let sums16 = SharedPtr::new(to.sums16.reserve::<f32>(tiles * rows * (k / 16)));
        let sums32 = SharedPtr::new(to.sums32.reserve::<f32>(tiles * rows * (k / 32)));
        let src_quants = from.quants.get::<i8>(m * k);
        let src_d = from.d.get::<f32>(m * k / block);
        let src_sums = from.sums.get::<i16>(m * k / 16);
        let flip = u32::from_ne_bytes([table.x_flip; 4]);
        pool.run_ranges(tiles, 1, &|range| {
            for tile in range {
                // SAFETY: the buffers have room for all tiles, and each tile is one task's.
                let (quants, d, sums16, sums32) = unsafe {
                    (
                        quants.slice(tile * k * rows, k * rows),
                        d.slice(tile * (k / block) * rows, k / block * rows),
                        sums16.slice(tile * (k / 16) * rows, k / 16 * rows),
                        sums32.slice(tile * (k / 32) * rows, k / 32 * rows),
                    )
                };
                if (tile + 1) * rows > m {
                    quants.fill(table.x_flip);
                    d.fill(0.0);
                    sums16.fill(0.0);
                    sums32.fill(0.0);
                }
                let quants: &mut [[u8; 4]] = quants.as_chunks_mut().0;
                for (i, row) in (tile * rows..m.min((tile + 1) * rows)).enumerate() {
                    let groups: &[[i8; 4]] = src_quants[row * k..(row + 1) * k].as_chunks().0;
                    for (column, group) in quants.chunks_exact_mut(rows).zip(groups) {
                        column[i] = (u32::from_ne_bytes(group.map(|c| c as u8)) ^ flip).to_ne_bytes();
                    }
                    let row_d = &src_d[row * (k / block)..(row + 1) * (k / block)];
                    for (b, &v) in row_d.iter().enumerate() {
                        d[b * rows + i] = v;
                    }
                    let row_sums = &src_sums[row * (k / 16)..(row + 1) * (k / 16)];
                    for (b, &v) in row_sums.iter().enumerate() {
                        sums16[b * rows + i] = f32::from(v);
                    }
                    for (b, pair) in row_sums.as_chunks::<2>().0.iter().enumerate() {
                        let sum = f32::from(pair[0] + pair[1]);
                        sums32[b * rows + i] = match q8_block {
                            Q8Block::Block32 => sum * row_d[b],
                            Q8Block::Block256 => sum,
                        };
                    }
                }
            }
        });
    }

    /// The interleaved tiles of `rows` q8 rows each. [`pack_q8_tiles`](Activations::pack_q8_tiles) must have
    /// been called.
    pub(super) fn q8_tiles(&self, rows: usize, q8_block: Q8Block) -> Q8Tiles<'_> {
        assert!(self.has_tiles[q8_block as usize]);
        let (k, padded) = (self.k, self.m.next_multiple_of(rows));
        let buffers = &self.scratch.tiles[q8_block as usize];
        Q8Tiles {
            quants: buffers.quants.get(padded * k),
            d: buffers.d.get(padded * (k / q8_block.len())),
            sums16: buffers.sums16.get(padded * (k / 16)),
            sums32: buffers.sums32.get(padded * (k / 32)),
        }
    }

    /// Packs the tiles for [`f32_tiles`](Activations::f32_tiles), unless that is done.
    pub(super) fn pack_f32_tiles(&mut self, pool: &Pool, isa: Isa) {
        let table = self.use_isa(isa);
        if std::mem::replace(&mut self.has_float, true) {
            return;
        }
        let (m, k, rows) = (self.m, self.k, table.f32_mr);
        let tiles = m.div_ceil(rows);
        let out = SharedPtr::new(self.scratch.float.reserve::<f32>(tiles * rows * k));
        let (x, stride) = (self.x, self.stride);
        pool.run_ranges(tiles, 1, &|range| {
            for tile in range {
                let first = tile * rows;
                // SAFETY: `x` has `m - first` rows from there on, the buffer has room for all tiles and each
                // tile is one task's. The instruction set was detected.
                unsafe {
                    (table.pack_x)(x.as_ptr().add(first * stride), stride, m - first, k, out.at(first * k))
                };
            }
        });
    }

    /// Tiles of `rows` rows for the f32 kernel, `[tile][k][rows]`, with rows beyond the last zero-filled.
    /// [`pack_f32_tiles`](Activations::pack_f32_tiles) must have been called.
    pub(super) fn f32_tiles(&self, rows: usize) -> &[f32] {
        assert!(self.has_float);
        self.scratch.float.get(self.m.next_multiple_of(rows) * self.k)
    }
}

/// Quantizes a row in blocks of `B`; see [`Q8Rows`].
#[inline(always)]
pub(super) fn quantize_row<const B: usize>(
    x: &[f32],
    quants: &mut [i8],
    d: &mut [f32],
    sums: &mut [i16],
    scaled_sums: &mut [f32],
) {
    // Adding 1.5 * 2^23 leaves the value, rounded to nearest even, in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    const INFINITY: u32 = 0x7f80_0000;
    let blocks = x.as_chunks::<B>().0.iter().zip(quants.as_chunks_mut::<B>().0).zip(d).enumerate();
    for (b, ((x, quants), d)) in blocks {
        // Magnitudes compare like their bits; infinities and NaN are above all finite values.
        let mut top = 0;
        for v in x {
            top = top.max(v.to_bits() & 0x7fff_ffff);
        }
        let amax = f32::from_bits(top);
        let inverse = if top >= INFINITY {
            *d = f32::NAN;
            0.0
        } else if amax < 1e-35 {
            *d = 0.0;
            0.0
        } else {
            *d = amax / 127.0;
            127.0 / amax
        };
        if inverse == 0.0 {
            quants.fill(0);
        } else {
            for (quant, v) in quants.iter_mut().zip(x) {
                *quant = (v * inverse + MAGIC).to_bits() as i8;
            }
        }
        let sums = &mut sums[b * B / 16..(b + 1) * B / 16];
        let scaled_sums = &mut scaled_sums[b * B / 16..(b + 1) * B / 16];
        for ((sum, scaled), quants) in sums.iter_mut().zip(scaled_sums).zip(quants.as_chunks::<16>().0) {
            *sum = quants.iter().map(|&c| i16::from(c)).sum();
            *scaled = f32::from(*sum) * *d;
        }
    }
}
