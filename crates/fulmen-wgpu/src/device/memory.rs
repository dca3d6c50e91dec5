//! Free device memory. WebGPU does not report it; Vulkan does.

use super::GpuDevice;

/// The memory of a device as its driver reports it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Total device memory.
    pub total: u64,
    /// Memory that this process can still allocate.
    pub available: u64,
}

impl GpuDevice {
    /// The device's own memory; `None` where the driver does not report it.
    pub fn memory(&self) -> Option<GpuMemory> {
        query(self)
    }
}

#[cfg(any(windows, target_os = "linux"))]
fn query(gpu: &GpuDevice) -> Option<GpuMemory> {
    use ash::vk;
    use wgpu::hal::api::Vulkan;

    // SAFETY: the handle is used for a query while the guard keeps the device, and not destroyed.
    let device = unsafe { gpu.wgpu_device().as_hal::<Vulkan>() }?;
    let has_budget = device.enabled_device_extensions().contains(&ash::ext::memory_budget::NAME);
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    let instance = device.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, and the chain holds structures that live
    // until the end of this function.
    unsafe {
        instance.get_physical_device_memory_properties2(device.raw_physical_device(), &mut properties);
    }
    let memory = properties.memory_properties;
    let (mut total, mut available) = (0u64, 0u64);
    for (index, heap) in memory.memory_heaps_as_slice().iter().enumerate() {
        if !heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL) {
            continue;
        }
        total = total.saturating_add(heap.size);
        let left = match has_budget {
            true => budget.heap_budget[index].saturating_sub(budget.heap_usage[index]),
            false => heap.size.saturating_sub(gpu.stats().live_bytes),
        };
        available = available.saturating_add(left);
    }
    (total > 0).then_some(GpuMemory { total, available })
}

#[cfg(not(any(windows, target_os = "linux")))]
fn query(_: &GpuDevice) -> Option<GpuMemory> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vulkan_device_tells_its_memory() {
        let Ok(gpu) = GpuDevice::new() else { panic!("a GPU adapter, hardware or software") };
        let memory = gpu.memory();
        if gpu.info().backend == wgpu::Backend::Vulkan {
            let memory = memory.expect("Vulkan has memory heaps");
            assert!(memory.total > 1 << 20 && memory.available <= memory.total, "{memory:?}");
        }
    }
}
