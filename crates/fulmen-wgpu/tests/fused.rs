//! Kernels generated from trees of element-wise ops: against f64, with every layout of inputs and outputs.

mod common_rows;

use common_rows::{draw, gpu};
use fulmen_wgpu::{
    kernel::Caps,
    kernels::{
        Elem, KernelError, copy,
        elementwise::{
            Broadcast, ElementwiseOp, ElementwiseProgram, EpilogueLayout, Input, Node, Output,
            epilogue_source, fused,
        },
        fill,
    },
};
use half::f16;

/// A program over `inputs` whose nodes are drawn; four scalars.
fn random_program(rng: &mut fastrand::Rng, inputs: Vec<Input>, ops: usize) -> ElementwiseProgram {
    let mut nodes: Vec<Node> = (0..inputs.len()).map(Node::Input).chain((0..4).map(Node::Scalar)).collect();
    for _ in 0..ops {
        let op = ElementwiseOp::ALL[rng.usize(..ElementwiseOp::ALL.len())];
        // Later nodes are likelier, so that trees grow deep.
        let n = nodes.len();
        let args =
            (0..op.arity() + op.scalars()).map(|_| n - 1 - rng.usize(..n).min(rng.usize(..n))).collect();
        nodes.push(Node::Op(op, args));
    }
    let last = nodes.len() - 1;
    let mut outputs = vec![Output { node: last, ..Output::default() }];
    if rng.bool() {
        outputs.push(Output { node: last - ops / 2, ..Output::default() });
    }
    ElementwiseProgram { inputs, scalars: 4, nodes, outputs }
}

/// The outputs in f64 for one element, where each node is off by up to `noise`, and whether all values
/// are tame.
fn noisy(
    p: &ElementwiseProgram,
    inputs: &[f64],
    scalars: &[f64],
    noise: f64,
    rng: &mut fastrand::Rng,
) -> (Vec<f64>, bool) {
    let mut values: Vec<f64> = Vec::new();
    let mut tame = true;
    for node in &p.nodes {
        values.push(match node {
            Node::Input(i) => inputs[*i],
            Node::Scalar(j) => scalars[*j],
            Node::Op(op, args) => {
                let args: Vec<f64> = args.iter().map(|&arg| values[arg]).collect();
                let value = op.reference(&args) * (1.0 + noise * (rng.f64() * 2.0 - 1.0));
                tame &= value == 0.0 || value.is_finite() && (1e-18..1e18).contains(&value.abs());
                value
            }
        });
    }
    (p.outputs.iter().map(|output| values[output.node]).collect(), tame)
}

#[test]
fn random_trees_match_f64() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut compared = 0;
    for round in 0..60 {
        let n = rng.u64(1..40);
        let len = 1 + rng.usize(..700);
        let broadcasts = [Broadcast::Full, Broadcast::Row { n }, Broadcast::Column { n }, Broadcast::Scalar];
        let inputs: Vec<Input> = (0..4)
            .map(|i| {
                let broadcast = if i == 0 { Broadcast::Full } else { broadcasts[rng.usize(..4)] };
                Input { elem: Elem::F32, broadcast }
            })
            .collect();
        let ops = 1 + rng.usize(..20);
        let program = random_program(&mut rng, inputs, ops);
        let scalars: Vec<f32> = draw(&mut rng, 4, -2.0, 2.0);
        let data: Vec<Vec<f32>> = program
            .inputs
            .iter()
            .map(|input| draw(&mut rng, input.broadcast.elements(len as u64) as usize, -3.0, 3.0))
            .collect();
        let bytes: Vec<&[u8]> = data.iter().map(|d| bytemuck::cast_slice(d)).collect();
        let plan = fused(&program, len as u64, &scalars, &gpu().caps).unwrap();
        let after = gpu().run(&plan, &bytes, &vec![len * 4; program.outputs.len()]);
        let got: Vec<Vec<f32>> = after.outputs.iter().map(|o| bytemuck::pod_collect_to_vec(o)).collect();
        let scalars: Vec<f64> = scalars.iter().map(|&s| f64::from(s)).collect();
        let element = |o: usize, i: usize| f64::from(got[o][i]);
        for i in 0..len {
            let values: Vec<f64> = (0..4)
                .map(|k| {
                    let at = match program.inputs[k].broadcast {
                        Broadcast::Full => i,
                        Broadcast::Scalar => 0,
                        Broadcast::Row { n } => i % n as usize,
                        Broadcast::Column { n } => i / n as usize,
                    };
                    f64::from(data[k][at])
                })
                .collect();
            let (want, tame) = noisy(&program, &values, &scalars, 0.0, &mut rng);
            if !tame {
                continue;
            }
            let tries: Vec<Vec<f64>> =
                (0..4).map(|_| noisy(&program, &values, &scalars, 1e-6, &mut rng).0).collect();
            for o in 0..want.len() {
                // What noise of that size does says how well conditioned the tree is here.
                let spread = tries.iter().map(|t| (t[o] - want[o]).abs()).fold(0.0, f64::max);
                if spread > 1e-2 * want[o].abs() {
                    continue;
                }
                compared += 1;
                assert!(
                    (element(o, i) - want[o]).abs() <= 1e-6 * want[o].abs() + 10.0 * spread + 1e-30,
                    "round {round}, element {i} of {len}: {} instead of {}, spread {spread:e}\n{program:?}",
                    element(o, i),
                    want[o]
                );
            }
        }
    }
    println!("{compared} results compared");
    assert!(compared > 5_000);
}

