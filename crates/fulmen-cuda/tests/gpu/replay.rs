//! Captured programs give the same bits as launched ones, and leak nothing.

use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_core::{
    Backend, Bindings, BoundGraph, DType, DeviceMemory, GraphBuilder, KernelDispatch, PlanOptions,
};
use fulmen_cuda::CudaDispatcher;
use fulmen_testkit::layers::{LAYERS, LayerSpec};
use fulmen_testkit::rig::Rig;

use crate::gpu;

/// The outputs and caches after each of some steps.
fn steps(spec: &LayerSpec, cuda: &mut CudaDispatcher, replayed: bool) -> Vec<Vec<u8>> {
    let (graph, data) = (spec.graph().unwrap(), spec.data(5).unwrap());
    let results: Vec<_> = ["y", "0.kv.k", "1.kv.v"].iter().filter_map(|name| graph.find(name)).collect();
    assert!(!results.is_empty());
    let mut rig = Rig::new(cuda, graph, &PlanOptions::default(), &data).unwrap();
    let id = if replayed { cuda.prepare(rig.bound.program()).unwrap() } else { None };
    assert_eq!(id.is_some(), replayed);
    let mut out = Vec::new();
    for step in 0..4 {
        for (name, bytes) in spec.inputs(step) {
            rig.write(cuda, name, bytes).unwrap();
        }
        match id {
            // A timed replay computes the same, and times every call.
            Some(id) if step == 2 => {
                let times = cuda.replay_timed(id).unwrap().unwrap();
                let calls: Vec<usize> = times.iter().flat_map(|kernel| kernel.calls.clone()).collect();
                assert_eq!(calls, (0..rig.bound.program().steps().len()).collect::<Vec<_>>());
                assert!(times.iter().any(|kernel| !kernel.time.is_zero()), "{times:?}");
            }
            Some(id) => assert_eq!(cuda.replay(id).unwrap(), 1),
            None => assert!(rig.bound.run(cuda).unwrap() > 8),
        }
        out.extend(results.iter().map(|&tensor| rig.read(cuda, tensor).unwrap()));
    }
    rig.surroundings(cuda).unwrap().unwrap();
    if let Some(id) = id {
        cuda.release(id);
    }
    rig.release(cuda).unwrap();
    out
}

#[test]
fn replayed_layers_give_the_same_bits_as_launched_ones() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    for kind in LAYERS {
        for (m, n_seqs) in [(1, 1), (3, 3), (5, 1), (8, 8)] {
            for (weights, cache) in
                [(DType::F16, DType::F16), (DType::Q4_K, DType::F16), (DType::Q8_0, DType::Q8_0)]
            {
                let spec = LayerSpec { kind, layers: 2, m, weights, cache, n_seqs };
                let eager = steps(&spec, &mut cuda, false);
                assert!(eager == steps(&spec, &mut cuda, true), "{spec:?}");
            }
        }
    }
}

const ROWS: u32 = 3;
const TOKENS: u32 = 500;
const CAPACITY: u32 = 1100;

/// A step that samples from constant logits, with penalties for what it sampled: only device memory changes.
struct Sampler {
    bound: BoundGraph,
    states: Vec<u64>,
    history: u64,
}

