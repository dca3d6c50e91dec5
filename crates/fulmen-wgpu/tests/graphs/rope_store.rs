//! Norm per head, rotation, store and attention of one row: two launches instead of three, the same results.

use fulmen_core::{
    AttentionCall, AttentionRows, DType, Heads, KernelDispatch, KvCache, KvSource, KvStoreCall, OpCall,
    Program, RopePairing, RopeSpec, RopeStoreCall, quant,
};
use fulmen_wgpu::{DeviceOptions, WgpuDispatcher, wgpu::Features};

use crate::{get, put, with};

const CAPACITY: u32 = 256;
const SEQUENCES: u32 = 2;
/// The pages of each sequence.
const PAGES: [u32; 4] = [3, 0, 2, 1];

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: Heads,
    cache: DType,
    rope: RopeSpec,
    norms: [bool; 2],
    factors: bool,
    sequence: Option<u32>,
    in_place: bool,
    position: u32,
}

/// The calls on memory drawn from a seed, and what they leave behind.
struct Run {
    store: RopeStoreCall,
    attention: AttentionCall,
    case: Case,
}

impl Run {
    fn new(wgpu: &mut WgpuDispatcher, case: Case) -> Run {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut drawn = |n: u32, from: f32| -> Vec<f32> { (0..n).map(|_| from + 2.0 * rng.f32()).collect() };
        let Case { heads, position, .. } = case;
        let half = SEQUENCES * CAPACITY * heads.kv_width();
        let mut half_cache = |wgpu: &mut WgpuDispatcher| {
            put(wgpu, &quant::quantize_to_vec(case.cache, &drawn(half, -1.0)).unwrap())
        };
        let (k_ptr, v_ptr) = (half_cache(wgpu), half_cache(wgpu));
        let (dtype, n_seqs, seq_pages) = (case.cache, SEQUENCES, CAPACITY / 128);
        let (n_pages, table_ptr) = (n_seqs * seq_pages, put(wgpu, &PAGES));
        let cache = KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages };
        let q = put(wgpu, &drawn(heads.q_width(), -1.0));
        let (k, v) = (put(wgpu, &drawn(heads.kv_width(), -1.0)), put(wgpu, &drawn(heads.kv_width(), -1.0)));
        let mut gain =
            |wgpu: &mut WgpuDispatcher, with: bool| with.then(|| put(wgpu, &drawn(heads.head_dim, 0.5)));
        let [q_gamma, k_gamma] = case.norms.map(|with| gain(wgpu, with));
        let factors = case.factors.then(|| put(wgpu, &drawn(case.rope.n_rot / 2, 1.0)));
        let positions = put(wgpu, &[position]);
        let sequences = case.sequence.map(|sequence| put(wgpu, &[sequence]));
        let mut poisoned = || put(wgpu, &vec![f32::NAN; heads.q_width() as usize]);
        let rotated = if case.in_place { q } else { poisoned() };
        let output = poisoned();
        let store = KvStoreCall { k, v, cache, positions, sequences, m: 1, heads };
        let epsilon = 1e-5;
        let rope = case.rope;
        let store = RopeStoreCall { q, store, q_gamma, k_gamma, epsilon, rope, factors, output: rotated };
        let kv = KvSource::Cache { cache, positions, sequences };
        let attention = AttentionCall {
            q: rotated,
            kv,
            output,
            m: 1,
            heads,
            rows: AttentionRows::Any,
            scores: 0.4.into(),
            layer: 0,
            batch_invariant: false,
        };
        Run { store, attention, case }
    }

    fn calls(&self) -> (OpCall, OpCall) {
        (OpCall::RopeStore(self.store.clone()), OpCall::Attention(self.attention.clone()))
    }

    fn planned(&self, wgpu: &mut WgpuDispatcher) -> Program {
        let mut program = Program::check_calls(<[OpCall; 2]>::from(self.calls())).unwrap();
        program.plan(wgpu).unwrap();
        program
    }

    /// Rotated queries and the result, then keys and values.
    fn results(&self, wgpu: &mut WgpuDispatcher) -> (Vec<f32>, Vec<f32>, [Vec<u8>; 2]) {
        let Case { heads, cache, .. } = self.case;
        let width = heads.q_width() as usize;
        let bytes = cache.bytes((SEQUENCES * CAPACITY * heads.kv_width()) as usize).unwrap();
        let KvCache { k_ptr, v_ptr, .. } = self.store.store.cache;
        let caches = [k_ptr, v_ptr].map(|ptr| get(wgpu, ptr, bytes));
        (get(wgpu, self.store.output, width), get(wgpu, self.attention.output, width), caches)
    }
}

fn close(got: &[f32], expected: &[f32], what: &str) {
    let error: f64 = got.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let size: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    assert!(error <= 1e-8 * size, "{what}: {:e}", error / size);
}

