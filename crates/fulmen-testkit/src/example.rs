//! The example layer: RMS norm, Q, K, V, attention and residual add, as a compute graph with addresses, and
//! in f64.

use fulmen_core::*;

use crate::draw::normal;

/// Rows.
pub const M: usize = 4;
/// Columns of a row.
pub const HIDDEN: usize = 1536;
const KV: usize = 256;
const HEADS: Heads = Heads { n_heads: 12, n_kv_heads: 2, head_dim: 128 };
const ROW: [u32; 4] = [HIDDEN as u32, 1, M as u32, 0];

/// The layer on a backend.
pub struct Example {
    /// Its nodes; node 0 is the input.
    pub graph: ComputeGraph,
    /// Address of the output.
    pub output: u64,
    dtype: DType,
    x: Vec<f32>,
    gamma: Vec<f32>,
    /// Q, K, V as bytes.
    weights: [Vec<u8>; 3],
}

impl Example {
    /// Uploads random data.
    pub fn new(backend: &mut dyn Backend, dtype: DType, seed: u64) -> Result<Example, ExecError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let x = normal(&mut random, M * HIDDEN, 0.0, 1.0);
        let gamma: Vec<f32> = (0..HIDDEN).map(|_| 0.5 + random.f32()).collect();
        let deviation = (HIDDEN as f32).sqrt().recip();
        let mut weight = |rows: usize| {
            let values = normal(&mut random, rows * HIDDEN, 0.0, deviation);
            let encoded = quant::quantize_to_vec(dtype, &values);
            encoded.map_err(|e| BuildError { call: "example", problem: Problem::DType(e) })
        };
        let weights = [weight(HIDDEN)?, weight(KV)?, weight(KV)?];
        let mut upload = |bytes: &[u8]| -> Result<u64, BackendError> {
            let ptr = backend.alloc(bytes.len())?;
            backend.write(ptr, bytes)?;
            Ok(ptr)
        };
        let x_ptr = upload(bytemuck::cast_slice(&x))?;
        let gamma_ptr = upload(bytemuck::cast_slice(&gamma))?;
        let weight_ptrs = [upload(&weights[0])?, upload(&weights[1])?, upload(&weights[2])?];
        let mut poisoned = |width: usize| upload(&vec![0xFF; M * width * 4]);
        let (normed, q, k, v) = (poisoned(HIDDEN)?, poisoned(HIDDEN)?, poisoned(KV)?, poisoned(KV)?);
        let (attended, output) = (poisoned(HIDDEN)?, poisoned(HIDDEN)?);

        let mut g = ComputeGraph::new();
        let input = g.add_leaf(x_ptr, ROW);
        let norm = OpParams { gamma_ptr, scalar: 1e-6, ..OpParams::default() };
        let normed = g.add_op(TensorOp::RmsNorm, normed, ROW, vec![input], norm);
        let mut matmul = |ptr: u64, weight: usize, n: usize| {
            let weight_ptr = weight_ptrs[weight];
            let params = OpParams { weight_ptr, weight_qtype: Some(dtype), ..OpParams::default() };
            g.add_op(TensorOp::MulMat, ptr, [n as u32, HIDDEN as u32, M as u32, 0], vec![normed], params)
        };
        let (q, k, v) = (matmul(q, 0, HIDDEN), matmul(k, 1, KV), matmul(v, 2, KV));
        let scale = OpParams { heads: HEADS, scalar: 1.0 / 128f32.sqrt(), ..OpParams::default() };
        let attended = g.add_op(TensorOp::SoftMax, attended, ROW, vec![q, k, v], scale);
        g.add_op(TensorOp::Add, output, ROW, vec![input, attended], OpParams::default());
        Ok(Example { graph: g, output, dtype, x, gamma, weights })
    }

    /// The output as it is now.
    pub fn read(&self, backend: &mut dyn Backend) -> Result<Vec<f32>, BackendError> {
        let mut out = vec![0f32; M * HIDDEN];
        backend.read(self.output, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// How far an output is from the reference: Σ (a - b)² / Σ b².
    pub fn nmse(&self, out: &[f32]) -> Result<f64, DTypeError> {
        let expected = self.reference()?;
        let error: f64 = out.iter().zip(&expected).map(|(&o, e)| (f64::from(o) - e).powi(2)).sum();
        Ok(error / expected.iter().map(|e| e * e).sum::<f64>())
    }

    /// The output in f64.
    fn reference(&self) -> Result<Vec<f64>, DTypeError> {
        let x: Vec<f64> = self.x.iter().map(|&x| x.into()).collect();
        let mut normed = vec![0.0; M * HIDDEN];
        for r in 0..M {
            let row = &x[r * HIDDEN..][..HIDDEN];
            let mean = row.iter().map(|x| x * x).sum::<f64>() / HIDDEN as f64;
            for i in 0..HIDDEN {
                normed[r * HIDDEN + i] =
                    row[i] / (mean + f64::from(1e-6f32)).sqrt() * f64::from(self.gamma[i]);
            }
        }
        let matmul = |bytes: &[u8], n: usize| {
            let w = quant::dequantize_to_vec(self.dtype, bytes, n * HIDDEN)?;
            let dot = |r: usize, c: usize| -> f64 {
                (0..HIDDEN).map(|i| normed[r * HIDDEN + i] * f64::from(w[c * HIDDEN + i])).sum()
            };
            Ok((0..M * n).map(|at| dot(at / n, at % n)).collect::<Vec<f64>>())
        };
        let [wq, wk, wv] = &self.weights;
        let (q, k, v) = (matmul(wq, HIDDEN)?, matmul(wk, KV)?, matmul(wv, KV)?);
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
        Ok(out)
    }
}
