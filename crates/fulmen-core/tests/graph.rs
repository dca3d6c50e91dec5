//! Checking and running compute graphs, with a dispatcher that only counts.

use fulmen_core::*;

/// Counts calls; matmuls launch two kernels, as in a backend that quantizes the activations first.
#[derive(Default)]
struct Counting {
    calls: Vec<TensorOp>,
    fail_at: Option<usize>,
}

impl Counting {
    fn count(&mut self, op: TensorOp, launches: usize) -> Result<usize, BackendError> {
        if self.fail_at == Some(self.calls.len()) {
            return Err(BackendError::OutOfMemory { needed: 10, available: Some(3) });
        }
        self.calls.push(op);
        Ok(launches)
    }
}

impl KernelDispatch for Counting {
    fn backend(&self) -> &'static str {
        "counting"
    }
    fn dispatch_mul_mat(&mut self, call: &MulMatCall) -> Result<usize, BackendError> {
        assert_eq!((call.m, call.k), (4, 1536));
        self.count(TensorOp::MulMat, 2)
    }
    fn dispatch_rms_norm(&mut self, call: &RmsNormCall) -> Result<usize, BackendError> {
        assert_eq!((call.rows, call.width, call.epsilon), (4, 1536, 1e-6));
        self.count(TensorOp::RmsNorm, 1)
    }
    fn dispatch_add(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        assert_eq!((call.a, call.b, call.output, call.n_elements), (0x1000, 0xA000, 0xB000, 4 * 1536));
        self.count(TensorOp::Add, 1)
    }
    fn dispatch_rope(&mut self, call: &RopeCall) -> Result<usize, BackendError> {
        assert_eq!((call.positions, call.m), (0xE000, 4));
        self.count(TensorOp::Rope, 1)
    }
    fn dispatch_attention(&mut self, call: &AttentionCall) -> Result<usize, BackendError> {
        assert_eq!(call.kv, KvSource::Rows { k: 0x6000, v: 0x8000 });
        self.count(TensorOp::Attention, 1)
    }
    fn dispatch_copy(&mut self, call: &CopyCall) -> Result<usize, BackendError> {
        assert_eq!(call.bytes, 4 * 1536 * 4);
        self.count(TensorOp::Copy, 1)
    }
    fn dispatch_mul(&mut self, _: &BinaryCall) -> Result<usize, BackendError> {
        self.count(TensorOp::Mul, 1)
    }
    fn dispatch_silu(&mut self, _: &UnaryCall) -> Result<usize, BackendError> {
        self.count(TensorOp::Silu, 1)
    }
}

const ROW: [u32; 4] = [1536, 1, 4, 0];
const HEADS: Heads = Heads { n_heads: 12, n_kv_heads: 2, head_dim: 128 };

fn weight(ptr: u64) -> OpParams {
    OpParams { weight_ptr: ptr, weight_qtype: Some(DType::Q4_K), ..OpParams::default() }
}

/// RMS norm, Q, K, V, attention, residual add.
fn layer() -> ComputeGraph {
    let mut g = ComputeGraph::new();
    let input = g.add_leaf(0x1000, ROW);
    let norm = OpParams { gamma_ptr: 0x3000, scalar: 1e-6, ..OpParams::default() };
    let normed = g.add_op(TensorOp::RmsNorm, 0x2000, ROW, vec![input], norm);
    let q = g.add_op(TensorOp::MulMat, 0x4000, [1536, 1536, 4, 0], vec![normed], weight(0x5000));
    let k = g.add_op(TensorOp::MulMat, 0x6000, [256, 1536, 4, 0], vec![normed], weight(0x7000));
    let v = g.add_op(TensorOp::MulMat, 0x8000, [256, 1536, 4, 0], vec![normed], weight(0x9000));
    let attention = OpParams { heads: HEADS, scalar: 0.088, ..OpParams::default() };
    let attended = g.add_op(TensorOp::SoftMax, 0xA000, ROW, vec![q, k, v], attention);
    g.add_op(TensorOp::Add, 0xB000, ROW, vec![input, attended], OpParams::default());
    g
}

#[test]
fn an_empty_graph_launches_nothing() {
    assert_eq!(execute_graph(&ComputeGraph::new(), &mut Counting::default()).unwrap(), 0);
}

