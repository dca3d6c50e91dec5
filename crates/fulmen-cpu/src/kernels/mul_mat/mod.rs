//! Matrix products with weights of any type: `out[m, n] = x[m, k] * w[n, k]^T`.
//!
//! Quantized weights are multiplied with activations that are quantized to 8 bits on the way: in blocks of 32
//! for the formats with blocks of 32, in blocks of 256 for the K formats. With Gaussian activations that costs
//! a normalized mean square error of about 2e-5 or 4e-5. Where such a block holds an infinity or a NaN, all
//! outputs of its row are NaN. Products with float weights are computed in `f32`.
//!
//! Results do not depend on the number of threads, nor on which other rows or columns are computed in the same
//! call, except that products with up to [`FEW_ROWS`] rows of activations and those with more differ in the
//! order of their sums, and so in the last bits.

#![allow(clippy::needless_range_loop, reason = "kernels index several arrays and registers by one variable")]

mod activations;
mod buffer;
mod dots;
#[cfg(target_arch = "x86_64")]
mod dots_avx2;
#[cfg(target_arch = "x86_64")]
mod dots_avx512;
mod entries;
mod epilogue;
mod formats;
mod panels;
mod plan;
mod simd;
#[cfg(test)]
mod tests;

pub use activations::{Activations, Scratch};
pub use epilogue::{Epilogue, Residual};
pub use plan::FEW_ROWS;

use crate::{isa::Isa, threads::Pool};
use buffer::{Buffer, Shared};
use entries::entries;
use fulmen_core::DType;
use plan::Plan;
use std::cell::RefCell;

/// A matrix of weights `[n, k]`, row after row, in any type but [`DType::U32`].
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
    /// Where `data` is not exactly `n` rows of `k` elements, rows are not whole blocks, or there are no
    /// products with the type.
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

    /// The number of rows, which are the columns of the product.
    pub fn rows(&self) -> usize {
        self.n
    }

    /// The number of elements per row.
    pub fn cols(&self) -> usize {
        self.k
    }
}

/// Where a product goes: element `[i, j]` to `data[i * stride + offset + j]`. The rest stays as it is.
#[derive(Debug)]
pub struct Out<'a> {
    /// The memory.
    pub data: &'a mut [f32],
    /// From the beginning of a row to that of the next.
    pub stride: usize,
    /// The column where the product begins.
    pub offset: usize,
}

impl<'a> Out<'a> {
    /// Rows of `n` values, one after the other.
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

/// `out = x * w^T`, plus what the epilogue adds.
///
/// # Panics
///
/// Where the sizes do not fit together.
pub fn mul_mat(
    pool: &Pool,
    isa: Isa,
    w: Weight<'_>,
    x: &mut Activations<'_>,
    epilogue: Epilogue<'_>,
    out: Out<'_>,
) {
    epilogue.check(x.rows(), w.n);
    product(pool, isa, w, None, x, epilogue, out);
}

/// `out = silu(x * gate^T) * (x * up^T)`, the first half of a gated feed-forward block in one pass.
///
/// # Panics
///
/// Where the sizes do not fit together.
pub fn mul_mat_gate_up(
    pool: &Pool,
    isa: Isa,
    gate: Weight<'_>,
    up: Weight<'_>,
    x: &mut Activations<'_>,
    out: Out<'_>,
) {
    assert_eq!(gate.n, up.n, "mul_mat: gate has {} rows, up has {}", gate.n, up.n);
    product(pool, isa, gate, Some(up), x, Epilogue::default(), out);
}

thread_local! {
    /// Packed weights, and up to two blocks of products before the epilogue.
    static LOCAL: RefCell<[Buffer; 3]> = RefCell::default();
}

fn product(
    pool: &Pool,
    isa: Isa,
    w: Weight<'_>,
    up: Option<Weight<'_>>,
    x: &mut Activations<'_>,
    epilogue: Epilogue<'_>,
    out: Out<'_>,
) {
    let (m, n) = (x.rows(), w.n);
    for w in [Some(w), up].into_iter().flatten() {
        assert_eq!(w.k, x.cols(), "mul_mat: rows of {} weights for {} activations", w.k, x.cols());
    }
    out.check(m, n);
    if m == 0 || n == 0 {
        return;
    }
    let entries = entries(isa);
    Plan::prepare(pool, isa, w, x);
    if let Some(up) = up {
        Plan::prepare(pool, isa, up, x);
    }
    let x = &*x;
    let plan = Plan::new(entries, w, x);
    let plan_up = up.map(|up| Plan::new(entries, up, x));
    let grid = plan.grid(pool.threads());
    let (stride, offset) = (out.stride, out.offset);
    let data = Shared::new(out.data.as_mut_ptr());
    pool.run(grid.tasks(), &|task| {
        let (rows, cols) = grid.task(task);
        LOCAL.with_borrow_mut(|[packed, first, second]| {
            let (height, width) = (rows.len(), cols.len());
            let ld = plan.padded_cols(width);
            let products = first.slice::<f32>(plan.padded_rows(height) * ld);
            plan.compute(rows.clone(), cols.clone(), packed, products, ld);
            if let Some(plan) = &plan_up {
                let ld_up = plan.padded_cols(width);
                let ups = second.slice::<f32>(plan.padded_rows(height) * ld_up);
                plan.compute(rows.clone(), cols.clone(), packed, ups, ld_up);
                for (gate, up) in products.chunks_exact_mut(ld).zip(ups.chunks_exact(ld_up)).take(height) {
                    // SAFETY: the entries are those of an instruction set that was detected.
                    unsafe { (entries.silu_mul)(&mut gate[..width], &up[..width]) };
                }
            }
            for (row, product) in rows.zip(products.chunks_exact(ld)) {
                // SAFETY: `Out::check` has seen that the rows are within the memory and apart; each element
                // belongs to one task, and `out` is borrowed for as long as the pool runs them.
                let to = unsafe { data.slice(row * stride + offset + cols.start, width) };
                epilogue.write(row, cols.start, &product[..width], to);
            }
        });
    });
}
