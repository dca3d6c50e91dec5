//! Every row of the element-wise table against its f64 reference.

mod common_rows;

use common_rows::{close, draw, gpu, nmse};
use fulmen_wgpu::{
    kernel::{Caps, StorageBinding},
    kernels::elementwise::{ElementwiseOp, ElementwiseProgram, epilogue_source, fused},
};

/// The scalars with which ops are tried.
fn scalars(op: ElementwiseOp) -> Vec<f32> {
    [-1.5, 2.25][..op.scalars()].to_vec()
}

fn reference(op: ElementwiseOp, args: &[&[f32]], scalars: &[f32]) -> Vec<f64> {
    (0..args[0].len())
        .map(|i| {
            let values: Vec<f64> =
                args.iter().map(|arg| arg[i]).chain(scalars.iter().copied()).map(f64::from).collect();
            op.reference(&values)
        })
        .collect()
}

#[test]
fn every_op_at_every_length() {
    let mut rng = fastrand::Rng::with_seed(1);
    for &op in ElementwiseOp::ALL {
        let (low, high) = op.domain();
        let scalars = scalars(op);
        for len in [0usize, 1, 2, 3, 255, 256, 257, 1000] {
            let args: Vec<Vec<f32>> = (0..op.arity()).map(|_| draw(&mut rng, len, low, high)).collect();
            let args: Vec<&[f32]> = args.iter().map(Vec::as_slice).collect();
            let want = if len == 0 { vec![] } else { reference(op, &args, &scalars) };
            let plan = fused(&ElementwiseProgram::of(op), len as u64, &scalars, &gpu().caps).unwrap();
            assert_eq!(plan.launches.is_empty(), len == 0);
            let got = gpu().run_f32(&plan, &args, len);
            let error = nmse(&got, &want);
            assert!(error <= 1e-12, "{} of {len}: {error:e}", op.name());
        }
    }
}

#[test]
fn every_op_keeps_its_tolerance() {
    let mut rng = fastrand::Rng::with_seed(2);
    for &op in ElementwiseOp::ALL {
        let (low, high) = op.domain();
        let scalars = scalars(op);
        let special = op.special_values();
        let drawn = draw(&mut rng, 200_000, low, high);
        // Near 0 too, at every scale.
        let scaled = drawn.iter().take(40_000).map(|x| x * 2f32.powi(-rng.i32(0..60)));
        let mut first: Vec<f32> = drawn.iter().copied().chain(scaled).collect();
        let mut second = first.clone();
        rng.shuffle(&mut second);
        for &a in special {
            for &b in special {
                first.push(a);
                second.push(b);
            }
        }
        let args = &[&first[..], &second[..]][..op.arity()];
        let want = reference(op, args, &scalars);
        let plan = fused(&ElementwiseProgram::of(op), first.len() as u64, &scalars, &gpu().caps).unwrap();
        let got = gpu().run_f32(&plan, args, first.len());
        let (mut worst, mut at) = (0.0f64, 0);
        for i in 0..first.len() {
            let values: Vec<f32> = args.iter().map(|arg| arg[i]).collect();
            let subnormal = values.iter().any(|v| v.is_subnormal());
            // WGSL says nothing of the precision of a division by more than 2^126: its reciprocal may
            // become 0.
            let vague = op == ElementwiseOp::Div && values[1].is_finite() && values[1].abs() > 2f32.powi(126);
            // Devices may take subnormal arguments for 0.
            assert!(
                subnormal || vague || close(got[i], want[i], op.tolerance()),
                "{}{values:?} = {} instead of {}",
                op.name(),
                got[i],
                want[i]
            );
            if want[i].is_normal() && want[i].abs() > 3e-38 && want[i].abs() < 3e38 {
                let error = (f64::from(got[i]) / want[i] - 1.0).abs();
                if error > worst && !subnormal {
                    (worst, at) = (error, i);
                }
            }
        }
        let error = nmse(&got[..240_000], &want[..240_000]);
        println!("{:>10}: relative {worst:.2e} at {:e}, nmse {error:.1e}", op.name(), first[at]);
    }
}

#[test]
fn past_the_limit_of_workgroups() {
    let len = 65_535 * 256 + 1;
    let a: Vec<f32> = (0..len).map(|i| (i % 1013) as f32).collect();
    let b: Vec<f32> = (0..len).map(|i| (i % 977) as f32).collect();
    // A smaller limit makes the grid fold in all three dimensions.
    for max_workgroups in [65_535, 26] {
        let caps = Caps { max_workgroups, ..gpu().caps };
        let plan = fused(&ElementwiseProgram::of(ElementwiseOp::Add), len as u64, &[], &caps).unwrap();
        assert!(plan.launches[0].launch.workgroups.iter().all(|&n| n <= max_workgroups));
        let got = gpu().run_f32(&plan, &[&a, &b], len);
        for i in 0..len {
            assert!(got[i] == a[i] + b[i], "{i}: {} {}", a[i], b[i]);
        }
    }
}

#[test]
fn names_are_methods() {
    for &op in ElementwiseOp::ALL {
        assert_eq!(ElementwiseOp::by_name(op.name()), Some(op));
    }
    assert_eq!(ElementwiseOp::by_name("silu"), Some(ElementwiseOp::Swish));
    assert_eq!(ElementwiseOp::by_name("nothing"), None);
}

#[test]
fn epilogues_of_every_op_give_what_the_kernels_give() {
    let mut rng = fastrand::Rng::with_seed(6);
    let len = 500;
    for &op in ElementwiseOp::ALL {
        let (low, high) = op.domain();
        let mut args: Vec<Vec<f32>> = (0..op.arity()).map(|_| draw(&mut rng, len, low, high)).collect();
        args.iter_mut().for_each(|arg| arg[..op.special_values().len()].copy_from_slice(op.special_values()));
        let args: Vec<&[f32]> = args.iter().map(Vec::as_slice).collect();
        let scalars = scalars(op);
        let program = ElementwiseProgram::of(op);
        let text = epilogue_source(&program, &[0], 1).unwrap();
        // A kernel that ends with it, of one element for each workgroup.
        let e0 = if op.arity() == 2 { "let e0 = in1[i];" } else { "" };
        let members: String = (0..text.scalars).map(|j| format!("s{j}: f32, ")).collect();
        let wgsl = format!(
            "struct Params {{ n: u32, {members} }}
            {}
            @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {{
                let i = id.x;
                let v = in0[i];
                {e0}
                if (i < params.n) {{ out[i] = {}; }}
            }}",
            text.functions, text.expr
        );
        let mut plan = fused(&program, len as u64, &scalars, &gpu().caps).unwrap();
        let want = gpu().run_f32(&plan, &args, len);
        let launch = &mut plan.launches[0].launch;
        launch.kernel.wgsl = wgsl;
        let inputs = ["in0", "in1"].into_iter().take(op.arity());
        launch.kernel.bindings = inputs.map(|name| StorageBinding::read(name, "f32")).collect();
        launch.kernel.bindings.push(StorageBinding::read_write("out", "f32"));
        launch.kernel.param_words = 1 + op.scalars() as u32;
        launch.params = [len as u32].into_iter().chain(scalars.iter().map(|s| s.to_bits())).collect();
        launch.workgroups = [len as u32, 1, 1];
        let got = gpu().run_f32(&plan, &args, len);
        for i in 0..len {
            let same = got[i] == want[i] || close(got[i], want[i].into(), op.tolerance());
            assert!(same, "{} of {}: {} {}", op.name(), args[0][i], got[i], want[i]);
        }
    }
}
