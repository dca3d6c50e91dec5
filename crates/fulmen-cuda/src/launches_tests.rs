//! The kernels of whole decode and prefill programs, recorded without a device.

use std::fmt::Write as _;

use fulmen_core::*;

use crate::device::Caps;
use crate::forward::{self, Forwarding};
use crate::kernels;
use crate::queue::Queue;
use crate::recorder::{FORWARD, RecordedLaunch};

const H200: Caps = Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 62_914_560 };

const RTX_3090: Caps = Caps { capability: 86, multiprocessors: 82, shared_bytes: 101_376, l2_bytes: 6 << 20 };

const HIDDEN: u32 = 2560;
const INNER: u32 = 9728;
const VOCABULARY: u32 = 151_936;
const HEADS: Heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 128 };

/// Two layers of Qwen3-4B with embedding, LM head and argmax, and one or two KV caches.
fn qwen3(m: u32, caches: usize) -> Result<LogicalGraph, BuildError> {
    qwen3_step(m, caches, false)
}

/// With `mixed`, the step has up to 32 prefill chunks beside decode rows.
fn qwen3_step(m: u32, caches: usize, mixed: bool) -> Result<LogicalGraph, BuildError> {
    let mut b = GraphBuilder::new();
    let rows = match mixed {
        true => b.attention_work("work", 32)?,
        false => AttentionRows::Any,
    };
    let tokens = b.indices("tokens", m)?;
    let positions = b.indices("positions", m)?;
    let sequences = Some(b.indices("sequences", m)?);
    let spec = RopeSpec::new(RopePairing::NeoX, HEADS.head_dim, 1e6);
    let rotation = Rotation { spec, positions, factors: None };
    let pages = b.page_table("pages", 16, 32)?;
    let spec = CacheSpec { dtype: DType::F16, n_pages: 16 * 32, table: pages, heads: HEADS };
    let caches: Vec<Cache> =
        (0..caches).map(|number| b.kv_cache(&format!("kv{number}"), spec)).collect::<Result<_, _>>()?;
    let table = b.weight("embedding", DType::Q6_K, VOCABULARY, HIDDEN)?;
    let mut x = b.embed(table, tokens)?;
    // The types of V and down vary by layer, as in Q4_K_M files.
    for (layer, dtype) in [DType::Q6_K, DType::Q4_K].into_iter().enumerate() {
        let name = |part: &str| format!("{layer}.{part}");
        let gain = b.vector(&name("attn_norm"), HIDDEN)?;
        let h = b.rms_norm(x, gain, 1e-6)?;
        let linear = |b: &mut GraphBuilder, x, part: &str, dtype, rows, k| {
            let weight = b.weight(&name(part), dtype, rows, k)?;
            b.mul_mat(x, weight)
        };
        let q = linear(&mut b, h, "q", DType::Q4_K, HEADS.q_width(), HIDDEN)?;
        let k = linear(&mut b, h, "k", DType::Q4_K, HEADS.kv_width(), HIDDEN)?;
        let v = linear(&mut b, h, "v", dtype, HEADS.kv_width(), HIDDEN)?;
        let (q_gain, k_gain) = (b.vector(&name("q_norm"), 128)?, b.vector(&name("k_norm"), 128)?);
        let (q, k) = (b.rms_norm(q, q_gain, 1e-6)?, b.rms_norm(k, k_gain, 1e-6)?);
        let (q, k) = (b.rope(q, 128, rotation)?, b.rope(k, 128, rotation)?);
        let cache = caches[layer % caches.len()];
        b.kv_store(k, v, cache, positions, sequences)?;
        let attended = b.step_attention(q, cache, positions, sequences, rows, 0.088)?;
        let o = linear(&mut b, attended, "o", DType::Q4_K, HIDDEN, HEADS.q_width())?;
        x = b.add(x, o)?;
        let gain = b.vector(&name("ffn_norm"), HIDDEN)?;
        let h = b.rms_norm(x, gain, 1e-6)?;
        let gate = b.weight(&name("gate"), DType::Q4_K, INNER, HIDDEN)?;
        let up = b.weight(&name("up"), DType::Q4_K, INNER, HIDDEN)?;
        let f = b.gate_up(h, gate, up)?;
        let d = linear(&mut b, f, "down", dtype, HIDDEN, INNER)?;
        x = b.add(x, d)?;
    }
    let gain = b.vector("norm", HIDDEN)?;
    let h = b.rms_norm(x, gain, 1e-6)?;
    let logits = b.mul_mat(h, table)?;
    let drawn = b.argmax(logits)?;
    b.output("drawn", drawn)?;
    Ok(b.finish())
}

