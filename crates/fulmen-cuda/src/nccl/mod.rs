//! Collectives of several GPUs by NCCL.
//!
//! - **Opened at run time** (`library.rs`), like the driver: nothing needs NCCL to be built or to run on one
//!   GPU. A missing or too old library is an [`NcclError`] that says what was tried.
//! - **On the stream of the rank** (`rank.rs`): an all-reduce is launched like a kernel, captured with the
//!   program it belongs to and replayed with it. Nothing passes through the host.
//! - **Nothing hangs** (`group.rs`). Communicators are non-blocking, and every wait for the stream of a rank
//!   polls: for the end of the work, for errors of NCCL, for the failure of another rank of the process, and
//!   for the time-out of the group. Whatever comes first; a collective that cannot end is aborted.
//!
//! NCCL does not free a communicator as long as a CUDA graph uses it, so graphs are dropped first, and
//! aborting runs on a thread of its own: its first act ends the kernels that run, its last waits for graphs.

pub(crate) mod comm;
pub(crate) mod group;
pub(crate) mod library;
pub(crate) mod rank;

pub use group::NcclGroup;
pub use library::{LIBRARY_VARIABLE, MIN_NCCL, NcclError, NcclVersion, nccl_version};
