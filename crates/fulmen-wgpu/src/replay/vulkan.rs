//! The Vulkan objects of recordings. Each keeps the objects it was created from alive.
#![allow(
    clippy::mutable_key_type,
    reason = "buffers are told apart by their identity, which does not change"
)]

use std::{collections::HashMap, sync::Arc};

use ash::{prelude::VkResult, vk};
use wgpu::{BufferUses, hal::api::Vulkan};

use super::{
    Hazards, ReplayDispatch,
    spirv::{self, Target},
};
use crate::{
    buffer::BufferSlice,
    device::{GpuDevice, count},
    kernel::Access,
    pipeline::{ParamMode, Pipeline},
};

/// The Vulkan device behind a [`GpuDevice`].
pub(crate) struct VulkanDevice {
    raw: ash::Device,
    queue_family: u32,
    target: Target,
    cache: vk::PipelineCache,
    // Keeps the device behind `raw` alive.
    _wgpu: wgpu::Device,
}

impl std::fmt::Debug for VulkanDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VulkanDevice").field("target", &self.target).finish_non_exhaustive()
    }
}

impl VulkanDevice {
    /// `None` where the device is not a Vulkan device, or its version is too old.
    pub(crate) fn of(gpu: &GpuDevice) -> Option<Arc<VulkanDevice>> {
        let wgpu = gpu.wgpu_device().clone();
        // SAFETY: nothing of the device is destroyed by way of the guard.
        let device = unsafe { wgpu.as_hal::<Vulkan>() }?;
        let (instance, physical) = (device.shared_instance().raw_instance(), device.raw_physical_device());
        // SAFETY: the physical device belongs to the instance, which the guard keeps.
        let api = unsafe { instance.get_physical_device_properties(physical) }.api_version;
        // The features below are asked for in the structures of these versions.
        let loader = device.shared_instance().instance_api_version();
        if spirv::version(api.min(loader)) < (1, 6) {
            return None;
        }
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
        let features = vk::PhysicalDeviceFeatures2::default();
        let mut features = features.push_next(&mut v11).push_next(&mut v12).push_next(&mut v13);
        // SAFETY: as above; the chain lives until the end of this function.
        unsafe { instance.get_physical_device_features2(physical, &mut features) };
        let caps = gpu.caps();
        let target = Target {
            version: spirv::version(api),
            f16: caps.f16,
            subgroups: caps.subgroups.is_some(),
            matrix: caps.cooperative_matrix,
            int8: v12.shader_int8 == vk::TRUE,
            inputs16: caps.f16 && v11.storage_input_output16 == vk::TRUE,
            dot_product: v13.shader_integer_dot_product == vk::TRUE,
        };
        let raw = device.raw_device().clone();
        let known = gpu.pipeline_file().map(|file| file.driver_data()).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&known);
        // SAFETY: drivers check the data, which they made, and take none of it where it is not theirs.
        let cache = unsafe { raw.create_pipeline_cache(&info, None) }.unwrap_or_default();
        let queue_family = device.queue_family_index();
        drop(device);
        Some(Arc::new(VulkanDevice { raw, queue_family, target, cache, _wgpu: wgpu }))
    }
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        // SAFETY: it was made by this device, and only calls that have returned used it.
        unsafe { self.raw.destroy_pipeline_cache(self.cache, None) };
    }
}

/// A kernel's pipeline for recordings.
#[derive(Debug)]
pub(crate) struct VulkanPipeline {
    device: Arc<VulkanDevice>,
    // Null until created.
    set: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
}

impl VulkanPipeline {
    /// `None` for kernels that cannot be recorded.
    fn new(device: &Arc<VulkanDevice>, of: &Pipeline) -> Option<VulkanPipeline> {
        let text = of.text.as_ref().filter(|_| of.params != ParamMode::Uniform)?;
        let words = device.target.compile(text).ok()?;
        let mut made = VulkanPipeline {
            device: device.clone(),
            set: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            pipeline: vk::Pipeline::null(),
        };
        made.make(&words, of).ok()?;
        Some(made)
    }

