//! A feed-forward layer: `down(swish(gate(x)) · up(x))`.

use std::sync::Arc;

use fulmen_wgpu::{BufferId, GpuCommandBatch, GpuDevice, GpuError, wgpu};

use super::timing::BatchCase;
use crate::BenchError;
use crate::ceilings::MinimumWork;
use crate::data::{check, check_len, random_values, spread_indices};

/// The weights of a layer, on the host for the check and on the device.
pub(super) struct FeedForward {
    pub(super) hidden: usize,
    pub(super) inner: usize,
    gate: Weight,
    up: Weight,
    down: Weight,
}

/// A matrix `[n, k]`.
struct Weight {
    host: Vec<f32>,
    device: Arc<wgpu::Buffer>,
}

impl Weight {
    /// Random values that scale activations by about `gain`.
    fn new(gpu: &GpuDevice, seed: u64, gain: f32, n: usize, k: usize) -> Result<Weight, GpuError> {
        let host = random_values(seed, n * k, gain * (3.0 / k as f32).sqrt());
        let device = gpu.create_buffer_with("bench", bytemuck::cast_slice(&host))?;
        Ok(Weight { host, device: Arc::new(device.raw().clone()) })
    }

    fn import(&self, batch: &mut GpuCommandBatch) -> Result<BufferId, GpuError> {
        batch.try_import_buffer(self.device.clone(), self.host.len())
    }

    /// The dot product of `x` with row `n`.
    fn dot(&self, x: &[f64], n: usize) -> f64 {
        let row = &self.host[n * x.len()..][..x.len()];
        row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
    }
}

impl FeedForward {
    /// Random weights; each matmul scales its input by about `gain`.
    pub(super) fn new(
        gpu: &GpuDevice,
        seed: u64,
        gain: f32,
        hidden: usize,
        inner: usize,
    ) -> Result<FeedForward, GpuError> {
        let weight = |number, n, k| Weight::new(gpu, seed + number, gain, n, k);
        let (gate, up, down) =
            (weight(0, inner, hidden)?, weight(1, inner, hidden)?, weight(2, hidden, inner)?);
        Ok(FeedForward { hidden, inner, gate, up, down })
    }

    /// Records the layer on `m` rows.
    pub(super) fn record(
        &self,
        batch: &mut GpuCommandBatch,
        x: BufferId,
        m: u32,
    ) -> Result<BufferId, GpuError> {
        // Far below 2^32 for the sizes of this benchmark.
        let (hidden, inner) = (self.hidden as u32, self.inner as u32);
        let weights = [&self.gate, &self.up, &self.down].map(|weight| weight.import(batch));
        let [gate, up, down] = weights;
        let gate = batch.try_matmul_nt(x, gate?, m, hidden, inner)?;
        let gate = batch.try_swish(gate)?;
        let up = batch.try_matmul_nt(x, up?, m, hidden, inner)?;
        let gated = batch.try_mul(gate, up)?;
        batch.try_matmul_nt(gated, down?, m, inner, hidden)
    }

    /// Some columns of the result for one row, in f64.
    pub(super) fn reference(&self, x: &[f64], columns: &[usize]) -> Vec<f64> {
        let gated: Vec<f64> = (0..self.inner)
            .map(|i| {
                let gate = self.gate.dot(x, i);
                gate / (1.0 + (-gate).exp()) * self.up.dot(x, i)
            })
            .collect();
        columns.iter().map(|&column| self.down.dot(&gated, column)).collect()
    }

    pub(super) fn minimum_work(&self, m: usize) -> MinimumWork {
        let weights = (3 * self.hidden * self.inner) as u64;
        let activations = (2 * m * self.hidden) as u64;
        MinimumWork { bytes: 4 * (weights + activations), mostly_read: true, flops: 2 * m as u64 * weights }
    }

    /// The layer on `m` rows, checked at some columns of the first and the last row.
    pub(super) fn case(&self, gpu: &GpuDevice, m: u32) -> Result<BatchCase, BenchError> {
        let (name, hidden, rows) = (format!("ffn/m{m}"), self.hidden, m as usize);
        let x = random_values(10, rows * hidden, 1.0);
        let mut batch = GpuCommandBatch::new(gpu.clone());
        let id = batch.upload(&x);
        let out = self.record(&mut batch, id, m)?;
        let got = batch.execute_and_read_blocking(&[out])?.pop().unwrap_or_default();
        check_len(&name, &got, rows * hidden)?;
        let columns = spread_indices(hidden, 16);
        let mut expected = Vec::new();
        for row in spread_indices(rows, 2) {
            let wide: Vec<f64> = x[row * hidden..][..hidden].iter().map(|&x| x.into()).collect();
            let values = self.reference(&wide, &columns);
            expected.extend(columns.iter().map(|column| row * hidden + column).zip(values));
        }
        check(&name, &got, &expected, 1e-4)?;
        let note = format!("{hidden} -> {} -> {hidden}, f32", self.inner);
        let minimum = self.minimum_work(rows);
        Ok(BatchCase { name, batch, out, minimum, read: true, note: Some(note) })
    }
}