/// The second half of a layer of Qwen3-30B-A3B behind its output projection, and the first matmul of the
/// next layer.
fn qwen3moe(m: u32) -> Result<LogicalGraph, BuildError> {
    const WIDTH: u32 = 2048;
    const EXPERTS: u32 = 128;
    let mut b = GraphBuilder::new();
    let (attended, x) = (b.input("attended", m, 4096)?, b.input("x", m, WIDTH)?);
    let mut weight = |name: &str, dtype, rows, k| b.weight(name, dtype, rows, k);
    let (o, router) = (weight("o", DType::Q4_K, WIDTH, 4096)?, weight("r", DType::F32, EXPERTS, WIDTH)?);
    let gate = weight("gate", DType::Q4_K, EXPERTS * 768, WIDTH)?;
    let up = weight("up", DType::Q4_K, EXPERTS * 768, WIDTH)?;
    let (down, q) =
        (weight("down", DType::Q6_K, EXPERTS * WIDTH, 768)?, weight("q", DType::Q4_K, 4096, WIDTH)?);
    let (gain, next) = (b.vector("gain", WIDTH)?, b.vector("next", WIDTH)?);
    let x = b.linear(attended, o, None, Some(x))?;
    let h = b.rms_norm(x, gain, 1e-6)?;
    let logits = b.mul_mat(h, router)?;
    let spec = RouteSpec { renormalize: true, ..RouteSpec::new(8, RouterScores::Softmax) };
    let routed = b.route(logits, None, spec)?;
    let inner = b.expert_gate_up(h, routed, [gate.into(), up.into()], GatedActivation::SwiGlu)?;
    let x = b.expert_down(inner, routed, down.into(), Some(x))?;
    let h = b.rms_norm(x, next, 1e-6)?;
    let y = b.mul_mat(h, q)?;
    b.output("hidden", x)?;
    b.output("y", y)?;
    Ok(b.finish())
}

/// Whose rows a step has.
#[derive(Clone, Copy, PartialEq)]
enum StepRows {
    OneSequence,
    Decode,
    Mixed,
}

