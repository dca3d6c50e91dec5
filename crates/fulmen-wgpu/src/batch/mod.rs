//! The command batch: array operations are recorded, and run as one submission.
//!
//! ```text
//! record (record) → fuse (group) → kernels (lower) → share memory (memory) → compile, run, read (run)
//! ```
//!
//! - **One submission, one pass** for each run, whatever was recorded; each kernel is compiled once.
//! - **Fusion.** Trees of element-wise operations become one kernel, and a matrix product takes those that follow it
//!   along.
//! - **Replay.** Running again runs what was compiled; [`write`](GpuCommandBatch::write) changes an upload in place.
//! - **Everything stays readable.** A value that fusion or shared memory did away with is computed again when it is read.
//! - **In place** ([`in_place`](GpuCommandBatch::in_place)) an operation overwrites its operand, uploads and imports too.

mod group;
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
use self::{run::Compiled, value::Value};
use crate::{buffer::GpuBuffer, device::GpuDevice};

/// How a batch is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Operations are fused into fewer kernels.
    pub fuse: bool,
    /// Values that are not needed at the same time share memory. Off, every value can be read without computing it again,
    /// and none is fused away.
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
    /// Values that were read although nothing kept them: later programs do.
    keep: HashSet<u32>,
    compiled: Option<Compiled>,
    /// Values of the last run that were computed again.
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

    /// An empty batch that is compiled in another way.
    pub fn with_options(device: GpuDevice, options: BatchOptions) -> GpuCommandBatch {
        GpuCommandBatch {
            gpu: device,
            id: value::next_batch(),
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

    /// Operations recorded.
    pub fn num_operations(&self) -> usize {
        self.values.iter().filter(|value| value.op().is_some()).count()
    }

    /// Values recorded: uploads, imports and results.
    pub fn num_buffers(&self) -> usize {
        self.values.len()
    }

    /// Kernels that a run launches, once the batch was run.
    pub fn num_launches(&self) -> Option<usize> {
        self.compiled.as_ref().map(Compiled::launches)
    }

    /// Every value, in the order of recording.
    pub fn ids(&self) -> impl Iterator<Item = BufferId> + '_ {
        (0..self.values.len() as u32).map(|index| BufferId { batch: self.id, index })
    }

    /// Elements of a value; `None` for one of another batch.
    pub fn len_of(&self, id: BufferId) -> Option<u64> {
        (id.batch == self.id).then(|| self.values.get(id.index as usize).map(|value| value.len))?
    }
}
