//! What the ranks of a group exchange: the contract of a communicator.

use std::any::Any;
use std::time::Duration;

/// One rank's end of a group of ranks that run the same program on parts of the same model.
///
/// All ranks make the same calls in the same order. A call returns when every rank has made it; if a rank
/// fails, or does not come within the group's time-out, every rank gets an error that names it, and so does
/// each later call until [`reset`](Communicator::reset).
///
/// [`in_process_group`](crate::in_process_group) makes one for the threads of a process, which exchange host
/// memory: a program is [cut at its collectives](crate::Program::segments), and the host passes their
/// operands on. A device that [joins](crate::KernelDispatch::join_group) a [`DeviceGroup`] launches
/// collectives itself, such as by NCCL: `dispatch_all_reduce` and `dispatch_all_gather` are captured with the
/// rest of the program, and nothing is cut. Then this is for what the hosts exchange beside, and for
/// failures.
pub trait Communicator: Send + Sync + std::fmt::Debug {
    /// The rank, from 0.
    fn rank(&self) -> u32;

    /// Ranks of the group.
    fn size(&self) -> u32;

    /// Replaces the values by their sums over all ranks. Every rank gets the same bits.
    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommunicatorError>;

    /// The values of all ranks, rank 0 first. They have the same length on each.
    fn all_gather(&self, values: &[f32]) -> Result<Vec<f32>, CommunicatorError>;

    /// Replaces the bytes by those of rank 0. There are as many on each rank.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), CommunicatorError>;

    /// Waits until all ranks are here.
    fn barrier(&self) -> Result<(), CommunicatorError>;

    /// This rank has failed: the calls of all ranks, those that wait included, fail with this reason.
    fn abort(&self, reason: &str);

    /// Makes the group usable again, if it can be. No rank may be in a call.
    fn reset(&self);

    /// Whether the group cannot be used again, not even after a [`reset`](Communicator::reset).
    fn is_lost(&self) -> bool {
        false
    }
}

/// What a group of ranks is made from: see [`KernelDispatch::device_group`](crate::KernelDispatch).
#[derive(Clone, Copy, Debug)]
pub struct GroupSpec<'a> {
    /// How many ranks there are, in all processes.
    pub ranks: u32,
    /// How long ranks wait for each other.
    pub timeout: Duration,
    /// The [id](DeviceGroup::id) of the group, if another process has made it; `None` for a new group.
    pub id: Option<&'a [u8]>,
}

/// A group of ranks whose collectives run on their devices, inside their programs. Every rank of the process
/// joins the same one.
pub trait DeviceGroup: Any + Send + Sync + std::fmt::Debug {
    /// What other processes need to join it.
    fn id(&self) -> &[u8];

    /// What runs the collectives, with its version.
    fn describe(&self) -> String;
}

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommunicatorError {
    /// A rank failed.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Its error.
        reason: String,
    },
    /// A rank did not come to a call.
    #[error("rank {rank} did not come to {call} number {number} within {timeout:?}")]
    Timeout {
        /// The rank that was waited for.
        rank: u32,
        /// The call.
        call: &'static str,
        /// Its number among the calls of the group, from 0.
        number: u64,
        /// The time-out of the group.
        timeout: Duration,
    },
    /// The ranks do not do the same.
    #[error("rank {rank} differs from rank 0 in {what}: expected {expected}, got {got}")]
    Mismatch {
        /// The rank that differs from rank 0.
        rank: u32,
        /// In what: a call by its number, or what was computed.
        what: String,
        /// That of rank 0.
        expected: String,
        /// That of the other rank.
        got: String,
    },
}

impl CommunicatorError {
    /// The rank that is to blame.
    pub const fn rank(&self) -> u32 {
        match self {
            CommunicatorError::Rank { rank, .. }
            | CommunicatorError::Timeout { rank, .. }
            | CommunicatorError::Mismatch { rank, .. } => *rank,
        }
    }
}
