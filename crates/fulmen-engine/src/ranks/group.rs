//! The ranks of a model: who has a turn, and which error is that of the group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fulmen_core::{
    BackendError, Communicator, CommunicatorError, DeviceGroup, ExecError, GroupSpec, in_process_group,
};
use fulmen_model::ModelError;

use super::link::Link;
use super::node::{Node, TellsNodes};
use super::{JoinError, RankGroup};
use crate::Device;

/// The devices of a model that is divided among them by tensor parallelism: see
/// [`Model::from_source_sharded`](crate::Model::from_source_sharded).
pub struct TensorParallel {
    /// A device for each rank, all of one backend.
    pub devices: Vec<Device>,
    /// How long the ranks wait for one of them before the step fails.
    pub timeout: Duration,
    /// What runs the collectives.
    pub collectives: Collectives,
}

/// What runs the collectives of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collectives {
    /// The devices if they can, and if there are several, each for one rank; else the host.
    #[default]
    Auto,
    /// The host: a step is cut at its collectives.
    Host,
    /// The devices, inside captured steps, also for a single rank and for several ranks on one device.
    /// Loading fails if they cannot.
    Device,
}

/// What runs the collectives of a model, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectivesInUse {
    /// The devices, by this library.
    Device(String),
    /// The host.
    Host {
        /// Why not the devices, if they would have been asked.
        instead: Option<String>,
    },
}

impl std::fmt::Display for CollectivesInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CollectivesInUse::Device(library) => write!(f, "{library}"),
            CollectivesInUse::Host { instead: None } => f.write_str("the host"),
            CollectivesInUse::Host { instead: Some(reason) } => write!(f, "the host, because {reason}"),
        }
    }
}

impl TensorParallel {
    /// The default time-out: longer than compiling the kernels of a step takes.
    pub const TIMEOUT: Duration = Duration::from_secs(120);

    /// These devices, with the default time-out.
    pub fn new(devices: Vec<Device>) -> TensorParallel {
        TensorParallel { devices, timeout: TensorParallel::TIMEOUT, collectives: Collectives::Auto }
    }
}

impl std::fmt::Debug for TensorParallel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let devices: Vec<&str> = self.devices.iter().map(|device| device.backend()).collect();
        f.debug_struct("TensorParallel")
            .field("devices", &devices)
            .field("timeout", &self.timeout)
            .field("collectives", &self.collectives)
            .finish()
    }
}

/// The other processes of a group.
pub(crate) enum OtherNodes {
    /// None: all ranks are in this one.
    None,
    /// Those that node 0, this one, gives orders.
    Led(Vec<Arc<Node>>),
    /// Node 0, which gives this one orders.
    Leader(Arc<Link>),
}

/// The ranks of a model, and the communicators of those in this process.
pub(crate) struct Group {
    /// Of ranks `first_rank`, `first_rank + 1`, …
    communicators: Vec<Arc<dyn Communicator>>,
    first_rank: u32,
    /// Ranks of all processes.
    ranks: u32,
    others: OtherNodes,
    collectives: CollectivesInUse,
    timeout: Duration,
    /// Held while all ranks run a step. Sessions that ran steps at once would mix their collectives.
    turn: Mutex<()>,
    /// Whether a rank did not return from a step: it may still be in it.
    lost: AtomicBool,
}

impl Group {
    /// A group of threads of this process.
    pub(crate) fn in_process(ranks: u32, timeout: Duration) -> Group {
        let ends = in_process_group(ranks, timeout).into_iter();
        let communicators = ends.map(|rank| Arc::new(rank) as Arc<dyn Communicator>).collect();
        Group::new(communicators, timeout, CollectivesInUse::Host { instead: None })
    }

    fn new(
        communicators: Vec<Arc<dyn Communicator>>,
        timeout: Duration,
        collectives: CollectivesInUse,
    ) -> Group {
        let lost = AtomicBool::new(false);
        let (first_rank, ranks, others) = (0, communicators.len() as u32, OtherNodes::None);
        Group { communicators, first_rank, ranks, others, collectives, timeout, turn: Mutex::new(()), lost }
    }

