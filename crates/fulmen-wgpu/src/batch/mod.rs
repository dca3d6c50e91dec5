//! The command batch: array operations are recorded, and run as one submission.
//!
//! ```text
//! record → fuse → lower (select kernels) → memory (share buffers) → compile → run
//! ```
//!
//! - **One submission, one pass** per run, whatever was recorded; each kernel is compiled once.
//! - **Fusion.** Trees of element-wise operations become one kernel, and the element-wise operations
//!   that follow a matmul become its epilogue.
//! - **Replay.** Running again runs what was compiled; [`write`](GpuCommandBatch::write) updates an upload.
//! - **Everything stays readable.** A value that was fused away, or whose buffer was reused, is
//!   recomputed when it is read.
//! - **In place** ([`in_place`](GpuCommandBatch::in_place)) operations overwrite their operand, even
//!   uploads and imports.

mod compile;
mod fuse;
mod in_place;
mod lower;
mod memory;
mod print;
mod record;
mod run;
mod value;

use std::collections::{HashMap, HashSet};

pub use self::in_place::InPlace;
pub use self::record::MatmulOptions;
pub use self::value::BufferId;
use self::{compile::CompiledBatch, value::Value};
use crate::{buffer::GpuBuffer, device::GpuDevice};

/// How a batch is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Operations are fused into fewer kernels.
    pub fuse: bool,
    /// Values that are not needed at the same time share memory. When off, every value can be read without
    /// recomputing it, and none is fused away.
    pub share_memory: bool,
}

impl Default for BatchOptions {
    fn default() -> BatchOptions {
        BatchOptions { fuse: true, share_memory: true }
    }
}

/// Records array operations and runs them as one submission.
///
/// ```
/// use fulmen_wgpu::{GpuCommandBatch, GpuDevice};
///
/// let mut batch = GpuCommandBatch::new(GpuDevice::new()?);
/// let x = batch.upload(&[1.0, -2.0, 3.0]);
/// let y = batch.relu(x);
/// let z = batch.scale(y, 2.0);
/// batch.execute_blocking()?;
/// assert_eq!(batch.read_blocking(z)?, [2.0, 0.0, 6.0]);
/// # Ok::<(), fulmen_wgpu::GpuError>(())
/// ```
#[derive(Debug)]
pub struct GpuCommandBatch {
    gpu: GpuDevice,
    id: u32,
    values: Vec<Value>,
    options: BatchOptions,
    /// Values that had to be recomputed for a read: later runs keep them.
    keep: HashSet<u32>,
    compiled: Option<CompiledBatch>,
    /// Values of the last run that were recomputed for reading.
    restored: HashMap<u32, GpuBuffer>,
    executed: bool,
    /// Inputs have changed since the last run.
    written: bool,
}

impl GpuCommandBatch {
    /// An empty batch.
    pub fn new(device: GpuDevice) -> GpuCommandBatch {
        GpuCommandBatch::with_options(device, BatchOptions::default())
    }

    /// An empty batch with these options.
    pub fn with_options(device: GpuDevice, options: BatchOptions) -> GpuCommandBatch {
        GpuCommandBatch {
            gpu: device,
            id: value::next_batch_id(),
            values: Vec::new(),
            options,
            keep: HashSet::new(),
            compiled: None,
            restored: HashMap::new(),
            executed: false,
            written: false,
        }
    }

    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.gpu
    }

    /// The underlying device, for creating buffers that outlive the batch.
    pub fn wgpu_device(&self) -> &wgpu::Device {
        self.gpu.wgpu_device()
    }

    /// The underlying queue, for writing to such buffers.
    pub fn wgpu_queue(&self) -> &wgpu::Queue {
        self.gpu.wgpu_queue()
    }

    /// The number of recorded operations.
    pub fn num_operations(&self) -> usize {
        self.values.iter().filter(|value| value.op().is_some()).count()
    }

    /// The number of recorded values: uploads, imports and results.
    pub fn num_buffers(&self) -> usize {
        self.values.len()
    }

    /// The number of dispatches per run; `None` before the first run.
    pub fn num_launches(&self) -> Option<usize> {
        self.compiled.as_ref().map(CompiledBatch::launches)
    }

    /// Every value, in recording order.
    pub fn ids(&self) -> impl Iterator<Item = BufferId> + '_ {
        (0..self.values.len() as u32).map(|index| BufferId { batch: self.id, index })
    }

    /// The number of elements of a value; `None` for a value of another batch.
    pub fn len_of(&self, id: BufferId) -> Option<u64> {
        (id.batch == self.id).then(|| self.values.get(id.index as usize).map(|value| value.len))?
    }
}
