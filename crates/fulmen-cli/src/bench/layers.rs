//! Many layers with one pipeline cache.

use fulmen_wgpu::{GpuCommandBatch, GpuDevice, PipelineCache};
use serde::Serialize;

use super::BenchError;
use super::data::{check, check_len, numbers};
use super::ffn::Ffn;
use super::measure::{Needs, Work};

/// Layers, as Qwen3-4B has them.
const LAYERS: usize = 36;

/// Small, as each layer is added to what goes in.
const GAIN: f32 = 0.4;

/// What one cache compiled for all layers.
#[derive(Debug, Serialize)]
pub(super) struct Pipelines {
    pub(super) layers: usize,
    /// Pipelines made for the first layer.
    pub(super) of_one_layer: u64,
    /// Pipelines made for all of them.
    pub(super) compiled: u64,
    /// Kernels of different contents among them.
    pub(super) distinct: usize,
}

/// Runs each layer as a batch of its own, then all in one batch, which is the work to be timed.
pub(super) fn layers(gpu: &GpuDevice, hidden: usize, inner: usize) -> Result<(Work, Pipelines), BenchError> {
    const NAME: &str = "layers";
    let ffns = (0..LAYERS as u64)
        .map(|layer| Ffn::new(gpu, 100 + 3 * layer, GAIN, hidden, inner))
        .collect::<Result<Vec<Ffn>, _>>()?;
    let x = numbers(30, hidden, 1.0);
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
        Pipelines { layers: LAYERS, of_one_layer, compiled: cache.compiled(), distinct: cache.len() };
    if pipelines.compiled != pipelines.distinct as u64 {
        let Pipelines { compiled, distinct, .. } = pipelines;
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
    let one = ffns.first().map(|ffn| ffn.needs(1)).map_or((0, 0), |needs| (needs.bytes, needs.flops));
    let needs = Needs { bytes: one.0 * LAYERS as u64, mostly_read: true, flops: one.1 * LAYERS as u64 };
    let note = format!("{LAYERS} layers in one batch, {hidden} -> {inner} -> {hidden}, m=1, f32");
    let work = Work { name: NAME.to_owned(), batch, out: y, needs, read: true, note: Some(note) };
    Ok((work, pipelines))
}