    fn make(&mut self, words: &[u32], of: &Pipeline) -> VkResult<()> {
        let raw = &self.device.raw;
        let bindings: Vec<_> = (0..of.access.len() as u32)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the structures of this function live until its end, and describe what the module
        // declares: storage buffers in set 0 in the order of `access`, and `param_words` words of push
        // constants.
        unsafe {
            self.set = raw.create_descriptor_set_layout(&info, None)?;
            let sets = [self.set];
            let range = [vk::PushConstantRange {
                stage_flags: vk::ShaderStageFlags::ALL,
                offset: 0,
                size: of.param_words * 4,
            }];
            let ranges = if of.param_words == 0 { &range[..0] } else { &range[..] };
            let info =
                vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(ranges);
            self.layout = raw.create_pipeline_layout(&info, None)?;
            let info = vk::ShaderModuleCreateInfo::default().code(words);
            let module = raw.create_shader_module(&info, None)?;
            let flags = match self.device.target.subgroups {
                true => vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE,
                false => vk::PipelineShaderStageCreateFlags::empty(),
            };
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(flags)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = vk::ComputePipelineCreateInfo::default().layout(self.layout).stage(stage);
            let made = raw.create_compute_pipelines(self.device.cache, &[info], None);
            raw.destroy_shader_module(module, None);
            self.pipeline = made.map_err(|(_, error)| error)?.first().copied().unwrap_or_default();
        }
        Ok(())
    }
}

impl Drop for VulkanPipeline {
    fn drop(&mut self) {
        let raw = &self.device.raw;
        // SAFETY: made by this device or null; recordings keep the pipelines they use.
        unsafe {
            raw.destroy_pipeline(self.pipeline, None);
            raw.destroy_pipeline_layout(self.layout, None);
            raw.destroy_descriptor_set_layout(self.set, None);
        }
    }
}

/// A dispatch list in a secondary command buffer.
pub(crate) struct Recording {
    device: Arc<VulkanDevice>,
    // Null until created.
    descriptors: vk::DescriptorPool,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    /// Each buffer once, with its usage.
    uses: Vec<(wgpu::Buffer, BufferUses)>,
    _pipelines: Vec<Arc<VulkanPipeline>>,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("buffers", &self.uses.len()).finish_non_exhaustive()
    }
}

