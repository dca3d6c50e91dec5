//! Fulmen's CUDA backend: NVIDIA GPUs at full speed.
//!
//! The choices that shape this crate:
//!
//! - **Driver only.** The driver library is opened at run time; neither building nor running needs the CUDA
//!   toolkit. Without a driver every call returns a [`CudaError`] that says what was tried.
//! - **Kernels are CUDA C++ without toolkit headers** (`kernels/*.cu`). `scripts/build-kernels` compiles them
//!   to PTX, which is embedded in compressed form and decompressed when it is first needed (`embedded.rs`).
//!   It is PTX 8.4, so the driver must support CUDA 12.4 ([`error::MIN_DRIVER`]).
//! - **One kernel file per op**, `kernels/<op>.cu`, with a Rust file of the same name ([`kernels`]) that
//!   chooses the kernel, the grid and the arguments. Argument structs are compared with those of CUDA when
//!   the kernels are compiled (`layout.rs`).
//! - **Every address is checked** ([`buffer`]) before it is passed to a kernel. What only the device knows
//!   (tokens, positions, sampling states) is checked by the kernels, which report it (`fault.rs`) and
//!   skip the row: nothing is written to a KV cache, and the row's attention output is unspecified (zeros or
//!   NaN).
//! - **Several GPUs by NCCL** ([`nccl`]), which is opened at run time as well: collectives are launched on
//!   the stream of a dispatcher and captured with its programs.
//! - **One stream per dispatcher** ([`queue`]). Programs are captured into CUDA graphs and replayed with one
//!   launch ([`capture`]).

pub mod buffer;
pub mod capture;
pub mod device;
pub mod dispatch;
mod embedded;
pub mod error;
mod fault;
mod forward;
mod handles;
pub mod kernels;
mod l2_prefetch;
#[cfg(test)]
mod launches_tests;
mod layout;
mod module;
pub mod nccl;
mod preload;
mod ptx;
pub mod queue;
mod readback;
#[cfg(test)]
mod recorder;
mod staging;
mod tensor_map;
mod test_kernel;
mod timed_graph;
mod upload;

pub use buffer::CudaMemory;
pub use device::{CudaDevice, CudaOptions, CudaTarget, NAME, list_devices, report};
pub use dispatch::CudaDispatcher;
pub use error::CudaError;

/// The name of the backend in messages.
pub(crate) const BACKEND: &str = "cuda";