#[test]
fn a_layer_calls_each_op_once_and_counts_what_was_launched() {
    use fulmen_core::TensorOp::{Add, Attention, MulMat, RmsNorm};
    let (graph, mut dispatcher) = (layer(), Counting::default());
    assert_eq!(graph.n_ops(), 6);
    assert_eq!(execute_graph(&graph, &mut dispatcher).unwrap(), 9);
    assert_eq!(dispatcher.calls, [RmsNorm, MulMat, MulMat, MulMat, Attention, Add]);
    let timed = execute_graph_timed(&graph, &mut dispatcher).unwrap();
    assert_eq!(timed.n_launches, 9);
}

#[test]
fn a_run_stops_before_a_call_when_asked_to() {
    use fulmen_core::TensorOp::{MulMat, RmsNorm};
    let (program, mut dispatcher) = (layer().check().unwrap(), Counting::default());
    let mut left = 2;
    let mut go_on = || {
        left -= 1;
        left >= 0
    };
    assert_eq!(program.run_while(&mut dispatcher, &mut go_on).unwrap(), None);
    assert_eq!(dispatcher.calls, [RmsNorm, MulMat]);
    assert_eq!(program.run_while(&mut dispatcher, || true).unwrap(), Some(9));
}

#[test]
fn an_observer_gets_the_calls_that_ran_and_their_launches() {
    let (program, mut dispatcher) = (layer().check().unwrap(), Counting::default());
    let mut noted = Vec::new();
    let note = |device: &mut Counting, ran: std::ops::Range<usize>, launched| {
        assert_eq!(device.calls.len(), noted.len());
        noted.push((ran, launched));
        Ok(true)
    };
    assert_eq!(program.run_observed(&mut dispatcher, note).unwrap(), Some(9));
    assert_eq!(noted, [(0..0, 0), (0..1, 1), (1..2, 2), (2..3, 2), (3..4, 2), (4..5, 1), (5..6, 1)]);
    // An error of the one who notes names the node that ran before it.
    let full = |_: &mut Counting, ran: std::ops::Range<usize>, _| match ran.end {
        2 => Err(BackendError::OutOfMemory { needed: 1, available: None }),
        _ => Ok(true),
    };
    let error = layer().check().unwrap().run_observed(&mut Counting::default(), full).unwrap_err();
    assert!(matches!(error, ExecError::Node { node: 2, op: TensorOp::MulMat, .. }), "{error:?}");
}

#[test]
fn rope_gets_positions_and_copy_copies_all_rows() {
    let mut g = ComputeGraph::new();
    let x = g.add_leaf(0x1000, ROW);
    let positions = g.add_index_leaf(0xE000, 4);
    let rope = Some(RopeSpec::new(RopePairing::NeoX, 128, 1e6));
    let params = OpParams { rope, ..OpParams::default() };
    let rotated = g.add_op(TensorOp::Rope, 0x2000, [128, 12, 4, 0], vec![x, positions], params);
    g.add_op(TensorOp::Copy, 0x3000, ROW, vec![rotated], OpParams::default());
    assert_eq!(execute_graph(&g, &mut Counting::default()).unwrap(), 2);
}

#[test]
fn nodes_without_rows_launch_nothing() {
    let mut g = ComputeGraph::new();
    let x = g.add_leaf(0, [1536, 1, 0, 0]);
    g.add_op(TensorOp::Silu, 0, [1536, 1, 0, 0], vec![x], OpParams::default());
    assert_eq!(execute_graph(&g, &mut Counting::default()).unwrap(), 0);
}

#[test]
fn a_soft_cap_that_is_not_above_0_is_refused() {
    let checked = |scalar: f32| {
        let mut g = ComputeGraph::new();
        let x = g.add_leaf(0x1000, ROW);
        g.add_op(TensorOp::SoftCap, 0x2000, ROW, vec![x], OpParams { scalar, ..OpParams::default() });
        g.check().map_err(|error| error.to_string())
    };
    let recorded = |cap: f32| {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 3, 5).unwrap();
        b.soft_cap(x, cap)
    };
    for cap in [0.0, -0.0, -30.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let error = checked(cap).unwrap_err();
        let message = "node 1 (SoftCap): the cap must be finite and above 0, got ";
        assert!(error.starts_with(message), "{error}");
        let problem = recorded(cap).unwrap_err().problem;
        let right = matches!(problem, Problem::Value { what: "the cap", expected: "finite and above 0", .. });
        assert!(right, "{problem}");
    }
    for cap in [f32::MIN_POSITIVE, 30.0, f32::MAX] {
        assert!(checked(cap).is_ok() && recorded(cap).is_ok(), "{cap:e}");
    }
}

