//! Every element-wise op, at lengths around vectors, workgroups and grids, and on special values.

use fulmen_wgpu::kernels::Elem;
use fulmen_wgpu::{BufferId, ElementwiseOp, GpuCommandBatch, GpuError};

use super::{GpuCase, PERIOD, draw, dtype, relative, run_batch, to_f16_and_back};

/// The threads of a one-dimensional grid: 65,535 workgroups of 256 threads.
const GRID: usize = 65_535 * 256;

const LENGTHS: [usize; 8] = [0, 1, 3, 255, 256, 257, 1000, 65_537];
const LONG: [usize; 4] = [GRID - 1, GRID, GRID + 1, GRID + 1_000_257];

/// The scalar operands.
fn scalars(op: ElementwiseOp) -> Vec<f32> {
    [-1.5, 2.25][..op.scalars()].to_vec()
}

fn record(
    batch: &mut GpuCommandBatch,
    op: ElementwiseOp,
    ids: &[BufferId],
    scalars: &[f32],
) -> Result<BufferId, GpuError> {
    use ElementwiseOp as Op;
    let (x, y) = (ids[0], *ids.last().unwrap_or(&ids[0]));
    match op {
        Op::Relu => batch.try_relu(x),
        Op::Scale => batch.try_scale(x, scalars[0]),
        Op::Add => batch.try_add(x, y),
        Op::Mul => batch.try_mul(x, y),
        Op::Sub => batch.try_sub(x, y),
        Op::Div => batch.try_div(x, y),
        Op::Sigmoid => batch.try_sigmoid(x),
        Op::Tanh => batch.try_tanh(x),
        Op::Swish => batch.try_swish(x),
        Op::Gelu => batch.try_gelu(x),
        Op::GeluTanh => batch.try_gelu_tanh(x),
        Op::Exp => batch.try_exp(x),
        Op::Log => batch.try_log(x),
        Op::Sqrt => batch.try_sqrt(x),
        Op::Clamp => batch.try_clamp(x, scalars[0], scalars[1]),
        Op::Neg => batch.try_neg(x),
        Op::Abs => batch.try_abs(x),
        Op::Max => batch.try_maximum(x, y),
        Op::Min => batch.try_minimum(x, y),
        Op::AddScalar => batch.try_add_scalar(x, scalars[0]),
    }
}

/// The name of the batch's method.
fn method(op: ElementwiseOp) -> &'static str {
    match op {
        ElementwiseOp::Max => "maximum",
        ElementwiseOp::Min => "minimum",
        other => other.name(),
    }
}

/// The results for the first elements of the arguments, up to a period.
fn reference(op: ElementwiseOp, args: &[Vec<f32>], scalars: &[f32]) -> Vec<f64> {
    let len = args[0].len().min(PERIOD);
    let mut values = Vec::with_capacity(4);
    (0..len)
        .map(|i| {
            values.clear();
            values.extend(
                args.iter().map(|arg| f64::from(arg[i])).chain(scalars.iter().map(|&s| f64::from(s))),
            );
            op.reference(&values)
        })
        .collect()
}

/// One op on values of its domain.
fn of_length(op: ElementwiseOp, len: usize, elem: Elem) -> GpuCase {
    GpuCase::new(method(op), dtype(elem), len.to_string(), move |gpu, random| {
        let (low, high) = op.domain();
        let mut args: Vec<Vec<f32>> = (0..op.arity()).map(|_| draw(random, len, low, high)).collect();
        if elem == Elem::F16 {
            args = args.iter().map(|arg| to_f16_and_back(arg)).collect();
        }
        let (scalars, inputs) = (scalars(op), args.iter().map(|arg| (&arg[..], elem)).collect::<Vec<_>>());
        let expected = reference(op, &args, &scalars);
        // Both arguments repeat with one period, so the result does too.
        run_batch(
            gpu,
            &inputs,
            |batch, ids| record(batch, op, ids, &scalars),
            |got| relative(got, &expected, op.tolerance()),
        )
    })
}

/// Special values, each with each, and numbers near zero at every scale.
fn special(op: ElementwiseOp) -> GpuCase {
    GpuCase::new(method(op), dtype(Elem::F32), "special", move |gpu, random| {
        let values = op.special_values();
        let (low, high) = op.domain();
        let mut args: [Vec<f32>; 2] = Default::default();
        for arg in &mut args {
            *arg = draw(random, 20_000, low, high);
            arg.iter_mut().for_each(|x| *x *= 2f32.powi(-random.i32(0..60)));
        }
        for &a in values {
            for &b in values {
                // WGSL does not specify the precision of a division by more than 2^126: the reciprocal may be
                // 0.
                let vague = op == ElementwiseOp::Div && b.is_finite() && b.abs() > 2f32.powi(126);
                if !vague && !a.is_subnormal() && !b.is_subnormal() {
                    args[0].push(a);
                    args[1].push(b);
                }
            }
        }
        let (args, scalars) = (&args[..op.arity()], scalars(op));
        let inputs: Vec<_> = args.iter().map(|arg| (&arg[..], Elem::F32)).collect();
        let expected = reference(op, args, &scalars);
        run_batch(
            gpu,
            &inputs,
            |batch, ids| record(batch, op, ids, &scalars),
            |got| relative(got, &expected, op.tolerance()),
        )
    })
}

