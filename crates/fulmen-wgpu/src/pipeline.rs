//! Compiles kernels into pipelines, once per device.
//!
//! - **Parameters.** A kernel uses `params` without declaring it. The declaration is appended to its
//!   text (directives such as `enable f16;` must come first): as immediate data, or, where the device
//!   has none or not enough, as a uniform with a dynamic offset.
//! - **Run-time checks.** WGSL guarantees that indices are clamped, loops end, division by zero is
//!   defined and workgroup memory is zero-initialized. Kernels of unknown origin keep all that
//!   ([`PipelineCache::get`]). This crate's own kernels are compiled without it
//!   ([`PipelineCache::get_trusted`]): loop counters, clamps on workgroup memory and guarded divisions
//!   are instructions in the innermost loops. The example `replay_cost` measures their cost.
//! - **Why trusted modules declare an unused `override`.** On Vulkan, wgpu translates a module without
//!   overrides when it is created, and then honors only the bounds-check switch; the other switches
//!   take effect only if the translation is deferred to pipeline creation, which an override causes.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use wgpu::{BindGroupLayout, BufferBindingType, ShaderRuntimeChecks, ShaderStages};

use crate::{
    device::{GpuDevice, count},
    disk_cache,
    error::GpuError,
    kernel::{Access, Caps, Kernel},
    replay::VulkanPipeline,
    signal::signal,
};

const CALL: &str = "PipelineCache::get";

/// How a pipeline gets its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamMode {
    /// It has none.
    None,
    /// As immediate data, set in the pass.
    Immediates,
    /// From a uniform buffer in group 1, by a dynamic offset.
    Uniform,
}

impl ParamMode {
    fn new(kernel: &Kernel, caps: &Caps) -> ParamMode {
        match u64::from(kernel.param_words) * 4 {
            0 => ParamMode::None,
            bytes if bytes <= caps.immediate_bytes.into() => ParamMode::Immediates,
            _ => ParamMode::Uniform,
        }
    }
}

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) label: String,
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) buffers: BindGroupLayout,
    pub(crate) uniform: Option<BindGroupLayout>,
    pub(crate) access: Vec<Access>,
    pub(crate) params: ParamMode,
    pub(crate) param_words: u32,
    pub(crate) device: u64,
    /// The module's text, if it is trusted.
    pub(crate) text: Option<String>,
    /// Created when a dispatch list that uses it is recorded; `None` inside if that is not possible.
    #[cfg_attr(not(any(windows, target_os = "linux")), allow(dead_code, reason = "recording needs Vulkan"))]
    pub(crate) vulkan: OnceLock<Option<Arc<VulkanPipeline>>>,
}

impl Pipeline {
    /// The kernel's name.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// How it gets its parameters.
    pub fn param_mode(&self) -> ParamMode {
        self.params
    }

    /// The pipeline itself.
    pub fn raw(&self) -> &wgpu::ComputePipeline {
        &self.raw
    }

    /// Bytes of its uniform binding: whole vectors, as some drivers require.
    pub(crate) fn uniform_bytes(&self) -> u64 {
        uniform_bytes(self.param_words)
    }
}

fn uniform_bytes(words: u32) -> u64 {
    (u64::from(words) * 4).next_multiple_of(16)
}

/// Pipelines by kernel contents and device. Threads, batches and devices can share a cache, and clones are
/// the same cache; the pipelines of a closed device are dropped when the next device is added.
#[derive(Clone, Debug, Default)]
pub struct PipelineCache {
    shared: Arc<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    devices: Mutex<HashMap<u64, DevicePipelines>>,
    compiled: AtomicU64,
}

#[derive(Debug)]
struct DevicePipelines {
    open: Weak<()>,
    checked: HashMap<Kernel, PipelineSlot>,
    trusted: HashMap<Kernel, PipelineSlot>,
}

/// Locked while its pipeline is compiled, so that requests for the same pipeline wait and others do not.
type PipelineSlot = Arc<Mutex<Option<Arc<Pipeline>>>>;

