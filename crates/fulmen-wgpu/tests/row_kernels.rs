//! Reductions, kernels along rows and the transpose against f64.

mod common_rows;

use common_rows::{close, draw, gpu, nmse};
use fulmen_wgpu::{
    kernel::Caps,
    kernels::{
        Elem, KernelError, LaunchList,
        reduce::{Reduction, reduce},
        rows::{Rows, layer_norm, rms_norm, row_reduce, softmax},
        transpose::transpose,
    },
};
use half::f16;

fn reduce_f64(op: Reduction, x: &[f32], y: &[f32]) -> (f64, f64) {
    let products = x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y));
    let values = x.iter().map(|&x| f64::from(x));
    match op {
        Reduction::Sum => (values.clone().sum(), values.map(f64::abs).sum()),
        Reduction::Dot => (products.clone().sum(), products.map(f64::abs).sum()),
        Reduction::Max => (values.fold(f64::NEG_INFINITY, f64::max), 0.0),
        Reduction::Min => (values.fold(f64::INFINITY, f64::min), 0.0),
    }
}

fn run_reduce(op: Reduction, x: &[f32], y: &[f32], caps: &Caps) -> f32 {
    let plan = reduce(op, x.len() as u64, Elem::F32, caps).unwrap();
    gpu().run_f32(&plan, &[x, y][..op.inputs()], 1)[0]
}