/// Around 0 and around ±20, where formulas lose digits or saturate: 1e-6 of each element.
fn near_0_and_20(op: ElementwiseOp) -> GpuCase {
    GpuCase::new(method(op), dtype(Elem::F32), "near_0_and_20", move |gpu, random| {
        let mut x = Vec::new();
        for _ in 0..20_000 {
            let sign = if random.bool() { 1.0 } else { -1.0 };
            x.push(sign * 10f32.powf(-30.0 * random.f32()));
            x.push(sign * (20.0 + 1e-2 * (random.f32() - 0.5)));
        }
        x.extend([0.0, -0.0, 20.0, -20.0]);
        let args = vec![x];
        let expected = reference(op, &args, &[]);
        run_batch(
            gpu,
            &[(&args[0], Elem::F32)],
            |batch, ids| record(batch, op, ids, &[]),
            |got| relative(got, &expected, op.tolerance().min(1e-6)),
        )
    })
}

/// A row or a column for every row: `op` over `[rows, n]`.
fn broadcast(row: bool, rows: usize, n: usize) -> GpuCase {
    let op = ElementwiseOp::Sub;
    let name = if row { "with_row" } else { "with_column" };
    GpuCase::new(name, dtype(Elem::F32), format!("{rows}x{n}"), move |gpu, random| {
        let x = draw(random, rows * n, -10.0, 10.0);
        let y = draw(random, if row { n } else { rows }, -10.0, 10.0);
        let other = |i: usize| f64::from(y[if row { i % n } else { i / n }]);
        let expected: Vec<f64> = (0..rows * n).map(|i| f64::from(x[i]) - other(i)).collect();
        run_batch(
            gpu,
            &[(&x, Elem::F32), (&y, Elem::F32)],
            |batch, ids| match row {
                true => batch.try_with_row(op, ids[0], ids[1]),
                false => batch.try_with_column(op, ids[0], ids[1]),
            },
            |got| relative(got, &expected, op.tolerance()),
        )
    })
}

fn bias_add(rows: usize, n: usize) -> GpuCase {
    GpuCase::new("bias_add", dtype(Elem::F32), format!("{rows}x{n}"), move |gpu, random| {
        let (x, bias) = (draw(random, rows * n, -10.0, 10.0), draw(random, n, -10.0, 10.0));
        let expected: Vec<f64> = (0..rows * n).map(|i| f64::from(x[i]) + f64::from(bias[i % n])).collect();
        run_batch(
            gpu,
            &[(&x, Elem::F32), (&bias, Elem::F32)],
            |batch, ids| batch.try_bias_add(ids[0], ids[1]),
            |got| relative(got, &expected, 1e-7),
        )
    })
}

/// Conversion between f32 and f16; f16 is rounded once.
fn cast(to: Elem, len: usize) -> GpuCase {
    let (op, from) = match to {
        Elem::F32 => ("to_f32", Elem::F16),
        Elem::F16 => ("to_f16", Elem::F32),
    };
    GpuCase::new(op, dtype(to), len.to_string(), move |gpu, random| {
        let x = draw(random, len, -100.0, 100.0);
        let expected: Vec<f64> = to_f16_and_back(&x).into_iter().map(f64::from).collect();
        run_batch(
            gpu,
            &[(&x, from)],
            |batch, ids| match to {
                Elem::F32 => batch.try_to_f32(ids[0]),
                Elem::F16 => batch.try_to_f16(ids[0]),
            },
            // WGSL allows a conversion to f16 to round up or down.
            |got| relative(got, &expected, if to == Elem::F16 { 1e-3 } else { 0.0 }),
        )
    })
}

pub(super) fn cases() -> Vec<GpuCase> {
    let mut cases = Vec::new();
    for &op in ElementwiseOp::ALL {
        cases.extend(LENGTHS.map(|len| of_length(op, len, Elem::F32)));
        cases.extend(LONG.map(|len| of_length(op, len, Elem::F32).large()));
        cases.extend([257, 1000].map(|len| of_length(op, len, Elem::F16)));
        cases.push(special(op));
    }
    cases.extend([ElementwiseOp::Tanh, ElementwiseOp::Gelu].map(near_0_and_20));
    for (rows, n) in [(1, 1), (3, 1), (1, 255), (5, 257), (70, 256), (300, 1000)] {
        cases.extend([broadcast(true, rows, n), broadcast(false, rows, n), bias_add(rows, n)]);
    }
    for len in [1, 2, 255, 1001] {
        cases.extend([cast(Elem::F16, len), cast(Elem::F32, len)]);
    }
    cases
}
