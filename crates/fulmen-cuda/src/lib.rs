//! Fulmen's CUDA backend: NVIDIA GPUs at full speed.
//!
//! - **What it is for.** A compute graph whose step is captured once and replayed with one launch, over kernels written
//!   for these GPUs.
//! - **What it does so far.** It finds devices and says what they can do ([`device`]). It opens none of them, and runs
//!   no graphs yet.
//! - **Driver only.** The driver's library is opened at run time; neither building nor running needs the CUDA toolkit.
//!   Without a driver every call here is a [`CudaError`] that names what was tried, never a panic.
//! - **One floor for drivers.** Kernels are embedded as PTX 8.4, so a driver must offer CUDA 12.4
//!   ([`device::MIN_DRIVER`]).

pub mod device;

pub use device::{CudaError, list_devices, report};
