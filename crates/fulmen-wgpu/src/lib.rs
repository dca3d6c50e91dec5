//! Fulmen's wgpu backend: any GPU that Vulkan, Metal or DX12 can reach.
//!
//! - **Three front ends over one encoder.** `GpuCommandBatch` records array operations,
//!   `GpuMatmulCache` keeps weights on the device and multiplies by them, and [`WgpuDispatcher`] runs
//!   compute graphs. Each runs as one compute pass and submits once.
//! - **Layers.** [`device`] finds and opens devices; [`kernels`] generates kernels as data;
//!   [`pipeline`] compiles each once; [`encode`] encodes and submits them; [`transfer`] moves bytes;
//!   [`batch`], [`matmul_cache`] (tuned by [`tune`]) and [`dispatch`] are the front ends.
//! - **Graphs have addresses, wgpu has buffers.** Addresses are virtual and looked up ([`memory`]);
//!   dispatches are queued and submitted together (`queue.rs`); a program that runs again is captured
//!   and replayed with one submission (`capture.rs`).
//! - **wgpu itself** is re-exported as [`fulmen_wgpu::wgpu`](wgpu), for buffers and queues that are
//!   shared with this crate.
//! - **Drivers are found at run time.** wgpu loads the Vulkan loader, Metal or DX12 when needed. A
//!   missing driver is an error that names what to install, never a build failure and never a panic.
//! - **OpenGL is not supported.** Its storage bindings and workgroup memory are too small for these kernels.
//! - **Features are optional.** Subgroups, f16, immediates, timestamps, the pipeline cache and
//!   cooperative matrices are used where an adapter has them; the kernels are correct without any of
//!   them.

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
mod matmul_launches;
pub mod memory;
mod pending_read;
pub mod pipeline;
mod queue;
mod replay;
pub mod transfer;
pub mod tune;
mod weight;

pub use batch::{BatchOptions, BufferId, GpuCommandBatch, InPlace, MatmulOptions};
pub use buffer::{BufferSlice, GpuBuffer};
pub use device::{
    AdapterSelector, DeviceOptions, DeviceStats, DiskCache, GpuDevice, GpuMemory, NAME, RecordMode,
    list_devices, report,
};
pub use dispatch::WgpuDispatcher;
pub use encode::{Dispatch, DispatchList, DispatchTime, Profile};
pub use error::GpuError;
mod signal;

pub use fulmen_core::trace;
pub use kernels::{Elem, elementwise::ElementwiseOp};
pub use matmul_cache::{
    CacheMemory, CachedMatmul, GpuMatmulCache, MatmulCacheOptions, MatmulInput, MatmulOutput, WeightBudget,
    WeightInfo,
};
pub use pipeline::{Pipeline, PipelineCache};
pub use transfer::{ReadFuture, Readback};
pub use wgpu;

/// The backend's name in messages.
pub(crate) const BACKEND: &str = "wgpu";