impl PipelineCache {
    /// The process-wide cache.
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<PipelineCache> = OnceLock::new();
        GLOBAL.get_or_init(PipelineCache::new)
    }

    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many pipelines it holds, of all devices.
    pub fn len(&self) -> usize {
        let devices = self.shared.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = |slot: &&PipelineSlot| slot.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        devices.values().flat_map(|of| of.checked.values().chain(of.trusted.values())).filter(filled).count()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of pipelines it has created, whether the driver compiled them or found them on disk.
    pub fn compiled(&self) -> u64 {
        self.shared.compiled.load(Ordering::Relaxed)
    }

    /// The pipeline of a kernel of any origin, compiled at the first call, with all of WGSL's run-time
    /// checks.
    ///
    /// # Errors
    /// [`GpuError::Shader`], [`GpuError::TooLarge`], [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn get(&self, gpu: &GpuDevice, kernel: &Kernel) -> Result<Arc<Pipeline>, GpuError> {
        self.find(gpu, kernel, false)
    }

    /// The pipeline of a kernel that needs no run-time checks; it still has them under
    /// [`DeviceOptions::check_trusted`](crate::device::DeviceOptions::check_trusted).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Safety
    /// With the parameters and bindings it is launched with, the kernel must not index out of bounds,
    /// must end its loops, must not divide an integer by zero, and must not read workgroup memory
    /// before writing it.
    pub unsafe fn get_trusted(&self, gpu: &GpuDevice, kernel: &Kernel) -> Result<Arc<Pipeline>, GpuError> {
        self.find(gpu, kernel, !gpu.check_trusted())
    }

    /// Compiles the kernels that are not compiled yet on another thread, and yields until that is done: then
    /// [`get_trusted`](Self::get_trusted) finds them. Errors are left to that call. Where no thread can be
    /// started, nothing is done; browsers compile in the background by themselves.
    ///
    /// # Safety
    /// As [`get_trusted`](Self::get_trusted).
    pub(crate) async unsafe fn compile_ahead<'a>(
        &self,
        gpu: &GpuDevice,
        kernels: impl IntoIterator<Item = &'a Kernel>,
    ) {
        let trusted = !gpu.check_trusted();
        let missing = |kernel: &&Kernel| match self.slot(gpu, kernel, trusted).try_lock() {
            Ok(pipeline) => pipeline.is_none(),
            // Another thread is compiling it.
            Err(_) => true,
        };
        let missing: HashSet<Kernel> = kernels.into_iter().filter(missing).cloned().collect();
        if missing.is_empty() {
            return;
        }
        let (setter, done) = signal();
        let (cache, gpu) = (self.clone(), gpu.clone());
        let compile = move || {
            for kernel in &missing {
                // The error comes again, to whoever needs the kernel.
                let _ = cache.find(&gpu, kernel, trusted);
            }
            setter.set();
        };
        if std::thread::Builder::new().name("fulmen-wgpu-compile".to_owned()).spawn(compile).is_ok() {
            done.await;
        }
    }

    fn find(&self, gpu: &GpuDevice, kernel: &Kernel, trusted: bool) -> Result<Arc<Pipeline>, GpuError> {
        gpu.check_alive()?;
        let slot = self.slot(gpu, kernel, trusted);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = &*slot {
            return Ok(pipeline.clone());
        }
        let pipeline = Arc::new(compile(gpu, kernel, trusted)?);
        self.shared.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(slot.insert(pipeline).clone())
    }

    fn slot(&self, gpu: &GpuDevice, kernel: &Kernel, trusted: bool) -> PipelineSlot {
        let mut devices = self.shared.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if !devices.contains_key(&gpu.id()) {
            devices.retain(|_, of| of.open.strong_count() > 0);
        }
        let of = devices.entry(gpu.id()).or_insert_with(|| DevicePipelines {
            open: gpu.liveness(),
            checked: HashMap::new(),
            trusted: HashMap::new(),
        });
        let slots = if trusted { &mut of.trusted } else { &mut of.checked };
        match slots.get(kernel) {
            Some(slot) => slot.clone(),
            None => slots.entry(kernel.clone()).or_default().clone(),
        }
    }
}

