//! The NVIDIA GPUs that the driver finds, and their capabilities.
//!
//! Nothing here creates a context, which would take hundreds of megabytes and a fraction of a second on each
//! GPU. Free memory is therefore unknown.

use std::fs;

use cudarc::driver::{
    result,
    sys::{self, CUdevice, CUdevice_attribute as Attribute},
};
use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceKind, Fact};

use super::{Caps, CudaTarget};
use crate::embedded::OLDEST;
use crate::error::{CudaError, CudaVersion, MIN_DRIVER, no_device};
use crate::nccl::nccl_version;

/// The name of this backend.
pub const NAME: BackendName = BackendName::new("cuda");

/// A report of all devices, or of the reason why there are none.
pub fn report() -> BackendReport {
    BackendReport::new(NAME, list_devices())
}

/// All devices that the driver finds, in its order. Does not open them.
///
/// # Errors
/// A [`CudaError`] that says why there are none.
pub fn list_devices() -> Result<Vec<DeviceInfo>, CudaError> {
    let (count, version) = start()?;
    let target = CudaTarget::from_env()?;
    let mut devices =
        (0..count).map(|ordinal| device_info(ordinal, version, target)).collect::<Result<Vec<_>, _>>()?;
    if count > 1 {
        let collectives = match nccl_version() {
            Ok(version) => format!("NCCL {version}"),
            Err(reason) => format!("through the host: {reason}"),
        };
        for (ordinal, info) in (0..count).zip(&mut devices) {
            info.facts.push(Fact::text("links", links(ordinal, count)?));
            info.facts.push(Fact::text("collectives", collectives.clone()));
        }
    }
    Ok(devices)
}

/// How a device reaches the memory of each other one: `cuda:1 NVLink, cuda:2 PCIe`.
fn links(ordinal: i32, count: i32) -> Result<String, CudaError> {
    use sys::CUdevice_P2PAttribute::*;
    let get = |ordinal| result::device::get(ordinal).map_err(|error| CudaError::new("cuDeviceGet", error));
    let own = get(ordinal)?;
    let mut links = Vec::new();
    for other in (0..count).filter(|&other| other != ordinal) {
        let (mut access, mut atomics, peer) = (0, 0, get(other)?);
        let failed = |error| CudaError::new("cuDeviceGetP2PAttribute", error);
        let attribute = |value: &mut i32, attribute| {
            // SAFETY: both devices come from cuDeviceGet, and the driver writes one integer.
            let status = unsafe { sys::cuDeviceGetP2PAttribute(value, attribute, own, peer) };
            status.result().map_err(failed)
        };
        attribute(&mut access, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)?;
        attribute(&mut atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)?;
        links.push(format!("{NAME}:{other} {}", link(access != 0, atomics != 0)));
    }
    Ok(links.join(", "))
}

/// What connects two devices. The driver does not name it, but atomic operations on the memory of the other
/// device are native over NVLink and not over PCIe.
fn link(access: bool, native_atomics: bool) -> &'static str {
    match (access, native_atomics) {
        (true, true) => "NVLink",
        (true, false) => "PCIe, peer access",
        (false, _) => "PCIe, through the host",
    }
}

/// Opens the driver library; returns the number of devices, at least one, and the version of the driver.
pub(crate) fn start() -> Result<(i32, CudaVersion), CudaError> {
    load()?;
    result::init().map_err(|error| CudaError::new("cuInit", error))?;
    let version = driver_version()?;
    if version < MIN_DRIVER {
        return Err(CudaError::DriverTooOld { found: version });
    }
    let count = result::device::get_count().map_err(|error| CudaError::new("cuDeviceGetCount", error))?;
    if count < 1 {
        return Err(no_device());
    }
    Ok((count, version))
}

/// Checks that the driver library can be opened: otherwise the first call of cudarc would panic.
fn load() -> Result<(), CudaError> {
    let tried = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so, libcuda.so.1" };
    // SAFETY: opening the driver library runs its initializers, which are safe to run in any process.
    let present = unsafe { sys::is_culib_present() };
    if present { Ok(()) } else { Err(CudaError::LibraryMissing { tried }) }
}

