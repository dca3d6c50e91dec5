//! RMS norm, Q, K, V, attention and residual add, as a compute graph with addresses, against f64.

use fulmen_core::*;
use fulmen_cpu::CpuDispatcher;

const M: usize = 4;
const HIDDEN: usize = 1536;
const KV: usize = 256;
const HEADS: Heads = Heads { n_heads: 12, n_kv_heads: 2, head_dim: 128 };
const ROW: [u32; 4] = [HIDDEN as u32, 1, M as u32, 0];

fn gaussian(random: &mut fastrand::Rng, n: usize, deviation: f32) -> Vec<f32> {
    let draw = |_| (0..12).map(|_| random.f32()).sum::<f32>() - 6.0;
    (0..n).map(draw).map(|x| x * deviation).collect()
}

struct Layer {
    cpu: CpuDispatcher,
    graph: ComputeGraph,
    x: Vec<f32>,
    gamma: Vec<f32>,
    /// Q, K, V as bytes.
    weights: [Vec<u8>; 3],
    output: u64,
}

fn layer(dtype: DType, seed: u64) -> Layer {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cpu = CpuDispatcher::new();
    let x = gaussian(&mut random, M * HIDDEN, 1.0);
    let gamma: Vec<f32> = (0..HIDDEN).map(|_| 0.5 + random.f32()).collect();
    let weights = [HIDDEN, KV, KV].map(|rows| {
        let values = gaussian(&mut random, rows * HIDDEN, (HIDDEN as f32).sqrt().recip());
        quant::quantize_to_vec(dtype, &values).unwrap()
    });
    let mut upload = |bytes: &[u8]| {
        let ptr = cpu.alloc(bytes.len()).unwrap();
        cpu.write(ptr, bytes).unwrap();
        ptr
    };
    let x_ptr = upload(bytemuck::cast_slice(&x));
    let gamma_ptr = upload(bytemuck::cast_slice(&gamma));
    let weight_ptrs = [&weights[0], &weights[1], &weights[2]].map(|bytes| upload(bytes));
    let [normed, q, k, v, attended, output] =
        [HIDDEN, HIDDEN, KV, KV, HIDDEN, HIDDEN].map(|width| upload(&vec![0xFF; M * width * 4]));

    let mut g = ComputeGraph::new();
    let input = g.add_leaf(x_ptr, ROW);
    let norm = OpParams { gamma_ptr, scalar: 1e-6, ..OpParams::default() };
    let normed = g.add_op(TensorOp::RmsNorm, normed, ROW, vec![input], norm);
    let mut product = |ptr: u64, weight: usize, n: usize| {
        let params =
            OpParams { weight_ptr: weight_ptrs[weight], weight_qtype: Some(dtype), ..OpParams::default() };
        g.add_op(TensorOp::MulMat, ptr, [n as u32, HIDDEN as u32, M as u32, 0], vec![normed], params)
    };
    let (q, k, v) = (product(q, 0, HIDDEN), product(k, 1, KV), product(v, 2, KV));
    let scale = OpParams { heads: HEADS, scalar: 1.0 / 128f32.sqrt(), ..OpParams::default() };
    let attended = g.add_op(TensorOp::SoftMax, attended, ROW, vec![q, k, v], scale);
    g.add_op(TensorOp::Add, output, ROW, vec![input, attended], OpParams::default());
    Layer { cpu, graph: g, x, gamma, weights, output }
}

