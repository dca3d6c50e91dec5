//! The errors of the CUDA backend.

use std::{env, fmt};

use cudarc::driver::{result::DriverError, sys::CUresult};
use fulmen_core::{BackendError, CommunicatorError};

use crate::BACKEND;
use crate::nccl::NcclError;

/// A CUDA version as the driver encodes it: `1000 * major + 10 * minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The oldest driver that loads the embedded kernels (PTX 8.4).
pub const MIN_DRIVER: CudaVersion = CudaVersion(12040);

/// The environment variable that selects the devices that the driver exposes.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Why a device of this backend cannot be used, or why a call on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver library was not found.
    #[error(
        "the NVIDIA driver library was not found (tried {tried} and others); install the NVIDIA driver, \
         or give the container access to the GPU"
    )]
    LibraryMissing {
        /// The file names that were tried first.
        tried: &'static str,
    },
    /// The library is the stub of the CUDA toolkit, which exists only for linking.
    #[error(
        "the NVIDIA driver library that was found is the stub of the CUDA toolkit; remove its directory \
         (.../lib64/stubs) from the library path, or install the NVIDIA driver"
    )]
    StubLibrary,
    /// The library and the kernel module have different versions.
    #[error(
        "the NVIDIA driver library does not match the loaded kernel module; reboot after a driver update"
    )]
    VersionMismatch,
    /// The driver is too old for the embedded kernels.
    #[error(
        "the NVIDIA driver supports CUDA {found}, but {MIN_DRIVER} or newer is required (Linux driver 550 or \
         newer)"
    )]
    DriverTooOld {
        /// The version that the driver supports.
        found: CudaVersion,
    },
    /// The driver works, but there is no device.
    #[error("the NVIDIA driver is installed but finds no device; check with nvidia-smi that it sees the GPU")]
    NoDevice,
    /// The driver exposes no device, and an environment variable selects which ones it exposes.
    #[error(
        "the NVIDIA driver finds no device with CUDA_VISIBLE_DEVICES={value:?}; unset it, or set it to \
         devices that exist"
    )]
    Hidden {
        /// The variable's value.
        value: String,
    },
    /// A device that does not exist.
    #[error("there is no device {ordinal}; the driver finds {count}, numbered from 0")]
    NoSuchDevice {
        /// The requested device.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// A device that is too old for the embedded kernels.
    #[error("the device has compute capability {found}, but {needed} or newer is required")]
    DeviceTooOld {
        /// The compute capability of the device.
        found: String,
        /// The lowest one that the kernels are compiled for.
        needed: &'static str,
    },
    /// `FULMEN_CUDA_TARGET` has a value that it cannot have.
    #[error("FULMEN_CUDA_TARGET is {value:?}, but must be 80, 86 or 89; unset it to use the device as it is")]
    UnknownTarget {
        /// The variable's value.
        value: String,
    },
    /// `FULMEN_CUDA_TARGET` selects kernels that the device cannot run.
    #[error(
        "FULMEN_CUDA_TARGET selects the kernels of compute capability {target}, but the device has {found}"
    )]
    TargetTooNew {
        /// The selected compute capability.
        target: String,
        /// The compute capability of the device.
        found: String,
    },
    /// Not enough device memory, or pinned host memory.
    #[error(
        "out of memory: {needed} bytes needed{}",
        free.map_or(String::new(), |free| format!(", {free} available"))
    )]
    OutOfMemory {
        /// Bytes that were requested.
        needed: u64,
        /// Bytes that are free, if known.
        free: Option<u64>,
    },
    /// A kernel made the context unusable, by an illegal address or a trap. Every later call of this process
    /// on the device fails.
    #[error(
        "the CUDA context was lost: {call} reported \"{reason}\"; an earlier kernel caused it (set \
         CUDA_LAUNCH_BLOCKING=1 to find out which one), and this process must be restarted to use the device"
    )]
    ContextLost {
        /// The call that reported it.
        call: &'static str,
        /// The reason that the driver gives.
        reason: String,
    },
    /// A kernel that could not be launched.
    #[error("the launch of {kernel} failed: {reason}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// The reason that the driver gives.
        reason: String,
    },
    /// Embedded kernels that the driver cannot load.
    #[error(
        "the kernels of {file} could not be loaded: {reason}{}{log}",
        if log.is_empty() { "" } else { "\n" }
    )]
    Module {
        /// The kernel file.
        file: String,
        /// The reason that the driver gives.
        reason: String,
        /// The log of the driver's compiler.
        log: String,
    },
    /// A call that is not allowed while a program is captured.
    #[error("{call} is not allowed while a program is being captured")]
    Capturing {
        /// The call.
        call: &'static str,
    },
    /// A failed capture or replay.
    #[error("capture: {call}: {reason}")]
    Capture {
        /// The call.
        call: &'static str,
        /// Why.
        reason: String,
    },
    /// NCCL cannot be used, or refused a call.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// A rank of a group failed.
    #[error(transparent)]
    Collective(#[from] CommunicatorError),
    /// Any other error of the driver.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The reason that the driver gives.
        reason: String,
    },
}

