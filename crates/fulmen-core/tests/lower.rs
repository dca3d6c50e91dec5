//! Lowering of logical graphs and of nodes to typed calls, and the checks that both share.

use std::collections::HashSet;

use fulmen_core::*;

fn bind(builder: GraphBuilder, weights: &[(&str, u64)]) -> Result<Program, ExecError> {
    let mut bindings = Bindings::new();
    weights.iter().for_each(|(name, ptr)| bindings.set(name, *ptr));
    let options = PlanOptions { fusions: Fusions::none(), ..PlanOptions::default() };
    Ok(builder.finish().plan(&options)?.bind_at(0x10_0000, &bindings)?.program().clone())
}

#[test]
fn a_weight_bound_to_address_0_is_an_error_that_names_the_op() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", 3, 8).unwrap();
    let w = b.weight("w", DType::F32, 5, 8).unwrap();
    let h = b.silu(x).unwrap();
    let y = b.mul_mat(h, w).unwrap();
    b.output("y", y).unwrap();
    let error = bind(b, &[("w", 0)]).unwrap_err();
    assert!(matches!(error, ExecError::Graph(_)), "{error:?}");
    assert_eq!(error.to_string(), "node 1 (MulMat \"y\"): the weight is a null pointer");
}

#[test]
fn a_projection_without_rows_is_left_out() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", 3, 8).unwrap();
    let [none, some] = [("none", 0), ("some", 5)].map(|(name, n)| b.weight(name, DType::F32, n, 8).unwrap());
    let outputs = b.linear_many(x, &[(none, None), (some, None)]).unwrap();
    let empty = b.mul_mat(x, none).unwrap();
    for (name, tensor) in ["a", "b", "c"].into_iter().zip(outputs.into_iter().chain([empty])) {
        b.output(name, tensor).unwrap();
    }
    let program = bind(b, &[("none", 0x1000), ("some", 0x2000)]).unwrap();
    let [ProgramCall { call: OpCall::MulMat(call), .. }] = program.calls() else { panic!("{program:?}") };
    assert_eq!(call.parts.len(), 1);
    assert_eq!(call.parts[0].weight, WeightArg { ptr: 0x2000, dtype: DType::F32, rows: 5 });
}

#[test]
fn nodes_with_several_weights_have_rows_in_each() {
    let extra = ExtraWeight {
        weight_ptr: 0x3000,
        weight_qtype: DType::F32,
        rows: 5,
        bias_ptr: 0,
        output_ptr: 0x4000,
    };
    for (n, rows) in [(0, 5), (5, 0)] {
        let mut graph = ComputeGraph::new();
        let x = graph.add_leaf(0x1000, [8, 1, 3, 0]);
        let params = OpParams {
            weight_ptr: 0x2000,
            weight_qtype: Some(DType::F32),
            extra_weights: vec![ExtraWeight { rows, ..extra }],
            ..OpParams::default()
        };
        graph.add_op(TensorOp::MulMat, 0x5000, [n, 8, 3, 0], vec![x], params);
        let error = graph.check().unwrap_err().to_string();
        let message = "node 1 (MulMat): the rows of one of several weights must be at least 1, got 0";
        assert_eq!(error, message);
    }
}

#[test]
fn a_row_of_heads_is_not_wider_than_32_bits() {
    let rope = RopeSpec::new(RopePairing::NeoX, 1 << 16, 1e4);
    let call = RopeCall {
        input: 1,
        positions: 2,
        factors: None,
        output: 3,
        m: 1,
        n_heads: 1 << 16,
        head_dim: 1 << 16,
        rope,
    };
    let problem = OpCall::Rope(call.clone()).check().unwrap_err();
    assert_eq!(problem.to_string(), "n_heads · head_dim in 32 bits must be 4294967295, got 4294967296");
    assert_eq!(OpCall::Rope(RopeCall { n_heads: 3, ..call }).check(), Ok(()));
}

#[test]
fn calls_made_by_hand_are_checked() {
    let unary = UnaryCall { input: 0x1000, output: 0x2000, n_elements: 5, scalar: 1.0 };
    assert_eq!(OpCall::Silu(unary.clone()).check(), Ok(()));
    let null = UnaryCall { output: 0, ..unary.clone() };
    assert_eq!(OpCall::Silu(null.clone()).check(), Err(Problem::Null { what: "the output" }));
    let empty = OpCall::Silu(UnaryCall { n_elements: 0, ..null });
    assert!(empty.is_empty() && empty.check().is_ok());
    assert!(OpCall::SoftCap(UnaryCall { scalar: -1.0, ..unary.clone() }).check().is_err());
    assert!(OpCall::Scale(UnaryCall { scalar: -1.0, ..unary.clone() }).check().is_ok());
    assert!(OpCall::Scale(UnaryCall { scalar: f32::NAN, ..unary.clone() }).check().is_err());

    let none =
        MulMatCall { input: 0x1000, parts: Vec::new(), residual: None, m: 1, k: 4, batch_invariant: false };
    assert_eq!(OpCall::MulMat(none.clone()).check(), Err(Problem::Missing { what: "the weight" }));
    let weight = WeightArg { ptr: 0x3000, dtype: DType::F32, rows: 2 };
    let part = Projection { weight, bias: None, output: 0x4000 };
    let two = MulMatCall { parts: vec![part; 2], residual: Some(0x5000), ..none };
    assert!(OpCall::MulMat(two).check().is_err(), "a residual with two weights");
    assert_eq!(OpCall::Silu(unary.clone()).as_type::<UnaryCall>(), Some(&unary));
    assert_eq!(OpCall::Silu(unary).as_type::<BinaryCall>(), None);
}

#[test]
fn the_table_names_every_op_once() {
    let names: HashSet<&str> = TensorOp::ALL.iter().map(|op| op.name()).collect();
    let ops: HashSet<TensorOp> = TensorOp::ALL.into_iter().collect();
    assert_eq!((names.len(), ops.len()), (TensorOp::ALL.len(), TensorOp::ALL.len()));
    for op in TensorOp::ALL {
        let counts: Vec<usize> = (0..9).filter(|&inputs| op.takes(inputs)).collect();
        assert!(!counts.is_empty(), "{op}");
        // The words of an error say the numbers that are taken.
        let words = op.inputs().replace("no", "0");
        let stated = counts.iter().all(|count| words.contains(&count.to_string()));
        assert!(stated, "{op} takes {counts:?} inputs, not {words}");
    }
}
