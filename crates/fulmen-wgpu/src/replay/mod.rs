//! Programs that Vulkan keeps: recorded once into a command buffer that every run executes again.
//!
//! wgpu has no command buffers that can be submitted twice, so a run costs the processor its encoding: one to three
//! microseconds for each dispatch. Vulkan has them. A program that runs again and again is recorded into a secondary command
//! buffer, with pipelines and descriptor sets of its own, and a run is one command in a command buffer of wgpu's.
//!
//! - **What stays with wgpu:** memory, queue, submission, order, lost devices. Each run announces the program's buffers to wgpu
//!   in a command buffer of the same submission: wgpu waits for what they were used for, keeps them until the device is done,
//!   and refuses the submission where one was destroyed.
//! - **The first runs go through wgpu,** which clears memory that nobody has written and then knows that somebody has.
//! - **What cannot be recorded** runs through wgpu as before: other interfaces than Vulkan, kernels with run-time checks,
//!   parameters in uniforms, short programs, and where the driver refuses.
//! - **Barriers** stand only where a step needs what one before it wrote, or overwrites what one before it reads.
#![cfg_attr(not(any(windows, target_os = "linux")), allow(dead_code, reason = "nothing is recorded there"))]

#[cfg(any(windows, target_os = "linux"))]
mod spirv;
#[cfg(any(windows, target_os = "linux"))]
mod vulkan;

#[cfg(any(windows, target_os = "linux"))]
pub(crate) use self::vulkan::{Recording, VulkanDevice, VulkanPipeline};
#[cfg(not(any(windows, target_os = "linux")))]
pub(crate) use self::without::{Recording, VulkanDevice, VulkanPipeline};

use crate::{buffer::BufferSlice, kernel::Access, pipeline::Pipeline};

/// Runs that wgpu encodes at least.
pub(crate) const ENCODED_RUNS: u32 = 2;

/// Dispatches of a program after which it is recorded: encoding them took some ten milliseconds.
pub(crate) const PAYS_AFTER: u64 = 8192;

/// Shorter programs are not worth the pipelines.
pub(crate) const FEWEST_STEPS: usize = 16;

/// A step as it is recorded.
pub(crate) struct ReplayStep<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) slices: &'a [BufferSlice],
    /// Immediate data.
    pub(crate) words: &'a [u8],
    pub(crate) workgroups: [u32; 3],
}

/// What steps since the last barrier have read and written.
#[derive(Default)]
struct Hazards<'a> {
    read: Vec<&'a BufferSlice>,
    written: Vec<&'a BufferSlice>,
}

impl<'a> Hazards<'a> {
    /// Adds a step; whether a barrier has to stand before it.
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

/// Where there is no Vulkan nothing is recorded.
#[cfg(not(any(windows, target_os = "linux")))]
mod without {
    use std::sync::Arc;

    use super::ReplayStep;
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
        pub(crate) fn new(_: &GpuDevice, _: &[ReplayStep<'_>]) -> Option<Arc<Recording>> {
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
    fn barriers_stand_where_steps_depend_on_each_other() {
        let gpu = GpuDevice::new().expect("a GPU adapter, hardware or software");
        let (a, b) = (gpu.create_buffer("test", 64).unwrap(), gpu.create_buffer("test", 64).unwrap());
        let (low, high) = (a.slice(0..32), a.slice(32..64));
        let copy = [Access::Read, Access::ReadWrite];
        let steps = [
            // A read, and a write elsewhere.
            (vec![low.clone(), b.slice(0..32)], false),
            // The same read again, another place to write.
            (vec![low.clone(), b.slice(32..64)], false),
            // Reads what the first wrote.
            (vec![b.slice(16..20), high.clone()], true),
            // Writes what the one before reads.
            (vec![low.clone(), b.slice(16..20)], true),
            // Writes to another part of the buffer it reads.
            (vec![low.clone(), high], false),
            // Writes once more what was written.
            (vec![low, b.slice(16..20)], true),
        ];
        let mut hazards = Hazards::default();
        for (at, (slices, barrier)) in steps.iter().enumerate() {
            assert_eq!(hazards.add(&copy, slices), *barrier, "step {at}");
        }
    }
}