/// The gated delta net of Qwen3.5-4B.
fn qwen35(m: u32, kind: StepRows) -> Result<LogicalGraph, BuildError> {
    const HEADS: DeltaHeads =
        DeltaHeads { n_k_heads: 16, n_v_heads: 32, head_dim: 128, order: KeyHeadOrder::Tiled };
    let mut b = GraphBuilder::new();
    let (x, positions) = (b.input("x", m, HIDDEN)?, b.indices("positions", m)?);
    let gain = b.vector("gain", HIDDEN)?;
    let h = b.rms_norm(x, gain, 1e-6)?;
    let linear = |b: &mut GraphBuilder, name: &str, rows| {
        let weight = b.weight(name, DType::Q4_K, rows, HIDDEN)?;
        b.mul_mat(h, weight)
    };
    let qkv = linear(&mut b, "qkv", HEADS.width())?;
    let z = linear(&mut b, "z", HEADS.value_width())?;
    let (beta, alpha) = (linear(&mut b, "beta", 32)?, linear(&mut b, "alpha", 32)?);
    let (several, decode) = (kind != StepRows::OneSequence, kind == StepRows::Decode);
    let sequences = several.then(|| b.indices("sequences", m)).transpose()?;
    let rows = RecurrentRows { positions, sequences, decode };
    let slots = if several { 64 } else { 1 };
    let taps = b.weight("conv", DType::F32, HEADS.width(), 4)?;
    let conv_state = b.recurrent_state("conv_state", slots, 3 * HEADS.width())?;
    let qkv = b.causal_conv(qkv, taps, conv_state, rows)?;
    let state = b.recurrent_state("state", slots, HEADS.state_width())?;
    let inputs = DeltaInputs { qkv, alpha, beta, decay: b.vector("decay", 32)?, dt: b.vector("dt", 32)? };
    let y = b.gated_delta_rule(inputs, HEADS, 1e-6, state, rows)?;
    let gain = b.vector("head_gain", HEADS.head_dim)?;
    let y = b.rms_norm(y, gain, 1e-6)?;
    let z = b.silu(z)?;
    let y = b.mul(z, y)?;
    let out = b.weight("out", DType::Q4_K, HIDDEN, HEADS.value_width())?;
    let x = b.linear(y, out, None, Some(x))?;
    b.output("hidden", x)?;
    Ok(b.finish())
}

/// Two layers of Gemma 3 4B, one with a sliding window and one without: norms after attention and after
/// feed-forward, and GeGLU.
fn gemma3(m: u32) -> Result<LogicalGraph, BuildError> {
    const WIDTH: u32 = 10_240;
    let heads = Heads { n_heads: 8, n_kv_heads: 4, head_dim: 256 };
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", m, HIDDEN)?;
    let positions = b.indices("positions", m)?;
    let sequences = Some(b.indices("sequences", m)?);
    let pages = b.page_table("pages", 16, 32)?;
    for (layer, window) in [Some(1024), None].into_iter().enumerate() {
        let name = |part: &str| format!("{layer}.{part}");
        let norm = |b: &mut GraphBuilder, x, part: &str, width| {
            let gain = b.vector(&name(part), width)?;
            b.rms_norm(x, gain, 1e-6)
        };
        let linear = |b: &mut GraphBuilder, x, part: &str, rows, k| {
            let weight = b.weight(&name(part), DType::Q4_K, rows, k)?;
            b.mul_mat(x, weight)
        };
        let h = norm(&mut b, x, "attn_norm", HIDDEN)?;
        let q = linear(&mut b, h, "q", heads.q_width(), HIDDEN)?;
        let k = linear(&mut b, h, "k", heads.kv_width(), HIDDEN)?;
        let v = linear(&mut b, h, "v", heads.kv_width(), HIDDEN)?;
        let (q, k) = (norm(&mut b, q, "q_norm", 256)?, norm(&mut b, k, "k_norm", 256)?);
        let spec = RopeSpec::new(RopePairing::NeoX, 256, if window.is_some() { 1e4 } else { 1e6 });
        let rotation = Rotation { spec, positions, factors: None };
        let (q, k) = (b.rope(q, 256, rotation)?, b.rope(k, 256, rotation)?);
        let spec = CacheSpec { dtype: DType::F16, n_pages: 16 * 32, table: pages, heads };
        let cache = b.kv_cache(&name("kv"), spec)?;
        b.kv_store(k, v, cache, positions, sequences)?;
        let scores = Scores { window, ..0.0625.into() };
        let attended = b.step_attention(q, cache, positions, sequences, AttentionRows::Any, scores)?;
        let o = linear(&mut b, attended, "o", HIDDEN, heads.q_width())?;
        let o = norm(&mut b, o, "post_attention_norm", HIDDEN)?;
        x = b.add(x, o)?;
        let h = norm(&mut b, x, "ffn_norm", HIDDEN)?;
        let gate = linear(&mut b, h, "gate", WIDTH, HIDDEN)?;
        let up = linear(&mut b, h, "up", WIDTH, HIDDEN)?;
        let gate = b.unary(UnaryKind::GeluTanh, gate)?;
        let f = b.mul(gate, up)?;
        let d = linear(&mut b, f, "down", HIDDEN, WIDTH)?;
        let d = norm(&mut b, d, "post_ffw_norm", HIDDEN)?;
        x = b.add(x, d)?;
    }
    b.output("y", x)?;
    Ok(b.finish())
}