impl Sampler {
    fn new(cuda: &mut CudaDispatcher) -> Sampler {
        let mut b = GraphBuilder::new();
        let logits = b.input("logits", ROWS, TOKENS).unwrap();
        let (tokens, positions) =
            (b.index_state("tokens", ROWS, 1).unwrap(), b.index_state("positions", ROWS, 1).unwrap());
        let sequences = b.indices("sequences", ROWS).unwrap();
        let history = b.index_state("history", ROWS, CAPACITY).unwrap();
        let (penalties, states) =
            (b.penalties("penalties", ROWS).unwrap(), b.sample_states("states", ROWS).unwrap());
        let penalized = b.penalize(logits, penalties, history, positions, Some(sequences)).unwrap();
        let drawn = b.sample(penalized, states).unwrap();
        b.output("drawn", drawn).unwrap();
        b.advance(drawn, tokens, positions, history, Some(sequences)).unwrap();

        let row = |temperature, top_k, top_p, row| SampleState {
            temperature,
            top_k,
            top_p,
            row,
            seed_lo: 77,
            ..SampleState::greedy()
        };
        let samplers = [row(0.8, 20, 0.9, 0), row(2.0, 0, 1.0, 1), row(0.0, 0, 1.0, 2)];
        let penalties = [Penalties { repeat: 1.2, frequency: 0.1, presence: 0.2, window: 64 }; ROWS as usize];
        let zeros = vec![0u8; (ROWS * CAPACITY * 4) as usize];
        let mut state = |name: &str, bytes: &[u8], bindings: &mut Bindings| {
            let ptr = cuda.alloc(bytes.len()).unwrap();
            cuda.write(ptr, bytes).unwrap();
            bindings.set(name, ptr);
            ptr
        };
        let mut bindings = Bindings::new();
        let few = &zeros[..4 * ROWS as usize];
        let mut ptrs = vec![state("tokens", few, &mut bindings), state("positions", few, &mut bindings)];
        ptrs.push(state("penalties", bytemuck::cast_slice(&penalties), &mut bindings));
        ptrs.push(state("states", bytemuck::cast_slice(&samplers), &mut bindings));
        let history = state("history", &zeros, &mut bindings);
        ptrs.push(history);
        let bound = b.finish().plan(&PlanOptions::default()).unwrap().bind(cuda, &bindings).unwrap();
        let values: Vec<f32> = (0..ROWS * TOKENS).map(|i| (i as f32 * 0.37).sin() * 4.0).collect();
        bound.write_f32(cuda, "logits", &values).unwrap();
        bound.write_u32(cuda, "sequences", &[2, 0, 1]).unwrap();
        Sampler { bound, states: ptrs, history }
    }

    /// Everything that was sampled.
    fn history(&self, cuda: &mut CudaDispatcher) -> Vec<u8> {
        let mut bytes = vec![0; (ROWS * CAPACITY * 4) as usize];
        cuda.read(self.history, &mut bytes).unwrap();
        bytes
    }

    fn release(self, cuda: &mut dyn Backend) {
        self.bound.release(cuda).unwrap();
        self.states.into_iter().for_each(|ptr| cuda.free(ptr).unwrap());
    }
}

#[test]
fn a_thousand_replays_sample_the_same_tokens_as_a_thousand_runs_and_leak_nothing() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let launched = Sampler::new(&mut cuda);
    for _ in 0..1000 {
        launched.bound.run(&mut cuda).unwrap();
    }
    let expected = launched.history(&mut cuda);
    assert!(expected.chunks(4).any(|token| token != [0; 4]));
    launched.release(&mut cuda);

    let replayed = Sampler::new(&mut cuda);
    let id = cuda.prepare(replayed.bound.program()).unwrap().expect("programs are captured");
    for _ in 0..10 {
        cuda.replay(id).unwrap();
    }
    cuda.synchronize().unwrap();
    // Other processes may use the device at the same time; a leak would show in every round.
    const ROUNDS: usize = 5;
    let steady = |round: &mut dyn FnMut()| {
        let free = gpu.device.free_bytes();
        round();
        gpu.device.free_bytes() == free
    };
    let held = cuda.memory_bytes();
    let replay = &mut || {
        for _ in 0..990 / ROUNDS {
            cuda.replay(id).unwrap();
        }
        cuda.synchronize().unwrap();
    };
    let quiet = (0..ROUNDS).filter(|_| steady(replay)).count();
    assert!(quiet > 0, "replays change the free memory each time");
    assert!(replayed.history(&mut cuda) == expected);
    assert_eq!(cuda.memory_bytes(), held);
    cuda.release(id);

    // Capture and release repeatedly.
    let capture = &mut || {
        for _ in 0..50 {
            let id = cuda.prepare(replayed.bound.program()).unwrap().expect("programs are captured");
            cuda.replay(id).unwrap();
            cuda.release(id);
        }
    };
    capture();
    assert!((0..ROUNDS).any(|_| steady(capture)), "captures change the free memory each time");
    replayed.release(&mut cuda);
    assert_eq!(cuda.memory_bytes(), 0);
}