    /// A group of several processes, and the devices of its ranks in this one.
    pub(crate) fn of_nodes(ranks: RankGroup) -> Result<(Group, Vec<Device>), JoinError> {
        let RankGroup { devices, mut communicators, collectives, timeout, met } = ranks;
        let Some(met) = met else { return Err(ModelError::Without { what: "nodes that have met" }.into()) };
        let (first_rank, ranks) = (met.first_rank, met.ranks);
        let others = met.others(timeout)?;
        if let OtherNodes::Led(nodes) = &others {
            for own in &mut communicators {
                *own = Arc::new(TellsNodes { own: Arc::clone(own), nodes: nodes.clone() });
            }
        }
        Ok((Group { first_rank, ranks, others, ..Group::new(communicators, timeout, collectives) }, devices))
    }

    /// A group whose collectives are run by what was asked for. Devices join it.
    pub(crate) fn join(
        devices: &mut [Device],
        timeout: Duration,
        collectives: Collectives,
    ) -> Result<Group, ModelError> {
        let ranks = devices.len() as u32;
        let host = |instead| {
            let group = Group::in_process(ranks, timeout);
            Ok(Group { collectives: CollectivesInUse::Host { instead }, ..group })
        };
        let group = match collectives {
            Collectives::Host => return host(None),
            Collectives::Auto if !are_apart(devices) => return host(None),
            _ => devices[0].device_group(&GroupSpec { ranks, timeout, id: None }),
        };
        let joined = group.and_then(|group| Ok((join_all(devices, &group, 0)?, group.describe())));
        match joined {
            Ok((communicators, library)) => {
                Ok(Group::new(communicators, timeout, CollectivesInUse::Device(library)))
            }
            Err(error) if collectives == Collectives::Auto => host(Some(cause(&error))),
            Err(error) => Err(error.into()),
        }
    }

    /// What runs the collectives.
    pub(crate) fn collectives(&self) -> &CollectivesInUse {
        &self.collectives
    }

    /// Whether devices run them.
    pub(crate) fn is_on_devices(&self) -> bool {
        matches!(self.collectives, CollectivesInUse::Device(_))
    }

    /// The communicator of a rank of this process. For one of another, that of the first rank here, which
    /// can end the calls of all.
    pub(crate) fn communicator(&self, rank: u32) -> &Arc<dyn Communicator> {
        let here = rank.checked_sub(self.first_rank).and_then(|here| self.communicators.get(here as usize));
        here.unwrap_or(&self.communicators[0])
    }

    /// The first rank of this process.
    pub(crate) fn first_rank(&self) -> u32 {
        self.first_rank
    }

    /// Ranks of all processes.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The nodes that this one gives orders.
    pub(crate) fn led(&self) -> &[Arc<Node>] {
        match &self.others {
            OtherNodes::Led(nodes) => nodes,
            OtherNodes::None | OtherNodes::Leader(_) => &[],
        }
    }

    /// The connection to node 0, if that is another process.
    pub(crate) fn leader(&self) -> Option<&Arc<Link>> {
        match &self.others {
            OtherNodes::Leader(link) => Some(link),
            OtherNodes::None | OtherNodes::Led(_) => None,
        }
    }

