//! A stack of feed-forward layers with one pipeline cache.

use fulmen_wgpu::{GpuCommandBatch, GpuDevice, PipelineCache};
use serde::Serialize;

use super::feed_forward::FeedForward;
use super::timing::BatchCase;
use crate::BenchError;
use crate::ceilings::MinimumWork;
use crate::data::{check, check_len, random_values};

/// As many layers as Qwen3-4B has.
const LAYERS: usize = 36;

/// Small, because each layer adds to its input.
const GAIN: f32 = 0.4;

/// What one pipeline cache compiled for all layers. Field names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PipelineCounts {
    /// Layers.
    pub layers: usize,
    /// Pipelines compiled for the first layer.
    pub of_one_layer: u64,
    /// Pipelines compiled for all layers.
    pub compiled: u64,
    /// Distinct kernels among them.
    pub distinct: usize,
}

/// Runs each layer as a batch of its own, then all in one batch, which is the case to be timed.
pub(super) fn case(
    gpu: &GpuDevice,
    hidden: usize,
    inner: usize,
) -> Result<(BatchCase, PipelineCounts), BenchError> {
    const NAME: &str = "layers";
    let ffns = (0..LAYERS as u64)
        .map(|layer| FeedForward::new(gpu, 100 + 3 * layer, GAIN, hidden, inner))
        .collect::<Result<Vec<FeedForward>, _>>()?;
    let x = random_values(30, hidden, 1.0);
    let (cache, mut of_one_layer) = (PipelineCache::new(), 0);
    let mut one_by_one = x.clone();
    for (number, ffn) in ffns.iter().enumerate() {
        let mut batch = GpuCommandBatch::new(gpu.clone());
        let id = batch.upload(&one_by_one);
        let out = ffn.record(&mut batch, id, 1)?;
        let out = batch.try_add(out, id)?;
        batch.execute_with_cache_blocking(&cache)?;
        one_by_one = batch.read_blocking(out)?;
        if number == 0 {
            of_one_layer = cache.compiled();
        }
    }
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let mut y = batch.upload(&x);
    for ffn in &ffns {
        let out = ffn.record(&mut batch, y, 1)?;
        y = batch.try_add(out, y)?;
    }
    batch.execute_with_cache_blocking(&cache)?;
    let pipelines =
        PipelineCounts { layers: LAYERS, of_one_layer, compiled: cache.compiled(), distinct: cache.len() };
    if pipelines.compiled != pipelines.distinct as u64 {
        let PipelineCounts { compiled, distinct, .. } = pipelines;
        return Err(BenchError::CompiledTwice { compiled, distinct });
    }

    let columns: Vec<usize> = (0..hidden).collect();
    let mut wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    for ffn in &ffns {
        let out = ffn.reference(&wide, &columns);
        wide.iter_mut().zip(out).for_each(|(x, out)| *x += out);
    }
    let expected: Vec<(usize, f64)> = wide.into_iter().enumerate().collect();
    for got in [one_by_one, batch.read_blocking(y)?] {
        check_len(NAME, &got, hidden)?;
        check(NAME, &got, &expected, 1e-4)?;
    }
    let (bytes, flops) = ffns
        .iter()
        .map(|ffn| ffn.minimum_work(1))
        .fold((0, 0), |sum, one| (sum.0 + one.bytes, sum.1 + one.flops));
    let minimum = MinimumWork { bytes, mostly_read: true, flops };
    let note = format!("{LAYERS} layers in one batch, {hidden} -> {inner} -> {hidden}, m=1, f32");
    let case = BatchCase { name: NAME.to_owned(), batch, out: y, minimum, read: true, note: Some(note) };
    Ok((case, pipelines))
}
