//! Reductions: sum, maximum, minimum and dot product of whole arrays.

use fulmen_wgpu::kernels::{Elem, reduce::Reduction};

use super::{GpuCase, draw, dtype, run_batch, to_f16_and_back};
use crate::compare::{Agreement, Mismatch};

const LENGTHS: [usize; 7] = [0, 1, 2, 255, 257, 65_537, 1_000_003];
const LONG: [usize; 1] = [20_000_000];

/// The rounding errors of a tree of sums stay below this share of the sum of the terms' magnitudes.
const TOLERANCE: f64 = 1e-6;

/// The value in f64, and the sum of the magnitudes of its terms.
fn reference(op: Reduction, args: &[Vec<f32>]) -> (f64, f64) {
    let terms = (0..args[0].len()).map(|i| args.iter().map(|arg| f64::from(arg[i])).product::<f64>());
    match op {
        Reduction::Sum | Reduction::Dot => {
            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
        }
        // No rounding: it must be one of them.
        Reduction::Max => (terms.fold(f64::NEG_INFINITY, f64::max), 0.0),
        Reduction::Min => (terms.fold(f64::INFINITY, f64::min), 0.0),
    }
}

fn judge(got: &[f32], (expected, size): (f64, f64)) -> Result<Agreement, Mismatch> {
    let got = f64::from(got[0]);
    let error = if got == expected { 0.0 } else { (got - expected).abs() };
    if error.is_nan() || error > TOLERANCE * size {
        return Err(Mismatch { index: 0, expected, got, nmse: f64::NAN });
    }
    Ok(Agreement { error: if error == 0.0 { 0.0 } else { error / size }, allowed: TOLERANCE })
}

fn of_length(op: Reduction, len: usize, elem: Elem) -> GpuCase {
    GpuCase::new(op.name(), dtype(elem), len.to_string(), move |gpu, random| {
        let mut args: Vec<Vec<f32>> = (0..op.inputs()).map(|_| draw(random, len, -1.0, 3.0)).collect();
        if elem == Elem::F16 {
            args = args.iter().map(|arg| to_f16_and_back(arg)).collect();
        }
        let inputs: Vec<_> = args.iter().map(|arg| (&arg[..], elem)).collect();
        let expected = reference(op, &args);
        run_batch(
            gpu,
            &inputs,
            |batch, ids| match op {
                Reduction::Sum => batch.try_sum(ids[0]),
                Reduction::Max => batch.try_max(ids[0]),
                Reduction::Min => batch.try_min(ids[0]),
                Reduction::Dot => batch.try_dot(ids[0], ids[1]),
            },
            |got| judge(got, expected),
        )
    })
}

pub(super) fn cases() -> Vec<GpuCase> {
    let mut cases = Vec::new();
    for &op in Reduction::ALL {
        cases.extend(LENGTHS.map(|len| of_length(op, len, Elem::F32)));
        cases.extend(LONG.map(|len| of_length(op, len, Elem::F32).large()));
        cases.push(of_length(op, 1001, Elem::F16));
    }
    cases
}