fn reference(layer: &Layer, dtype: DType) -> Vec<f64> {
    let x: Vec<f64> = layer.x.iter().map(|&x| x.into()).collect();
    let mut normed = vec![0.0; M * HIDDEN];
    for r in 0..M {
        let row = &x[r * HIDDEN..][..HIDDEN];
        let mean = row.iter().map(|x| x * x).sum::<f64>() / HIDDEN as f64;
        for i in 0..HIDDEN {
            normed[r * HIDDEN + i] = row[i] / (mean + f64::from(1e-6f32)).sqrt() * f64::from(layer.gamma[i]);
        }
    }
    let product = |bytes: &[u8], n: usize| {
        let w = quant::dequantize_to_vec(dtype, bytes, n * HIDDEN).unwrap();
        let dot = |r: usize, c: usize| -> f64 {
            (0..HIDDEN).map(|i| normed[r * HIDDEN + i] * f64::from(w[c * HIDDEN + i])).sum()
        };
        (0..M * n).map(|at| dot(at / n, at % n)).collect::<Vec<f64>>()
    };
    let (q, k, v) =
        (product(&layer.weights[0], HIDDEN), product(&layer.weights[1], KV), product(&layer.weights[2], KV));
    let mut out = x;
    for r in 0..M {
        for h in 0..12 {
            let kv = h / 6 * 128;
            let scores: Vec<f64> = (0..=r)
                .map(|p| (0..128).map(|i| q[r * HIDDEN + h * 128 + i] * k[p * KV + kv + i]).sum::<f64>())
                .map(|s| (s * f64::from(1.0 / 128f32.sqrt())).exp())
                .collect();
            let total: f64 = scores.iter().sum();
            for i in 0..128 {
                let mixed: f64 = (0..=r).map(|p| scores[p] * v[p * KV + kv + i]).sum();
                out[r * HIDDEN + h * 128 + i] += mixed / total;
            }
        }
    }
    out
}

#[test]
fn a_layer_with_real_numbers_matches_f64() {
    let seed = fastrand::u64(..);
    for (dtype, tolerance) in
        [(DType::F32, 1e-12), (DType::F16, 1e-12), (DType::Q4_K, 1e-4), (DType::Q8_0, 1e-4)]
    {
        let mut layer = layer(dtype, seed);
        assert_eq!(execute_graph(&layer.graph, &mut layer.cpu).unwrap(), 6);
        let mut out = vec![0f32; M * HIDDEN];
        layer.cpu.read(layer.output, bytemuck::cast_slice_mut(&mut out)).unwrap();
        let expected = reference(&layer, dtype);
        let error: f64 = out.iter().zip(&expected).map(|(&o, e)| (f64::from(o) - e).powi(2)).sum();
        let nmse = error / expected.iter().map(|e| e * e).sum::<f64>();
        assert!(nmse <= tolerance, "{dtype}, seed {seed}: {nmse:e}");

        // Again, timed: the same bits.
        let timed = execute_graph_timed(&layer.graph, &mut layer.cpu).unwrap();
        assert_eq!(timed.n_launches, 6);
        let mut again = vec![0f32; M * HIDDEN];
        layer.cpu.read(layer.output, bytemuck::cast_slice_mut(&mut again)).unwrap();
        assert_eq!(bytemuck::cast_slice::<f32, u32>(&out), bytemuck::cast_slice::<f32, u32>(&again));
    }
}

/// Graphs that pass the check but whose addresses are not this device's, are too short, or overlap.
#[test]
fn wrong_addresses_are_errors_and_the_next_run_gives_the_same_bits() {
    let mut layer = layer(DType::Q4_K, 3);
    execute_graph(&layer.graph, &mut layer.cpu).unwrap();
    let mut first = vec![0u8; M * HIDDEN * 4];
    layer.cpu.read(layer.output, &mut first).unwrap();

    type Break = fn(&mut ComputeGraph);
    let cases: &[(Break, &str)] = &[
        (|g| g.nodes[0].data_ptr = 0x10, "node 1 (RmsNorm): the input: 24576 bytes at 0x10 are not inside"),
        (|g| g.nodes[2].params.weight_ptr += 144, "node 2 (MulMat): the weight: 1327104 bytes at"),
        (|g| g.nodes[3].data_ptr += 2, "node 3 (MulMat): the output: "),
        (|g| g.nodes[6].data_ptr = g.nodes[5].data_ptr + 256, "node 6 (Add): the output: 24576 bytes"),
        (
            |g| g.nodes[4].data_ptr = g.nodes[1].data_ptr + 1024,
            "node 4 (MulMat): the output overlaps the input",
        ),
    ];
    for (damage, message) in cases {
        let mut graph = layer.graph.clone();
        damage(&mut graph);
        let error = execute_graph(&graph, &mut layer.cpu).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    execute_graph(&layer.graph, &mut layer.cpu).unwrap();
    let mut again = vec![0u8; M * HIDDEN * 4];
    layer.cpu.read(layer.output, &mut again).unwrap();
    assert!(first == again);
}
