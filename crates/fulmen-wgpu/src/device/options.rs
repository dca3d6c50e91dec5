//! Which adapter to open, and with which features and limits.

use std::{path::PathBuf, time::Duration};

use wgpu::{Adapter, DeviceType, Features, Limits};

use crate::error::GpuError;

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterSelector {
    /// A discrete GPU before an integrated one, before any other, before one in software.
    #[default]
    Best,
    /// The adapter with this index in [`GpuDevice::list_adapters`](super::GpuDevice::list_adapters).
    Index(usize),
    /// The first adapter, best kind first, with this in its name, whatever the case of the letters.
    Name(String),
}

impl AdapterSelector {
    /// Takes the adapter out of the list.
    pub(super) fn choose(&self, mut adapters: Vec<Adapter>) -> Result<Adapter, GpuError> {
        let mut order: Vec<usize> = (0..adapters.len()).collect();
        order.sort_by_key(|&i| rank(adapters[i].get_info().device_type));
        let found = match self {
            Self::Best => order.first().copied(),
            Self::Index(index) => (*index < adapters.len()).then_some(*index),
            Self::Name(name) => {
                let name = name.to_lowercase();
                order.into_iter().find(|&i| adapters[i].get_info().name.to_lowercase().contains(&name))
            }
        };
        found.map(|i| adapters.swap_remove(i)).ok_or_else(|| GpuError::AdapterNotFound {
            wanted: match self {
                Self::Best => "available".to_owned(),
                Self::Index(index) => format!("number {index}"),
                Self::Name(name) => format!("named {name:?}"),
            },
            found: adapters.iter().map(|adapter| adapter.get_info().name).collect(),
        })
    }
}

const fn rank(device_type: DeviceType) -> u8 {
    match device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

/// Where compiled pipelines are kept between processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskCache {
    /// In the user's cache folder, or in `FULMEN_CACHE_DIR`, unless `FULMEN_CACHE` is `off`.
    #[default]
    UserFolder,
    /// In this folder.
    Folder(PathBuf),
    /// Nowhere.
    Off,
}

/// When dispatch lists are recorded, so that runs need no encoding. Vulkan only. Kernels are compiled a
/// second time for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordMode {
    /// On hardware, once a list has run often enough for it to pay off; unless `FULMEN_WGPU_RECORD` is
    /// `0` (never) or `1` (always).
    #[default]
    Auto,
    /// From the third run of a list on, also on software devices.
    Always,
    /// Never: each run is encoded.
    Never,
}

/// How to open a device. The default requests everything the adapter offers; the limits are for testing
/// the code paths of weaker devices.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Which adapter.
    pub adapter: AdapterSelector,
    /// Optional features not to use, in addition to those in `FULMEN_WGPU_WITHOUT`.
    pub without: Features,
    /// Bytes of the largest storage binding, if less than the adapter's.
    pub max_binding: Option<u64>,
    /// Bytes of the largest buffer, if less than the adapter's.
    pub max_buffer: Option<u64>,
    /// Workgroups per dimension, if less than the adapter's.
    pub max_workgroups: Option<u32>,
    /// Bytes of workgroup memory, if less than the adapter's.
    pub workgroup_memory: Option<u32>,
    /// Storage buffers that a kernel may bind, if less than the adapter's.
    pub max_storage_buffers: Option<u32>,
    /// Where compiled pipelines are kept between processes.
    pub disk_cache: DiskCache,
    /// Compile trusted kernels with all of WGSL's run-time checks too.
    pub check_trusted: bool,
    /// When dispatch lists are recorded, so that runs need no encoding.
    pub record: RecordMode,
    /// How long a blocking call waits for the device; without limit if `None`.
    pub timeout: Option<Duration>,
}

/// Features that this crate uses where an adapter has them.
const OPTIONAL: Features = Features::SUBGROUP
    .union(Features::SHADER_F16)
    .union(Features::IMMEDIATES)
    .union(Features::TIMESTAMP_QUERY)
    .union(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS)
    .union(Features::TIMESTAMP_QUERY_INSIDE_PASSES)
    .union(Features::PIPELINE_CACHE)
    .union(Features::EXPERIMENTAL_COOPERATIVE_MATRIX);

impl DeviceOptions {
    /// The features to ask of an adapter that has `offered`.
    pub(super) fn features(&self, offered: Features) -> Features {
        let mut features = OPTIONAL.intersection(offered).difference(self.without);
        // The others require it.
        if !features.contains(Features::TIMESTAMP_QUERY) {
            features
                .remove(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS | Features::TIMESTAMP_QUERY_INSIDE_PASSES);
        }
        features
    }

    /// The limits to ask of an adapter that offers `limits`.
    pub(super) fn limits(&self, mut limits: Limits, features: Features) -> Limits {
        fn lower<T: Ord + Copy>(limit: &mut T, wanted: Option<T>) {
            *limit = wanted.map_or(*limit, |wanted| wanted.min(*limit));
        }
        lower(&mut limits.max_storage_buffer_binding_size, self.max_binding);
        lower(&mut limits.max_buffer_size, self.max_buffer);
        lower(&mut limits.max_compute_workgroups_per_dimension, self.max_workgroups);
        lower(&mut limits.max_compute_workgroup_storage_size, self.workgroup_memory);
        lower(&mut limits.max_storage_buffers_per_shader_stage, self.max_storage_buffers);
        if !features.contains(Features::IMMEDIATES) {
            limits.max_immediate_size = 0;
        }
        limits
    }
}