fn driver_version() -> Result<CudaVersion, CudaError> {
    let mut version = 0;
    // SAFETY: the library is open, and the driver writes one integer to a variable that outlives the call.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    status.result().map_err(|error| CudaError::new("cuDriverGetVersion", error))?;
    Ok(CudaVersion(version))
}

fn device_info(
    ordinal: i32,
    version: CudaVersion,
    target: Option<CudaTarget>,
) -> Result<DeviceInfo, CudaError> {
    let device = result::device::get(ordinal).map_err(|error| CudaError::new("cuDeviceGet", error))?;
    let name = result::device::get_name(device).map_err(|error| CudaError::new("cuDeviceGetName", error))?;
    // SAFETY: `device` comes from cuDeviceGet.
    let memory = unsafe { result::device::total_mem(device) };
    let memory = memory.map_err(|error| CudaError::new("cuDeviceTotalMem", error))?;
    let integrated = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    Ok(DeviceInfo {
        backend: NAME,
        index: ordinal as usize,
        name,
        kind: if integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu },
        driver: driver(version),
        memory_bytes: Some(memory as u64),
        free_bytes: None,
        facts: facts(device, target)?,
        runs_graphs: runs_graphs(caps(device)?, target),
    })
}

fn runs_graphs(caps: Caps, target: Option<CudaTarget>) -> Result<(), String> {
    if caps.capability < OLDEST {
        return Err(format!("compute capability {}.{} or newer is required", OLDEST / 10, OLDEST % 10));
    }
    target.map_or(Ok(caps), |target| target.limit(caps)).map(|_| ()).map_err(|error| error.to_string())
}

/// The CUDA version and, on Linux, the version of the kernel module.
fn driver(version: CudaVersion) -> String {
    match fs::read_to_string("/sys/module/nvidia/version") {
        Ok(module) => format!("NVIDIA {} (CUDA {version})", module.trim()),
        Err(_) => format!("NVIDIA (CUDA {version})"),
    }
}

/// The facts that kernels depend on: the instruction set, and the sizes that limit tiles.
fn facts(device: CUdevice, target: Option<CudaTarget>) -> Result<Vec<Fact>, CudaError> {
    let number = |name| attribute(device, name).map(|value| u64::try_from(value).unwrap_or(0));
    let caps = caps(device)?;
    let clock_khz = number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
    let mut facts = vec![
        Fact::text("compute capability", format!("{}.{}", caps.capability / 10, caps.capability % 10)),
        Fact::count("multiprocessors", number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?),
        Fact::text("clock", format!("{} MHz", clock_khz / 1000)),
        Fact::bytes("L2 cache", caps.l2_bytes.into()),
        Fact::bytes("shared memory per block", caps.shared_bytes.into()),
        Fact::count("registers per block", number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?),
    ];
    if let Some((target, limited)) = target.and_then(|target| Some((target, target.limit(caps).ok()?))) {
        facts.push(Fact::text("kernels", format!("of compute capability {target} (FULMEN_CUDA_TARGET)")));
        facts.push(Fact::bytes("shared memory they may use", limited.shared_bytes.into()));
    }
    Ok(facts)
}

/// What launches depend on, without the limits of a [`CudaTarget`] and the options.
pub(super) fn caps(device: CUdevice) -> Result<Caps, CudaError> {
    let number = |name| attribute(device, name).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(Caps {
        capability: capability(device)?,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
        shared_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
    })
}

/// The compute capability: `10 * major + minor`.
fn capability(device: CUdevice) -> Result<u32, CudaError> {
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(u32::try_from(10 * major + minor).unwrap_or(0))
}

pub(crate) fn attribute(device: CUdevice, name: Attribute) -> Result<i32, CudaError> {
    // SAFETY: `device` comes from cuDeviceGet.
    let value = unsafe { result::device::get_attribute(device, name) };
    value.map_err(|error| CudaError::new("cuDeviceGetAttribute", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_by_what_they_can_do() {
        assert_eq!(link(true, true), "NVLink");
        assert_eq!(link(true, false), "PCIe, peer access");
        assert_eq!(link(false, true), "PCIe, through the host");
    }

    #[test]
    fn listing_finds_devices_or_gives_a_reason() {
        match list_devices() {
            Ok(devices) => {
                assert!(!devices.is_empty());
                assert!(devices.iter().all(|device| device.memory_bytes.is_some_and(|bytes| bytes > 0)));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