#[test]
fn an_unsupported_op_is_an_error_that_names_it() {
    let mut g = ComputeGraph::new();
    let x = g.add_leaf(0x1000, ROW);
    let node = g.add_op(TensorOp::Gelu, 0x2000, ROW, vec![x], OpParams::default());
    g.set_name(node, "blk.0.act");
    let error = execute_graph(&g, &mut Counting::default()).unwrap_err().to_string();
    assert!(error.starts_with("node 1 (Gelu \"blk.0.act\"): counting cannot run Gelu"), "{error}");
}

#[test]
fn a_failing_kernel_stops_the_run_and_is_named() {
    let mut dispatcher = Counting { fail_at: Some(2), ..Counting::default() };
    let error = execute_graph(&layer(), &mut dispatcher).unwrap_err();
    assert_eq!(error.to_string(), "node 3 (MulMat): out of memory: 10 bytes needed, 3 available");
    assert_eq!(dispatcher.calls.len(), 2);
}

/// Each breaks the layer in one way; the message must name the node and what is wrong.
#[test]
fn invalid_graphs_are_refused_before_anything_runs() {
    type Break = fn(&mut ComputeGraph);
    let cases: &[(&str, Break, &str)] = &[
        ("missing input", |g| g.nodes[2].inputs.clear(), "node 2 (MulMat): takes 1 or 2 inputs, got 0"),
        ("too many inputs", |g| g.nodes[6].inputs.push(0), "node 6 (Add): takes 2 inputs, got 3"),
        ("one of three", |g| g.nodes[5].inputs.truncate(2), "node 5 (SoftMax): takes 1 (softmax) or 3"),
        (
            "itself",
            |g| g.nodes[6].inputs[1] = 6,
            "node 6 (Add): input 1 refers to node 6, which does not come",
        ),
        ("cycle", |g| g.nodes[1].inputs[0] = 6, "node 1 (RmsNorm): input 0 refers to node 6"),
        ("no such node", |g| g.nodes[3].inputs[0] = 99, "node 3 (MulMat): input 0 refers to node 99"),
        ("huge index", |g| g.nodes[3].inputs[0] = usize::MAX, "node 3 (MulMat): input 0 refers to node"),
        ("wrong k", |g| g.nodes[2].shape[1] = 1280, "node 2 (MulMat): the input must be 5120, got 6144"),
        (
            "k not of blocks",
            |g| g.nodes[0].shape[0] = 100,
            "node 1 (RmsNorm): the input must be 6144, got 400",
        ),
        ("wrong m", |g| g.nodes[6].shape[2] = 3, "node 6 (Add): the first input must be 4608, got 6144"),
        ("fourth size", |g| g.nodes[6].shape[3] = 2, "node 6 (Add): shape[3] must be 0, got 2"),
        (
            "heads",
            |g| g.nodes[5].params.heads.n_kv_heads = 5,
            "node 5 (SoftMax): n_heads must be a multiple of 5",
        ),
        (
            "no heads",
            |g| g.nodes[5].params.heads = Heads::default(),
            "node 5 (SoftMax): n_heads must be at least 1",
        ),
        ("null leaf", |g| g.nodes[0].data_ptr = 0, "node 0 (leaf): its data is a null pointer"),
        ("null output", |g| g.nodes[4].data_ptr = 0, "node 4 (MulMat): the output is a null pointer"),
        (
            "null weight",
            |g| g.nodes[4].params.weight_ptr = 0,
            "node 4 (MulMat): the weight is a null pointer",
        ),
        (
            "no type",
            |g| g.nodes[4].params.weight_qtype = None,
            "node 4 (MulMat): the type of the weight is not set",
        ),
        ("null gamma", |g| g.nodes[1].params.gamma_ptr = 0, "node 1 (RmsNorm): the gain is a null pointer"),
        (
            "epsilon",
            |g| g.nodes[1].params.scalar = f32::NAN,
            "node 1 (RmsNorm): epsilon must be finite and not",
        ),
        ("integers", |g| g.nodes[0].dtype = DType::U32, "node 1 (RmsNorm): the input must be F32, got U32"),
        ("bias length", |g| g.nodes[2].params.bias_len = 7, "node 2 (MulMat): the bias is a null pointer"),
    ];
    for (what, damage, message) in cases {
        let mut graph = layer();
        damage(&mut graph);
        let mut dispatcher = Counting::default();
        let error = execute_graph(&graph, &mut dispatcher).unwrap_err();
        assert!(matches!(error, ExecError::Graph(_)), "{what}: {error}");
        assert!(error.to_string().starts_with(message), "{what}: {error}");
        assert!(dispatcher.calls.is_empty(), "{what}: something ran");
    }
}

