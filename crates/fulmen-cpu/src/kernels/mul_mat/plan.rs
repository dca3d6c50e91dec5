//! How one product is cut into tasks, and how a task is computed.

use super::{
    Activations, Isa, Weight,
    activations::IntTiles,
    buffer::Buffer,
    dots::{DotFn, Dots, ROWS, Rows, WeightRows},
    entries::{Entries, Kernels, entries},
    panels::{FLOAT_DEPTH, INT_DEPTH, IntKernelFn, IntTile, PackFloatFn, PackIntFn, PanelLayout},
};
use crate::threads::Pool;
use std::ops::Range;

/// Up to so many rows of activations, products are computed as dot products straight from the weights; with
/// more, weights are packed first.
pub const FEW_ROWS: usize = 8;

/// Rows of activations per task of a product with packed weights: enough to make up for the packing, few
/// enough that the activations of a task stay in the second-level cache.
const BLOCK_ROWS: usize = 480;

/// Columns per task of a float product with packed weights.
const FLOAT_COLS: usize = 128;

enum Method<'a> {
    Dots { dot: DotFn, x: Rows<'a> },
    Float { pack: PackFloatFn, tiles: &'a [f32] },
    Int { pack: PackIntFn, kernel: IntKernelFn, tiles: IntTiles<'a>, block: usize },
}

/// One product, ready to be computed part by part.
pub(super) struct Plan<'a> {
    entries: &'static Entries,
    w: Weight<'a>,
    row_bytes: usize,
    m: usize,
    method: Method<'a>,
}

/// The tasks of a product: blocks of rows by blocks of columns.
pub(super) struct Grid {
    m: usize,
    n: usize,
    rows: usize,
    cols: usize,
}

impl Grid {
    pub(super) fn tasks(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.cols)
    }

    /// The rows and columns of a task. Tasks of the same rows follow each other.
    pub(super) fn task(&self, i: usize) -> (Range<usize>, Range<usize>) {
        let across = self.n.div_ceil(self.cols);
        let (row, col) = (i / across * self.rows, i % across * self.cols);
        (row..self.m.min(row + self.rows), col..self.n.min(col + self.cols))
    }
}

impl<'a> Plan<'a> {
    /// Makes the form of the activations that the product needs.
    pub(super) fn prepare(pool: &Pool, isa: Isa, w: Weight<'_>, x: &mut Activations<'_>) {
        let few = x.rows() <= FEW_ROWS;
        match kernels(entries(isa), w) {
            Kernels::Float { .. } if few => {}
            Kernels::Float { .. } => x.make_float_tiles(pool, isa),
            Kernels::Int { family, .. } if few => x.make_int_rows(pool, isa, family),
            Kernels::Int { family, .. } => x.make_int_tiles(pool, isa, family),
        }
    }

