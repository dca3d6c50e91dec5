//! Fulmen's wgpu backend: any GPU that Vulkan, Metal or DX12 can reach.
//!
//! - **What it is for.** Three ways to give a GPU work, over one encoder: `GpuCommandBatch` records array operations,
//!   `GpuMatmulCache` keeps weights on the device and multiplies by them, and the dispatcher runs a compute graph.
//!   All three run as one compute pass and submit once.
//! - **What it does.** It finds and opens devices ([`device`]), has kernels as data ([`kernels`]), compiles each
//!   once ([`pipeline`]), encodes and submits them ([`encode`]), moves bytes ([`transfer`]), and runs command batches
//!   ([`batch`]) and products by weights that stay on the device ([`matmul_cache`]), by kernels that can be measured and
//!   remembered ([`tune`]). Graphs run by [`dispatch`]: [`WgpuDispatcher`] has every op of the table.
//! - **Graphs have addresses, wgpu has buffers.** Addresses are made up and looked up ([`memory`]); calls wait and are submitted
//!   together (`queue.rs`); a program that runs again is captured and replayed with one submission (`capture.rs`).
//! - **wgpu itself** is [`fulmen_wgpu::wgpu`](wgpu), for buffers and queues that are shared with this crate.
//! - **Drivers are found at run time.** wgpu opens the Vulkan loader, Metal or DX12 when asked. A missing driver is an
//!   error that names what to install, never a build failure and never a panic.
//! - **OpenGL is left out.** Its storage bindings and workgroup memory are too small for these kernels.
//! - **Features are optional.** Subgroups, 16-bit floats, immediates, timestamps, the pipeline cache and cooperative
//!   matrices are used where an adapter has them; the kernels must be right without any of them.

pub mod batch;
pub mod buffer;
mod capture;
pub mod device;
mod disk_cache;
pub mod dispatch;
pub mod encode;
pub mod error;
pub mod kernel;
pub mod kernels;
pub mod matmul_cache;
pub mod memory;
pub mod pipeline;
mod product;
mod queue;
mod replay;
pub mod trace;
pub mod transfer;
pub mod tune;
mod weight;

pub use batch::{BatchOptions, BufferId, GpuCommandBatch, InPlace, MatmulOptions};
pub use buffer::{BufferSlice, GpuBuffer};
pub use device::{
    AdapterSelector, DeviceOptions, DeviceStats, DiskCache, GpuDevice, GpuMemory, Record, list_devices,
    report,
};
pub use dispatch::WgpuDispatcher;
pub use encode::{Profile, DispatchList, Dispatch, DispatchTime};
pub use error::GpuError;
pub use kernels::{Elem, elementwise::ElementwiseOp};
pub use matmul_cache::{
    CacheMemory, GpuMatmulCache, MatmulCacheOptions, MatmulInput, MatmulOutput, Product, WeightBudget,
    WeightInfo,
};
pub use pipeline::{Pipeline, PipelineCache};
pub use transfer::{ReadFuture, Readback};
pub use wgpu;

/// The backend's name in messages.
pub(crate) const BACKEND: &str = "wgpu";