/// The program of a graph, at addresses that are no device's.
fn program(graph: LogicalGraph, batch_invariant: bool) -> Program {
    let fusions = Fusions { add_rms_norm: false, ..Fusions::all() };
    let plan = graph.plan(&PlanOptions { fusions, batch_invariant, ..PlanOptions::default() }).unwrap();
    let mut bindings = Bindings::new();
    let mut next = 0x7000_0000_0000;
    for tensor in &plan.graph.tensors {
        if let (Role::Weight | Role::State, Some(name)) = (tensor.role, &tensor.name) {
            bindings.set(name, next);
            next += 1 << 32;
        }
    }
    plan.bind_at(0x5000_0000_0000, &bindings).unwrap().program().clone()
}

/// A device that records what is launched.
struct Recording {
    queue: Queue,
    allocated: u64,
}

/// Defines the method of each op.
macro_rules! ops {
    ($($method:ident($call:ty) => $launch:expr;)*) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            $launch(&mut self.queue, call)
        })*
    };
}

impl KernelDispatch for Recording {
    fn backend(&self) -> &'static str {
        "recording"
    }

    fn batch_invariant(&self, _: &OpCall) -> bool {
        true
    }

    ops! {
        dispatch_mul_mat(MulMatCall) => kernels::matmul::launch;
        dispatch_gate_up(GateUpCall) => kernels::matmul::launch_gate_up;
        dispatch_route(RouteCall) => kernels::route::launch;
        dispatch_expert_gate_up(ExpertGateUpCall) => kernels::experts::launch_gate_up;
        dispatch_expert_down(ExpertDownCall) => kernels::experts::launch_down;
        dispatch_embed(EmbedCall) => kernels::embed::launch;
        dispatch_rms_norm(RmsNormCall) => kernels::rms_norm::launch;
        dispatch_add(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "add", call);
        dispatch_mul(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "mul", call);
        dispatch_swiglu(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "swiglu", call);
        dispatch_causal_conv(CausalConvCall) => kernels::causal_conv::launch;
        dispatch_gated_delta_rule(GatedDeltaRuleCall) => kernels::gated_delta_rule::launch;
        dispatch_silu(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "silu", call);
        dispatch_rope(RopeCall) => kernels::rope::launch;
        dispatch_attention(AttentionCall) => kernels::attention::launch;
        dispatch_kv_store(KvStoreCall) => kernels::kv_store::launch;
        dispatch_rope_store(RopeStoreCall) => kernels::rope_store::launch;
        dispatch_copy(CopyCall) => kernels::copy::launch;
        dispatch_argmax(ArgMaxCall) => kernels::argmax::launch;
    }

    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        forward::fused_calls(self.queue.caps(), next, unfinished)
    }

    fn drains(&self, call: &OpCall) -> bool {
        forward::drains(true, call)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        forward::accepted_forms(self.queue.caps(), calls)
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        forward::forwards(self.queue.caps(), calls, activation)
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        forward::prefetches(self.queue.caps(), calls, next)
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        let calls = &program.calls()[planned.calls.clone()];
        let prefetched = planned.prefetch.map(|call| &program.calls()[call..]);
        let prefetch = prefetched.and_then(|calls| forward::prefetch(self.queue.caps(), calls));
        let PlannedCall { inputs, outputs, .. } = planned;
        match forward::launch(&mut self.queue, calls, &Forwarding { inputs, outputs, prefetch }) {
            Some(launched) => launched,
            None => calls.iter().map(|step| self.dispatch(&step.call)).sum(),
        }
    }
}

