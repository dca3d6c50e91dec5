//! Attention and gate-up also write q8 activations for the following matmul: one launch less, the same bits.

use std::sync::Arc;

use fulmen_core::{
    AttentionCall, AttentionRows, DType, DeviceMemory, GateActivation, GateUpCall, Heads, KernelDispatch,
    KvCache, KvSource, MulMatCall, OpCall, Program, Projection, WeightArg, quant,
};
use fulmen_wgpu::{DeviceOptions, WgpuDispatcher, wgpu::Features};

use crate::{get, put, with};

fn drawn(rng: &mut fastrand::Rng, n: u32) -> Vec<f32> {
    (0..n).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

fn weight(wgpu: &mut WgpuDispatcher, rng: &mut fastrand::Rng, dtype: DType, rows: u32, k: u32) -> WeightArg {
    let bytes = quant::quantize_to_vec(dtype, &drawn(rng, rows * k)).unwrap();
    WeightArg { ptr: wgpu.import_weight(Arc::new(bytes), dtype, rows, k).unwrap(), dtype, rows }
}

fn poisoned(wgpu: &mut WgpuDispatcher, n: u32) -> u64 {
    put(wgpu, &vec![f32::NAN; n as usize])
}

fn bits(wgpu: &mut WgpuDispatcher, ptr: u64, n: u32) -> Vec<u32> {
    let values: Vec<f32> = get(wgpu, ptr, n as usize);
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs both calls as planned, and returns the number of launches.
fn run_planned(wgpu: &mut WgpuDispatcher, calls: [&OpCall; 2]) -> usize {
    let mut program = Program::check_calls(calls.map(OpCall::clone)).unwrap();
    program.plan(wgpu).unwrap();
    let launched = program.run(wgpu).unwrap();
    program.release_plan(wgpu).unwrap();
    launched
}

/// A matmul with a residual, of an input that another call makes.
fn matmul(
    wgpu: &mut WgpuDispatcher,
    rng: &mut fastrand::Rng,
    dtype: DType,
    [m, n, k]: [u32; 3],
    input: u64,
) -> MulMatCall {
    let weight = weight(wgpu, rng, dtype, n, k);
    let residual = Some(put(wgpu, &drawn(rng, m * n)));
    let output = poisoned(wgpu, m * n);
    MulMatCall {
        input,
        parts: vec![Projection { weight, bias: None, output }],
        residual,
        m,
        k,
        batch_invariant: false,
    }
}

#[test]
fn attention_makes_the_q8_activations_of_its_matmul() {
    const CAPACITY: u32 = 256;
    let mut rng = fastrand::Rng::with_seed(3);
    for without in [Features::empty(), Features::all()] {
        let check_trusted = !without.is_empty();
        let mut wgpu = with(DeviceOptions { without, check_trusted, ..DeviceOptions::default() });
        for (m, n_heads, head_dim, weights) in [
            (1, 8, 128, DType::Q4_K),
            (1, 6, 32, DType::Q8_0),
            (3, 4, 64, DType::Q6_K),
            (8, 2, 96, DType::Q4_0),
        ] {
            let heads = Heads { n_heads, n_kv_heads: 2, head_dim };
            let (width, n) = (heads.q_width(), 72);
            let half_cache = |wgpu: &mut WgpuDispatcher, rng: &mut fastrand::Rng| {
                let values = drawn(rng, CAPACITY * heads.kv_width());
                put(wgpu, &quant::quantize_to_vec(DType::F16, &values).unwrap())
            };
            let (k_ptr, v_ptr) = (half_cache(&mut wgpu, &mut rng), half_cache(&mut wgpu, &mut rng));
            let (dtype, n_pages, n_seqs, seq_pages) = (DType::F16, 2, 1, 2);
            let table_ptr = put(&mut wgpu, &[1u32, 0]);
            let cache = KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages };
            let positions = put(&mut wgpu, &(0..m).map(|row| CAPACITY - 1 - 17 * row).collect::<Vec<_>>());
            let q = put(&mut wgpu, &drawn(&mut rng, m * width));
            let output = poisoned(&mut wgpu, m * width);
            let kv = KvSource::Cache { cache, positions, sequences: None };
            let attention = AttentionCall {
                q,
                kv,
                output,
                m,
                heads,
                rows: AttentionRows::Any,
                scores: 0.3.into(),
                layer: 0,
                batch_invariant: false,
            };
            let matmul = matmul(&mut wgpu, &mut rng, weights, [m, n, width], output);
            let results = [(output, m * width), (matmul.parts[0].output, m * n)];
            let (first, second) = (OpCall::Attention(attention), OpCall::MulMat(matmul));
            // Parts of the context, what puts them together, the matmul.
            assert_eq!(run_planned(&mut wgpu, [&first, &second]), 3);
            let together = results.map(|(ptr, n)| bits(&mut wgpu, ptr, n));
            for (ptr, n) in results {
                wgpu.write(ptr, bytemuck::cast_slice(&vec![f32::NAN; n as usize])).unwrap();
            }
            assert_eq!(wgpu.dispatch(&first).unwrap() + wgpu.dispatch(&second).unwrap(), 4);
            let alone = results.map(|(ptr, n)| bits(&mut wgpu, ptr, n));
            assert_eq!(together, alone, "m = {m}, {n_heads} heads of {head_dim}, {weights:?}");
        }
    }
}

#[test]
fn gate_and_up_make_the_q8_activations_of_the_matmul_after_them() {
    let mut rng = fastrand::Rng::with_seed(4);
    for without in [Features::empty(), Features::all()] {
        let check_trusted = !without.is_empty();
        let mut wgpu = with(DeviceOptions { without, check_trusted, ..DeviceOptions::default() });
        // The last has rows that are no whole items.
        for (m, hidden, dtype) in [
            (1, 768, DType::Q4_K),
            (1, 96, DType::Q8_0),
            (2, 4512, DType::Q4_0),
            (3, 256, DType::Q6_K),
            (8, 512, DType::Q5_K),
            (1, 72, DType::F32),
        ] {
            let (k, n) = (512, 40);
            let input = put(&mut wgpu, &drawn(&mut rng, m * k));
            let gate = weight(&mut wgpu, &mut rng, DType::Q4_K, hidden, k);
            let up = weight(&mut wgpu, &mut rng, DType::Q6_K, hidden, k);
            let output = poisoned(&mut wgpu, m * hidden);
            let (activation, batch_invariant) = (GateActivation::Silu, false);
            let first = GateUpCall { input, gate, up, activation, output, m, k, batch_invariant };
            let first = OpCall::GateUp(first);
            let matmul = matmul(&mut wgpu, &mut rng, dtype, [m, n, hidden], output);
            let results = [(output, m * hidden), (matmul.parts[0].output, m * n)];
            let second = OpCall::MulMat(matmul);
            // Quantizing the input, gate and up, the matmul.
            assert_eq!(run_planned(&mut wgpu, [&first, &second]), 3);
            let together = results.map(|(ptr, n)| bits(&mut wgpu, ptr, n));
            let again = poisoned(&mut wgpu, m * n);
            let OpCall::MulMat(mut matmul) = second else { unreachable!() };
            matmul.parts[0].output = again;
            // Alone, the matmul quantizes the stored f32 values.
            let quantize = usize::from(dtype != DType::F32);
            assert_eq!(wgpu.dispatch(&OpCall::MulMat(matmul)).unwrap(), 1 + quantize);
            assert!(together[1] == bits(&mut wgpu, again, m * n), "m = {m}, {hidden}, {dtype:?}");
        }
    }
}
