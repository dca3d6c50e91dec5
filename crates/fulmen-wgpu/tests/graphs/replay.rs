//! Programs that were captured give the bits of programs that were launched.

use fulmen_core::{DType, GraphBuilder, KernelDispatch, PlanOptions};
use fulmen_testkit::draw::Pools;
use fulmen_testkit::layers::{LAYERS, LayerSpec};
use fulmen_testkit::rig::Rig;
use fulmen_wgpu::WgpuDispatcher;

use crate::dispatcher;

/// The outputs and caches after each of some steps.
fn steps(spec: &LayerSpec, wgpu: &mut WgpuDispatcher, replayed: bool) -> Vec<Vec<u8>> {
    let (graph, data) = (spec.graph().unwrap(), spec.data(5).unwrap());
    let results: Vec<_> = ["y", "0.kv.k", "1.kv.v"].iter().filter_map(|name| graph.find(name)).collect();
    assert!(!results.is_empty());
    let mut rig = Rig::new(wgpu, graph, &PlanOptions::default(), &data).unwrap();
    let id = if replayed { wgpu.prepare(rig.bound.program()).unwrap() } else { None };
    assert_eq!(id.is_some(), replayed);
    let mut out = Vec::new();
    for step in 0..3 {
        for (name, bytes) in spec.inputs(step) {
            rig.write(wgpu, name, bytes).unwrap();
        }
        match id {
            Some(id) => assert_eq!(wgpu.replay(id).unwrap(), 1),
            None => assert!(rig.bound.run(wgpu).unwrap() > 8),
        }
        out.extend(results.iter().map(|&tensor| rig.read(wgpu, tensor).unwrap()));
    }
    rig.surroundings(wgpu).unwrap().unwrap();
    if let Some(id) = id {
        wgpu.release(id);
    }
    rig.release(wgpu).unwrap();
    out
}

#[test]
fn replayed_layers_give_the_bits_of_launched_ones() {
    let mut wgpu = dispatcher();
    for kind in LAYERS {
        for (m, n_seqs, weights, cache) in [
            (1, 1, DType::Q4_K, DType::F16),
            (3, 3, DType::Q8_0, DType::Q8_0),
            (5, 1, DType::F16, DType::F32),
        ] {
            let spec = LayerSpec { kind, layers: 2, m, weights, cache, n_seqs };
            let eager = steps(&spec, &mut wgpu, false);
            assert!(eager == steps(&spec, &mut wgpu, true), "{spec:?}");
        }
    }
}

/// Four matmuls one after the other, of so many rows.
fn matmuls(wgpu: &mut WgpuDispatcher, m: u32) -> Rig {
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", m, 256).unwrap();
    for at in 0..4 {
        let w = b.weight(&format!("w{at}"), DType::Q4_K, 256, 256).unwrap();
        x = b.linear(x, w, None, Some(x)).unwrap();
    }
    b.output("y", x).unwrap();
    let graph = b.finish();
    let data = Pools::new(3).draw_graph("matmuls", &graph, &[]).unwrap();
    Rig::new(wgpu, graph, &PlanOptions::default(), &data).unwrap()
}

/// Work that would take too long for one submission is split, launched or replayed; decode steps are not.
#[test]
fn split_programs_give_the_same_bits() {
    let mut wgpu = dispatcher();
    for m in [40, 3] {
        let rig = matmuls(&mut wgpu, m);
        let y = rig.plan.graph.find("y").unwrap();
        let mut results = Vec::new();
        // A matmul of 40 rows is 2.6 million multiplications.
        for (multiplications, parts) in [(u64::MAX, 1), (6_000_000, 2), (3_000_000, 2), (1, 4)] {
            wgpu.submit_after(multiplications);
            rig.bound.run(&mut wgpu).unwrap();
            results.push(rig.read(&mut wgpu, y).unwrap());
            let id = wgpu.prepare(rig.bound.program()).unwrap().unwrap();
            let parts = if m > 32 { parts } else { 1 };
            assert_eq!(wgpu.replay(id).unwrap(), parts, "{m} rows, {multiplications}");
            results.push(rig.read(&mut wgpu, y).unwrap());
            // Asked before each, and stopped before the last.
            let mut left = parts;
            let ran = wgpu.replay_while(id, &mut || {
                left -= 1;
                left > 0
            });
            assert_eq!((ran.unwrap(), left), (None, 0));
            assert_eq!(wgpu.replay_while(id, &mut || true).unwrap(), Some(parts));
            results.push(rig.read(&mut wgpu, y).unwrap());
            wgpu.release(id);
        }
        assert!(results.iter().all(|result| *result == results[0]), "{m} rows");
        rig.release(&mut wgpu).unwrap();
    }
}

/// A launch costs some microseconds whatever it does. A layer has norm + quantize, the Q, K and V
/// matmuls, RoPE + KV store, attention (one launch over such a short cache), the output projection by an
/// f32 weight, norm + quantize, gate-up + quantize, and the down projection.
#[test]
fn a_layer_of_a_decode_step_is_eight_dispatches() {
    let mut wgpu = dispatcher();
    for kind in LAYERS {
        let mut dispatches = |layers| {
            let spec = LayerSpec { kind, layers, m: 1, weights: DType::Q4_K, cache: DType::F16, n_seqs: 1 };
            let (graph, data) = (spec.graph().unwrap(), spec.data(5).unwrap());
            let options = PlanOptions { fusions: wgpu.fusions(), ..PlanOptions::default() };
            let rig = Rig::new(&mut wgpu, graph, &options, &data).unwrap();
            let id = wgpu.prepare(rig.bound.program()).unwrap().unwrap();
            let dispatches = wgpu.captured_dispatches(id).unwrap();
            wgpu.release(id);
            rig.release(&mut wgpu).unwrap();
            dispatches
        };
        let each = dispatches(3) - dispatches(2);
        assert_eq!(each, 8, "{}", kind.name);
    }
}