fn compile(gpu: &GpuDevice, kernel: &Kernel, trusted: bool) -> Result<Pipeline, GpuError> {
    let caps = gpu.caps();
    let too_large = |what: &str, needed: u64, limit: u64| {
        let what = format!("{what} of kernel {:?}", kernel.label);
        if needed > limit { Err(GpuError::TooLarge { call: CALL, what, needed, limit }) } else { Ok(()) }
    };
    too_large("the number of buffers", kernel.bindings.len() as u64, caps.max_storage_buffers.into())?;
    let params = ParamMode::new(kernel, &caps);
    if params == ParamMode::Uniform {
        let bytes = u64::from(kernel.param_words) * 4;
        too_large("the bytes of parameters", bytes, gpu.limits().max_uniform_buffer_binding_size)?;
    }

    let text = module_text(kernel, params, trusted);
    let shader_error = |error| match error {
        GpuError::Validation { message, .. } | GpuError::Internal { message, .. } => {
            GpuError::Shader { label: kernel.label.to_string(), message }
        }
        error => error,
    };
    let module = gpu.create(CALL, None, || module(gpu, kernel, &text, trusted)).map_err(shader_error)?;
    count(&gpu.counters().shader_modules, 1);
    let mut made =
        gpu.scoped(CALL, None, || pipeline(gpu, kernel, &module, params, trusted)).map_err(shader_error)?;
    gpu.check_alive()?;

    let content = disk_cache::hash(format!("{trusted}{text}").as_bytes());
    let loaded = gpu.pipeline_file().is_some_and(|file| file.note(content));
    let counters = gpu.counters();
    count(if loaded { &counters.pipelines_loaded } else { &counters.pipelines_compiled }, 1);
    made.text = (trusted && gpu.info().backend == wgpu::Backend::Vulkan).then_some(text);
    Ok(made)
}

/// The module as a trusted kernel is compiled on a device with these capabilities.
pub(crate) fn trusted_module(kernel: &Kernel, caps: &Caps) -> String {
    module_text(kernel, ParamMode::new(kernel, caps), true)
}

/// The kernel's text with the declarations that the pipeline adds.
fn module_text(kernel: &Kernel, params: ParamMode, trusted: bool) -> String {
    let mut text = kernel.module();
    text.push_str(match params {
        ParamMode::None => "",
        ParamMode::Immediates => "var<immediate> params: Params;\n",
        ParamMode::Uniform => "@group(1) @binding(0) var<uniform> params: Params;\n",
    });
    if trusted {
        // Written to a string, which cannot fail.
        let _ = writeln!(text, "override fulmen_translate_late: bool = true;");
    }
    text
}

fn module(gpu: &GpuDevice, kernel: &Kernel, text: &str, trusted: bool) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(&kernel.label),
        source: wgpu::ShaderSource::Wgsl(text.into()),
    };
    if trusted {
        // SAFETY: the caller of `get_trusted` promised what the checks would have ensured.
        unsafe {
            gpu.wgpu_device().create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked())
        }
    } else {
        gpu.wgpu_device().create_shader_module(descriptor)
    }
}

fn pipeline(
    gpu: &GpuDevice,
    kernel: &Kernel,
    module: &wgpu::ShaderModule,
    params: ParamMode,
    trusted: bool,
) -> Pipeline {
    let device = gpu.wgpu_device();
    let entry = |binding, ty, has_dynamic_offset| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
        count: None,
    };
    let layout = |entries: &[wgpu::BindGroupLayoutEntry]| {
        device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&kernel.label),
            entries,
        })
    };
    let storage = |access: Access| BufferBindingType::Storage { read_only: access == Access::Read };
    let entries: Vec<_> =
        (0..).zip(kernel.access()).map(|(binding, access)| entry(binding, storage(access), false)).collect();
    let buffers = layout(&entries);
    let uniform =
        (params == ParamMode::Uniform).then(|| layout(&[entry(0, BufferBindingType::Uniform, true)]));
    let groups: Vec<_> = [Some(&buffers), uniform.as_ref()].into_iter().flatten().map(Some).collect();
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(&kernel.label),
        bind_group_layouts: &groups,
        immediate_size: if params == ParamMode::Immediates { kernel.param_words * 4 } else { 0 },
    });
    let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&kernel.label),
        layout: Some(&pipeline_layout),
        module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            constants: &[],
            zero_initialize_workgroup_memory: !trusted,
        },
        cache: gpu.pipeline_file().map(disk_cache::PipelineFile::cache),
    });
    Pipeline {
        label: kernel.label.to_string(),
        raw,
        buffers,
        uniform,
        access: kernel.access().collect(),
        params,
        param_words: kernel.param_words,
        device: gpu.id(),
        text: None,
        vulkan: OnceLock::new(),
    }
}
