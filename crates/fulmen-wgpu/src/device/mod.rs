//! An open GPU: its capabilities, its health, and its counters.
//!
//! - **Errors never panic and are never lost.** Each call of this crate into wgpu runs inside error
//!   scopes (`call.rs`), so its errors are returned by that very call. On native backends a scope costs
//!   two short lock acquisitions and no wait, so even submissions have them. Errors of a caller's own
//!   use of [`GpuDevice::wgpu_device`] are kept by the uncaptured-error handler and reported by the
//!   next call.
//! - **A lost device stays lost.** wgpu reports the loss by a callback, some time after it. A
//!   submission that was dropped because of it is detected, because the queue never reaches its number:
//!   by the call that waits for it or reads, and by other calls within a millisecond. From then on
//!   every call returns [`GpuError::DeviceLost`]. A new device can be opened in the same process.

mod call;
mod environment;
mod list;
mod memory;
mod options;
mod state;
mod stats;

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fulmen_core::device::DeviceInfo;
use wgpu::{Adapter, AdapterInfo, Features, Limits};

use self::state::DeviceErrors;
pub(crate) use self::{
    call::ready,
    stats::{Counters, count},
};
pub use self::{
    list::{NAME, list_devices, report},
    memory::GpuMemory,
    options::{AdapterSelector, DeviceOptions, DiskCache, RecordMode},
    stats::DeviceStats,
};
use crate::{
    disk_cache::{self, PipelineFile},
    error::GpuError,
    kernel::Caps,
    replay::VulkanDevice,
    transfer::{StagingPool, Waiter},
    tune::{Tuned, TunedFile},
};

/// An open GPU. Clones share the device; it closes when the last clone, and the last object created
/// with it, is dropped.
#[derive(Clone)]
pub struct GpuDevice {
    inner: Arc<Inner>,
}

struct Inner {
    id: u64,
    alive: Arc<()>,
    info: AdapterInfo,
    caps: Caps,
    limits: Limits,
    features: Features,
    check_trusted: bool,
    record: RecordMode,
    vulkan: OnceLock<Option<Arc<VulkanDevice>>>,
    timeout: Option<Duration>,
    state: Arc<DeviceErrors>,
    stats: Arc<Counters>,
    staging: StagingPool,
    waiter: Waiter,
    last_check: call::LastCheck,
    /// The last submission, and how many there were.
    last_submission: Mutex<Option<(u64, wgpu::SubmissionIndex)>>,
    /// Held while the device is polled: see [`GpuDevice::poll`].
    polling: Arc<Mutex<()>>,
    /// Shared by submissions, and held alone by polls that do not wait: see [`GpuDevice::try_poll`].
    submitting: RwLock<()>,
    file: Option<PipelineFile>,
    tuned: Tuned,
    queue: wgpu::Queue,
    device: wgpu::Device,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && !self.state.is_lost()
        {
            // The cache only saves time, and drop cannot report errors; `save_pipelines` does.
            let _ = file.save();
        }
    }
}

