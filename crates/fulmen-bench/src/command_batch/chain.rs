//! A chain of a hundred element-wise ops.

use fulmen_wgpu::{BatchOptions, BufferId, GpuCommandBatch, GpuDevice, GpuError};

use super::timing::BatchCase;
use crate::BenchError;
use crate::ceilings::MinimumWork;
use crate::data::{check, check_len, random_values, spread_indices};

/// Ops in a chain.
const OPS: usize = 100;

/// ReLU a hundred times, fused into one kernel or not.
pub(super) fn relu(gpu: &GpuDevice, len: usize, fuse: bool) -> Result<BatchCase, BenchError> {
    let name = if fuse { "chain/fused" } else { "chain/unfused" };
    let data = random_values(20, len, 1.0);
    let mut batch = GpuCommandBatch::with_options(gpu.clone(), BatchOptions { fuse, ..Default::default() });
    let mut y = batch.upload(&data);
    for _ in 0..OPS {
        y = batch.try_relu(y)?;
    }
    let expected = |i: usize| f64::from(data[i].max(0.0));
    case(name, batch, y, len, 2, expected, format!("{OPS} x relu, {len} elements"))
}

/// ReLU, scale, add a scalar and add a second array, 25 times.
pub(super) fn mixed(gpu: &GpuDevice, len: usize) -> Result<BatchCase, BenchError> {
    let (data, second) = (random_values(21, len, 1.0), random_values(22, len, 1.0));
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let (mut y, w) = (batch.upload(&data), batch.upload(&second));
    for _ in 0..OPS / 4 {
        y = step(&mut batch, y, w)?;
    }
    let expected = |i: usize| {
        let (mut x, w) = (f64::from(data[i]), f64::from(second[i]));
        for _ in 0..OPS / 4 {
            x = x.max(0.0) * f64::from(FACTOR) + f64::from(OFFSET) + w;
        }
        x
    };
    let note = format!("{} x (relu, scale, add_scalar, add), {len} elements", OPS / 4);
    case("chain/mixed", batch, y, len, 3, expected, note)
}

const FACTOR: f32 = 0.9;
const OFFSET: f32 = 0.01;

fn step(batch: &mut GpuCommandBatch, y: BufferId, w: BufferId) -> Result<BufferId, GpuError> {
    let y = batch.try_relu(y)?;
    let y = batch.try_scale(y, FACTOR)?;
    let y = batch.try_add_scalar(y, OFFSET)?;
    batch.try_add(y, w)
}

/// Checks the chain. At least `arrays` arrays of its length must be read and written.
fn case(
    name: &str,
    mut batch: GpuCommandBatch,
    out: BufferId,
    len: usize,
    arrays: u64,
    expected: impl Fn(usize) -> f64,
    note: String,
) -> Result<BatchCase, BenchError> {
    let got = batch.execute_and_read_blocking(&[out])?.pop().unwrap_or_default();
    check_len(name, &got, len)?;
    let expected: Vec<(usize, f64)> =
        spread_indices(len, 1009).into_iter().map(|i| (i, expected(i))).collect();
    check(name, &got, &expected, 1e-5)?;
    let minimum =
        MinimumWork { bytes: 4 * arrays * len as u64, mostly_read: false, flops: (OPS * len) as u64 };
    Ok(BatchCase { name: name.to_owned(), batch, out, minimum, read: true, note: Some(note) })
}
