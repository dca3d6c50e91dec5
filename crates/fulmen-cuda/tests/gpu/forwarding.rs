//! Forwarded activations: kernels write their result in the format that the next matmul reads. Results match
//! f64, also where f16 cannot represent what is forwarded, and a replay gives the same bits as a run.

use std::sync::Arc;

use fulmen_core::{BuildError, DType, GraphBuilder, KernelDispatch, LogicalGraph, PlanOptions, quant};
use fulmen_cuda::CudaDispatcher;
use fulmen_testkit::draw::{Draw, Pools};
use fulmen_testkit::reference::{Data, DataSet, Interpreter};
use fulmen_testkit::rig::Rig;

use crate::gpu;

/// A layer after its attention, and the QKV matmuls of the next one.
#[derive(Clone, Copy, Debug)]
struct Layer {
    m: u32,
    attended: u32,
    hidden: u32,
    inner: u32,
    /// The type of all weights but that of V.
    dtype: DType,
    values: DType,
    /// The magnitude of the gain before gate and up.
    gain: f32,
}

const EPSILON: f32 = 1e-6;

impl Layer {
    fn graph(&self) -> Result<LogicalGraph, BuildError> {
        let Layer { m, attended, hidden, inner, dtype, .. } = *self;
        let mut b = GraphBuilder::new();
        let (a, x) = (b.input("attended", m, attended)?, b.input("x", m, hidden)?);
        let (o, down) = (b.weight("o", dtype, hidden, attended)?, b.weight("down", dtype, hidden, inner)?);
        let (gate, up) = (b.weight("gate", dtype, inner, hidden)?, b.weight("up", dtype, inner, hidden)?);
        let (q, k) = (b.weight("q", dtype, 512, hidden)?, b.weight("k", dtype, 96, hidden)?);
        let v = b.weight("v", self.values, 96, hidden)?;
        let (first, second) = (b.vector("first", hidden)?, b.vector("second", hidden)?);
        let x = b.linear(a, o, None, Some(x))?;
        let h = b.rms_norm(x, first, EPSILON)?;
        let f = b.gate_up(h, gate, up)?;
        let x = b.linear(f, down, None, Some(x))?;
        let h = b.rms_norm(x, second, EPSILON)?;
        for (name, y) in
            ["yq", "yk", "yv"].into_iter().zip(b.linear_many(h, &[(q, None), (k, None), (v, None)])?)
        {
            b.output(name, y)?;
        }
        b.output("f", f)?;
        b.output("normed", h)?;
        Ok(b.finish())
    }