impl DeviceMemory for Recording {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        let ptr = FORWARD + self.allocated;
        self.allocated += bytes.next_multiple_of(ALIGNMENT) as u64;
        Ok(ptr)
    }

    fn free(&mut self, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn start_read(&mut self, _: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        Ok(ReadTicket::ready(vec![0; bytes]))
    }
}

/// The launches of a graph, planned if wanted.
fn launches(caps: Caps, graph: LogicalGraph, plan: bool) -> Vec<String> {
    let mut device = Recording { queue: Queue::recording(caps), allocated: 0 };
    let mut program = program(graph, false);
    if plan {
        program.plan(&mut device).unwrap();
    }
    let launched = program.run(&mut device).unwrap();
    let lines: Vec<String> = device.queue.recorded().iter().map(RecordedLaunch::line).collect();
    assert_eq!(lines.len(), launched);
    lines
}

/// What models launch at batch sizes with kernels of their own and at others, and in prefill.
#[test]
fn the_launches_of_decode_and_prefill_are_those_of_the_list() {
    let mut text = String::from("# Written with FULMEN_UPDATE=1. Words of arguments are those of 8 bytes.\n");
    let sizes: [(_, _, &[u32]); 2] = [("9.0", H200, &[1, 2, 8, 16, 64, 512]), ("8.6", RTX_3090, &[1, 512])];
    for (name, caps, rows) in sizes {
        for &m in rows {
            writeln!(text, "\n{name}, {m} rows").unwrap();
            for line in launches(caps, qwen3(m, 2).unwrap(), true) {
                writeln!(text, "{line}").unwrap();
            }
        }
    }
    for (name, caps) in [("9.0", H200), ("8.6", RTX_3090)] {
        for m in [1, 16] {
            writeln!(text, "\n{name}, experts, {m} rows").unwrap();
            for line in launches(caps, qwen3moe(m).unwrap(), true) {
                writeln!(text, "{line}").unwrap();
            }
        }
        for m in [1, 100] {
            writeln!(text, "\n{name}, delta net, {m} rows").unwrap();
            for line in launches(caps, qwen35(m, StepRows::OneSequence).unwrap(), true) {
                writeln!(text, "{line}").unwrap();
            }
        }
        writeln!(text, "\n{name}, delta net, 2048 rows of several sequences").unwrap();
        for line in launches(caps, qwen35(2048, StepRows::Mixed).unwrap(), true) {
            writeln!(text, "{line}").unwrap();
        }
    }
    for m in [1, 8, 64, 512] {
        writeln!(text, "\n9.0, Gemma 3, {m} rows").unwrap();
        for line in launches(H200, gemma3(m).unwrap(), true) {
            writeln!(text, "{line}").unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/launches.txt");
    if std::env::var_os("FULMEN_UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    for (number, (got, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "line {} of {path}", number + 1);
    }
    assert_eq!(text.lines().count(), expected.lines().count());
}

#[test]
fn a_gemma3_layer_is_seven_kernels_at_batch_1() {
    let lines = launches(H200, gemma3(1).unwrap(), true);
    assert_eq!(lines.len(), 2 * 7, "{lines:?}");
    let count = |name: &str| lines.iter().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        (count("attention_decode_scores_256_single_row"), count("attention_decode_256_single_row")),
        (1, 1)
    );
    assert_eq!((count("rms_norm_add "), count("gemv_gate_up_q4_k")), (4, 2));
}

/// A layer of Gemma 4 without a window and the experts of its kind: heads of 512 dims, values that are normed
/// keys, a second attention over the same cache, and a scale for each expert.
fn gemma4(m: u32) -> Result<LogicalGraph, BuildError> {
    let heads = Heads { n_heads: 16, n_kv_heads: 2, head_dim: 512 };
    let (hidden, inner, count) = (2816, 704, 128);
    let mut b = GraphBuilder::new();
    let (x, positions) = (b.input("x", m, hidden)?, b.indices("positions", m)?);
    let factors = Some(b.vector("factors", heads.head_dim / 2)?);
    let rotation =
        Rotation { spec: RopeSpec::new(RopePairing::NeoX, heads.head_dim, 1e6), positions, factors };
    let table = b.page_table("pages", 1, 32)?;
    let cache = b.kv_cache("kv", CacheSpec { dtype: DType::F16, n_pages: 32, table, heads })?;
    let [wq, wk] = [("q", heads.q_width()), ("k", heads.kv_width())]
        .map(|(name, rows)| b.weight(name, DType::Q4_K, rows, hidden));
    let (q, k) = (b.mul_mat(x, wq?)?, b.mul_mat(x, wk?)?);
    let (gain, ones) = (b.vector("gain", heads.head_dim)?, b.vector("ones", heads.head_dim)?);
    let v = b.rms_norm(k, ones, 1e-6)?;
    let (q, k) = (b.rms_norm(q, gain, 1e-6)?, b.rms_norm(k, gain, 1e-6)?);
    let (q, k) = (b.rope(q, heads.head_dim, rotation)?, b.rope(k, heads.head_dim, rotation)?);
    b.kv_store(k, v, cache, positions, None)?;
    let first = b.cache_attention(q, cache, positions, None, 1.0)?;
    let second = b.cache_attention(first, cache, positions, None, 1.0)?;
    let wo = b.weight("o", DType::Q4_K, hidden, heads.q_width())?;
    let x = b.mul_mat(second, wo)?;
    let router = b.weight("router", DType::F32, count, hidden)?;
    let logits = b.mul_mat(x, router)?;
    let spec = RouteSpec { renormalize: true, ..RouteSpec::new(8, RouterScores::Softmax) };
    let mut routed = b.route(logits, None, spec)?;
    let scale = b.weight("scale", DType::F32, count, 1)?;
    let scales = b.embed(scale, routed.ids)?;
    routed.weights = b.mul(routed.weights, scales)?;
    let gate = b.weight("gate", DType::Q4_K, count * inner, hidden)?;
    let up = b.weight("up", DType::Q4_K, count * inner, hidden)?;
    let down = b.weight("down", DType::Q8_0, count * hidden, inner)?;
    let y = b.expert_gate_up(x, routed, [gate.into(), up.into()], GatedActivation::GeGlu)?;
    let y = b.expert_down(y, routed, down.into(), None)?;
    b.output("y", y)?;
    Ok(b.finish())
}

#[test]
fn a_gemma4_layer_has_a_kernel_for_every_call() {
    for (m, caps) in [(1, H200), (16, H200), (600, H200), (1, RTX_3090)] {
        let launches = launches(caps, gemma4(m).unwrap(), true);
        let attention = launches.iter().filter(|launch| launch.contains("attention")).count();
        assert!(attention >= 2, "{launches:?}");
        assert!(launches.iter().any(|launch| launch.contains("embed_f32")), "{launches:?}");
    }
}

#[test]
fn unplanned_calls_forward_nothing() {
    for m in [1, 8, 16] {
        let lines = launches(H200, qwen3(m, 2).unwrap(), false);
        assert!(lines.iter().all(|line| !line.contains("forwarded")), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("rms_norm")), "{lines:?}");
    }
}

