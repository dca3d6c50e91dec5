//! The kernels of whole decode and prefill programs, recorded without a device.

use std::fmt::Write as _;

use fulmen_core::*;

use crate::device::Caps;
use crate::forward::{self, Forwarding};
use crate::kernels;
use crate::queue::Queue;
use crate::recorder::{FORWARD, RecordedLaunch};

const H200: Caps = Caps {
    capability: 90,
    multiprocessors: 132,
    shared_bytes: 232_448,
    l2_bytes: 62_914_560,
    int8_rows: false,
};

const RTX_3090: Caps =
    Caps { capability: 86, multiprocessors: 82, shared_bytes: 101_376, l2_bytes: 6 << 20, int8_rows: false };

const HIDDEN: u32 = 2560;
const INNER: u32 = 9728;
const VOCABULARY: u32 = 151_936;
const HEADS: Heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 128 };

/// Two layers of Qwen3-4B with embedding, LM head and argmax, and one or two KV caches.
fn qwen3(m: u32, caches: usize) -> Result<LogicalGraph, BuildError> {
    let mut b = GraphBuilder::new();
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
        let attended = b.cache_attention(q, cache, positions, sequences, 0.088)?;
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

/// The program of a graph, at addresses that are no device's.
fn program(graph: LogicalGraph) -> Program {
    let fusions = Fusions { add_rms_norm: false, ..Fusions::all() };
    let plan = graph.plan(&PlanOptions { fusions, ..PlanOptions::default() }).unwrap();
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

    ops! {
        dispatch_mul_mat(MulMatCall) => kernels::matmul::launch;
        dispatch_gate_up(GateUpCall) => kernels::matmul::launch_gate_up;
        dispatch_embed(EmbedCall) => kernels::embed::launch;
        dispatch_rms_norm(RmsNormCall) => kernels::rms_norm::launch;
        dispatch_add(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "add", call);
        dispatch_mul(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "mul", call);
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
        let prefetched = planned.prefetch.map(|call| &program.calls()[call].call);
        let prefetch = prefetched.and_then(|call| forward::prefetch(self.queue.caps(), call));
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
    let mut program = program(graph);
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
    let sizes: [(_, _, &[u32]); 2] = [("9.0", H200, &[1, 2, 8, 16, 512]), ("8.6", RTX_3090, &[1, 512])];
    for (name, caps, rows) in sizes {
        for &m in rows {
            writeln!(text, "\n{name}, {m} rows").unwrap();
            for line in launches(caps, qwen3(m, 2).unwrap(), true) {
                writeln!(text, "{line}").unwrap();
            }
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
