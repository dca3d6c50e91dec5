//! Fulmen's CPU backend: the fallback for machines without a GPU, and fast.
//!
//! The choices that shape this crate:
//!
//! - **Every address is looked up** ([`buffer`]) before a kernel touches it, so a wrong graph is an error.
//! - **One kernel file per op**, over plain slices and pointers; [`dispatch`] turns calls into kernel calls.
//! - **Instruction sets are found at run time** ([`isa`]); one source per kernel serves all of them ([`simd`]), and only
//!   the integer dot products are written by hand for each.
//! - **A pool of our own** ([`threads`]): a decode step has hundreds of parallel regions of some microseconds each, so
//!   handing work over must cost about one.
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
pub use dispatch::CpuDispatcher;