impl CudaError {
    /// Converts an error of the driver.
    pub(crate) fn new(call: &'static str, error: DriverError) -> CudaError {
        match error.0 {
            CUresult::CUDA_ERROR_NO_DEVICE => no_device(),
            CUresult::CUDA_ERROR_STUB_LIBRARY => CudaError::StubLibrary,
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => CudaError::VersionMismatch,
            code if is_fatal(code) => CudaError::ContextLost { call, reason: reason(error) },
            code if is_capture(code) => CudaError::Capture { call, reason: reason(error) },
            _ => CudaError::Driver { call, reason: reason(error) },
        }
    }

    /// The call that failed, for [`BackendError::Device`].
    fn call(&self) -> &'static str {
        match self {
            CudaError::Driver { call, .. }
            | CudaError::ContextLost { call, .. }
            | CudaError::Capturing { call }
            | CudaError::Capture { call, .. } => call,
            CudaError::Nccl(NcclError::Call { call, .. }) => call,
            CudaError::Nccl(_) => "opening NCCL",
            CudaError::Launch { .. } => "cuLaunchKernelEx",
            CudaError::Module { .. } => "cuModuleLoadDataEx",
            _ => "opening the device",
        }
    }
}

impl From<CudaError> for BackendError {
    fn from(error: CudaError) -> BackendError {
        match error {
            CudaError::OutOfMemory { needed, free } => BackendError::OutOfMemory { needed, available: free },
            CudaError::Collective(error) => error.into(),
            error => BackendError::Device { backend: BACKEND, call: error.call(), source: Box::new(error) },
        }
    }
}

/// The driver's description of an error.
pub(crate) fn reason(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|_| format!("{:?}", error.0))
}

/// The error for no device: there is none, or it is hidden.
pub(crate) fn no_device() -> CudaError {
    match env::var_os(VISIBLE) {
        Some(value) => CudaError::Hidden { value: value.to_string_lossy().into_owned() },
        None => CudaError::NoDevice,
    }
}

/// Errors that make the context unusable.
fn is_fatal(code: CUresult) -> bool {
    use CUresult::*;
    matches!(
        code,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

fn is_capture(code: CUresult) -> bool {
    use CUresult::*;
    matches!(
        code,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | CUDA_ERROR_STREAM_CAPTURE_MERGE
            | CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            | CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
            | CUDA_ERROR_CAPTURED_EVENT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_formatted_like_nvidia_does() {
        for (number, text) in [(12040, "12.4"), (13000, "13.0"), (11080, "11.8"), (9020, "9.2")] {
            assert_eq!(CudaVersion(number).to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_failed_and_what_to_do() {
        let old = CudaError::DriverTooOld { found: CudaVersion(11080) }.to_string();
        assert!(old.contains("CUDA 11.8") && old.contains("12.4 or newer"), "{old}");
        let missing = CudaError::LibraryMissing { tried: "libcuda.so, libcuda.so.1" }.to_string();
        assert!(missing.contains("libcuda.so.1") && missing.contains("install"), "{missing}");
        let hidden = CudaError::Hidden { value: String::new() }.to_string();
        assert!(hidden.contains("CUDA_VISIBLE_DEVICES=\"\""), "{hidden}");
        let lost = CudaError::ContextLost { call: "cuStreamSynchronize", reason: "illegal address".into() };
        assert!(lost.to_string().contains("restarted"), "{lost}");
        let memory = CudaError::OutOfMemory { needed: 10, free: Some(3) };
        assert!(memory.to_string().contains("10 bytes needed, 3 available"), "{memory}");
        assert!(matches!(
            BackendError::from(memory),
            BackendError::OutOfMemory { needed: 10, available: Some(3) }
        ));
    }
}
