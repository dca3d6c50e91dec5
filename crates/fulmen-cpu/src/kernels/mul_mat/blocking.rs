//! Blocking of one matmul into tasks of the thread pool, and the loops of a task around the kernels.
//!
//! In the terms of BLIS: a task is a block of at most [`MC`] rows of activations by some columns of the
//! output. Loop order within a task, outermost first: for f32, KC slices of `k`, pack the weight panels of
//! the block, NR column tiles, MR row tiles; for q8, NR column tiles, pack their panels for all of `k`, KC
//! slices, MR row tiles. GEMV tasks have all rows and `n / tasks` columns.

use super::{
    Activations, Isa, Weight,
    activations::Q8Tiles,
    buffer::Buffer,
    gemv::{ActivationRows, DotFn, DotTile, ROWS, WeightRows},
    kernel_table::{KernelTable, Kernels, kernel_table},
    packed_gemm::{F32_KC, PackF32Fn, PackQ8Fn, PanelLayout, Q8_KC, Q8KernelFn, Q8Tile},
};
use crate::threads::Pool;
use std::ops::Range;

/// Up to this many rows of activations the GEMV kernels are used, which read the weights directly; above it,
/// weights are packed first.
pub const GEMV_MAX_ROWS: usize = 8;

/// Rows of activations per task of a packed GEMM: enough to amortize the packing, few enough that the
/// activations of a task stay in the L2 cache.
const MC: usize = 480;

/// Columns per task of an f32 GEMM.
const F32_NC: usize = 128;

enum Method<'a> {
    Gemv { dot: DotFn, x: ActivationRows<'a> },
    F32Gemm { pack: PackF32Fn, tiles: &'a [f32] },
    Q8Gemm { pack: PackQ8Fn, kernel: Q8KernelFn, tiles: Q8Tiles<'a>, block: usize },
}

/// One matmul with its activations packed, ready to be computed block by block.
pub(super) struct BlockedMatmul<'a> {
    table: &'static KernelTable,
    w: Weight<'a>,
    row_bytes: usize,
    m: usize,
    method: Method<'a>,
}

/// The tasks of a matmul: blocks of rows by blocks of columns.
pub(super) struct BlockGrid {
    m: usize,
    n: usize,
    rows: usize,
    cols: usize,
}

impl BlockGrid {
    pub(super) fn tasks(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.cols)
    }

    /// The rows and columns of a task. Tasks with the same rows are consecutive.
    pub(super) fn task(&self, i: usize) -> (Range<usize>, Range<usize>) {
        let across = self.n.div_ceil(self.cols);
        let (row, col) = (i / across * self.rows, i % across * self.cols);
        (row..self.m.min(row + self.rows), col..self.n.min(col + self.cols))
    }
}

impl<'a> BlockedMatmul<'a> {
    /// Quantizes or packs the activations as the kernels need them.
    pub(super) fn prepare(pool: &Pool, isa: Isa, w: Weight<'_>, x: &mut Activations<'_>) {
        let gemv = x.uses_gemv();
        match kernels(kernel_table(isa), w) {
            Kernels::F32 { .. } if gemv => {}
            Kernels::F32 { .. } => x.pack_f32_tiles(pool, isa),
            Kernels::Q8 { q8_block, .. } if gemv => x.quantize_rows(pool, isa, q8_block),
            Kernels::Q8 { q8_block, .. } => x.pack_q8_tiles(pool, isa, q8_block),
        }
    }