/// The fused attention reads the cache before previous kernels have finished, so the second layer with the
/// same cache stores apart.
#[test]
fn a_cache_that_may_still_be_written_is_not_stored_to_by_the_attention() {
    for m in [1, 16] {
        let apart = |caches: usize| {
            let lines = launches(H200, qwen3(m, caches).unwrap(), true);
            lines.iter().filter(|line| line.starts_with("rope_store")).count()
        };
        assert_eq!((apart(2), apart(1)), (0, 1));
    }
}

/// The kernels of a delta net among the launches of a step.
fn delta_net_kernels(kind: StepRows, m: u32, batch_invariant: bool) -> Vec<String> {
    let mut device = Recording { queue: Queue::recording(H200), allocated: 0 };
    let mut program = program(qwen35(m, kind).unwrap(), batch_invariant);
    program.plan(&mut device).unwrap();
    program.run(&mut device).unwrap();
    let names = device.queue.recorded().iter().filter_map(|launch| launch.shape.split(' ').next());
    let of_delta_net = |name: &&str| ["causal", "delta", "sequence"].iter().any(|part| name.contains(part));
    names.filter(of_delta_net).map(str::to_owned).collect()
}

#[test]
fn prompts_of_a_delta_net_are_computed_in_chunks_and_other_rows_walked() {
    use StepRows::{Decode, Mixed, OneSequence};
    let (list, walk) = ("sequence_chunk_list", ["causal_conv_4", "gated_delta_rule_32"]);
    let chunks = ["causal_conv_chunks_4", "gated_delta_prepare", "gated_delta_scan"];
    for m in [33, 100, 2048] {
        assert_eq!(delta_net_kernels(OneSequence, m, false), chunks, "{m} rows");
        assert_eq!(delta_net_kernels(Decode, m, false), walk, "{m} rows");
        let mixed = [list, walk[0], chunks[0], list, walk[1], chunks[1], chunks[2]];
        assert_eq!(delta_net_kernels(Mixed, m, false), mixed, "{m} rows");
        // The convolution has the same bits in chunks.
        let invariant = [list, walk[0], chunks[0], walk[1]];
        assert_eq!(delta_net_kernels(Mixed, m, true), invariant, "{m} rows");
    }
    for kind in [OneSequence, Decode, Mixed] {
        assert_eq!(delta_net_kernels(kind, 32, false), ["delta_net_step"]);
        assert_eq!(delta_net_kernels(kind, 31, true), walk);
    }
}

