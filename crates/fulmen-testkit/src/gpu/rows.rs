//! Operations along the rows of a matrix, and transposition.

use fulmen_wgpu::kernels::Elem;

use super::{GpuCase, draw, dtype, relative, run_batch, within};
use crate::case::Tolerance;

const SHAPES: [(usize, usize); 9] =
    [(1, 1), (3, 1), (5, 3), (2, 255), (3, 256), (2, 257), (33, 300), (7, 2560), (2, 9728)];
const LARGE: [(usize, usize); 2] = [(1, 151_936), (70_000, 33)];
const EPS: f32 = 1e-5;

/// Each row by a function of it.
fn by_rows(x: &[f32], width: usize, row: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    x.chunks_exact(width)
        .flat_map(|values| row(&values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()))
        .collect()
}

/// Zeros of a row that is all -inf.
fn softmax_row(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return vec![0.0; row.len()];
    }
    let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
    row.iter().map(|x| (x - most).exp() / sum).collect()
}

fn softmax((rows, width): (usize, usize)) -> GpuCase {
    GpuCase::new("softmax", dtype(Elem::F32), format!("{rows}x{width}"), move |gpu, random| {
        let mut x = draw(random, rows * width, -20.0, 20.0);
        if rows > 1 {
            // A row that is masked out, and one in part.
            x[..width].fill(f32::NEG_INFINITY);
            x[width] = if width > 1 { f32::NEG_INFINITY } else { 3.0 };
        }
        let expected = by_rows(&x, width, softmax_row);
        run_batch(
            gpu,
            &[(&x, Elem::F32)],
            |batch, ids| batch.try_softmax(ids[0], width as u32),
            |got| within(got, expected, Tolerance::SOFTMAX),
        )
    })
}

fn rms_norm((rows, width): (usize, usize)) -> GpuCase {
    GpuCase::new("rms_norm", dtype(Elem::F32), format!("{rows}x{width}"), move |gpu, random| {
        let (x, gain) = (draw(random, rows * width, -3.0, 5.0), draw(random, width, 0.5, 1.5));
        let expected = by_rows(&x, width, |row| {
            let square: f64 = row.iter().map(|x| x * x).sum();
            let factor = 1.0 / (square / width as f64 + f64::from(EPS)).sqrt();
            row.iter().zip(&gain).map(|(x, &g)| x * factor * f64::from(g)).collect()
        });
        run_batch(
            gpu,
            &[(&x, Elem::F32), (&gain, Elem::F32)],
            |batch, ids| batch.try_rms_norm(ids[0], ids[1], EPS),
            |got| within(got, expected, Tolerance::nmse(1e-12)),
        )
    })
}

fn layer_norm((rows, width): (usize, usize)) -> GpuCase {
    GpuCase::new("layer_norm", dtype(Elem::F32), format!("{rows}x{width}"), move |gpu, random| {
        let x = draw(random, rows * width, -3.0, 5.0);
        let (gain, shift) = (draw(random, width, 0.5, 1.5), draw(random, width, -1.0, 1.0));
        let expected = by_rows(&x, width, |row| {
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let factor = 1.0 / (variance + f64::from(EPS)).sqrt();
            let scaled = row.iter().zip(&gain).zip(&shift);
            scaled.map(|((x, &g), &s)| (x - mean) * factor * f64::from(g) + f64::from(s)).collect()
        });
        run_batch(
            gpu,
            &[(&x, Elem::F32), (&gain, Elem::F32), (&shift, Elem::F32)],
            |batch, ids| batch.try_layer_norm(ids[0], ids[1], ids[2], EPS),
            |got| within(got, expected, Tolerance::nmse(1e-10)),
        )
    })
}

fn transpose((rows, width): (usize, usize)) -> GpuCase {
    GpuCase::new("transpose", dtype(Elem::F32), format!("{rows}x{width}"), move |gpu, random| {
        let x = draw(random, rows * width, -1.0, 1.0);
        let expected: Vec<f64> =
            (0..rows * width).map(|i| f64::from(x[i % rows * width + i / rows])).collect();
        run_batch(
            gpu,
            &[(&x, Elem::F32)],
            |batch, ids| batch.try_transpose(ids[0], rows as u32, width as u32),
            |got| relative(got, &expected, 0.0),
        )
    })
}

pub(super) fn cases() -> Vec<GpuCase> {
    let families = [softmax, rms_norm, layer_norm, transpose];
    let of = |family: fn((usize, usize)) -> GpuCase| {
        let quick = SHAPES.into_iter().map(family);
        quick.chain(LARGE.into_iter().map(move |shape| family(shape).large())).collect::<Vec<_>>()
    };
    families.into_iter().flat_map(of).collect()
}