#[test]
fn rope_without_positions_is_refused() {
    let mut g = ComputeGraph::new();
    let x = g.add_leaf(0x1000, ROW);
    let rope = Some(RopeSpec::new(RopePairing::Interleaved, 128, 1e4));
    g.add_op(TensorOp::Rope, 0x2000, [128, 12, 4, 0], vec![x], OpParams { rope, ..OpParams::default() });
    let error = g.check().unwrap_err().to_string();
    assert_eq!(error, "node 1 (Rope): takes 2 (the rows and their positions) inputs, got 1");
}

#[test]
fn graphs_print_as_text_and_dot() {
    let text = layer().to_string();
    assert!(text.contains("MulMat") && text.contains("4x256 (k 1536)") && text.contains("Q4_K"), "{text}");
    let dot = layer().to_dot();
    assert!(dot.starts_with("digraph") && dot.contains("n1 -> n2;"), "{dot}");
    let mut graph = layer();
    graph.set_name(3, "blk.0.attn_k");
    let program = graph.check().unwrap().to_string();
    let line = format!("%3    {:<40} blk.0.attn_k\n", "MulMat 256x1536 Q4_K");
    assert!(program.starts_with("%1    RmsNorm\n") && program.contains(&line), "{program}");
}

#[test]
fn tokens_are_gathered_from_a_history_that_is_a_state() {
    let mut b = GraphBuilder::new();
    let [positions, short] = [("positions", 3), ("short", 2)].map(|(name, n)| b.indices(name, n).unwrap());
    let message = |result: Result<fulmen_core::Tensor, BuildError>| result.unwrap_err().to_string();
    let (history, empty) = (b.index_state("history", 2, 16).unwrap(), b.index_state("empty", 1, 0).unwrap());
    assert_eq!(
        message(b.gather_tokens(positions, positions, None)),
        "gather_tokens: the history must be a state: the op changes it"
    );
    assert_eq!(
        message(b.gather_tokens(empty, positions, None)),
        "gather_tokens: the capacity of the history must be at least 1, got 0"
    );
    assert_eq!(
        message(b.gather_tokens(history, positions, Some(short))),
        "gather_tokens: sequences must be 3, got 2"
    );
    let tokens = b.gather_tokens(history, positions, None).unwrap();
    assert_eq!(b.shape(tokens).unwrap(), (3, 1));
}

#[test]
fn advance_changes_states_only() {
    let mut b = GraphBuilder::new();
    let (drawn, given) = (b.indices("drawn", 2).unwrap(), b.indices("given", 2).unwrap());
    let [tokens, positions] = ["tokens", "positions"].map(|name| b.index_state(name, 2, 1).unwrap());
    let history = b.index_state("history", 2, 8).unwrap();
    let message = |result: Result<(), BuildError>| result.unwrap_err().to_string();
    assert_eq!(
        message(b.advance(drawn, given, positions, history, None)),
        "advance: tokens must be a state: the op changes it"
    );
    assert_eq!(
        message(b.advance(drawn, tokens, given, history, None)),
        "advance: positions must be a state: the op changes it"
    );
    let short = b.index_state("short", 1, 1).unwrap();
    assert_eq!(
        message(b.advance(drawn, short, positions, history, None)),
        "advance: tokens must be 2, got 1"
    );
    let empty = b.index_state("empty", 2, 0).unwrap();
    assert_eq!(
        message(b.advance(drawn, tokens, positions, empty, None)),
        "advance: the capacity of the history must be at least 1, got 0"
    );
    b.advance(drawn, tokens, positions, history, None).unwrap();

    let mut graph = ComputeGraph::new();
    let drawn = graph.add_index_leaf(0x1000, 2);
    let history = Some(TokenHistory { ptr: 0x4000, n_seqs: 2, capacity: 8 });
    let params = OpParams { tokens_ptr: 0x2000, positions_ptr: 0x3000, history, ..OpParams::default() };
    graph.add_op(TensorOp::Advance, 0x2000, [1, 1, 2, 0], vec![drawn], params.clone());
    assert!(graph.check().is_ok());
    graph.add_op(TensorOp::Advance, 0x9000, [1, 1, 2, 0], vec![drawn], params);
    let error = graph.check().unwrap_err().to_string();
    assert!(error.contains("the node's address must be 8192, got 36864"), "{error}");
}