/// The matmul and attention kernels of a batch-invariant step, without repetitions, with all that decides the
/// order of sums: blocks, clusters and shared memory; not the rows of the grid.
fn batch_invariant_kernels(caps: Caps, graph: LogicalGraph) -> Vec<String> {
    let mut device = Recording { queue: Queue::recording(caps), allocated: 0 };
    let mut program = program(graph, true);
    program.plan(&mut device).unwrap();
    program.run(&mut device).unwrap();
    assert!(program.planned_calls().iter().all(|planned| planned.inputs.is_empty()));
    let shapes = device.queue.recorded().iter().map(|launch| launch.shape.clone());
    let matmuls = shapes.filter_map(|shape| {
        let (entry, rest) = shape.split_once(" grid ")?;
        let (grid, rest) = rest.split_once(" block ")?;
        let blocks = match entry.starts_with("gemm_small_m") {
            true => grid,
            false => "any",
        };
        let names = ["gemm", "matmul", "attention", "expert", "route"];
        let counts = names.iter().any(|name| entry.contains(name));
        counts.then(|| format!("{entry} {blocks} {rest}"))
    });
    let mut kernels: Vec<String> = matmuls.collect();
    kernels.sort();
    kernels.dedup();
    kernels
}

#[test]
fn batch_invariant_steps_have_the_same_kernels_for_any_number_of_rows() {
    for (caps, matmul) in [(H200, "gemm_small_m_q4_k_rows16"), (RTX_3090, "matmul_generic_q4_k_tile")] {
        let step = |m| batch_invariant_kernels(caps, qwen3_step(m, 2, true).unwrap());
        let one = step(1);
        let has = |name: &str| one.iter().any(|kernel| kernel.starts_with(name));
        assert!(has(matmul) && has("attention_decode_128_mixed") && has("attention_prefill"), "{one:?}");
        for m in [2, 8, 9, 16, 17, 100, 300, 700] {
            assert_eq!(step(m), one, "{m} rows");
        }
    }
}
