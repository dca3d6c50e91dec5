//! Which NVIDIA GPUs the driver offers, and what they can do.
//!
//! Nothing here makes a context: that takes hundreds of megabytes and a good part of a second on each GPU. Free memory
//! is therefore not known here.

use std::{env, fmt, fs};

use cudarc::driver::{
    result,
    sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult},
};
use fulmen_core::device::{BackendKind, BackendReport, DeviceInfo, DeviceKind, Fact};

/// A version of CUDA, as the driver counts: `1000 * major + 10 * minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The oldest driver that loads the embedded kernels (PTX 8.4).
pub const MIN_DRIVER: CudaVersion = CudaVersion(12040);

/// The environment variable by which the driver is told which devices to show.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Why no device of this backend can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there.
    #[error(
        "the NVIDIA driver library was not found (tried {tried} and others); install the NVIDIA driver, \
         or in a container pass the GPU through"
    )]
    LibraryMissing {
        /// The file names that were tried first.
        tried: &'static str,
    },
    /// The library is the toolkit's stand-in for linking, which has no driver behind it.
    #[error(
        "the NVIDIA driver library that was found is the CUDA toolkit's stub, which runs nothing; take its directory \
         (.../lib64/stubs) out of the library path, or install the NVIDIA driver"
    )]
    StubLibrary,
    /// The library and the kernel module are of different versions.
    #[error(
        "the NVIDIA driver library does not match the loaded kernel module; after a driver update, restart the machine"
    )]
    VersionMismatch,
    /// The driver is older than the embedded kernels.
    #[error(
        "the NVIDIA driver offers CUDA {found}, and {MIN_DRIVER} or newer is needed (Linux driver 550 or newer)"
    )]
    DriverTooOld {
        /// What the driver offers.
        found: CudaVersion,
    },
    /// The driver works and has no device.
    #[error("the NVIDIA driver is installed and found no device; check with nvidia-smi that it sees the GPU")]
    NoDevice,
    /// The driver shows no device, and an environment variable tells it which ones to show.
    #[error(
        "the NVIDIA driver shows no device while CUDA_VISIBLE_DEVICES is {value:?}; unset it, or name devices \
         in it that exist"
    )]
    Hidden {
        /// The variable's value.
        value: String,
    },
    /// Any other refusal of the driver.
    #[error("the NVIDIA driver refused {call}: {reason}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
}

/// Every device as a report, or the reason why there is none.
pub fn report() -> BackendReport {
    BackendReport::new(BackendKind::Cuda, list_devices())
}

/// Every device that the driver shows, in its own order. Opens none of them.
///
/// # Errors
/// A [`CudaError`] that says why there is none.
pub fn list_devices() -> Result<Vec<DeviceInfo>, CudaError> {
    load()?;
    result::init().map_err(|error| failed("cuInit", error))?;
    let version = driver_version()?;
    if version < MIN_DRIVER {
        return Err(CudaError::DriverTooOld { found: version });
    }
    let count = result::device::get_count().map_err(|error| failed("cuDeviceGetCount", error))?;
    if count < 1 {
        return Err(no_device());
    }
    (0..count).map(|ordinal| device_info(ordinal, version)).collect()
}

/// Makes sure that the driver's library can be opened: cudarc panics at the first call when it cannot.
fn load() -> Result<(), CudaError> {
    let tried = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so, libcuda.so.1" };
    // SAFETY: opening the driver's library runs its initialisers, which NVIDIA makes safe to run in any process.
    let present = unsafe { sys::is_culib_present() };
    if present { Ok(()) } else { Err(CudaError::LibraryMissing { tried }) }
}

fn driver_version() -> Result<CudaVersion, CudaError> {
    let mut version = 0;
    // SAFETY: the library is open, and the driver writes one integer to a place that outlives the call.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    status.result().map_err(|error| failed("cuDriverGetVersion", error))?;
    Ok(CudaVersion(version))
}

