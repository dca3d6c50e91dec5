//! Fulmen's CPU backend: multi-threaded SIMD kernels for machines without a GPU.
//!
//! The choices that shape this crate:
//!
//! - **Every address is looked up** ([`buffer`]) before a kernel touches it, so a wrong graph is an error.
//! - **One kernel file per op**, over plain slices and pointers; [`dispatch`] maps calls to kernels.
//! - **Instruction sets are detected at run time** ([`isa`]); one generic source per kernel serves all of
//!   them ([`simd`]), and only the int8 dot products are written by hand for each.
//! - **A thread pool with low latency** ([`threads`]): a decode step has hundreds of parallel regions of some
//!   microseconds each, so starting one must cost about one microsecond.
//! - **Results do not depend on the number of threads.**

pub mod buffer;
pub mod device;
pub mod dispatch;
pub mod isa;
pub mod kernels;
pub mod kv_view;
mod rope_cache;
pub mod simd;
pub mod threads;

pub use buffer::CpuMemory;
pub use device::NAME;
pub use dispatch::CpuDispatcher;
