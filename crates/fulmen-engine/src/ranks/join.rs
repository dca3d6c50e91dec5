//! Devices of this process as ranks of a group, also with those of other processes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fulmen_core::{BackendError, Communicator, GroupSpec};
use fulmen_model::ModelError;

use super::group::join_all;
use super::rendezvous::{Brings, Met, Nodes, RendezvousError};
use super::{CollectivesInUse, Group, TensorParallel, rank_device};
use crate::Device;

/// Ranks of a group that are in this process.
pub struct RankGroup {
    /// The devices, each of which runs collectives with all others.
    pub devices: Vec<Device>,
    /// The communicator of each.
    pub communicators: Vec<Arc<dyn Communicator>>,
    /// What runs the collectives.
    pub collectives: CollectivesInUse,
    /// How long ranks wait for each other.
    pub(super) timeout: Duration,
    /// The other processes, if there are some.
    pub(super) met: Option<Met>,
}

/// Why devices did not become ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The processes did not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A connection to another process has ended.
    #[error("the connection to another node: {0}")]
    Connection(#[from] io::Error),
    /// A device cannot run collectives, or the others did not come.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The same, of devices of one process.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl RankGroup {
    /// Makes devices the ranks of a group.
    pub fn join(parallel: TensorParallel) -> Result<RankGroup, JoinError> {
        let TensorParallel { mut devices, timeout, collectives } = parallel;
        let group = Group::join(&mut devices, timeout, collectives)?;
        let communicators: Vec<_> =
            (0..group.ranks()).map(|rank| Arc::clone(group.communicator(rank))).collect();
        let collectives = group.collectives().clone();
        if !group.is_on_devices() {
            devices = on_host(devices, &communicators);
        }
        Ok(RankGroup { devices, communicators, collectives, timeout, met: None })
    }

    /// Makes devices ranks of a group with those of other processes, whose collectives the host runs by these
    /// communicators, one for each device. Slower than [`join_nodes`](RankGroup::join_nodes), and on any
    /// device: the steps of a model are cut at its collectives.
    pub fn with_communicators(
        devices: Vec<Device>,
        communicators: Vec<Arc<dyn Communicator>>,
        timeout: Duration,
        met: Met,
    ) -> RankGroup {
        let collectives = CollectivesInUse::Host { instead: None };
        let devices = on_host(devices, &communicators);
        RankGroup { devices, communicators, collectives, timeout, met: Some(met) }
    }

    /// Makes devices ranks of a group with those of other processes, whose collectives devices run.
    pub fn join_nodes(parallel: TensorParallel, nodes: &Nodes, runs: u64) -> Result<RankGroup, JoinError> {
        let TensorParallel { mut devices, timeout, .. } = parallel;
        let Some(device) = devices.first() else {
            return Err(ModelError::Without { what: "device for a rank" }.into());
        };
        let mut made = None;
        // Before anybody is waited for: without the library there is no group.
        device.device_group(&GroupSpec { ranks: 1, timeout, id: None })?;
        let brings = Brings { ranks: devices.len() as u32, runs };
        let met = nodes.meet(brings, |ranks| {
            let group = device.device_group(&GroupSpec { ranks, timeout, id: None });
            let group = group.map_err(|error| error.to_string())?;
            let id = group.id().to_vec();
            made = Some(group);
            Ok(id)
        })?;
        let group = match made {
            Some(group) => group,
            None => device.device_group(&GroupSpec { ranks: met.ranks, timeout, id: Some(&met.id) })?,
        };
        let communicators = join_all(&mut devices, &group, met.first_rank)?;
        let collectives = CollectivesInUse::Device(group.describe());
        Ok(RankGroup { devices, communicators, collectives, timeout, met: Some(met) })
    }

    /// From now on, a process that ends fails the group.
    pub fn watch_nodes(&mut self) -> Result<(), JoinError> {
        let Some(met) = self.met.take() else { return Ok(()) };
        let first = Arc::clone(&self.communicators[0]);
        let watched = met.watch(move |node| first.abort(&format!("the process of node {node} has ended")));
        watched.map_err(JoinError::Connection)
    }
}

/// Devices as ranks whose collectives the host runs.
fn on_host(devices: Vec<Device>, communicators: &[Arc<dyn Communicator>]) -> Vec<Device> {
    let wrap = |(device, communicator): (Device, &Arc<dyn Communicator>)| -> Device {
        rank_device(device, Arc::clone(communicator))
    };
    devices.into_iter().zip(communicators).map(wrap).collect()
}

impl std::fmt::Debug for RankGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RankGroup { communicators, collectives, .. } = self;
        f.debug_struct("RankGroup")
            .field("communicators", communicators)
            .field("collectives", collectives)
            .finish_non_exhaustive()
    }
}