    pub(super) fn new(
        table: &'static KernelTable,
        w: Weight<'a>,
        x: &'a Activations<'_>,
    ) -> BlockedMatmul<'a> {
        let gemv = x.uses_gemv();
        let method = match kernels(table, w) {
            Kernels::F32 { dot, .. } if gemv => Method::Gemv { dot, x: x.dot_rows(None) },
            Kernels::F32 { pack, .. } => Method::F32Gemm { pack, tiles: x.f32_tiles(table.f32_mr) },
            Kernels::Q8 { q8_block, dot, .. } if gemv => Method::Gemv { dot, x: x.dot_rows(Some(q8_block)) },
            Kernels::Q8 { q8_block, pack, kernel, .. } => {
                let tiles = x.q8_tiles(table.q8_mr, q8_block);
                Method::Q8Gemm { pack, kernel, tiles, block: q8_block.len() }
            }
        };
        let row_bytes = w.data.len().checked_div(w.n).unwrap_or(0);
        BlockedMatmul { table, w, row_bytes, m: x.rows(), method }
    }

    /// MR and NR of the method's micro-kernel.
    fn tile(&self) -> (usize, usize) {
        let e = self.table;
        match self.method {
            Method::Gemv { .. } => (1, 1),
            Method::F32Gemm { .. } => (e.f32_mr, e.f32_nv * e.lanes),
            Method::Q8Gemm { .. } => (e.q8_mr, e.q8_nv * e.lanes),
        }
    }

    /// The rows of the output buffer of a block: whole tiles.
    pub(super) fn padded_rows(&self, rows: usize) -> usize {
        rows.next_multiple_of(self.tile().0)
    }

    /// The columns of the output buffer of a block: whole tiles.
    pub(super) fn padded_cols(&self, cols: usize) -> usize {
        cols.next_multiple_of(self.tile().1)
    }

    /// Divides the output into tasks, a few per thread. Blocks of rows start at a tile boundary.
    pub(super) fn grid(&self, threads: usize) -> BlockGrid {
        let (m, n) = (self.m, self.w.n);
        let tile_cols = self.tile().1;
        let wanted = if threads == 1 { 1 } else { threads * 4 };
        if let Method::Gemv { .. } = self.method {
            return BlockGrid { m, n, rows: m, cols: n.div_ceil(wanted).next_multiple_of(4 * ROWS) };
        }
        // A multiple of both tile heights: the gate may have another type than the up projection.
        let tile_rows = lcm(self.table.f32_mr, self.table.q8_mr);
        let even = |len: usize, most: usize| len.div_ceil(len.div_ceil(most));
        let mut rows = even(m, MC).next_multiple_of(tile_rows);
        let most = if matches!(self.method, Method::F32Gemm { .. }) { F32_NC } else { tile_cols };
        let mut cols = even(n, most.max(tile_cols)).next_multiple_of(tile_cols);
        // If there are too few tasks, reduce their columns first, then their rows.
        if n.div_ceil(cols) * m.div_ceil(rows) < wanted {
            cols = n.div_ceil(wanted.div_ceil(m.div_ceil(rows))).next_multiple_of(tile_cols);
        }
        if n.div_ceil(cols) * m.div_ceil(rows) < threads {
            rows =
                m.div_ceil(wanted.div_ceil(n.div_ceil(cols))).max(4 * tile_rows).next_multiple_of(tile_rows);
        }
        BlockGrid { m, n, rows, cols }
    }

    /// Computes a block of the output to `c`, whose rows are `ld` apart. `packed` is scratch memory.
    ///
    /// The rows must start at a tile boundary, and `c` must have the padded size.
    pub(super) fn compute(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        packed: &mut Buffer,
        c: &mut [f32],
        ld: usize,
    ) {
        assert!(rows.end <= self.m && cols.end <= self.w.n && rows.start.is_multiple_of(self.tile().0));
        assert!(ld >= self.padded_cols(cols.len()) && c.len() >= self.padded_rows(rows.len()) * ld);
        match &self.method {
            Method::Gemv { dot, x } => self.gemv_block(*dot, x, rows, cols, c, ld),
            Method::F32Gemm { pack, tiles } => self.f32_block(*pack, tiles, rows, cols, packed, c, ld),
            Method::Q8Gemm { pack, kernel, tiles, block } => {
                self.q8_block(*pack, *kernel, tiles, *block, rows, cols, packed, c, ld);
            }
        }
    }

    fn weights(&self, row: usize) -> *const u8 {
        self.w.data[row * self.row_bytes..].as_ptr()
    }

    fn gemv_block(
        &self,
        dot: DotFn,
        x: &ActivationRows<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
        c: &mut [f32],
        ld: usize,
    ) {
        let mut dots = DotTile::default();
        for col in cols.clone().step_by(ROWS) {
            let width = ROWS.min(cols.end - col);
            let w = WeightRows { data: self.weights(col), row_bytes: self.row_bytes, rows: width };
            for row in rows.clone().step_by(ROWS) {
                let height = ROWS.min(rows.end - row);
                // SAFETY: `compute` has checked the rows and columns, and `Weight` the length of the data;
                // the instruction set was detected.
                unsafe { dot(w, x, row, height, &mut dots) };
                for (i, dots) in dots.iter().enumerate().take(height) {
                    let at = (row - rows.start + i) * ld + col - cols.start;
                    c[at..at + width].copy_from_slice(&dots[..width]);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the kernels, the operands and the block")]
    /// Packs KC slices of the block's weights and runs the f32 micro-kernel over all tiles of the block.
    fn f32_block(
        &self,
        pack: PackF32Fn,
        tiles: &[f32],
        rows: Range<usize>,
        cols: Range<usize>,
        packed: &mut Buffer,
        c: &mut [f32],
        ld: usize,
    ) {
        let (e, k) = (self.table, self.w.k);
        let (tile_rows, tile_cols) = self.tile();
        if k == 0 {
            c.fill(0.0);
        }
        let panels = cols.len().next_multiple_of(tile_cols) / e.lanes;
        let panel_len = F32_KC * e.lanes;
        let buffer: *mut f32 = packed.reserve(panels * panel_len);
        let size = self.w.dtype.block_bytes();
        for from in (0..k).step_by(F32_KC) {
            let depth = F32_KC.min(k - from);
            for p in 0..panels {
                let col = cols.start + p * e.lanes;
                let count = e.lanes.min(cols.end.saturating_sub(col));
                let w = self.weights(col.min(self.w.n - 1)).wrapping_add(from * size);
                // SAFETY: the rows `col .. col + count` have `depth` elements from `from` on, and the buffer
                // has room for each panel. The instruction set was detected.
                unsafe { pack(w, self.row_bytes, count, depth, buffer.add(p * panel_len)) };
            }
            for p in (0..panels).step_by(e.f32_nv) {
                for row in rows.clone().step_by(tile_rows) {
                    let at = (row - rows.start) * ld + p * e.lanes;
                    // SAFETY: the panels are packed, the tile of `row` has `depth` columns from `from` on,
                    // and `compute` has checked that `c` has room for whole tiles.
                    unsafe {
                        (e.f32_kernel)(
                            buffer.add(p * panel_len),
                            panel_len,
                            tiles.as_ptr().add(row * k + from * tile_rows),
                            depth,
                            c.as_mut_ptr().add(at),
                            ld,
                            from > 0,
                        );
                    }
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the kernels, the operands and the block")]
    /// Packs the panels of each column tile and runs the q8 micro-kernel over KC slices and all row tiles.
    fn q8_block(
        &self,
        pack: PackQ8Fn,
        kernel: Q8KernelFn,
        tiles: &Q8Tiles<'_>,
        block: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        packed: &mut Buffer,
        c: &mut [f32],
        ld: usize,
    ) {
        let (e, k) = (self.table, self.w.k);
        let (tile_rows, tile_cols) = self.tile();
        let panel_bytes = PanelLayout::new(e.lanes, k).bytes;
        let buffer: *mut u8 = packed.reserve(e.q8_nv * panel_bytes);
        for first in cols.clone().step_by(tile_cols) {
            for v in 0..e.q8_nv {
                let col = first + v * e.lanes;
                let count = e.lanes.min(cols.end.saturating_sub(col));
                let w = self.weights(col.min(self.w.n - 1));
                // SAFETY: the rows `col .. col + count` exist, and the buffer has room for each panel.
                // The instruction set was detected.
                unsafe { pack(w, self.row_bytes, count, k, buffer.add(v * panel_bytes)) };
            }
            if k == 0 {
                c.fill(0.0);
            }
            for from in (0..k).step_by(Q8_KC) {
                let to = k.min(from + Q8_KC);
                for row in rows.clone().step_by(tile_rows) {
                    // SAFETY: the panels are packed, the tile of `row` exists, and `compute` has checked
                    // that `c` has room for whole tiles.
                    unsafe {
                        let tile = Q8Tile {
                            quants: tiles.quants.as_ptr().add(row * k),
                            d: tiles.d.as_ptr().add(row * (k / block)),
                            sums16: tiles.sums16.as_ptr().add(row * (k / 16)),
                            sums32: tiles.sums32.as_ptr().add(row * (k / 32)),
                        };
                        let at = (row - rows.start) * ld + first - cols.start;
                        kernel(buffer, tile, k, from, to, c.as_mut_ptr().add(at), ld);
                    }
                }
            }
        }
    }
}

fn lcm(a: usize, b: usize) -> usize {
    (1..=b).map(|i| a * i).find(|v| v.is_multiple_of(b)).unwrap_or(a * b)
}

fn kernels(table: &KernelTable, w: Weight<'_>) -> Kernels {
    match (table.kernels)(w.dtype, w.k) {
        Some(kernels) => kernels,
        None => panic!("mul_mat: not defined for {}", w.dtype),
    }
}