    /// Whether other processes have ranks, too.
    pub(crate) fn has_other_nodes(&self) -> bool {
        !matches!(self.others, OtherNodes::None)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// A rank did not return: the group cannot be used again.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// The right to run a step, when no other is running.
    pub(crate) fn turn(&self) -> Result<MutexGuard<'_, ()>, ModelError> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() {
            return Err(ModelError::Without { what: "ranks any more: one did not return from a step" });
        }
        if self.led().iter().any(|node| node.is_lost()) {
            return Err(ModelError::Without { what: "ranks any more: the process of one has ended" });
        }
        let first = self.communicator(self.first_rank);
        // On other nodes, those of node 0 may be in a call already.
        if self.leader().is_none() {
            first.reset();
        }
        if first.is_lost() {
            let what = "ranks any more: a collective was aborted after a rank failed";
            return Err(ModelError::Without { what });
        }
        Ok(turn)
    }

    /// The error of a step, of those of its ranks: the first that is not about another rank.
    pub(super) fn error_of(&self, errors: Vec<(u32, ModelError)>) -> Option<ModelError> {
        let (of_others, mut own): (Vec<_>, Vec<_>) =
            errors.into_iter().partition(|(_, error)| collective(error).is_some());
        own.sort_by_key(|(rank, _)| *rank);
        match (own.into_iter().next(), of_others.into_iter().next()) {
            (Some((rank, error)), _) => Some(self.of_rank(rank, error)),
            (None, Some((rank, error))) => {
                let rank = collective(&error).map_or(rank, CommunicatorError::rank);
                Some(self.of_rank(rank, error))
            }
            (None, None) => None,
        }
    }

    /// The rank that did not come to a collective in time, if that is the error.
    pub(super) fn late_rank(error: &ModelError) -> Option<u32> {
        match collective(error) {
            Some(&CommunicatorError::Timeout { rank, .. }) => Some(rank),
            _ => None,
        }
    }

    /// The error of a device with the rank that has it; others are the same on all ranks.
    pub(crate) fn of_rank(&self, rank: u32, error: ModelError) -> ModelError {
        match error {
            ModelError::Backend(_)
            | ModelError::Exec(_)
            | ModelError::Memory { .. }
            | ModelError::CacheMemory { .. } => {
                ModelError::Rank { rank, ranks: self.ranks(), source: Box::new(error) }
            }
            other => other,
        }
    }
}

/// Whether there are several devices, different ones, that can run collectives.
fn are_apart(devices: &[Device]) -> bool {
    let mut places: Vec<Option<u64>> = devices.iter().map(|device| device.group_device()).collect();
    places.sort_unstable();
    places.dedup();
    devices.len() > 1 && places.len() == devices.len() && !places.contains(&None)
}

/// Joins all devices to a group, each on a thread of its own, because each waits for the others.
pub(super) fn join_all(
    devices: &mut [Device],
    group: &Arc<dyn DeviceGroup>,
    first_rank: u32,
) -> Result<Vec<Arc<dyn Communicator>>, BackendError> {
    std::thread::scope(|scope| {
        let mut joining = Vec::new();
        for (rank, device) in (first_rank..).zip(devices) {
            joining.push(scope.spawn(move || device.join_group(group, rank)));
        }
        let panicked = |_| BackendError::Device {
            backend: "rank",
            call: "join_group",
            source: "its thread panicked".into(),
        };
        let joined: Vec<_> =
            joining.into_iter().map(|thread| thread.join().map_err(panicked).and_then(|x| x)).collect();
        joined.into_iter().collect()
    })
}

/// The innermost error: what a person can do something about.
fn cause(error: &BackendError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// What a collective says about the rank that failed.
fn collective(error: &ModelError) -> Option<&CommunicatorError> {
    match error {
        ModelError::Backend(BackendError::Collective(error))
        | ModelError::Exec(
            ExecError::Backend(BackendError::Collective(error))
            | ExecError::Node { source: BackendError::Collective(error), .. },
        ) => Some(error.as_ref()),
        _ => None,
    }
}

/// Fails if a rank has drawn other tokens than rank 0: its device computes other bits from the same logits.
pub(crate) fn same_on_all_ranks<T: PartialEq + std::fmt::Debug>(drawn: &[T]) -> Result<(), ModelError> {
    let Some(rank) = drawn.iter().position(|other| *other != drawn[0]) else { return Ok(()) };
    let (expected, got) = (format!("{:?}", drawn[0]), format!("{:?}", drawn[rank]));
    let what = "the tokens that it drew".to_owned();
    let error = CommunicatorError::Mismatch { rank: rank as u32, what, expected, got };
    Err(BackendError::from(error).into())
}
