//! A GPU: found ([`list`]), and opened.

pub mod list;

use std::sync::Arc;

use cudarc::driver::{result, sys::CUdevice_attribute as Attribute};

use crate::embedded::OLDEST;
use crate::error::CudaError;
use crate::handles::Context;
pub use crate::handles::Event;
use crate::module::Modules;

pub use list::{list_devices, report};

/// How a device is used. The defaults are the fastest; the switches are there to look for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Capture programs that are run again and again, and replay them with one launch.
    pub capture: bool,
    /// Let a kernel start before the one ahead of it is done, where the device can (compute capability 9.0): it waits by
    /// itself before it reads.
    pub overlap: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions { capture: true, overlap: true }
    }
}

impl CudaOptions {
    /// The defaults, changed by the environment: `FULMEN_CUDA_CAPTURE=0` and `FULMEN_CUDA_OVERLAP=0` switch one off.
    pub fn from_env() -> CudaOptions {
        let on = |name: &str| std::env::var(name).map_or(true, |value| value != "0");
        CudaOptions { capture: on("FULMEN_CUDA_CAPTURE"), overlap: on("FULMEN_CUDA_OVERLAP") }
    }
}

/// What shapes a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The compute capability, `10 * major + minor`.
    pub capability: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may take when it asks for it.
    pub shared_bytes: u32,
    /// The L2 cache.
    pub l2_bytes: u32,
}

impl Caps {
    /// Whether it has clusters and bulk copies.
    pub(crate) fn has_clusters(self) -> bool {
        self.capability >= 90
    }

    /// Whether it has the matrix instructions for groups of four warps, which later generations have not kept.
    pub(crate) fn has_wgmma(self) -> bool {
        self.capability == 90
    }
}

/// An opened device: its context and its kernels. Dispatchers over it have a stream each.
pub struct CudaDevice {
    pub(crate) context: Arc<Context>,
    pub(crate) modules: Modules,
    caps: Caps,
    options: CudaOptions,
}

impl CudaDevice {
    /// Opens a device by its number. Takes a part of a second, and some hundred megabytes on the device.
    pub fn open(ordinal: usize, options: CudaOptions) -> Result<Arc<CudaDevice>, CudaError> {
        let (count, _) = list::start()?;
        let index = i32::try_from(ordinal).ok().filter(|&index| index < count);
        let count = usize::try_from(count).unwrap_or(0);
        let index = index.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        let device = result::device::get(index).map_err(|error| CudaError::new("cuDeviceGet", error))?;
        let number = |name| list::attribute(device, name).map(|value| u32::try_from(value).unwrap_or(0));
        let caps = Caps {
            capability: list::capability(device)?,
            multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
            shared_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        };
        if caps.capability < OLDEST {
            let found = format!("{}.{}", caps.capability / 10, caps.capability % 10);
            return Err(CudaError::DeviceTooOld { found, needed: "8.0" });
        }
        let context = Context::retain(device)?;
        let modules = Modules::new(&context, caps.capability);
        Ok(Arc::new(CudaDevice { context, modules, caps, options }))
    }

    /// What shapes a launch.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// How it is used.
    pub fn options(&self) -> CudaOptions {
        self.options
    }

    /// Whether launches overlap: wanted, and possible.
    pub(crate) fn overlaps(&self) -> bool {
        self.options.overlap && self.caps.capability >= 90
    }

    /// Bytes free on the device.
    pub fn free_bytes(&self) -> Option<u64> {
        self.context.free_bytes()
    }
}
