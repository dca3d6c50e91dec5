//! Matmul with weights of any type: `out[m, n] = x[m, k] * w[n, k]^T`.
//!
//! Two algorithms, by the number of rows of activations:
//!
//! - **GEMV and small M** (`m <=` [`GEMV_MAX_ROWS`], `gemv`): dot products straight from the rows of the
//!   weight, 4 weight rows by up to 4 activation rows at a time. Each weight is read once, so memory
//!   bandwidth bounds it.
//! - **Packed GEMM** (larger `m`, `packed_gemm`): BLIS-style blocking. A task packs a block of weight rows
//!   into panels one vector wide and runs an MR x NR micro-kernel over all rows of its block (`blocking`).
//!   Arithmetic bounds it.
//!
//! Quantized weights (W4A8 and the like) are multiplied with q8 activations (`activations`): int8 with one
//! scale per 32 elements for the formats with blocks of 32 (as `Q8_0`), per 256 elements for the K-quants (as
//! `Q8_K`). With Gaussian activations that costs a normalized mean square error of about 2e-5 or 4e-5. If
//! such a block contains an infinity or a NaN, all outputs of its row are NaN. Floating-point weights are
//! converted to f32 and multiplied in f32.
//!
//! `kernel_table` holds the function pointers of each instruction set; `simd` has the vector operations
//! that the kernels are generic over; `gemv_avx2` and `gemv_avx512` are hand-written for the common formats.
//!
//! Results do not depend on the number of threads, nor on which other rows or columns are computed in the
//! same call, except that the two algorithms sum in different orders and so differ in the last bits;
//! [`Activations::by_rows`] uses the first one for any number of rows.

#![allow(clippy::needless_range_loop, reason = "kernels index several arrays and registers by one variable")]

mod activations;
mod blocking;
mod buffer;
mod epilogue;
mod experts;
mod gemv;
#[cfg(target_arch = "x86_64")]
mod gemv_avx2;
#[cfg(target_arch = "x86_64")]
mod gemv_avx512;
mod kernel_table;
mod packed_gemm;
mod simd;
#[cfg(test)]
mod tests;
mod unpack;

pub use activations::{Activations, Scratch};
pub use blocking::GEMV_MAX_ROWS;
pub use epilogue::{Epilogue, Residual};
pub use experts::{ExpertIds, ExpertScratch, ExpertWeight, expert_down, expert_gate_up};

use super::parallel::SharedPtr;
use crate::{isa::Isa, threads::Pool};
use blocking::BlockedMatmul;
use buffer::Buffer;
use fulmen_core::{DType, GateActivation};
use kernel_table::kernel_table;
use std::cell::RefCell;

/// A weight matrix `[n, k]`, row-major, of any type but [`DType::U32`].
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    dtype: DType,
    data: &'a [u8],
    n: usize,
    k: usize,
}

