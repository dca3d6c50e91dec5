//! Replay on Vulkan: a dispatch list is recorded once into a command buffer that every run executes again.
//!
//! wgpu command buffers cannot be submitted twice, so every run pays for its encoding on the CPU: 1 to
//! 3 µs per dispatch. Vulkan can reuse them. A list that runs often is recorded into a secondary
//! command buffer, with its own pipelines and descriptor sets, and a run is one command in a wgpu
//! command buffer.
//!
//! - **What stays with wgpu:** memory, queue, submission, ordering, device loss. Each run announces the
//!   buffers of the list to wgpu in a command buffer of the same submission: wgpu then waits for their
//!   previous uses, keeps them alive until the device is done, and refuses the submission if one was
//!   destroyed.
//! - **The first runs go through wgpu,** which zero-initializes memory and tracks that it is initialized.
//! - **What cannot be recorded** keeps running through wgpu: other backends than Vulkan, kernels with
//!   run-time checks, parameters in uniform buffers, short lists, and lists that the driver refuses.
//! - **Barriers** are placed only where a dispatch reads or overwrites what an earlier one wrote, or
//!   overwrites what an earlier one reads.
#![cfg_attr(not(any(windows, target_os = "linux")), allow(dead_code, reason = "recording needs Vulkan"))]

#[cfg(any(windows, target_os = "linux"))]
mod spirv;
#[cfg(any(windows, target_os = "linux"))]
mod vulkan;

#[cfg(not(any(windows, target_os = "linux")))]
pub(crate) use self::unsupported::{Recording, VulkanDevice, VulkanPipeline};
#[cfg(any(windows, target_os = "linux"))]
pub(crate) use self::vulkan::{Recording, VulkanDevice, VulkanPipeline};

use crate::{buffer::BufferSlice, kernel::Access, pipeline::Pipeline};

/// Runs that always go through wgpu.
pub(crate) const MIN_ENCODED_RUNS: u32 = 2;

/// Dispatches encoded for a list after which it is recorded: encoding them took about ten milliseconds.
pub(crate) const RECORD_AFTER_DISPATCHES: u64 = 8192;

/// Shorter lists are not worth the extra pipelines.
pub(crate) const MIN_DISPATCHES: usize = 16;

/// A dispatch to be recorded.
pub(crate) struct ReplayDispatch<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) slices: &'a [BufferSlice],
    /// Immediate data.
    pub(crate) words: &'a [u8],
    pub(crate) workgroups: [u32; 3],
}

/// What the dispatches since the last barrier read and wrote.
#[derive(Default)]
struct Hazards<'a> {
    read: Vec<&'a BufferSlice>,
    written: Vec<&'a BufferSlice>,
}

impl<'a> Hazards<'a> {
    /// Adds a dispatch; returns whether it needs a barrier before it.
    fn add(&mut self, access: &[Access], slices: &'a [BufferSlice]) -> bool {
        let overlap = |known: &[&BufferSlice], slice: &BufferSlice| known.iter().any(|k| k.overlaps(slice));
        let conflict = access.iter().zip(slices).any(|(access, slice)| {
            overlap(&self.written, slice) || (*access == Access::ReadWrite && overlap(&self.read, slice))
        });
        if conflict {
            *self = Self::default();
        }
        for (access, slice) in access.iter().zip(slices) {
            match access {
                Access::Read => self.read.push(slice),
                Access::ReadWrite => self.written.push(slice),
            }
        }
        conflict
    }
}

/// Platforms without Vulkan record nothing.
#[cfg(not(any(windows, target_os = "linux")))]
mod unsupported {
    use std::sync::Arc;

    use super::ReplayDispatch;
    use crate::device::GpuDevice;

    #[derive(Debug)]
    pub(crate) enum VulkanDevice {}
    #[derive(Debug)]
    pub(crate) enum VulkanPipeline {}
    #[derive(Debug)]
    pub(crate) enum Recording {}

    impl VulkanDevice {
        pub(crate) fn of(_: &GpuDevice) -> Option<Arc<VulkanDevice>> {
            None
        }
    }

    impl Recording {
        pub(crate) fn new(_: &GpuDevice, _: &[ReplayDispatch<'_>]) -> Option<Arc<Recording>> {
            None
        }

        pub(crate) fn announce(&self, _: &mut wgpu::CommandEncoder) {
            match *self {}
        }

        pub(crate) fn execute(&self, _: &mut wgpu::CommandEncoder) {
            match *self {}
        }

        pub(crate) fn keep_until_done(self: &Arc<Self>, _: &wgpu::Queue) {
            match **self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuDevice;

    #[test]
    fn barriers_separate_dependent_dispatches() {
        let gpu = GpuDevice::new().expect("a GPU adapter, hardware or software");
        let (a, b) = (gpu.create_buffer("test", 64).unwrap(), gpu.create_buffer("test", 64).unwrap());
        let (low, high) = (a.slice(0..32), a.slice(32..64));
        let copy = [Access::Read, Access::ReadWrite];
        let dispatches = [
            // Reads one buffer and writes another.
            (vec![low.clone(), b.slice(0..32)], false),
            // Reads the same range, writes another.
            (vec![low.clone(), b.slice(32..64)], false),
            // Reads what the first wrote.
            (vec![b.slice(16..20), high.clone()], true),
            // Writes what the previous one reads.
            (vec![low.clone(), b.slice(16..20)], true),
            // Writes to another part of the buffer it reads.
            (vec![low.clone(), high], false),
            // Overwrites what was written.
            (vec![low, b.slice(16..20)], true),
        ];
        let mut hazards = Hazards::default();
        for (at, (slices, barrier)) in dispatches.iter().enumerate() {
            assert_eq!(hazards.add(&copy, slices), *barrier, "dispatch {at}");
        }
    }
}
