//! A norm and the matmuls of its result: fewer launches, the same results.

use std::sync::Arc;

use fulmen_core::{
    ComputeGraph, DType, DeviceMemory, ExtraWeight, KernelDispatch, OpParams, Program, TensorOp, quant,
};
use fulmen_wgpu::{DeviceOptions, WgpuDispatcher, wgpu::Features};

use crate::{get, put, with};

const K: u32 = 512;

fn weight(wgpu: &mut WgpuDispatcher, dtype: DType, n: u32, seed: u32) -> u64 {
    let values: Vec<f32> =
        (0..n * K).map(|i| ((i.wrapping_mul(2 * seed + 7) % 97) as f32 - 48.0) / 40.0).collect();
    let bytes = quant::quantize_to_vec(dtype, &values).unwrap();
    wgpu.import_weight(Arc::new(bytes), dtype, n, K).unwrap()
}

/// A norm, Q, K and V of three types with a bias, and gate-up; and where the results lie.
fn program(wgpu: &mut WgpuDispatcher, m: u32) -> (Program, Vec<(u64, usize)>) {
    let values: Vec<f32> = (0..m * K).map(|i| ((i * 31 % 67) as f32 - 30.0) / 11.0).collect();
    let gain: Vec<f32> = (0..K).map(|i| 1.0 + (i % 5) as f32 / 8.0).collect();
    let (x, gamma_ptr) = (put(wgpu, &values), put(wgpu, &gain));
    let out = |wgpu: &mut WgpuDispatcher, n: u32| put(wgpu, &vec![f32::NAN; (m * n) as usize]);
    let mut graph = ComputeGraph::new();
    let leaf = graph.add_leaf(x, [K, 1, m, 0]);
    let norm = |graph: &mut ComputeGraph, ptr| {
        let params = OpParams { gamma_ptr, scalar: 1e-6, ..OpParams::default() };
        graph.add_op(TensorOp::RmsNorm, ptr, [K, 1, m, 0], vec![leaf], params)
    };
    let (norm_a, norm_b) = (out(wgpu, K), out(wgpu, K));
    let (q, k, v, hidden) = (out(wgpu, 80), out(wgpu, 33), out(wgpu, 48), out(wgpu, 70));
    let a = norm(&mut graph, norm_a);
    let bias_ptr = put(wgpu, &(0..80).map(|i| i as f32 / 7.0).collect::<Vec<f32>>());
    let extra = |weight_ptr, weight_qtype, rows, output_ptr| ExtraWeight {
        weight_ptr,
        weight_qtype,
        rows,
        bias_ptr: 0,
        output_ptr,
    };
    let params = OpParams {
        weight_ptr: weight(wgpu, DType::Q4_K, 80, 1),
        weight_qtype: Some(DType::Q4_K),
        bias_ptr,
        bias_len: 80,
        extra_weights: vec![
            extra(weight(wgpu, DType::Q8_0, 33, 2), DType::Q8_0, 33, k),
            extra(weight(wgpu, DType::Q6_K, 48, 3), DType::Q6_K, 48, v),
        ],
        ..OpParams::default()
    };
    graph.add_op(TensorOp::MulMat, q, [80, K, m, 0], vec![a], params);
    let b = norm(&mut graph, norm_b);
    let params = OpParams {
        weight_ptr: weight(wgpu, DType::Q4_K, 70, 4),
        weight_qtype: Some(DType::Q4_K),
        up_ptr: weight(wgpu, DType::Q5_K, 70, 5),
        up_qtype: Some(DType::Q5_K),
        ..OpParams::default()
    };
    graph.add_op(TensorOp::GateUp, hidden, [70, K, m, 0], vec![b], params);
    let results = [(norm_a, K), (q, 80), (k, 33), (v, 48), (norm_b, K), (hidden, 70)];
    let results = results.map(|(ptr, n)| (ptr, (m * n) as usize)).to_vec();
    (graph.check().unwrap(), results)
}

#[test]
fn a_norm_quantizes_for_the_matmuls_that_follow() {
    for without in [Features::empty(), Features::all()] {
        for m in [1, 3, 8] {
            let mut wgpu = with(DeviceOptions { without, ..DeviceOptions::default() });
            let (mut program, results) = program(&mut wgpu, m);
            program.plan(&mut wgpu).unwrap();
            let read = |wgpu: &mut WgpuDispatcher| -> Vec<Vec<f32>> {
                results.iter().map(|&(ptr, n)| get(wgpu, ptr, n)).collect()
            };
            // A norm that also quantizes, and all matmuls of it, twice.
            assert_eq!(program.run(&mut wgpu).unwrap(), 4);
            let together = read(&mut wgpu);
            let mut launches = 0;
            for step in program.calls() {
                launches += wgpu.dispatch(&step.call).unwrap();
            }
            // Quantizing takes launches of its own.
            assert_eq!(launches, 6);
            for (number, (a, b)) in together.iter().zip(read(&mut wgpu)).enumerate() {
                // A sum of squares in another order may change a quantized value.
                let bound = if number == 0 || number == 4 { 1e-12 } else { 1e-4 };
                let error: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                let size: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
                assert!(error <= bound * size, "m = {m}, result {number}: {:e}", error / size);
            }
        }
    }
}

#[test]
fn a_captured_program_needs_the_memory_of_its_plan() {
    let mut wgpu = with(DeviceOptions::default());
    let (mut program, _) = program(&mut wgpu, 2);
    program.plan(&mut wgpu).unwrap();
    assert!(program.forward_memory().next().is_some());
    let id = wgpu.prepare(&program).unwrap().expect("programs are captured");
    wgpu.replay(id).unwrap();
    program.release_plan(&mut wgpu).unwrap();
    let error = wgpu.replay(id).unwrap_err().to_string();
    assert!(error.contains("was freed"), "{error}");
    // The calls run one by one again.
    assert_eq!(program.run(&mut wgpu).unwrap(), 6);
}
