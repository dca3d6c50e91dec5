//! Matmuls of the command batch.

use fulmen_wgpu::kernels::Elem;
use fulmen_wgpu::{ElementwiseOp, MatmulOptions};

use super::{GpuCase, draw, dtype, run_batch, to_f16_and_back};
use crate::case::Tolerance;
use crate::compare::compare_floats;
use crate::reference::Values;

/// A matmul: m, k, n, whether B is `[n, k]`, and its element type.
#[derive(Clone, Copy)]
struct MatmulShape {
    m: usize,
    k: usize,
    n: usize,
    transposed: bool,
    elem: Elem,
}

/// Kernels accumulate in f32. Tensor cores with f16 inputs have the tolerance of the graph table.
const TOLERANCE: Tolerance = Tolerance::nmse(1e-11);

/// The result in f64 at the elements of `known`, with the sizes of its terms.
fn reference(a: &[f32], b: &[f32], shape: MatmulShape, known: Option<Vec<usize>>) -> Values {
    let MatmulShape { m, k, n, transposed, .. } = shape;
    let (mut data, mut sizes) = (vec![0.0; m * n], vec![0.0; m * n]);
    let mut element = |o: usize| {
        let (row, col) = (o / n, o % n);
        for i in 0..k {
            let w = if transposed { b[col * k + i] } else { b[i * n + col] };
            let term = f64::from(a[row * k + i]) * f64::from(w);
            data[o] += term;
            sizes[o] += term * term;
        }
        sizes[o] = f64::sqrt(sizes[o]);
    };
    match &known {
        Some(known) => known.iter().for_each(|&o| element(o)),
        None => (0..m * n).for_each(element),
    }
    Values { data, sizes: Some(sizes), known }
}

/// The elements at which the reference is computed: `None` for all of a small matmul, otherwise some that are
/// spread over all rows and columns.
fn sampled_elements(shape: MatmulShape) -> Option<Vec<usize>> {
    let all = shape.m * shape.n;
    if all * shape.k <= 1 << 24 {
        return None;
    }
    let count = ((1 << 24) / shape.k).max(64);
    let mut sampled_elements: Vec<usize> = (0..count).map(|i| i * (all - 1) / (count - 1)).collect();
    sampled_elements.dedup();
    Some(sampled_elements)
}

fn matmul(shape: MatmulShape) -> GpuCase {
    let MatmulShape { m, k, n, transposed, elem } = shape;
    let op = if transposed { "matmul_nt" } else { "matmul" };
    GpuCase::new(op, dtype(elem), format!("m{m}/k{k}/n{n}"), move |gpu, random| {
        let (a, mut b) = (draw(random, m * k, -1.0, 1.0), draw(random, n * k, -1.0, 1.0));
        if elem == Elem::F16 {
            b = to_f16_and_back(&b);
        }
        let expected = reference(&a, &b, shape, sampled_elements(shape));
        let (m, k, n) = (m as u32, k as u32, n as u32);
        run_batch(
            gpu,
            &[(&a, Elem::F32), (&b, elem)],
            |batch, ids| match transposed {
                true => batch.try_matmul_nt(ids[0], ids[1], m, k, n),
                false => batch.try_matmul(ids[0], ids[1], m, k, n),
            },
            |got| compare_floats(got, &expected, TOLERANCE),
        )
    })
}

/// Bias, activation and residual, which are fused into the epilogue.
fn with_epilogue(m: usize, k: usize, n: usize) -> GpuCase {
    let shape = MatmulShape { m, k, n, transposed: true, elem: Elem::F32 };
    GpuCase::new("matmul_with", dtype(Elem::F32), format!("m{m}/k{k}/n{n}"), move |gpu, random| {
        let (a, b) = (draw(random, m * k, -1.0, 1.0), draw(random, n * k, -1.0, 1.0));
        let (bias, residual) = (draw(random, n, -1.0, 1.0), draw(random, m * n, -1.0, 1.0));
        let mut expected = reference(&a, &b, shape, None);
        for (i, value) in expected.data.iter_mut().enumerate() {
            let x = *value + f64::from(bias[i % n]);
            *value = ElementwiseOp::Gelu.reference(&[x]) + f64::from(residual[i]);
        }
        let sizes = expected.sizes.iter_mut().flatten();
        sizes.for_each(|size| *size += 2.0);
        let f32 = Elem::F32;
        let (m, k, n) = (m as u32, k as u32, n as u32);
        run_batch(
            gpu,
            &[(&a, f32), (&b, f32), (&bias, f32), (&residual, f32)],
            |batch, ids| {
                let options = MatmulOptions {
                    transposed_b: true,
                    bias: Some(ids[2]),
                    activation: Some(ElementwiseOp::Gelu),
                    residual: Some(ids[3]),
                };
                batch.try_matmul_with(ids[0], ids[1], m, k, n, options)
            },
            |got| compare_floats(got, &expected, TOLERANCE),
        )
    })
}

/// Rows × sides: odd, below a tile, at and around powers of two.
const ROWS: [usize; 8] = [1, 2, 3, 4, 5, 16, 17, 65];
const SIDES: [(usize, usize); 9] =
    [(1, 1), (3, 4), (4, 3), (6, 64), (64, 6), (255, 257), (256, 256), (2560, 64), (300, 1000)];

pub(super) fn cases() -> Vec<GpuCase> {
    let mut cases = Vec::new();
    for transposed in [true, false] {
        for m in ROWS {
            for (k, n) in SIDES {
                // Every shape in f32, every second one in f16.
                let shape = MatmulShape { m, k, n, transposed, elem: Elem::F32 };
                cases.push(matmul(shape).large_if(m > 5 && k * n > 1 << 16));
                if (m + k + n) % 2 == 0 {
                    cases.push(
                        matmul(MatmulShape { elem: Elem::F16, ..shape }).large_if(m > 5 && k * n > 1 << 14),
                    );
                }
            }
        }
        for (m, k, n) in [(1, 2560, 9728), (32, 2560, 9728), (256, 2560, 2560), (1, 128, 151_936)] {
            cases.push(matmul(MatmulShape { m, k, n, transposed, elem: Elem::F32 }).large());
        }
    }
    for (m, k, n) in [(1, 256, 64), (4, 255, 33), (17, 64, 65), (40, 1024, 70)] {
        cases.push(with_epilogue(m, k, n));
    }
    cases
}