#[test]
fn parts_of_tables_and_candidates_are_checked() {
    let mut b = GraphBuilder::new();
    let table = b.weight("table", DType::F32, 40, 8).unwrap();
    let tokens = b.indices("tokens", 2).unwrap();
    let message = |result: Result<Tensor, BuildError>| result.unwrap_err().to_string();
    assert_eq!(
        message(b.embed_part(table, tokens, TablePart { first: 90, of: 129 })),
        "embed_part: the end of a part of a table must be at most the rows of the whole table, got 130"
    );
    let x = b.embed_part(table, tokens, TablePart { first: 90, of: 130 }).unwrap();
    for k in [0, 65] {
        let expected = format!("top_k: the number of largest values must be from 1 to 64, got {k}");
        assert_eq!(message(b.top_k(x, k, 0).map(|(values, _)| values)), expected);
    }
    let end = message(b.top_k(x, 3, u32::MAX - 8).map(|(values, _)| values));
    assert_eq!(end, "top_k: the largest index must be less than 2^32, got 4294967295");
    let (values, indices) = b.top_k(x, 3, 17).unwrap();
    assert_eq!((b.shape(values).unwrap(), b.shape(indices).unwrap()), ((2, 3), (2, 3)));
    let states = b.sample_states("states", 2).unwrap();
    let narrow = message(b.sample_tokens(x, indices, states));
    assert_eq!(narrow, "sample: the width of the tokens must be 8, got 3");
    let wrong = message(b.sample_tokens(values, values, states));
    assert_eq!(wrong, "sample: the tokens must be U32, got F32");
    let gathered = b.all_gather(indices, 2).unwrap();
    let all = b.all_gather(values, 2).unwrap();
    assert!(b.sample_tokens(all, gathered, states).is_ok());
}

#[test]
fn masks_and_log_probs_are_checked() {
    let mut b = GraphBuilder::new();
    let logits = b.input("logits", 3, 70).unwrap();
    let (edits, masks) = (b.logit_edits("edits", 2, 5).unwrap(), b.token_masks("masks", 2, 70).unwrap());
    let slots = b.indices("slots", 3).unwrap();
    let message = |result: Result<Tensor, BuildError>| result.unwrap_err().to_string();
    assert_eq!(
        message(b.mask_logits(logits, edits, masks, None)),
        "mask_logits: the number of sampling slots must be 3, got 2"
    );
    assert_eq!(
        message(b.mask_logits(logits, masks, masks, Some(slots))),
        "mask_logits: the width of the logit edits must be even and at least 2, got 3"
    );
    assert_eq!(
        message(b.mask_logits(logits, edits, edits, Some(slots))),
        "mask_logits: the width of the token masks must be 3, got 12"
    );
    assert_eq!(
        message(b.mask_logits(logits, edits, logits, Some(slots))),
        "mask_logits: the token masks must be U32, got F32"
    );
    assert!(message(b.logit_edits("large", 1, u32::MAX)).starts_with("logit_edits: the capacity for biases"));
    let masked = b.mask_logits(logits, edits, masks, Some(slots)).unwrap();
    assert_eq!(
        message(b.log_probs(masked, slots, 21).map(|(values, _)| values)),
        "log_probs: the number of most likely tokens must be at most 20, got 21"
    );
    let (values, tokens) = b.log_probs(logits, slots, 20).unwrap();
    assert_eq!((b.shape(values).unwrap(), b.shape(tokens).unwrap()), ((3, 21), (3, 21)));

    let mut graph = ComputeGraph::new();
    let logits = graph.add_leaf(0x1000, [70, 1, 3, 0]);
    let state = LogitSlots { edits_ptr: 0x3000, masks_ptr: 0x4000, n_slots: 2, capacity: 5 };
    let params = OpParams { logit_slots: Some(state), ..OpParams::default() };
    let node = graph.add_op(TensorOp::MaskLogits, 0x2000, [70, 1, 3, 0], vec![logits], params);
    let error = graph.check().unwrap_err().to_string();
    assert!(error.contains("the number of sampling slots must be 3, got 2"), "{error}");
    graph.nodes[node].params.logit_slots = None;
    let error = graph.check().unwrap_err().to_string();
    assert!(error.contains("logit_slots"), "{error}");
}
