//! GPUs: listing ([`list`]) and opening them.

pub mod list;
mod target;

use std::sync::Arc;

use cudarc::driver::result;

use crate::embedded::OLDEST;
use crate::error::CudaError;
use crate::handles::Context;
pub use crate::handles::Event;
use crate::module::Modules;

pub use list::{NAME, list_devices, report};
pub use target::CudaTarget;

/// How a device is used. The defaults are the fastest; turning options off helps in debugging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Capture programs that run repeatedly into CUDA graphs, and replay each with one launch.
    pub capture: bool,
    /// Use programmatic dependent launch where the device has it (compute capability 9.0): a kernel may start
    /// before the previous one has finished, and waits for it before it reads its results.
    pub overlap: bool,
    /// Use the kernels of an older compute capability, within its limits.
    pub target: Option<CudaTarget>,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions { capture: true, overlap: true, target: None }
    }
}

impl CudaOptions {
    /// The defaults, unless changed in the environment: `FULMEN_CUDA_CAPTURE=0` and `FULMEN_CUDA_OVERLAP=0`
    /// turn these options off, and `FULMEN_CUDA_TARGET` is `80`, `86` or `89`.
    ///
    /// # Errors
    /// [`CudaError::UnknownTarget`] for another target.
    pub fn from_env() -> Result<CudaOptions, CudaError> {
        let on = |name: &str| std::env::var(name).map_or(true, |value| value != "0");
        Ok(CudaOptions {
            capture: on("FULMEN_CUDA_CAPTURE"),
            overlap: on("FULMEN_CUDA_OVERLAP"),
            target: CudaTarget::from_env()?,
        })
    }
}

/// The capabilities of a device that launches depend on, or those of the [`CudaTarget`] that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The compute capability, `10 * major + minor`.
    pub capability: u32,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The largest shared memory of a block (opt-in).
    pub shared_bytes: u32,
    /// The size of the L2 cache.
    pub l2_bytes: u32,
}

impl Caps {
    /// Whether it has thread block clusters and TMA.
    pub(crate) fn has_clusters(self) -> bool {
        self.capability >= 90
    }

    /// Whether it has `wgmma`, which only compute capability 9.0 has.
    pub(crate) fn has_wgmma(self) -> bool {
        self.capability == 90
    }
}

/// An open device: its context and its kernels. Each of its dispatchers has a stream.
pub struct CudaDevice {
    pub(crate) context: Arc<Context>,
    pub(crate) modules: Modules,
    ordinal: usize,
    caps: Caps,
    options: CudaOptions,
}

impl CudaDevice {
    /// Opens a device by its ordinal. Takes a fraction of a second and some hundred megabytes of device
    /// memory.
    pub fn open(ordinal: usize, options: CudaOptions) -> Result<Arc<CudaDevice>, CudaError> {
        let (count, _) = list::start()?;
        let index = i32::try_from(ordinal).ok().filter(|&index| index < count);
        let count = usize::try_from(count).unwrap_or(0);
        let index = index.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        let device = result::device::get(index).map_err(|error| CudaError::new("cuDeviceGet", error))?;
        let caps = list::caps(device)?;
        if caps.capability < OLDEST {
            let found = format!("{}.{}", caps.capability / 10, caps.capability % 10);
            return Err(CudaError::DeviceTooOld { found, needed: "8.0" });
        }
        let caps = options.target.map_or(Ok(caps), |target| target.limit(caps))?;
        let context = Context::retain(device)?;
        let modules = Modules::new(&context, caps.capability);
        Ok(Arc::new(CudaDevice { context, modules, ordinal, caps, options }))
    }

    /// Its number among the devices of the driver.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Its capabilities.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Its options.
    pub fn options(&self) -> CudaOptions {
        self.options
    }

    /// Whether launches overlap: enabled and supported.
    pub(crate) fn overlaps(&self) -> bool {
        self.options.overlap && self.caps.capability >= 90
    }

    /// Free bytes on the device.
    pub fn free_bytes(&self) -> Option<u64> {
        self.context.free_bytes()
    }
}