/// Ids are never reused, so that objects of a closed device are never mistaken for those of a new one.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl GpuDevice {
    /// Opens the best adapter: discrete, then integrated, then others, then software.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`], [`GpuError::RequestDevice`].
    pub fn new() -> Result<Self, GpuError> {
        pollster::block_on(Self::new_async())
    }

    /// [`new`](Self::new) for any executor.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`], [`GpuError::RequestDevice`].
    pub async fn new_async() -> Result<Self, GpuError> {
        Self::with_options_async(&DeviceOptions::default()).await
    }

    /// Opens an adapter by its index or by a part of its name.
    ///
    /// # Errors
    /// Also [`GpuError::AdapterNotFound`].
    pub fn open(selector: &AdapterSelector) -> Result<Self, GpuError> {
        Self::with_options(&DeviceOptions { adapter: selector.clone(), ..DeviceOptions::default() })
    }

    /// Opens an adapter with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open); also [`GpuError::Argument`] for an invalid environment variable.
    pub fn with_options(options: &DeviceOptions) -> Result<Self, GpuError> {
        pollster::block_on(Self::with_options_async(options))
    }

    /// [`with_options`](Self::with_options) for any executor.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn with_options_async(options: &DeviceOptions) -> Result<Self, GpuError> {
        let options = &options.with_environment()?;
        let adapter = options.adapter.choose(list::adapters().await?)?;
        let features = options.features(adapter.features());
        let experimental_features = if features.intersects(Features::all_experimental_mask()) {
            // SAFETY: the only experimental feature requested is the cooperative matrix; the kernels
            // that use it load and store only whole tiles inside their bindings, as wgpu requires.
            unsafe { wgpu::ExperimentalFeatures::enabled() }
        } else {
            wgpu::ExperimentalFeatures::disabled()
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("fulmen"),
            required_features: features,
            required_limits: options.limits(adapter.limits(), features),
            experimental_features,
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(|error| {
            GpuError::RequestDevice { adapter: adapter.get_info().name, message: error.to_string() }
        })?;
        let matrix =
            features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX) && has_matrix_shape(&adapter);
        Self::build(device, queue, matrix, options)
    }

    /// Uses a device that the caller has opened, with the features and limits it was opened with.
    /// Cooperative matrices are not used, because only the adapter knows their shapes.
    ///
    /// Sets the device-lost callback and the uncaptured-error handler. A caller that needs them can
    /// replace them afterwards: errors of this crate's own calls are still returned by those calls.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`] if it is lost already; [`GpuError::Argument`] as in
    /// [`with_options`](Self::with_options).
    pub fn from_wgpu(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, GpuError> {
        Self::build(device, queue, false, &DeviceOptions::default().with_environment()?)
    }

    fn build(
        device: wgpu::Device,
        queue: wgpu::Queue,
        cooperative_matrix: bool,
        options: &DeviceOptions,
    ) -> Result<Self, GpuError> {
        let state = Arc::new(DeviceErrors::default());
        state.watch(&device);
        let (info, limits, features) = (device.adapter_info(), device.limits(), device.features());
        let caps = caps(&info, &limits, features, cooperative_matrix);
        let file = PipelineFile::open(&device, &info, &options.disk_cache);
        let folder = disk_cache::folder(&options.disk_cache);
        let tuned = Tuned::open(folder.map(|folder| TunedFile::new(&folder, disk_cache::key(&info))));
        let device = Self {
            inner: Arc::new(Inner {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                alive: Arc::default(),
                info,
                caps,
                limits,
                features,
                check_trusted: options.check_trusted,
                record: options.record,
                vulkan: OnceLock::new(),
                timeout: options.timeout,
                state,
                stats: Arc::default(),
                staging: StagingPool::default(),
                waiter: Waiter::default(),
                last_check: call::LastCheck::default(),
                last_submission: Mutex::default(),
                polling: Arc::default(),
                submitting: RwLock::default(),
                file,
                tuned,
                queue,
                device,
            }),
        };
        device.check_alive()?;
        Ok(device)
    }

    /// Every adapter, with its capabilities. Opens none of them.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`].
    pub fn list_adapters() -> Result<Vec<DeviceInfo>, GpuError> {
        list_devices()
    }

    /// Whether there is an adapter to open.
    pub fn is_available() -> bool {
        pollster::block_on(list::adapters()).is_ok()
    }

    /// The capabilities that kernels may use.
    pub fn caps(&self) -> Caps {
        self.inner.caps
    }

    /// The adapter.
    pub fn info(&self) -> &AdapterInfo {
        &self.inner.info
    }

    /// The device itself, for work that this crate does not cover.
    pub fn wgpu_device(&self) -> &wgpu::Device {
        &self.inner.device
    }

    /// The queue itself.
    pub fn wgpu_queue(&self) -> &wgpu::Queue {
        &self.inner.queue
    }

    /// The device's counters.
    pub fn stats(&self) -> DeviceStats {
        self.inner.stats.snapshot()
    }

    /// Writes the compiled pipelines to disk, if there are new ones. Closing the device does so too.
    ///
    /// # Errors
    /// [`GpuError::CacheFile`].
    pub fn save_pipelines(&self) -> Result<(), GpuError> {
        self.inner.file.as_ref().map_or(Ok(()), PipelineFile::save)
    }

    /// The number of matmuls that were tuned on this device, by this process or earlier ones: see
    /// [`GpuMatmulCache::tune`](crate::GpuMatmulCache::tune).
    pub fn tuned_matmuls(&self) -> usize {
        self.inner.tuned.len()
    }

    /// Writes the tuning results to disk for later processes. Does nothing without a disk cache.
    ///
    /// # Errors
    /// [`GpuError::CacheFile`].
    pub fn save_tuned(&self) -> Result<(), GpuError> {
        self.inner.tuned.save()
    }

    pub(crate) fn tuned(&self) -> &Tuned {
        &self.inner.tuned
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// Can tell whether the device is still open, without keeping it open.
    pub(crate) fn liveness(&self) -> Weak<()> {
        Arc::downgrade(&self.inner.alive)
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.inner.stats
    }

    pub(crate) fn features(&self) -> Features {
        self.inner.features
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn check_trusted(&self) -> bool {
        self.inner.check_trusted
    }

    /// Whether dispatch lists that run often are recorded, so that runs need no encoding: on Vulkan
    /// 1.3, unless [`DeviceOptions::record`] forbids it.
    pub fn can_record(&self) -> bool {
        self.vulkan().is_some()
    }

    /// The Vulkan device for recordings; `None` where lists are not recorded.
    pub(crate) fn vulkan(&self) -> Option<&Arc<VulkanDevice>> {
        let software = self.inner.info.device_type == wgpu::DeviceType::Cpu;
        if self.inner.record == RecordMode::Never || (self.inner.record == RecordMode::Auto && software) {
            return None;
        }
        self.inner.vulkan.get_or_init(|| VulkanDevice::of(self)).as_ref()
    }

    pub(crate) fn record_option(&self) -> RecordMode {
        self.inner.record
    }

    pub(crate) fn staging(&self) -> &StagingPool {
        &self.inner.staging
    }

    pub(crate) fn waiter(&self) -> &Waiter {
        &self.inner.waiter
    }

    pub(crate) fn polling(&self) -> &Arc<Mutex<()>> {
        &self.inner.polling
    }

    pub(crate) fn pipeline_file(&self) -> Option<&PipelineFile> {
        self.inner.file.as_ref()
    }
}

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuDevice")
            .field("name", &self.inner.info.name)
            .field("caps", &self.inner.caps)
            .finish()
    }
}

