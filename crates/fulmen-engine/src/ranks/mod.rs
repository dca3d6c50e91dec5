//! Tensor parallelism: ranks of a model, each on a device and a thread of its own.
//!
//! ```text
//!  caller's thread    rank 0: Session ─ rank_device ─ device 0 ─┐
//!                        │ the same step                       ├─ communicator: all-reduce, all-gather
//!  a thread for each  rank 1: Session ─ rank_device ─ device 1 ─┘
//! ```
//!
//! - A rank is a whole model to its session: with its part of the heads, of the feed-forward layers and of
//!   the vocabulary ([`Sharding`](fulmen_model::arch::Sharding)), on a device that has joined a group and
//!   runs collectives itself, or on one that passes them through the host ([`rank_device`]).
//! - The session that the caller has is that of rank 0. Before each step it tells the others what to run
//!   ([`Workers`]); all of them run it, and all draw the same tokens.
//! - Where the ranks are in several processes, each is loaded by its own. Node 0 is the caller's, and orders
//!   the others to run the steps of its engine ([`Node`]).
//! - A rank that fails ends the step of all: the others get an error from their next collective
//!   ([`Communicator::abort`](fulmen_core::Communicator::abort)). One that does not come within the time-out
//!   of the group is named by the others, and the group is not used again.

mod device;
mod group;
mod join;
mod link;
mod node;
mod rendezvous;
mod workers;

pub(crate) use device::{rank_alone, rank_device};
pub use group::{Collectives, CollectivesInUse, TensorParallel};
pub(crate) use group::{Group, same_on_all_ranks};
pub use join::{JoinError, RankGroup};
pub(crate) use link::Link;
pub(crate) use node::{Answer, Node, ToNode};
pub use rendezvous::{Brings, Met, Nodes, RendezvousError};
pub(crate) use workers::Workers;
