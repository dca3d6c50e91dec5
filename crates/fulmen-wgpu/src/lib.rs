//! Fulmen's wgpu backend: any GPU that Vulkan, Metal or DX12 can reach.
//!
//! - **What it is for.** Three ways to give a GPU work, over one encoder: `GpuCommandBatch` records array operations,
//!   `GpuMatmulCache` keeps weights on the device and multiplies by them, and the dispatcher runs a compute graph.
//!   All three encode into one command encoder and one compute pass, and submit once.
//! - **What it does so far.** It finds devices and says what they can do ([`device`]). It opens none of them, and runs
//!   no graphs yet.
//! - **Drivers are found at run time.** wgpu opens the Vulkan loader, Metal or DX12 when asked. A missing driver is an
//!   error that names what to install, never a build failure and never a panic.
//! - **OpenGL is left out.** Its storage bindings and workgroup memory are too small for these kernels.
//! - **Features are optional.** Subgroups, 16-bit floats, immediates, timestamps, the pipeline cache and cooperative
//!   matrices are used where an adapter has them; the kernels must be right without any of them.

pub mod device;
pub mod kernel;
pub mod kernels;

pub use device::{WgpuError, list_devices, report};