    pub(super) fn new(entries: &'static Entries, w: Weight<'a>, x: &'a Activations<'_>) -> Plan<'a> {
        let few = x.rows() <= FEW_ROWS;
        let method = match kernels(entries, w) {
            Kernels::Float { dot, .. } if few => Method::Dots { dot, x: x.dot_rows(None) },
            Kernels::Float { pack, .. } => Method::Float { pack, tiles: x.float_tiles(entries.float_rows) },
            Kernels::Int { family, dot, .. } if few => Method::Dots { dot, x: x.dot_rows(Some(family)) },
            Kernels::Int { family, pack, kernel, .. } => {
                let tiles = x.int_tiles(entries.int_rows, family);
                Method::Int { pack, kernel, tiles, block: family.block() }
            }
        };
        let row_bytes = w.data.len().checked_div(w.n).unwrap_or(0);
        Plan { entries, w, row_bytes, m: x.rows(), method }
    }

    /// Rows and columns of the tiles of the method.
    fn tile(&self) -> (usize, usize) {
        let e = self.entries;
        match self.method {
            Method::Dots { .. } => (1, 1),
            Method::Float { .. } => (e.float_rows, e.float_vectors * e.lanes),
            Method::Int { .. } => (e.int_rows, e.int_vectors * e.lanes),
        }
    }

    /// The rows that the memory for a block of products must have.
    pub(super) fn padded_rows(&self, rows: usize) -> usize {
        rows.next_multiple_of(self.tile().0)
    }

    /// The columns that the memory for a block of products must have.
    pub(super) fn padded_cols(&self, cols: usize) -> usize {
        cols.next_multiple_of(self.tile().1)
    }

    /// Cuts the product into tasks, a few per thread. Blocks of rows begin at whole tiles.
    pub(super) fn grid(&self, threads: usize) -> Grid {
        let (m, n) = (self.m, self.w.n);
        let tile_cols = self.tile().1;
        let wanted = if threads == 1 { 1 } else { threads * 4 };
        if let Method::Dots { .. } = self.method {
            return Grid { m, n, rows: m, cols: n.div_ceil(wanted).next_multiple_of(4 * ROWS) };
        }
        // Whole tiles of either method: the gate may be of another type than the up projection.
        let tile_rows = lcm(self.entries.float_rows, self.entries.int_rows);
        let even = |len: usize, most: usize| len.div_ceil(len.div_ceil(most));
        let mut rows = even(m, BLOCK_ROWS).next_multiple_of(tile_rows);
        let most = if matches!(self.method, Method::Float { .. }) { FLOAT_COLS } else { tile_cols };
        let mut cols = even(n, most.max(tile_cols)).next_multiple_of(tile_cols);
        // Where that makes too few tasks, narrower ones first, then lower ones.
        if n.div_ceil(cols) * m.div_ceil(rows) < wanted {
            cols = n.div_ceil(wanted.div_ceil(m.div_ceil(rows))).next_multiple_of(tile_cols);
        }
        if n.div_ceil(cols) * m.div_ceil(rows) < threads {
            rows =
                m.div_ceil(wanted.div_ceil(n.div_ceil(cols))).max(4 * tile_rows).next_multiple_of(tile_rows);
        }
        Grid { m, n, rows, cols }
    }

    /// Computes a block of the product to `c`, whose rows are `ld` apart. `packed` is scratch memory.
    ///
    /// The rows must begin at a whole tile, and `c` must have the padded size.
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
            Method::Dots { dot, x } => self.dots(*dot, x, rows, cols, c, ld),
            Method::Float { pack, tiles } => self.float(*pack, tiles, rows, cols, packed, c, ld),
            Method::Int { pack, kernel, tiles, block } => {
                self.int(*pack, *kernel, tiles, *block, rows, cols, packed, c, ld);
            }
        }
    }

    fn weights(&self, row: usize) -> *const u8 {
        self.w.data[row * self.row_bytes..].as_ptr()
    }

    fn dots(
        &self,
        dot: DotFn,
        x: &Rows<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
        c: &mut [f32],
        ld: usize,
    ) {
        let mut dots = Dots::default();
        for col in cols.clone().step_by(ROWS) {
            let width = ROWS.min(cols.end - col);
            let w = WeightRows { data: self.weights(col), row_bytes: self.row_bytes, rows: width };
            for row in rows.clone().step_by(ROWS) {
                let height = ROWS.min(rows.end - row);
                // SAFETY: `compute` has checked the rows and columns, and `Weight` that the data is there; the
                // instruction set was detected.
                unsafe { dot(w, x, row, height, &mut dots) };
                for (i, dots) in dots.iter().enumerate().take(height) {
                    let at = (row - rows.start + i) * ld + col - cols.start;
                    c[at..at + width].copy_from_slice(&dots[..width]);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a method and of a block")]
    fn float(
        &self,
        pack: PackFloatFn,
        tiles: &[f32],
        rows: Range<usize>,
        cols: Range<usize>,
        packed: &mut Buffer,
        c: &mut [f32],
        ld: usize,
    ) {
        let (e, k) = (self.entries, self.w.k);
        let (tile_rows, tile_cols) = self.tile();
        if k == 0 {
            c.fill(0.0);
        }
        let panels = cols.len().next_multiple_of(tile_cols) / e.lanes;
        let panel_len = FLOAT_DEPTH * e.lanes;
        let buffer: *mut f32 = packed.reserve(panels * panel_len);
        let size = self.w.dtype.block_bytes();
        for from in (0..k).step_by(FLOAT_DEPTH) {
            let depth = FLOAT_DEPTH.min(k - from);
            for p in 0..panels {
                let col = cols.start + p * e.lanes;
                let count = e.lanes.min(cols.end.saturating_sub(col));
                let w = self.weights(col.min(self.w.n - 1)).wrapping_add(from * size);
                // SAFETY: the rows `col .. col + count` have `depth` elements from `from` on, and the buffer
                // has room for each panel. The instruction set was detected.
                unsafe { pack(w, self.row_bytes, count, depth, buffer.add(p * panel_len)) };
            }
            for p in (0..panels).step_by(e.float_vectors) {
                for row in rows.clone().step_by(tile_rows) {
                    let at = (row - rows.start) * ld + p * e.lanes;
                    // SAFETY: the panels are packed, the tile of `row` has `depth` columns from `from` on, and
                    // `compute` has checked that `c` has room for whole tiles.
                    unsafe {
                        (e.float_kernel)(
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

    #[expect(clippy::too_many_arguments, reason = "the parts of a method and of a block")]
    fn int(
        &self,
        pack: PackIntFn,
        kernel: IntKernelFn,
        tiles: &IntTiles<'_>,
        block: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        packed: &mut Buffer,
        c: &mut [f32],
        ld: usize,
    ) {
        let (e, k) = (self.entries, self.w.k);
        let (tile_rows, tile_cols) = self.tile();
        let panel_bytes = PanelLayout::new(e.lanes, k).bytes;
        let buffer: *mut u8 = packed.reserve(e.int_vectors * panel_bytes);
        for first in cols.clone().step_by(tile_cols) {
            for v in 0..e.int_vectors {
                let col = first + v * e.lanes;
                let count = e.lanes.min(cols.end.saturating_sub(col));
                let w = self.weights(col.min(self.w.n - 1));
                // SAFETY: the rows `col .. col + count` are there, and the buffer has room for each panel. The
                // instruction set was detected.
                unsafe { pack(w, self.row_bytes, count, k, buffer.add(v * panel_bytes)) };
            }
            if k == 0 {
                c.fill(0.0);
            }
            for from in (0..k).step_by(INT_DEPTH) {
                let to = k.min(from + INT_DEPTH);
                for row in rows.clone().step_by(tile_rows) {
                    // SAFETY: the panels are packed, the tile of `row` is there, and `compute` has checked that
                    // `c` has room for whole tiles.
                    unsafe {
                        let tile = IntTile {
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

fn kernels(entries: &Entries, w: Weight<'_>) -> Kernels {
    match (entries.kernels)(w.dtype, w.k) {
        Some(kernels) => kernels,
        None => panic!("mul_mat: not defined for {}", w.dtype),
    }
}
