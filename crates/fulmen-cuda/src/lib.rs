//! Fulmen's CUDA backend: NVIDIA GPUs at full speed.
//!
//! The choices that shape this crate:
//!
//! - **Driver only.** The driver's library is opened at run time; neither building nor running needs the CUDA toolkit.
//!   Without a driver every call here is a [`CudaError`] that names what was tried, never a panic.
//! - **Kernels are CUDA C++ without headers** (`kernels/*.cu`), compiled ahead by `scripts/build-kernels` into PTX that is
//!   embedded ([`module`]). PTX 8.4, so a driver must offer CUDA 12.4 ([`error::MIN_DRIVER`]).
//! - **Every address is looked up** ([`buffer`]) before a kernel gets it. What only the device knows (tokens, positions,
//!   sampling states) is checked by the kernels, which report it and touch nothing (`fault.rs`).
//! - **One kernel file per op**, `kernels/<op>.cu`, with a Rust file of the same name ([`kernels`]) that chooses the entry,
//!   the grid and the parameters.
//! - **One stream a dispatcher** ([`queue`]). A program is captured into a graph of the driver and replayed with one launch
//!   ([`capture`]).

mod ahead;
pub mod buffer;
pub mod capture;
pub mod device;
pub mod dispatch;
mod embedded;
pub mod error;
mod fault;
mod foreign;
mod handles;
pub mod kernels;
mod layout;
pub mod module;
mod ptx;
pub mod queue;
mod tensor_map;
mod timed;

pub use buffer::CudaMemory;
pub use device::{CudaDevice, CudaOptions, list_devices, report};
pub use dispatch::CudaDispatcher;
pub use error::CudaError;

/// The backend's name in messages.
pub(crate) const BACKEND: &str = "cuda";
