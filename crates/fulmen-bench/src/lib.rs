//! Measures Fulmen: how fast a device is, how fast Fulmen is on it, and how much of the device that is.
//!
//! - Every benchmark takes typed options and gives a result that serializes with serde; `fulmen bench --json`
//!   prints exactly these results. Nothing here prints: progress goes to a callback ([`Progress`]).
//! - Results are checked before they are timed. A kernel that computes something wrong is an error, not a
//!   number.
//! - A time never stands alone. Work on a wgpu device is compared with a roofline (`Ceilings`) that plain
//!   kernels measure in the same run; a decode step is compared with its [bound](Bound): the sum over its ops
//!   of the time that their bytes or their arithmetic take at least.
//!
//! | module | measures |
//! |---|---|
//! | [`memory_bandwidth`] | how fast a device reads memory, and the bytes that a decode step must read |
//! | [`bound`] | the time that the ops of a run take at least |
//! | [`peak`] | data-sheet peaks of tensor cores |
//! | `ceilings` | bandwidth and f32 FLOP/s that plain wgpu kernels reach, and the cost of wgpu's calls |
//! | `command_batch` | feed-forward layers, element-wise chains and readback with `GpuCommandBatch` |
//! | `matmul` | matmuls by weights that stay on a wgpu device; `roofline` draws them |
//! | `tune` | the fastest matmul kernel of a wgpu device for each shape |
//! | [`ops`] | every op of the op table |
//! | [`collective`] | collectives between devices |
//! | [`model`] | prefill and decode, an engine under load, perplexity, divergence; a [`heat_map`] |
//! | `serve` | a server under load over HTTP |
//!
//! What measures wgpu itself is behind the feature `wgpu`, which is on by default, and the load generator of
//! servers behind `serve`.

pub mod bound;
#[cfg(feature = "wgpu")]
pub mod ceilings;
pub mod collective;
#[cfg(feature = "wgpu")]
pub mod command_batch;
#[cfg(feature = "wgpu")]
mod data;
mod error;
pub mod heat_map;
#[cfg(feature = "wgpu")]
pub mod matmul;
pub mod memory_bandwidth;
pub mod model;
pub mod ops;
pub mod peak;
mod progress;
#[cfg(feature = "wgpu")]
pub mod roofline;
#[cfg(feature = "serve")]
pub mod serve;
mod svg;
#[cfg(feature = "wgpu")]
mod timer;
#[cfg(feature = "wgpu")]
pub mod tune;

pub use bound::Bound;
#[cfg(feature = "wgpu")]
pub use ceilings::Ceilings;
pub use error::BenchError;
pub use progress::Progress;

use fulmen_core::DType;
#[cfg(feature = "wgpu")]
use serde::Serializer;

/// The name of a type in lower case, as options and results spell it: `q4_k`.
pub fn dtype_name(dtype: DType) -> String {
    dtype.name().to_lowercase()
}

#[cfg(feature = "wgpu")]
fn serialize_dtype<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&dtype_name(*dtype))
}
