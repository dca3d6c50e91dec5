//! A model on several nodes: which process this is, and how it meets the others.

use std::sync::Arc;

use fulmen_core::device::{DeviceInfo, DeviceSelector};
use fulmen_core::timeline;
use fulmen_engine::{
    Collectives, JoinError, LoadOptions, Model, Nodes, RankGroup, RendezvousError, TensorParallel,
    fingerprint,
};
use fulmen_model::source::ModelSource;

use super::split::{SplitError, SplitOptions};
use crate::error::CommandError;
use crate::output::tell;

/// Which of several processes this is.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Several nodes")]
pub(crate) struct NodeOptions {
    /// Number of processes, on one machine or on several, that serve a model together: each runs a part of
    /// every layer on its GPUs, with NCCL. All are started with the same model and options; node 0 answers
    /// requests.
    #[arg(long, value_name = "COUNT", requires = "rendezvous")]
    #[arg(conflicts_with_all = ["gpu_layers", "cpu_experts", "gpu_memory"])]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: Option<u32>,

    /// Which of the processes this is, from 0.
    #[arg(long, value_name = "NODE", requires = "nodes", default_value_t = 0)]
    node_rank: u32,

    /// Where the processes meet: an address of node 0, which listens there. Whoever can reach it can take
    /// part: keep it in a network of your own.
    #[arg(long, value_name = "HOST:PORT", requires = "nodes")]
    rendezvous: Option<String>,
}

/// Why the nodes of a model did not come together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("--nodes runs collectives by NCCL, not through the host: leave out --collectives host")]
    Host,
    #[error("--nodes needs NVIDIA GPUs (CUDA) with NCCL, and the device is {device}")]
    NoCollectives { device: DeviceSelector },
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Join(JoinError),
}

impl NodeError {
    /// Whether node 0 is not there, and may come.
    pub(crate) fn is_without_node_0(&self) -> bool {
        let NodeError::Join(JoinError::Rendezvous(error)) = self else { return false };
        matches!(error, RendezvousError::Connect { .. } | RendezvousError::Answer { .. })
    }
}

impl From<JoinError> for NodeError {
    /// What is short of memory, or cannot be divided, is said as of one node.
    fn from(error: JoinError) -> NodeError {
        match error {
            JoinError::Model(error) => NodeError::Split(error.into()),
            other => NodeError::Join(other),
        }
    }
}

impl CommandError for NodeError {
    fn is_usage(&self) -> bool {
        match self {
            NodeError::Host | NodeError::NoCollectives { .. } => true,
            NodeError::Split(error) => error.is_usage(),
            NodeError::Join(JoinError::Rendezvous(RendezvousError::Numbers { .. })) => true,
            NodeError::Join(_) => false,
        }
    }
}

impl NodeOptions {
    /// The processes, if there are several.
    pub(crate) fn nodes(&self) -> Option<Nodes> {
        let (count, address) = (self.nodes?, self.rendezvous.clone()?);
        Some(Nodes { count, node: self.node_rank, address, timeout: TensorParallel::TIMEOUT })
    }
}

/// Loads the ranks of this process, when all nodes have come.
pub(crate) fn load_on_nodes(
    nodes: &Nodes,
    source: Arc<dyn ModelSource>,
    (split, device, threads): (&SplitOptions, DeviceSelector, Option<usize>),
    options: LoadOptions<'_>,
) -> Result<(Model, DeviceInfo), NodeError> {
    let (info, devices, collectives) = split.open_ranks(device, threads)?;
    if devices.iter().any(|device| device.group_device().is_none()) {
        return Err(NodeError::NoCollectives { device: info.selector() });
    }
    if collectives == Collectives::Host {
        return Err(NodeError::Host);
    }
    let runs = fingerprint(source.as_ref());
    let parallel = TensorParallel { collectives: Collectives::Device, ..TensorParallel::new(devices) };
    let group = RankGroup::join_nodes(parallel, nodes, runs)?;
    tell(&format!("node {} of {} by {}", nodes.node, nodes.count, group.collectives));
    let load = || Model::from_source_nodes(source, group, options);
    Ok((timeline::span("load the model", load)?, info))
}