#[test]
fn reductions_of_every_length() {
    let mut rng = fastrand::Rng::with_seed(1);
    for len in [0usize, 1, 2, 3, 4, 5, 255, 256, 257, 1023, 8192, 8193, 65_537, 1_000_003] {
        // A sum far from 0 and one near it.
        for low in [0.0, -1.0] {
            let (x, y) = (draw(&mut rng, len, low, 1.0), draw(&mut rng, len, low, 1.0));
            for caps in gpu().caps_variants() {
                for &op in Reduction::ALL {
                    let (want, magnitude) = reduce_f64(op, &x, &y);
                    let got = f64::from(run_reduce(op, &x, &y, &caps));
                    let off = (got - want).abs();
                    assert!(got == want || off <= 1e-6 * magnitude, "{op:?} of {len}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn reductions_of_twenty_million() {
    let len = 20_000_000;
    let x: Vec<f32> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-7).collect();
    for op in [Reduction::Sum, Reduction::Max, Reduction::Dot] {
        let (want, magnitude) = reduce_f64(op, &x, &x);
        let got = f64::from(run_reduce(op, &x, &x, &gpu().caps));
        println!("{op:?}: {:e} of the magnitudes", (got - want).abs() / magnitude);
        assert!(got == want || (got - want).abs() <= 1e-6 * magnitude, "{op:?}: {got} {want}");
    }
}

#[test]
fn reductions_split_and_folded() {
    let mut rng = fastrand::Rng::with_seed(2);
    let len = 300_001;
    let (x, y) = (draw(&mut rng, len, -1.0, 1.0), draw(&mut rng, len, -1.0, 1.0));
    let caps = Caps { max_binding: 64 << 10, max_workgroups: 7, max_invocations: 32, ..gpu().caps };
    for &op in Reduction::ALL {
        let plan = reduce(op, len as u64, Elem::F32, &caps).unwrap();
        assert!(plan.launches.len() > 18);
        assert!(plan.launches.iter().flat_map(|step| &step.bindings).all(|b| b.bytes <= caps.max_binding));
        let (want, magnitude) = reduce_f64(op, &x, &y);
        let got = f64::from(run_reduce(op, &x, &y, &caps));
        assert!(got == want || (got - want).abs() <= 1e-6 * magnitude, "{op:?}: {got} {want}");
    }
}

#[test]
fn reductions_of_special_values() {
    for caps in gpu().caps_variants() {
        for len in [1usize, 6, 1000, 20_000] {
            let run = |op, at: usize, value: f32| {
                let mut x = vec![-5.0; len];
                x[at] = value;
                run_reduce(op, &x, &x, &caps)
            };
            for at in [0, len / 2, len - 1] {
                for nan in [f32::NAN, -f32::NAN] {
                    for &op in Reduction::ALL {
                        assert!(run(op, at, nan).is_nan(), "{op:?} of a NaN at {at} of {len}");
                    }
                }
                assert_eq!(run(Reduction::Max, at, f32::INFINITY), f32::INFINITY);
                assert_eq!(run(Reduction::Min, at, f32::NEG_INFINITY), f32::NEG_INFINITY);
                assert_eq!(run(Reduction::Sum, at, f32::NEG_INFINITY), f32::NEG_INFINITY);
            }
            let lowest = vec![f32::NEG_INFINITY; len];
            assert_eq!(run_reduce(Reduction::Max, &lowest, &lowest, &caps), f32::NEG_INFINITY);
        }
    }
}

#[test]
fn reductions_of_sixteen_bits() {
    let x: Vec<f16> = (0..1003).map(|i| f16::from_f32((i % 17) as f32)).collect();
    let want: f32 = x.iter().map(|x| x.to_f32()).sum();
    for caps in gpu().caps_variants() {
        let plan = reduce(Reduction::Sum, 1003, Elem::F16, &caps).unwrap();
        let after = gpu().run(&plan, &[bytemuck::cast_slice(&x)], &[4]);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&after.outputs[0]), [want]);
    }
}

/// A function of rows in f64.
fn by_rows(x: &[f32], width: usize, of: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    x.chunks(width).flat_map(of).collect()
}

fn softmax_f64(row: &[f64]) -> Vec<f64> {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
    row.iter().map(|x| (x - top).exp() / sum).collect()
}

fn norm_f64(row: &[f64], centred: bool, gamma: &[f32], beta: &[f32], eps: f32) -> Vec<f64> {
    let width = row.len() as f64;
    let mean = if centred { row.iter().sum::<f64>() / width } else { 0.0 };
    let square = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width;
    let factor = 1.0 / (square + f64::from(eps)).sqrt();
    let (gamma, beta) = (gamma.iter().copied().map(f64::from), beta.iter().copied().map(f64::from));
    row.iter().zip(gamma.zip(beta)).map(|(x, (gamma, beta))| (x - mean) * factor * gamma + beta).collect()
}

/// Every kernel along rows on one matrix.
fn check_rows(rows: usize, width: usize, caps: &Caps, rng: &mut fastrand::Rng) {
    let x = draw(rng, rows * width, -4.0, 6.0);
    let gamma = draw(rng, width, 0.5, 1.5);
    let (zero, beta) = (vec![0.0; width], draw(rng, width, -1.0, 1.0));
    let matrix = Rows { rows: rows as u64, width: width as u64, ..Rows::default() };
    let check = |name: &str, plan: LaunchList, inputs: &[&[f32]], want: Vec<f64>| {
        for binding in plan.launches.iter().flat_map(|step| &step.bindings) {
            assert!(binding.bytes <= caps.max_binding, "{name}: {binding:?}");
        }
        let got = gpu().run_f32(&plan, inputs, want.len());
        let error = nmse(&got, &want);
        assert!(error <= 1e-11, "{name} of {rows} rows of {width}: {error:e}");
        got
    };
    let plan = softmax(&matrix, caps).unwrap();
    let got = check("softmax", plan, &[&x], by_rows(&x, width, softmax_f64));
    let want = by_rows(&x, width, softmax_f64);
    assert!(got.iter().zip(&want).all(|(&got, &want)| close(got, want, 1e-5)), "softmax of {width}");
    let plan = rms_norm(&matrix, 1e-5, Elem::F32, caps).unwrap();
    let want = by_rows(&x, width, |row| norm_f64(row, false, &gamma, &zero, 1e-5));
    check("rms_norm", plan, &[&x, &gamma], want);
    let plan = layer_norm(&matrix, 1e-5, Elem::F32, caps).unwrap();
    let want = by_rows(&x, width, |row| norm_f64(row, true, &gamma, &beta, 1e-5));
    check("layer_norm", plan, &[&x, &gamma, &beta], want);
    for op in [Reduction::Sum, Reduction::Max, Reduction::Min] {
        let plan = row_reduce(op, &matrix, caps).unwrap();
        let want = x.chunks(width).map(|row| reduce_f64(op, row, row).0).collect();
        check(op.name(), plan, &[&x], want);
    }
}

#[test]
fn rows_of_every_width() {
    let mut rng = fastrand::Rng::with_seed(3);
    for caps in gpu().caps_variants() {
        for width in [1usize, 2, 3, 4, 7, 64, 255, 256, 257, 2560, 9728] {
            for rows in [1, 3, 67] {
                check_rows(rows, width, &caps, &mut rng);
            }
        }
        check_rows(2, 151_936, &caps, &mut rng);
        check_rows(1, 151_935, &caps, &mut rng);
    }
}

#[test]
fn rows_split_and_folded() {
    let mut rng = fastrand::Rng::with_seed(4);
    let caps = Caps { max_binding: 64 << 10, max_workgroups: 5, ..gpu().caps };
    check_rows(120, 257, &caps, &mut rng);
    check_rows(100, 1024, &caps, &mut rng);
    check_rows(40_001, 1, &caps, &mut rng);
    check_rows(70_000, 3, &gpu().caps, &mut rng);
    let wide = Rows { rows: 2, width: 16_384, ..Rows::default() };
    assert!(matches!(softmax(&wide, &caps), Err(KernelError::TooLarge { .. })));
}

#[test]
fn softmax_of_special_rows() {
    const INF: f32 = f32::INFINITY;
    for caps in gpu().caps_variants() {
        for width in [3usize, 4, 300, 10_000] {
            let mut x = vec![-INF; width * 4];
            // All -inf; one finite; one NaN; huge.
            x[width] = -7.0;
            x[2 * width + 1] = f32::NAN;
            x[3 * width..].fill(f32::MAX);
            let matrix = Rows { rows: 4, width: width as u64, ..Rows::default() };
            let got = gpu().run_f32(&softmax(&matrix, &caps).unwrap(), &[&x], x.len());
            assert!(got[..width].iter().all(|&y| y == 0.0), "{width}");
            assert!(got[width] == 1.0 && got[width + 1..2 * width].iter().all(|&y| y == 0.0), "{width}");
            assert!(got[2 * width..3 * width].iter().all(|y| y.is_nan()), "{width}");
            assert!(got[3 * width..].iter().all(|&y| close(y, 1.0 / width as f64, 1e-6)), "{width}");
        }
    }
}

#[test]
fn rows_in_place_and_of_sixteen_bits() {
    let mut rng = fastrand::Rng::with_seed(5);
    for caps in gpu().caps_variants() {
        for (rows, width) in [(5usize, 64usize), (3, 2560), (2, 12_000)] {
            let x: Vec<f16> =
                draw(&mut rng, rows * width, -3.0, 3.0).into_iter().map(f16::from_f32).collect();
            let matrix = Rows {
                rows: rows as u64,
                width: width as u64,
                input: Elem::F16,
                output: Elem::F16,
                in_place: true,
            };
            let after = gpu().run(&softmax(&matrix, &caps).unwrap(), &[bytemuck::cast_slice(&x)], &[]);
            let x: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
            let want = by_rows(&x, width, softmax_f64);
            let got: Vec<f16> = bytemuck::pod_collect_to_vec(&after.inputs[0][..rows * width * 2]);
            let got: Vec<f32> = got.iter().map(|y| y.to_f32()).collect();
            assert!(nmse(&got, &want) < 1e-5, "{width}: {}", nmse(&got, &want));
        }
        let odd = Rows { rows: 2, width: 5, output: Elem::F16, ..Rows::default() };
        let refused = matches!(softmax(&odd, &caps), Err(KernelError::Invalid { .. }));
        assert_eq!(refused, !caps.f16);
    }
}

#[test]
fn rows_that_are_not_there() {
    let caps = &gpu().caps;
    for (rows, width) in [(0, 5), (5, 0), (0, 0)] {
        let matrix = Rows { rows, width, ..Rows::default() };
        assert_eq!(softmax(&matrix, caps).unwrap(), LaunchList::default());
        assert_eq!(layer_norm(&matrix, 1e-5, Elem::F32, caps).unwrap(), LaunchList::default());
    }
    let matrix = Rows { rows: 5, width: 0, ..Rows::default() };
    let plan = row_reduce(Reduction::Max, &matrix, caps).unwrap();
    assert_eq!(gpu().run_f32(&plan, &[], 5), [f32::NEG_INFINITY; 5]);
    let huge = Rows { rows: u64::MAX, width: 2, ..Rows::default() };
    assert!(matches!(softmax(&huge, caps), Err(KernelError::TooMany { .. })));
}

#[test]
fn transposes() {
    let small = Caps { max_binding: 64 << 10, max_workgroups: 3, ..gpu().caps };
    for caps in [gpu().caps, small] {
        for (rows, columns) in
            [(1usize, 1), (1, 77), (77, 1), (32, 32), (33, 65), (64, 300), (129, 517), (300, 301)]
        {
            let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let plan = transpose(rows as u64, columns as u64, Elem::F32, &caps).unwrap();
            assert!(
                plan.launches.iter().flat_map(|step| &step.bindings).all(|b| b.bytes <= caps.max_binding)
            );
            let got = gpu().run_f32(&plan, &[&x], x.len());
            for i in 0..rows {
                for j in 0..columns {
                    assert!(got[j * rows + i] == x[i * columns + j], "{rows} by {columns}: {i}, {j}");
                }
            }
        }
    }
    assert_eq!(transpose(0, 5, Elem::F32, &small).unwrap(), LaunchList::default());
    assert!(transpose(u64::MAX, 5, Elem::F32, &small).is_err());
}
