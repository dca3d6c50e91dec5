//! The dispatches of a decode step: everything that can be forwarded or fused is.

use fulmen_core::{
    BuildError, CacheSpec, DType, GraphBuilder, Heads, KernelDispatch, LogicalGraph, PlanOptions,
    RopePairing, RopeSpec, Rotation,
};
use fulmen_testkit::draw::{Draw, Pools};
use fulmen_testkit::rig::Rig;

use crate::dispatcher;

const HEADS: Heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 64 };
const HIDDEN: u32 = 256;
const INNER: u32 = 512;

/// Layers of Qwen3 with quantized weights.
fn layers(m: u32, count: u32) -> Result<LogicalGraph, BuildError> {
    let mut b = GraphBuilder::new();
    let positions = b.indices("positions", m)?;
    let spec = RopeSpec::new(RopePairing::NeoX, HEADS.head_dim, 1e4);
    let rotation = Rotation { spec, positions, factors: None };
    let mut x = b.input("x", m, HIDDEN)?;
    let table = b.page_table("pages", 1, 2)?;
    for layer in 0..count {
        let linear = |b: &mut GraphBuilder, x, name: &str, rows, k| {
            let weight = b.weight(&format!("{layer}.{name}"), DType::Q4_K, rows, k)?;
            b.mul_mat(x, weight)
        };
        let norm = |b: &mut GraphBuilder, x, name: &str, width| {
            let gain = b.vector(&format!("{layer}.{name}"), width)?;
            b.rms_norm(x, gain, 1e-6)
        };
        let h = norm(&mut b, x, "norm", HIDDEN)?;
        let q = linear(&mut b, h, "q", HEADS.q_width(), HIDDEN)?;
        let k = linear(&mut b, h, "k", HEADS.kv_width(), HIDDEN)?;
        let v = linear(&mut b, h, "v", HEADS.kv_width(), HIDDEN)?;
        let q = norm(&mut b, q, "q_norm", HEADS.head_dim)?;
        let k = norm(&mut b, k, "k_norm", HEADS.head_dim)?;
        let (q, k) = (b.rope(q, HEADS.head_dim, rotation)?, b.rope(k, HEADS.head_dim, rotation)?);
        let cache = CacheSpec { dtype: DType::F16, n_pages: 2, table, heads: HEADS };
        let cache = b.kv_cache(&format!("{layer}.kv"), cache)?;
        b.kv_store(k, v, cache, positions, None)?;
        let attended = b.cache_attention(q, cache, positions, None, 0.125)?;
        let o = linear(&mut b, attended, "o", HIDDEN, HEADS.q_width())?;
        x = b.add(x, o)?;
        let h = norm(&mut b, x, "ffn_norm", HIDDEN)?;
        let gate = b.weight(&format!("{layer}.gate"), DType::Q4_K, INNER, HIDDEN)?;
        let up = b.weight(&format!("{layer}.up"), DType::Q4_K, INNER, HIDDEN)?;
        let f = b.gate_up(h, gate, up)?;
        let d = linear(&mut b, f, "down", HIDDEN, INNER)?;
        x = b.add(x, d)?;
    }
    b.output("y", x)?;
    Ok(b.finish())
}

#[test]
fn a_decode_layer_is_eight_dispatches() {
    let mut wgpu = dispatcher();
    // With several rows the store is a dispatch of its own.
    for (m, expected) in [(1, 8), (4, 9)] {
        let mut dispatches = |count: u32| {
            let graph = layers(m, count).unwrap();
            let draws = [("positions".to_owned(), Draw::Ints((0..m).collect()))];
            let data = Pools::new(1).draw_graph("layers", &graph, &draws).unwrap();
            let options = PlanOptions { fusions: wgpu.fusions(), ..PlanOptions::default() };
            let rig = Rig::new(&mut wgpu, graph, &options, &data).unwrap();
            let id = wgpu.prepare(rig.bound.program()).unwrap().expect("programs are captured");
            let dispatches = wgpu.captured_dispatches(id).unwrap();
            wgpu.release(id);
            rig.release(&mut wgpu).unwrap();
            dispatches
        };
        assert_eq!((dispatches(1), dispatches(3)), (expected, 3 * expected), "{m} rows");
    }
}