/// The driver's error as ours.
fn failed(call: &'static str, error: result::DriverError) -> CudaError {
    match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => no_device(),
        CUresult::CUDA_ERROR_STUB_LIBRARY => CudaError::StubLibrary,
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => CudaError::VersionMismatch,
        code => {
            let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
            CudaError::Driver { call, reason: text.unwrap_or_else(|_| format!("{code:?}")) }
        }
    }
}

/// No device: there is none, or it is hidden.
fn no_device() -> CudaError {
    match env::var_os(VISIBLE) {
        Some(value) => CudaError::Hidden { value: value.to_string_lossy().into_owned() },
        None => CudaError::NoDevice,
    }
}

fn device_info(ordinal: i32, version: CudaVersion) -> Result<DeviceInfo, CudaError> {
    let device = result::device::get(ordinal).map_err(|error| failed("cuDeviceGet", error))?;
    let name = result::device::get_name(device).map_err(|error| failed("cuDeviceGetName", error))?;
    // SAFETY: `device` comes from cuDeviceGet.
    let memory = unsafe { result::device::total_mem(device) };
    let memory = memory.map_err(|error| failed("cuDeviceTotalMem", error))?;
    let integrated = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    Ok(DeviceInfo {
        backend: BackendKind::Cuda,
        index: ordinal as usize,
        name,
        kind: if integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu },
        driver: driver(version),
        memory_bytes: Some(memory as u64),
        free_bytes: None,
        facts: facts(device)?,
        runs_graphs: Err("the CUDA backend cannot run graphs yet".to_owned()),
    })
}

/// The version of CUDA and, on Linux, of the kernel module.
fn driver(version: CudaVersion) -> String {
    match fs::read_to_string("/sys/module/nvidia/version") {
        Ok(module) => format!("NVIDIA {} (CUDA {version})", module.trim()),
        Err(_) => format!("NVIDIA (CUDA {version})"),
    }
}

/// What shapes a kernel: the instruction set, then the sizes that its tiles must fit.
fn facts(device: CUdevice) -> Result<Vec<Fact>, CudaError> {
    let get = |name| attribute(device, name);
    let number = |name| get(name).map(|value| u64::try_from(value).unwrap_or(0));
    let major = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let clock_khz = number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
    let shared = number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    Ok(vec![
        Fact::text("compute capability", format!("{major}.{minor}")),
        Fact::count("multiprocessors", number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?),
        Fact::text("clock", format!("{} MHz", clock_khz / 1000)),
        Fact::bytes("L2 cache", number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        Fact::bytes("shared memory per block", shared),
        Fact::count("registers per block", number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?),
    ])
}

fn attribute(device: CUdevice, name: Attribute) -> Result<i32, CudaError> {
    // SAFETY: `device` comes from cuDeviceGet.
    let value = unsafe { result::device::get_attribute(device, name) };
    value.map_err(|error| failed("cuDeviceGetAttribute", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_nvidia_does() {
        for (number, text) in [(12040, "12.4"), (13000, "13.0"), (11080, "11.8"), (9020, "9.2")] {
            assert_eq!(CudaVersion(number).to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_was_tried_and_what_to_do() {
        let old = CudaError::DriverTooOld { found: CudaVersion(11080) }.to_string();
        assert!(old.contains("CUDA 11.8") && old.contains("12.4 or newer"), "{old}");
        let missing = CudaError::LibraryMissing { tried: "libcuda.so, libcuda.so.1" }.to_string();
        assert!(missing.contains("libcuda.so.1") && missing.contains("install"), "{missing}");
        let hidden = CudaError::Hidden { value: String::new() }.to_string();
        assert!(hidden.contains("CUDA_VISIBLE_DEVICES is \"\""), "{hidden}");
    }

    #[test]
    fn listing_finds_devices_or_says_why_not() {
        match list_devices() {
            Ok(devices) => {
                assert!(!devices.is_empty());
                assert!(devices.iter().all(|device| device.memory_bytes.is_some_and(|bytes| bytes > 0)));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
