//! A pool of staging buffers for reads.

use std::sync::{Mutex, PoisonError};

use wgpu::BufferUsages;

use crate::{buffer::GpuBuffer, device::GpuDevice, error::GpuError};

/// The most bytes kept in the pool. Larger reads create and drop their own buffer.
const MAX_KEPT: u64 = 256 << 20;

/// The smallest staging buffer, so that small reads of different sizes can share one.
const MIN_SIZE: u64 = 64 << 10;

/// Staging buffers that are not in use.
#[derive(Debug, Default)]
pub(crate) struct StagingPool {
    free: Mutex<Vec<GpuBuffer>>,
}

impl StagingPool {
    /// The smallest free buffer of at least `bytes`, or a new one.
    pub(super) fn take(
        &self,
        gpu: &GpuDevice,
        call: &'static str,
        bytes: u64,
    ) -> Result<GpuBuffer, GpuError> {
        {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = free.iter().enumerate().filter(|(_, buffer)| buffer.size() >= bytes);
            if let Some((index, _)) = fits.min_by_key(|(_, buffer)| buffer.size()) {
                return Ok(free.swap_remove(index));
            }
        }
        // Powers of two, so that reads of growing size do not create a new buffer each time.
        let size =
            bytes.max(MIN_SIZE).checked_next_power_of_two().unwrap_or(bytes).min(gpu.caps().max_buffer);
        let size = if size > MAX_KEPT { bytes } else { size.max(bytes) };
        gpu.create_buffer_for(call, size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)
    }

    /// Takes back a buffer that is not mapped and not in use by the device.
    pub(super) fn give_back(&self, buffer: GpuBuffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(buffer);
        let mut kept: u64 = free.iter().map(GpuBuffer::size).sum();
        // The oldest are the least likely to fit the next read.
        while kept > MAX_KEPT {
            kept -= free.remove(0).size();
        }
    }
}
