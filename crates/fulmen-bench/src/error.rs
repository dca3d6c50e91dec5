//! Why a benchmark failed.

use fulmen_core::{BackendError, DTypeError};
use fulmen_model::ModelError;
use fulmen_testkit::perf::PerfError;
#[cfg(feature = "wgpu")]
use fulmen_wgpu::GpuError;

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An option that does not fit the others or the device.
    #[error("{0}")]
    InvalidOption(String),
    /// wgpu failed.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The model could not run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine could not be started.
    #[error(transparent)]
    Engine(#[from] fulmen_engine::EngineError),
    /// A request of an engine was refused or failed.
    #[error("a request failed: {0}")]
    Request(String),
    /// A server under load cannot be reached, or answers with an error.
    #[error("{url}: {reason}")]
    Server {
        /// The server.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// A wrong result.
    #[error("{case} is wrong: element {index} should be {expected:e} but is {got:e}; it was not timed")]
    WrongResult {
        /// What was computed.
        case: String,
        /// The element.
        index: usize,
        /// Its value in f64.
        expected: f64,
        /// The value that the device gave.
        got: f32,
    },
    /// A result with too few or too many elements.
    #[error("{case} is wrong: it should have {expected} elements but has {got}")]
    WrongLength {
        /// What was computed.
        case: String,
        /// Elements that it should have.
        expected: usize,
        /// Elements that it has.
        got: usize,
    },
    /// The pipeline cache compiled a kernel more than once.
    #[error("{compiled} pipelines were compiled for {distinct} distinct kernels")]
    CompiledTwice {
        /// Pipelines that were compiled.
        compiled: u64,
        /// Distinct kernels among them.
        distinct: usize,
    },
    /// The test data could not be encoded in a type.
    #[error("the test data could not be generated: {0}")]
    Data(#[from] DTypeError),
    /// No case of the op table passes the filter.
    #[error("no case of the op table matches this op, type and name; `fulmen ops list` shows all of them")]
    NoCases,
    /// A device or a group of ranks failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The memory bandwidth of a device could not be measured.
    #[error("the memory bandwidth of this device could not be measured: {0}")]
    Bandwidth(BackendError),
    /// The peak FLOP/s of a device could not be measured.
    #[error("the peak FLOP/s of this device could not be measured: {0}")]
    Peak(PerfError),
}