fn caps(info: &AdapterInfo, limits: &Limits, features: Features, cooperative_matrix: bool) -> Caps {
    let has = |feature| features.contains(feature);
    Caps {
        subgroups: has(Features::SUBGROUP).then_some((info.subgroup_min_size, info.subgroup_max_size)),
        f16: has(Features::SHADER_F16),
        immediate_bytes: if has(Features::IMMEDIATES) { limits.max_immediate_size } else { 0 },
        cooperative_matrix,
        max_workgroups: limits.max_compute_workgroups_per_dimension,
        max_invocations: limits.max_compute_invocations_per_workgroup,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        // Bindings consist of whole words.
        max_binding: limits.max_storage_buffer_binding_size & !3,
        max_buffer: limits.max_buffer_size & !3,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        binding_alignment: limits.min_storage_buffer_offset_alignment,
    }
}

/// Whether the adapter multiplies 16 × 16 tiles of f16 into f32.
fn has_matrix_shape(adapter: &Adapter) -> bool {
    use wgpu::CooperativeScalarType::{F16, F32};
    adapter.cooperative_matrix_properties().iter().any(|shape| {
        (shape.m_size, shape.n_size, shape.k_size) == (16, 16, 16)
            && shape.ab_type == F16
            && shape.cr_type == F32
    })
}
