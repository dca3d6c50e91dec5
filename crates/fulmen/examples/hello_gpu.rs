//! Arrays on the GPU in five lines: upload, ReLU, scale, run as one submission, read.
//!
//! ```text
//! cargo run --release -p fulmen --example hello_gpu
//! ```

use fulmen::prelude::*;

fn main() -> Result<(), GpuError> {
    let mut batch = GpuCommandBatch::new(GpuDevice::new()?);
    let x = batch.upload(&[1.0, -2.0, 3.0]);
    let y = batch.relu(x);
    let z = batch.scale(y, 2.0);
    batch.execute_blocking()?;
    println!("{:?}", batch.read_blocking(z)?); // [2.0, 0.0, 6.0]
    Ok(())
}