    /// Random data; `scales` lists rows of the inputs with the factor that they are multiplied with.
    fn data(&self, graph: &LogicalGraph, scales: &[(usize, f32)]) -> DataSet {
        let small = |k: u32| Draw::Normal(0.0, 1.0 / (k as f32).sqrt());
        let mut draws = vec![("first", Draw::Normal(self.gain, 0.1 * self.gain)), ("second", Draw::GAIN)];
        draws.extend(["gate", "up", "q", "k", "v"].map(|name| (name, small(self.hidden))));
        draws.extend([("o", small(self.attended)), ("down", small(self.inner))]);
        let draws: Vec<_> = draws.into_iter().map(|(name, draw)| (name.to_owned(), draw)).collect();
        let mut data = Pools::new(11).draw_graph("forwarding", graph, &draws).unwrap();
        for (name, width) in [("attended", self.attended), ("x", self.hidden)] {
            let mut values = f32s(&data[name]);
            for &(row, scale) in scales {
                let row = &mut values[row * width as usize..][..width as usize];
                row.iter_mut().for_each(|value| *value *= scale);
            }
            data.insert(name.to_owned(), Arc::new(bytes_of(&values)));
        }
        data
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    quant::dequantize_to_vec(DType::F32, bytes, bytes.len() / 4).unwrap()
}

/// The error bounds of matmuls with f16 and with q8 activations.
const F16_ERROR: f64 = 1e-5;
const Q8_ERROR: f64 = 1e-3;

/// Runs a graph, and compares each row of each output with f64 and the bits of a second run and of a replay
/// with those of the first run. Returns the number of kernels.
fn check(cuda: &mut CudaDispatcher, graph: &LogicalGraph, data: &DataSet, allowed: f64, what: &str) -> usize {
    let options = PlanOptions { fusions: cuda.fusions(), ..PlanOptions::default() };
    let mut reference = Interpreter::new(graph, data).unwrap();
    reference.matmul_limit = u64::MAX;
    reference.run().unwrap();
    let mut rig = Rig::new(cuda, graph.clone(), &options, data).unwrap();
    let kernels = rig.bound.run(cuda).unwrap();
    let outputs = graph.outputs.clone();
    let read = |rig: &Rig, cuda: &mut CudaDispatcher| -> Vec<Vec<u8>> {
        outputs.iter().map(|&tensor| rig.read(cuda, tensor).unwrap()).collect()
    };
    let first = read(&rig, cuda);
    for (&tensor, got) in outputs.iter().zip(&first) {
        let def = &graph.tensors[tensor];
        let Data::Floats(expected) = reference.data(tensor).unwrap() else { panic!("{what}: not f32") };
        let width = def.width as usize;
        for (row, got) in f32s(got).chunks(width).enumerate() {
            let range = row * width..(row + 1) * width;
            let sizes = expected.sizes.as_ref().unwrap_or(&expected.data);
            let wanted = &expected.data[range.clone()];
            let size: f64 = sizes[range].iter().map(|size| size * size).sum();
            let error: f64 =
                got.iter().zip(wanted).map(|(&got, wanted)| (f64::from(got) - wanted).powi(2)).sum();
            let name = def.name.as_deref().unwrap_or("");
            if wanted.iter().all(|value| value.is_finite()) {
                assert!(error <= allowed * size, "{what}: {name}, row {row}: {error:e} of {size:e}");
            } else {
                assert!(got.iter().all(|value| !value.is_finite()), "{what}: {name}, row {row} is finite");
            }
        }
    }
    rig.reset(cuda).unwrap();
    rig.run(cuda).unwrap();
    assert!(read(&rig, cuda) == first, "{what}: a second run");
    rig.reset(cuda).unwrap();
    let program = rig.bound.program();
    program.run_observed(cuda, |cuda, _, _| cuda.synchronize().map(|()| true)).unwrap();
    assert!(read(&rig, cuda) == first, "{what}: waiting after each call");
    let id = cuda.prepare(rig.bound.program()).unwrap().expect("programs are captured");
    for _ in 0..2 {
        rig.reset(cuda).unwrap();
        cuda.replay(id).unwrap();
        cuda.synchronize().unwrap();
        assert!(read(&rig, cuda) == first, "{what}: a replay");
    }
    cuda.release(id);
    rig.surroundings(cuda).unwrap().unwrap();
    rig.release(cuda).unwrap();
    kernels
}

/// The kernels of a layer: only matmuls if everything is forwarded, and a conversion before each if nothing
/// is.
fn kernels(capability: u32, m: u32) -> Option<usize> {
    let all = match m {
        1 => 4,
        2..=32 => 5,
        _ => 8,
    };
    (capability >= 90).then_some(all)
}

#[test]
fn layers_with_values_of_any_magnitude_are_correct() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let capability = gpu.device.caps().capability;
    let mixed = [(0, 1e6), (2, 1e-8), (3, 0.0), (5, 1e-3), (6, 300.0)];
    for (dtype, values) in [
        (DType::Q4_K, DType::Q6_K),
        (DType::Q4_K, DType::Q4_K),
        (DType::Q6_K, DType::Q6_K),
        (DType::Q8_0, DType::Q8_0),
        (DType::Q4_0, DType::Q8_0),
    ] {
        for m in [7, 8, 13, 16, 29] {
            for gain in [1.0, 1e3, 1e-4] {
                for scales in [&mixed[..0], &mixed, &[(1, f32::NAN)], &[(4, 1e6)], &[(4, 1e-8)]] {
                    let layer = Layer { m, attended: 512, hidden: 768, inner: 1280, dtype, values, gain };
                    let graph = layer.graph().unwrap();
                    let what = format!("{layer:?} with {scales:?}");
                    let launched = check(&mut cuda, &graph, &layer.data(&graph, scales), F16_ERROR, &what);
                    // Weights of different formats need a launch each.
                    let apart = usize::from(dtype == DType::Q4_0);
                    if let Some(expected) = kernels(capability, m) {
                        assert_eq!(launched, expected + apart, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_layer_of_a_real_model_is_correct() {
    let Some(gpu) = gpu() else { return };
    let (dtype, values) = (DType::Q4_K, DType::Q6_K);
    for (m, scales) in [
        (16, &[][..]),
        (8, &[]),
        (3, &[]),
        (32, &[]),
        (16, &[(3, 1e6), (9, 1e-8)]),
        (30, &[(3, 1e6), (29, 1e-8)]),
    ] {
        // A new dispatcher, so that scratch memory has to grow.
        let mut cuda = gpu.dispatcher();
        let layer = Layer { m, attended: 4096, hidden: 2560, inner: 9728, dtype, values, gain: 1.0 };
        let graph = layer.graph().unwrap();
        let what = format!("{layer:?} with {scales:?}");
        let launched = check(&mut cuda, &graph, &layer.data(&graph, scales), F16_ERROR, &what);
        if let Some(expected) = kernels(gpu.device.caps().capability, m) {
            assert_eq!(launched, expected, "{what}");
        }
    }
}

/// Gate-up at batch 1 forwards q8 activations if each thread block computes whole q8 blocks.
#[test]
fn batch_1_forwards_q8_activations() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    for (attended, hidden, inner) in [(4096, 2560, 9728), (512, 768, 3840), (512, 768, 1280)] {
        for (dtype, values) in
            [(DType::Q4_K, DType::Q6_K), (DType::Q6_K, DType::Q6_K), (DType::Q8_0, DType::Q8_0)]
        {
            let layer = Layer { m: 1, attended, hidden, inner, dtype, values, gain: 1.0 };
            let graph = layer.graph().unwrap();
            let launched =
                check(&mut cuda, &graph, &layer.data(&graph, &[]), Q8_ERROR, &format!("{layer:?}"));
            if let Some(expected) = kernels(gpu.device.caps().capability, 1) {
                assert_eq!(launched, expected, "{layer:?}");
            }
        }
    }
}

/// Forwarded activations are used only with the gain that they were made for.
#[test]
fn forwarded_activations_are_used_with_their_gain_only() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    const WIDTH: u32 = 512;
    for m in [2, 8, 16, 32] {
        let mut b = GraphBuilder::new();
        let x = b.input("x", m, WIDTH).unwrap();
        let mut weight = |name: &str| b.weight(name, DType::Q4_K, WIDTH, WIDTH).unwrap();
        let (w, one, two, plain) = (weight("w"), weight("one"), weight("two"), weight("plain"));
        let (first, second) = (b.vector("first", WIDTH).unwrap(), b.vector("second", WIDTH).unwrap());
        let h = b.mul_mat(x, w).unwrap();
        let n = b.rms_norm(h, first, EPSILON).unwrap();
        let y = b.mul_mat(n, one).unwrap();
        b.output("of_one", y).unwrap();
        // The same input with another gain; without a norm; and a norm that no matmul follows.
        let n = b.rms_norm(h, second, EPSILON).unwrap();
        let y = b.mul_mat(n, two).unwrap();
        b.output("of_two", y).unwrap();
        let y = b.mul_mat(h, plain).unwrap();
        b.output("of_plain", y).unwrap();
        let n = b.rms_norm(y, first, EPSILON).unwrap();
        let sum = b.add(n, y).unwrap();
        let y = b.mul_mat(sum, one).unwrap();
        b.output("of_sum", y).unwrap();
        let graph = b.finish();
        let size = Draw::Normal(0.0, 1.0 / (WIDTH as f32).sqrt());
        let mut draws: Vec<_> =
            ["w", "one", "two", "plain"].map(|name| (name.to_owned(), size.clone())).into();
        draws.push(("second".to_owned(), Draw::Normal(-2.0, 0.5)));
        let data = Pools::new(12).draw_graph("apart", &graph, &draws).unwrap();
        check(&mut cuda, &graph, &data, F16_ERROR, &format!("{m} rows"));
    }
}