impl<'a> Weight<'a> {
    /// The matrix in `data`, which may have any alignment.
    ///
    /// # Panics
    ///
    /// If `data` is not exactly `n` rows of `k` elements, rows are not whole blocks, or the type has no
    /// matmul.
    pub fn new(dtype: DType, data: &'a [u8], n: usize, k: usize) -> Weight<'a> {
        assert!(dtype != DType::U32, "mul_mat: not defined for {dtype}");
        let row = dtype.bytes(k).unwrap_or_else(|e| panic!("mul_mat: {e}"));
        assert_eq!(row.checked_mul(n), Some(data.len()), "mul_mat: {n} x {k} of {dtype} in {}", data.len());
        Weight { dtype, data, n, k }
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of rows, which are the columns of the output.
    pub fn rows(&self) -> usize {
        self.n
    }

    /// The number of elements per row.
    pub fn cols(&self) -> usize {
        self.k
    }
}

/// The output: element `[i, j]` goes to `data[i * stride + offset + j]`. Other elements are not written.
#[derive(Debug)]
pub struct Out<'a> {
    /// The memory.
    pub data: &'a mut [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// The first column.
    pub offset: usize,
}

impl<'a> Out<'a> {
    /// Contiguous rows of `n` values.
    pub fn rows(data: &'a mut [f32], n: usize) -> Out<'a> {
        Out { data, stride: n, offset: 0 }
    }

    fn check(&self, m: usize, n: usize) {
        let row = self.offset.checked_add(n);
        assert!(m <= 1 || row.is_some_and(|row| row <= self.stride), "mul_mat: rows of the output overlap");
        let last = if m == 0 { Some(0) } else { self.stride.checked_mul(m - 1) };
        let need = if m == 0 { Some(0) } else { last.zip(row).and_then(|(a, b)| a.checked_add(b)) };
        let fits = need.is_some_and(|need| need <= self.data.len());
        assert!(fits, "mul_mat: an output of {m} x {n} does not fit {} values", self.data.len());
    }
}

/// `out = x * w^T`, plus the bias and residual of the epilogue.
///
/// # Panics
///
/// If the sizes are inconsistent.
pub fn mul_mat(
    pool: &Pool,
    isa: Isa,
    w: Weight<'_>,
    x: &mut Activations<'_>,
    epilogue: Epilogue<'_>,
    out: Out<'_>,
) {
    epilogue.check(x.rows(), w.n);
    run(pool, isa, w, None, x, epilogue, out);
}

/// `out = activation(x * gate^T) * (x * up^T)`, the gate and up projections of a feed-forward block with
/// SwiGLU or GeGLU in one pass.
///
/// # Panics
///
/// If the sizes are inconsistent.
pub fn mul_mat_gate_up(
    pool: &Pool,
    isa: Isa,
    [gate, up]: [Weight<'_>; 2],
    activation: GateActivation,
    x: &mut Activations<'_>,
    out: Out<'_>,
) {
    assert_eq!(gate.n, up.n, "mul_mat: gate has {} rows, up has {}", gate.n, up.n);
    run(pool, isa, gate, Some((up, activation)), x, Epilogue::default(), out);
}

thread_local! {
    /// Packed weights, and up to two output blocks before the epilogue.
    static LOCAL: RefCell<[Buffer; 3]> = RefCell::default();
}

fn run(
    pool: &Pool,
    isa: Isa,
    w: Weight<'_>,
    up: Option<(Weight<'_>, GateActivation)>,
    x: &mut Activations<'_>,
    epilogue: Epilogue<'_>,
    out: Out<'_>,
) {
    let (m, n) = (x.rows(), w.n);
    for w in [Some(w), up.map(|(up, _)| up)].into_iter().flatten() {
        assert_eq!(w.k, x.cols(), "mul_mat: rows of {} weights for {} activations", w.k, x.cols());
    }
    out.check(m, n);
    if m == 0 || n == 0 {
        return;
    }
    let table = kernel_table(isa);
    BlockedMatmul::prepare(pool, isa, w, x);
    if let Some((up, _)) = up {
        BlockedMatmul::prepare(pool, isa, up, x);
    }
    let x = &*x;
    let matmul = BlockedMatmul::new(table, w, x);
    let up_matmul = up.map(|(up, activation)| (BlockedMatmul::new(table, up, x), activation));
    let grid = matmul.grid(pool.threads());
    let (stride, offset) = (out.stride, out.offset);
    let data = SharedPtr::new(out.data.as_mut_ptr());
    pool.run(grid.tasks(), &|task| {
        let (rows, cols) = grid.task(task);
        LOCAL.with_borrow_mut(|[packed, first, second]| {
            let (height, width) = (rows.len(), cols.len());
            let ld = matmul.padded_cols(width);
            let block = first.slice::<f32>(matmul.padded_rows(height) * ld);
            matmul.compute(rows.clone(), cols.clone(), packed, block, ld);
            if let Some((matmul, activation)) = &up_matmul {
                let gated = match activation {
                    GateActivation::Silu => table.silu_mul,
                    GateActivation::GeluTanh => table.gelu_mul,
                };
                let ld_up = matmul.padded_cols(width);
                let ups = second.slice::<f32>(matmul.padded_rows(height) * ld_up);
                matmul.compute(rows.clone(), cols.clone(), packed, ups, ld_up);
                for (gate, up) in block.chunks_exact_mut(ld).zip(ups.chunks_exact(ld_up)).take(height) {
                    // SAFETY: the kernels are those of an instruction set that was detected.
                    unsafe { gated(&mut gate[..width], &up[..width]) };
                }
            }
            for (row, values) in rows.zip(block.chunks_exact(ld)) {
                // SAFETY: `Out::check` has checked that the rows are within the memory and do not overlap;
                // each element belongs to one task, and `out` is borrowed for as long as the pool runs them.
                let to = unsafe { data.slice(row * stride + offset + cols.start, width) };
                epilogue.write(row, cols.start, &values[..width], to);
            }
        });
    });
}