impl Recording {
    /// Records the dispatches; `None` where that is not possible.
    pub(crate) fn new(gpu: &GpuDevice, dispatches: &[ReplayDispatch<'_>]) -> Option<Arc<Recording>> {
        let device = gpu.vulkan()?;
        let mut pipelines = Vec::with_capacity(dispatches.len());
        for dispatch in dispatches {
            let made = dispatch.pipeline.vulkan.get_or_init(|| {
                let made = VulkanPipeline::new(device, dispatch.pipeline).map(Arc::new);
                count(&gpu.counters().pipelines_recorded, u64::from(made.is_some()));
                made
            });
            pipelines.push(made.clone()?);
        }
        let mut recording = Recording {
            device: device.clone(),
            descriptors: vk::DescriptorPool::null(),
            pool: vk::CommandPool::null(),
            commands: vk::CommandBuffer::null(),
            uses: uses(dispatches),
            _pipelines: Vec::new(),
        };
        recording.record(dispatches, &pipelines)?.ok()?;
        recording._pipelines = pipelines;
        count(&gpu.counters().recordings, 1);
        Some(Arc::new(recording))
    }

    /// `None` where a buffer was destroyed.
    fn record(
        &mut self,
        dispatches: &[ReplayDispatch<'_>],
        pipelines: &[Arc<VulkanPipeline>],
    ) -> Option<VkResult<()>> {
        let mut handles: HashMap<wgpu::Buffer, vk::Buffer> = HashMap::new();
        for (buffer, _) in &self.uses {
            // SAFETY: the handle is used while `uses` keeps the buffer, and not destroyed.
            let handle = unsafe { buffer.as_hal::<Vulkan>()?.raw_handle() };
            handles.insert(buffer.clone(), handle);
        }
        let sets = match self.make(dispatches, pipelines, &handles) {
            Ok(sets) => sets,
            Err(error) => return Some(Err(error)),
        };
        Some(self.fill(dispatches, pipelines, &sets))
    }

    /// Creates the pools and the descriptor set of each dispatch, deduplicated.
    fn make(
        &mut self,
        dispatches: &[ReplayDispatch<'_>],
        pipelines: &[Arc<VulkanPipeline>],
        handles: &HashMap<wgpu::Buffer, vk::Buffer>,
    ) -> VkResult<Vec<vk::DescriptorSet>> {
        let raw = &self.device.raw;
        let mut distinct: HashMap<(vk::DescriptorSetLayout, &[BufferSlice]), usize> = HashMap::new();
        let places: Vec<usize> = dispatches
            .iter()
            .zip(pipelines)
            .map(|(dispatch, pipeline)| {
                let next = distinct.len();
                *distinct.entry((pipeline.set, dispatch.slices)).or_insert(next)
            })
            .collect();
        let mut keys = vec![(vk::DescriptorSetLayout::null(), &[][..]); distinct.len()];
        for (key, at) in distinct {
            keys[at] = key;
        }
        let buffers: usize = keys.iter().map(|(_, slices)| slices.len()).sum();
        let sizes = [vk::DescriptorPoolSize {
            ty: vk::DescriptorType::STORAGE_BUFFER,
            descriptor_count: buffers.max(1) as u32,
        }];
        let info =
            vk::DescriptorPoolCreateInfo::default().max_sets(keys.len().max(1) as u32).pool_sizes(&sizes);
        let layouts: Vec<_> = keys.iter().map(|(layout, _)| *layout).collect();
        // SAFETY: the structures live until the calls return; layouts and buffers are of this device
        // and kept by the recording; the pool has room for exactly these sets.
        unsafe {
            self.descriptors = raw.create_descriptor_pool(&info, None)?;
            let info = vk::DescriptorSetAllocateInfo::default()
                .descriptor_pool(self.descriptors)
                .set_layouts(&layouts);
            let sets = raw.allocate_descriptor_sets(&info)?;
            for ((_, slices), &set) in keys.iter().zip(&sets) {
                let ranges: Vec<_> = slices
                    .iter()
                    .map(|slice| vk::DescriptorBufferInfo {
                        buffer: handles[slice.buffer.raw()],
                        offset: slice.offset,
                        range: slice.size,
                    })
                    .collect();
                let writes: Vec<_> = (0..)
                    .zip(&ranges)
                    .map(|(binding, range)| {
                        vk::WriteDescriptorSet::default()
                            .dst_set(set)
                            .dst_binding(binding)
                            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                            .buffer_info(std::slice::from_ref(range))
                    })
                    .collect();
                raw.update_descriptor_sets(&writes, &[]);
            }
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.device.queue_family);
            self.pool = raw.create_command_pool(&info, None)?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(self.pool)
                .level(vk::CommandBufferLevel::SECONDARY)
                .command_buffer_count(1);
            self.commands = raw.allocate_command_buffers(&info)?[0];
            Ok(places.into_iter().map(|place| sets[place]).collect())
        }
    }

    fn fill(
        &self,
        dispatches: &[ReplayDispatch<'_>],
        pipelines: &[Arc<VulkanPipeline>],
        sets: &[vk::DescriptorSet],
    ) -> VkResult<()> {
        let (raw, commands) = (&self.device.raw, self.commands);
        let (stage, point) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineBindPoint::COMPUTE);
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE)];
        let inheritance = vk::CommandBufferInheritanceInfo::default();
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE)
            .inheritance_info(&inheritance);
        let mut hazards = Hazards::default();
        let mut bound = (vk::Pipeline::null(), vk::DescriptorSet::null(), &[][..]);
        // SAFETY: the command buffer is new and only this thread has it. Grids, bindings and immediate
        // data were checked when the program was compiled, and the layouts are those of the pipelines.
        unsafe {
            raw.begin_command_buffer(commands, &info)?;
            for ((dispatch, pipeline), &set) in dispatches.iter().zip(pipelines).zip(sets) {
                if hazards.add(&dispatch.pipeline.access, dispatch.slices) {
                    let none = vk::DependencyFlags::empty();
                    raw.cmd_pipeline_barrier(commands, stage, stage, none, &barrier, &[], &[]);
                }
                let same = bound.0 == pipeline.pipeline;
                if !same {
                    raw.cmd_bind_pipeline(commands, point, pipeline.pipeline);
                }
                if !same || bound.1 != set {
                    raw.cmd_bind_descriptor_sets(commands, point, pipeline.layout, 0, &[set], &[]);
                }
                let pushed = same && bound.2 == dispatch.words;
                if !dispatch.words.is_empty() && !pushed {
                    let all = vk::ShaderStageFlags::ALL;
                    raw.cmd_push_constants(commands, pipeline.layout, all, 0, dispatch.words);
                }
                bound = (pipeline.pipeline, set, dispatch.words);
                let [x, y, z] = dispatch.workgroups;
                raw.cmd_dispatch(commands, x, y, z);
            }
            raw.end_command_buffer(commands)
        }
    }

    /// Tells wgpu which buffers the recording uses, in a command buffer submitted right before it.
    pub(crate) fn announce(&self, encoder: &mut wgpu::CommandEncoder) {
        let uses = self.uses.iter().map(|(buffer, state)| wgpu::BufferTransition { buffer, state: *state });
        encoder.transition_resources(uses, std::iter::empty());
    }

    /// Makes an empty command buffer execute the recording. On a lost device wgpu has no Vulkan
    /// encoder; the submission of the command buffer then fails.
    pub(crate) fn execute(&self, encoder: &mut wgpu::CommandEncoder) {
        // SAFETY: nothing else is recorded into this encoder, which wgpu ends. The recording may run
        // several times at once, and lives until the device is done: see `keep_until_done`.
        unsafe {
            encoder.as_hal_mut::<Vulkan, _, _>(|encoder| {
                if let Some(encoder) = encoder {
                    self.device.raw.cmd_execute_commands(encoder.raw_handle(), &[self.commands]);
                }
            });
        }
    }

    /// Keeps the recording alive until the device has finished everything submitted so far.
    pub(crate) fn keep_until_done(self: &Arc<Self>, queue: &wgpu::Queue) {
        let kept = self.clone();
        queue.on_submitted_work_done(move || drop(kept));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let raw = &self.device.raw;
        // SAFETY: made by this device or null. The last run is over: each keeps the recording until then.
        unsafe {
            raw.destroy_command_pool(self.pool, None);
            raw.destroy_descriptor_pool(self.descriptors, None);
        }
    }
}

/// The buffers of the dispatches, each once.
fn uses(dispatches: &[ReplayDispatch<'_>]) -> Vec<(wgpu::Buffer, BufferUses)> {
    let mut places: HashMap<&wgpu::Buffer, usize> = HashMap::new();
    let mut uses: Vec<(wgpu::Buffer, BufferUses)> = Vec::new();
    for dispatch in dispatches {
        for (access, slice) in dispatch.pipeline.access.iter().zip(dispatch.slices) {
            let raw = slice.buffer.raw();
            let at = *places.entry(raw).or_insert(uses.len());
            if at == uses.len() {
                uses.push((raw.clone(), BufferUses::STORAGE_READ_ONLY));
            }
            if *access == Access::ReadWrite {
                uses[at].1 = BufferUses::STORAGE_READ_WRITE;
            }
        }
    }
    uses
}