/// Both ways, each on memory of its own.
fn compare(wgpu: &mut WgpuDispatcher, case: Case) {
    let (together, apart) = (Run::new(wgpu, case), Run::new(wgpu, case));
    assert_eq!(together.planned(wgpu).run(wgpu).unwrap(), 2, "{case:?}");
    let (rotated, result, caches) = together.results(wgpu);
    let (first, second) = apart.calls();
    assert_eq!(wgpu.dispatch(&first).unwrap() + wgpu.dispatch(&second).unwrap(), 3);
    let (rotated_apart, result_apart, caches_apart) = apart.results(wgpu);
    close(&rotated, &rotated_apart, &format!("queries of {case:?}"));
    close(&result, &result_apart, &format!("result of {case:?}"));
    for (a, b) in caches.iter().zip(&caches_apart) {
        let row = case.cache.bytes(case.heads.head_dim as usize).unwrap();
        // A sum of squares in another order may change a bit of the new keys; all others are as they were.
        let page = PAGES[(case.sequence.unwrap_or(0) * 2 + case.position / 128) as usize];
        for (number, (a, b)) in a.chunks(row).zip(b.chunks(row)).enumerate() {
            let of_page = number as u32 / (128 * case.heads.n_kv_heads) == page;
            if !of_page || number as u32 % 128 != case.position % 128 {
                assert_eq!(a, b, "row {number} of {case:?}");
                continue;
            }
            let read = |bytes: &[u8]| {
                quant::dequantize_to_vec(case.cache, bytes, case.heads.head_dim as usize).unwrap()
            };
            let bound = 1e-3;
            let far = read(a).iter().zip(read(b)).any(|(a, b)| (a - b).abs() > bound);
            assert!(!far, "row {number} of {case:?}");
        }
    }
}

fn cases() -> Vec<Case> {
    let heads = |n_heads, n_kv_heads, head_dim| Heads { n_heads, n_kv_heads, head_dim };
    let qwen3 = Case {
        heads: heads(8, 2, 128),
        cache: DType::F16,
        rope: RopeSpec::new(RopePairing::NeoX, 128, 1e6),
        norms: [true, true],
        factors: false,
        sequence: Some(1),
        in_place: true,
        position: 77,
    };
    let llama = Case {
        heads: heads(3, 3, 64),
        rope: RopeSpec::new(RopePairing::Interleaved, 64, 5e5),
        norms: [false, false],
        factors: true,
        sequence: None,
        in_place: false,
        ..qwen3
    };
    let small = Case {
        heads: heads(4, 2, 36),
        cache: DType::F32,
        rope: RopeSpec::new(RopePairing::NeoX, 20, 1e4),
        norms: [false, true],
        ..llama
    };
    let mut cases = Vec::new();
    for case in [qwen3, llama, small] {
        for position in [0, 31, 127, 128, 200, CAPACITY - 1] {
            cases.push(Case { position, ..case });
        }
    }
    cases
}

#[test]
fn one_row_is_stored_by_the_attention_that_reads_it() {
    for without in [Features::empty(), Features::all()] {
        let check_trusted = !without.is_empty();
        let mut wgpu = with(DeviceOptions { without, check_trusted, ..DeviceOptions::default() });
        for case in cases() {
            compare(&mut wgpu, case);
        }
    }
}

#[test]
fn a_row_without_a_place_is_reported_and_stored_nowhere() {
    let mut wgpu = with(DeviceOptions::default());
    let case = cases()[0];
    for case in [Case { position: CAPACITY, ..case }, Case { sequence: Some(SEQUENCES), ..case }] {
        let run = Run::new(&mut wgpu, case);
        let before = run.results(&mut wgpu);
        assert_eq!(run.planned(&mut wgpu).run(&mut wgpu).unwrap(), 2);
        let error = wgpu.synchronize().unwrap_err().to_string();
        assert!(error.contains("row 0"), "{error}");
        let after = run.results(&mut wgpu);
        assert!(before.0 == after.0 && before.2 == after.2, "{case:?}");
        assert!(after.1.iter().all(|x| *x == 0.0), "{case:?}");
    }
}

#[test]
fn what_one_launch_cannot_do_is_left_to_two_calls() {
    let case = cases()[0];
    let q8_0 = Case { cache: DType::Q8_0, ..case };
    let many_heads = Case { heads: Heads { n_heads: 18, ..case.heads }, ..case };
    for (max_storage_buffers, case) in [(Some(8), case), (None, q8_0), (None, many_heads)] {
        let mut wgpu = with(DeviceOptions { max_storage_buffers, ..DeviceOptions::default() });
        let program = Run::new(&mut wgpu, case).planned(&mut wgpu);
        assert_eq!(program.planned_calls().len(), 2, "{case:?}");
    }
}
