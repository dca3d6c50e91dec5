//! A hundred element-wise operations, one after the other.

use fulmen_wgpu::{BatchOptions, BufferId, GpuCommandBatch, GpuDevice, GpuError};

use super::BenchError;
use super::data::{check, check_len, numbers, places};
use super::measure::{Needs, Work};

/// Operations in a chain.
const OPS: usize = 100;

/// A hundred times ReLU, fused into one kernel or not.
pub(super) fn relu(gpu: &GpuDevice, len: usize, fuse: bool) -> Result<Work, BenchError> {
    let name = if fuse { "chain/fused" } else { "chain/unfused" };
    let data = numbers(20, len, 1.0);
    let mut batch = GpuCommandBatch::with_options(gpu.clone(), BatchOptions { fuse, ..Default::default() });
    let mut y = batch.upload(&data);
    for _ in 0..OPS {
        y = batch.try_relu(y)?;
    }
    let expected = |i: usize| f64::from(data[i].max(0.0));
    work(name, batch, y, len, 2, expected, format!("{OPS} x relu, {len} elements"))
}

/// ReLU, a product, a sum and a second array in turn.
pub(super) fn mixed(gpu: &GpuDevice, len: usize) -> Result<Work, BenchError> {
    let (data, second) = (numbers(21, len, 1.0), numbers(22, len, 1.0));
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let (mut y, w) = (batch.upload(&data), batch.upload(&second));
    for _ in 0..OPS / 4 {
        y = step(&mut batch, y, w)?;
    }
    let expected = |i: usize| {
        let (mut x, w) = (f64::from(data[i]), f64::from(second[i]));
        for _ in 0..OPS / 4 {
            x = x.max(0.0) * f64::from(FACTOR) + f64::from(SUMMAND) + w;
        }
        x
    };
    let note = format!("{} x (relu, scale, add_scalar, add), {len} elements", OPS / 4);
    work("chain/mixed", batch, y, len, 3, expected, note)
}

const FACTOR: f32 = 0.9;
const SUMMAND: f32 = 0.01;

fn step(batch: &mut GpuCommandBatch, y: BufferId, w: BufferId) -> Result<BufferId, GpuError> {
    let y = batch.try_relu(y)?;
    let y = batch.try_scale(y, FACTOR)?;
    let y = batch.try_add_scalar(y, SUMMAND)?;
    batch.try_add(y, w)
}

/// Checks the chain; `arrays` of its length are all that has to be read and written.
fn work(
    name: &str,
    mut batch: GpuCommandBatch,
    out: BufferId,
    len: usize,
    arrays: u64,
    expected: impl Fn(usize) -> f64,
    note: String,
) -> Result<Work, BenchError> {
    let got = batch.execute_and_read_blocking(&[out])?.pop().unwrap_or_default();
    check_len(name, &got, len)?;
    let expected: Vec<(usize, f64)> = places(len, 1009).into_iter().map(|i| (i, expected(i))).collect();
    check(name, &got, &expected, 1e-5)?;
    let needs = Needs { bytes: 4 * arrays * len as u64, mostly_read: false, flops: (OPS * len) as u64 };
    Ok(Work { name: name.to_owned(), batch, out, needs, read: true, note: Some(note) })
}
