//! What can go wrong with a CUDA device, as types.

use std::{env, fmt};

use cudarc::driver::{result::DriverError, sys::CUresult};
use fulmen_core::BackendError;

use crate::BACKEND;

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

/// Why a device of this backend cannot be used, or why a call on it failed.
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
    /// A device that is not there.
    #[error("there is no device {ordinal}: the driver shows {count}, the first is 0")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A device that is too old for the embedded kernels.
    #[error("the device has compute capability {found}, and {needed} or newer is needed")]
    DeviceTooOld {
        /// What it has.
        found: String,
        /// What the kernels are built for.
        needed: &'static str,
    },
    /// Not enough memory of the device, or pinned memory of the host.
    #[error("out of memory: {needed} bytes needed, {}", free.map_or("how many are free is not known".to_owned(), |n| format!("{n} available")))]
    OutOfMemory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free, where the driver tells.
        free: Option<u64>,
    },
    /// A kernel did what made the driver give up the context: an address outside memory, a trap. Nothing that this
    /// process does on the device works any more.
    #[error(
        "the device's context is gone since {call} reported: {reason}; a kernel before it was at fault \
         (CUDA_LAUNCH_BLOCKING=1 in the environment names it), and the process must be started again to use this device"
    )]
    ContextLost {
        /// The call that reported it.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// A kernel that could not be launched.
    #[error("the launch of {kernel} failed: {reason}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// What the driver said.
        reason: String,
    },
    /// Embedded kernels that the driver does not take.
    #[error("the kernels of {file} could not be loaded: {reason}{}{log}", if log.is_empty() { "" } else { "\n" })]
    Module {
        /// The file of kernels.
        file: String,
        /// What the driver said.
        reason: String,
        /// The driver's compiler, in its own words.
        log: String,
    },
    /// A call that cannot be made while a program is captured.
    #[error("{call} is not possible while a program is being captured")]
    Capturing {
        /// The call.
        call: &'static str,
    },
    /// A capture that was to end and never began, or that the driver has broken off.
    #[error("capture: {call}: {reason}")]
    Capture {
        /// The call.
        call: &'static str,
        /// Why.
        reason: String,
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

impl CudaError {
    /// The driver's error as ours.
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
            error => BackendError::Device { backend: BACKEND, call: error.call(), source: Box::new(error) },
        }
    }
}

/// What the driver says about an error.
pub(crate) fn reason(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|_| format!("{:?}", error.0))
}

/// No device: there is none, or it is hidden.
pub(crate) fn no_device() -> CudaError {
    match env::var_os(VISIBLE) {
        Some(value) => CudaError::Hidden { value: value.to_string_lossy().into_owned() },
        None => CudaError::NoDevice,
    }
}

/// Errors after which the context takes no more work.
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
        let lost = CudaError::ContextLost { call: "cuStreamSynchronize", reason: "illegal address".into() };
        assert!(lost.to_string().contains("started again"), "{lost}");
        let memory = CudaError::OutOfMemory { needed: 10, free: Some(3) };
        assert!(memory.to_string().contains("10 bytes needed, 3 available"), "{memory}");
        assert!(matches!(
            BackendError::from(memory),
            BackendError::OutOfMemory { needed: 10, available: Some(3) }
        ));
    }
}