fn input(broadcast: Broadcast) -> Input {
    Input { elem: Elem::F32, broadcast }
}

/// `in0 + in1` where in1 is laid as said.
fn add_with(broadcast: Broadcast) -> ElementwiseProgram {
    let inputs = vec![input(Broadcast::Full), input(broadcast)];
    ElementwiseProgram { inputs, ..ElementwiseProgram::of(ElementwiseOp::Add) }
}

#[test]
fn broadcasts_split_and_folded() {
    // 64 KiB bindings hold 16,384 elements; the lengths are no multiples of them.
    let small = Caps { max_binding: 64 << 10, max_workgroups: 7, ..gpu().caps };
    for n in [1u64, 2, 3, 4, 5, 8, 63, 64, 1000, 4096, 50_000, 100_003] {
        for rows in [1u64, 3, 17] {
            let len = n * rows + 1;
            let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
            for broadcast in [Broadcast::Row { n }, Broadcast::Column { n }, Broadcast::Scalar] {
                let b: Vec<f32> = (0..broadcast.elements(len)).map(|i| (i * 7 % 1001) as f32 * 1e7).collect();
                for caps in [gpu().caps, small] {
                    let plan = match fused(&add_with(broadcast), len, &[], &caps) {
                        Err(KernelError::TooLarge { .. }) if n * 4 > caps.max_binding => continue,
                        plan => plan.unwrap(),
                    };
                    assert!(caps == gpu().caps || plan.launches.len() as u64 >= len * 4 / caps.max_binding);
                    for binding in plan.launches.iter().flat_map(|step| &step.bindings) {
                        assert!(binding.bytes <= caps.max_binding, "{binding:?}");
                        assert_eq!(binding.offset % u64::from(caps.binding_alignment), 0);
                    }
                    let got = gpu().run_f32(&plan, &[&a, &b], len as usize);
                    for i in 0..len as usize {
                        let at = match broadcast {
                            Broadcast::Row { n } => i % n as usize,
                            Broadcast::Column { n } => i / n as usize,
                            _ => 0,
                        };
                        assert!(got[i] == a[i] + b[at], "{broadcast:?} of {len}: {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn in_place_and_several_outputs() {
    // out0 = a + b replaces a; out1 = (a + b) * b.
    let mut program = ElementwiseProgram::of(ElementwiseOp::Add);
    program.outputs[0].replaces = Some(0);
    program.nodes.push(Node::Op(ElementwiseOp::Mul, vec![2, 1]));
    program.outputs.push(Output { node: 3, ..Output::default() });
    for len in [1usize, 6, 257, 40_003] {
        let a: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..len).map(|i| 3.0 - i as f32).collect();
        for max_binding in [gpu().caps.max_binding, 64 << 10] {
            let plan = fused(&program, len as u64, &[], &Caps { max_binding, ..gpu().caps }).unwrap();
            let inputs: [&[u8]; 2] = [bytemuck::cast_slice(&a), bytemuck::cast_slice(&b)];
            let after = gpu().run(&plan, &inputs, &[0, len * 4]);
            let sum: Vec<f32> = bytemuck::pod_collect_to_vec(&after.inputs[0]);
            let product: Vec<f32> = bytemuck::pod_collect_to_vec(&after.outputs[1]);
            for i in 0..len {
                assert!(sum[i] == 3.0 && product[i] == 3.0 * b[i], "{i} of {len}");
            }
            assert!(after.inputs[0][len * 4..].iter().all(|&byte| byte == 0xff), "padding of {len}");
        }
    }
}

#[test]
fn sixteen_bit_storage() {
    let mut rng = fastrand::Rng::with_seed(4);
    for caps in gpu().caps_variants() {
        for len in [1usize, 2, 3, 4, 5, 257, 1000] {
            for n in [1u64, 3, 4, 7, 64] {
                for broadcast in
                    [Broadcast::Full, Broadcast::Row { n }, Broadcast::Column { n }, Broadcast::Scalar]
                {
                    let half = Elem::F16;
                    let inputs = vec![
                        Input { elem: half, broadcast: Broadcast::Full },
                        Input { elem: half, broadcast },
                    ];
                    let mut program =
                        ElementwiseProgram { inputs, ..ElementwiseProgram::of(ElementwiseOp::Add) };
                    program.outputs[0].elem = half;
                    let b_len = broadcast.elements(len as u64).max(1) as usize;
                    let a: Vec<f16> = draw(&mut rng, len, -4.0, 4.0).into_iter().map(f16::from_f32).collect();
                    let b: Vec<f16> =
                        draw(&mut rng, b_len, -4.0, 4.0).into_iter().map(f16::from_f32).collect();
                    let plan = fused(&program, len as u64, &[], &caps).unwrap();
                    let inputs: [&[u8]; 2] = [bytemuck::cast_slice(&a), bytemuck::cast_slice(&b)];
                    let after = gpu().run(&plan, &inputs, &[len * 2]);
                    let got: Vec<f16> = bytemuck::pod_collect_to_vec(&after.outputs[0]);
                    for i in 0..len {
                        let at = match broadcast {
                            Broadcast::Full => i,
                            Broadcast::Row { n } => i % n as usize,
                            Broadcast::Column { n } => i / n as usize,
                            Broadcast::Scalar => 0,
                        };
                        let want = a[i].to_f64() + b[at].to_f64();
                        let error = (got[i].to_f64() - want).abs();
                        assert!(
                            error <= 1e-3 * want.abs() + 1e-7,
                            "{i} of {len}, {broadcast:?}: {} {want}",
                            got[i]
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn copies_convert_and_fills_fill() {
    for caps in gpu().caps_variants() {
        let data: Vec<f32> = (0..1003).map(|i| i as f32).collect();
        let after = gpu().run(
            &copy::copy(1003, Elem::F32, Elem::F16, &caps).unwrap(),
            &[bytemuck::cast_slice(&data)],
            &[1003 * 2],
        );
        let f16_values: Vec<f16> = bytemuck::pod_collect_to_vec(&after.outputs[0]);
        assert!(f16_values.iter().zip(&data).all(|(value, &want)| value.to_f32() == want));
        let back = gpu().run(
            &copy::copy(1003, Elem::F16, Elem::F32, &caps).unwrap(),
            &[bytemuck::cast_slice(&f16_values)],
            &[1003 * 4],
        );
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&back.outputs[0]), data);
    }
    let plan = fill::fill(1003, -0.5, Elem::F32, &gpu().caps).unwrap();
    assert_eq!(gpu().run_f32(&plan, &[], 1003), vec![-0.5; 1003]);
    assert!(fill::fill(0, 1.0, Elem::F32, &gpu().caps).unwrap().launches.is_empty());
}

#[test]
fn text_depends_on_the_program_alone() {
    let caps = gpu().caps;
    let text = |program: &ElementwiseProgram, len, scalars: &[f32]| {
        fused(program, len, scalars, &caps).unwrap().launches[0].launch.kernel.clone()
    };
    let scale = ElementwiseProgram::of(ElementwiseOp::Scale);
    assert_eq!(text(&scale, 5, &[1.0]), text(&scale, 1000, &[2.0]));
    // A node that no output needs, and one twice.
    let mut program = ElementwiseProgram::of(ElementwiseOp::Tanh);
    program.nodes.push(Node::Op(ElementwiseOp::Tanh, vec![0]));
    program.nodes.push(Node::Op(ElementwiseOp::Exp, vec![0]));
    program.nodes.push(Node::Op(ElementwiseOp::Add, vec![1, 2]));
    program.outputs[0].node = 4;
    let wgsl = text(&program, 5, &[]).wgsl;
    assert_eq!(wgsl.matches("= ew_op_tanh(").count(), 1, "{wgsl}");
    assert!(!wgsl.contains("ew_op_exp"), "{wgsl}");
}

#[test]
fn what_cannot_be_is_refused() {
    let caps = gpu().caps;
    let add = ElementwiseProgram::of(ElementwiseOp::Add);
    let few = Caps { max_storage_buffers: 2, ..caps };
    assert_eq!(
        fused(&add, 5, &[], &few).unwrap_err().to_string(),
        "add binds 3 storage buffers, the device allows 2: cut it into smaller parts"
    );
    let mut in_place = add.clone();
    in_place.outputs[0].replaces = Some(1);
    assert!(fused(&in_place, 5, &[], &few).is_ok());
    let invalid = |program: &ElementwiseProgram, scalars: &[f32]| {
        matches!(fused(program, 5, scalars, &caps), Err(KernelError::Invalid { .. }))
    };
    assert!(invalid(&add, &[1.0]));
    assert!(invalid(&ElementwiseProgram::default(), &[]));
    let with = |change: fn(&mut ElementwiseProgram)| {
        let mut program = ElementwiseProgram::of(ElementwiseOp::Add);
        change(&mut program);
        program
    };
    assert!(invalid(&with(|p| p.nodes[2] = Node::Op(ElementwiseOp::Add, vec![0])), &[]));
    assert!(invalid(&with(|p| p.nodes[2] = Node::Op(ElementwiseOp::Add, vec![0, 2])), &[]));
    assert!(invalid(&with(|p| p.nodes[0] = Node::Input(2)), &[]));
    assert!(invalid(&with(|p| p.nodes[0] = Node::Scalar(0)), &[]));
    assert!(invalid(&with(|p| p.outputs[0].node = 3), &[]));
    assert!(invalid(&with(|p| p.outputs[0].replaces = Some(2)), &[]));
    assert!(invalid(&with(|p| p.inputs[1].broadcast = Broadcast::Row { n: 0 }), &[]));
    assert!(matches!(fused(&add, u64::MAX, &[], &caps), Err(KernelError::TooMany { .. })));
}

#[test]
fn epilogues_are_text_over_v() {
    // gelu(v + bias) * s + residual.
    let program = ElementwiseProgram {
        inputs: vec![
            input(Broadcast::Row { n: 64 }),
            input(Broadcast::Full),
            input(Broadcast::Full),
            input(Broadcast::Column { n: 64 }),
        ],
        scalars: 1,
        nodes: vec![
            Node::Input(0),
            Node::Input(1),
            Node::Input(2),
            Node::Scalar(0),
            Node::Op(ElementwiseOp::Add, vec![1, 0]),
            Node::Op(ElementwiseOp::Gelu, vec![4]),
            Node::Op(ElementwiseOp::Scale, vec![5, 3]),
            Node::Op(ElementwiseOp::Add, vec![6, 2]),
        ],
        outputs: vec![Output { node: 7, ..Output::default() }],
    };
    let text = epilogue_source(&program, &[1], 64).unwrap();
    assert_eq!(text.expr, "ew_program(e0, v, e1, params.s0)");
    assert_eq!(text.inputs, [(0, EpilogueLayout::PerColumn), (2, EpilogueLayout::PerElement)]);
    assert_eq!(text.scalars, 1);
    assert_eq!(epilogue_source(&program, &[1, 2], 64).unwrap().expr, "ew_program(e0, v0, v1, params.s0)");
    assert!(epilogue_source(&program, &[1], 65).is_err());
    assert!(epilogue_source(&program, &[4], 64).is_err());
}
