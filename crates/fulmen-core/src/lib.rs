//! Data types, block quantization, the compute graph, its planner and its executor. No GPU code.
//!
//! The choices that shape this crate:
//!
//! - **Ops are data.** A graph is a list of nodes that ordinary functions check, print, fuse, plan and run.
//! - **Two front ends, one program.** [`GraphBuilder`] records a logical graph of tensors without addresses;
//!   passes fuse its ops and plan its memory ([`Plan`]), and binding substitutes device addresses.
//!   Applications with kernels and addresses of their own write the nodes of a [`ComputeGraph`]. Both lower
//!   to the same checked calls, a [`Program`], that any [`KernelDispatch`] runs.
//! - **A kernel gets a typed call** ([`OpCall`]) whose sizes were checked against each other; no default is
//!   guessed.
//! - **Weights are `[N, K]`, row-major**, in every op and for every number of rows.
//! - **Step-dependent state lives in device memory**: tokens, positions, sequence numbers, sampling state. A
//!   [`Program`] does not change from step to step, so a backend can capture it once and replay it.
//! - **Errors are typed** and say which node or call, what was expected and what was found.

mod address_map;
mod backend_name;
mod builder;
mod bulk_import;
mod captures;
pub mod clock;
mod communicator;
pub mod dataflow;
pub mod device;
pub mod dtype;
mod error;
mod fault;
mod graph;
mod in_process;
mod memory;
pub mod quant;
mod read_ticket;
pub mod sampling;
pub mod timeline;
pub mod trace;
pub mod unfinished;
pub mod user_cache;

pub use address_map::{AddressMap, Entry, Extent, LookUp};
pub use builder::*;
pub use bulk_import::{BulkImport, WeightReader, WeightSpec};
pub use captures::Captures;
pub use communicator::{Communicator, CommunicatorError, DeviceGroup, GroupSpec};
pub use device::{BackendName, BackendReport, DeviceInfo, DeviceKind, DeviceSelector};
pub use dtype::{DType, DTypeError};
pub use error::{BackendError, BuildError, ExecError, GraphError, Problem};
pub use fault::fault;
pub use graph::*;
pub use in_process::{InProcessRank, in_process_group};
pub use memory::{ALIGNMENT, Backend, DeviceMemory, SharedBytes};
pub use read_ticket::{PendingRead, ReadTicket};
