//! A model on several nodes: what node 0 orders, and how the others carry it out.
//!
//! ```text
//!  node 0: Engine ─ ModelDevice ─┬─ rank 0 (and the others of its process)
//!                                └─ NodeDevice ── order ──► node 1: Model::follow ─ ModelDevice ─ its ranks
//!                                              ◄─ answer ──
//! ```
//!
//! A node knows neither requests nor the scheduler: it gets the plan of each step, and answers with the
//! tokens that its ranks have drawn, which node 0 compares with its own. What ranks exchange within a step is
//! none of this: collectives are run by the devices.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use fulmen_core::BackendError;
use fulmen_model::ModelError;
use serde::{Deserialize, Serialize};

use super::device::ModelDevice;
use super::limits::RankLimits;
use super::options::EngineOptions;
use super::ranks::RankOrder;
use crate::Model;
use crate::ranks::{Answer, Link, Node, ToNode};
use crate::scheduler::SchedulerConfig;

/// What a node is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NodeOrder {
    /// Says what its devices prefer and have room for.
    Limits(EngineOptions),
    /// The KV pages that fit its devices.
    Pages(EngineOptions, RankLimits),
    /// Allocates what an engine needs. There is one engine at a time.
    Open(Box<(EngineOptions, SchedulerConfig)>),
    /// Carries out an order for all ranks.
    Run(RankOrder),
    /// Frees what `Open` has allocated.
    Close,
}

/// What an engine has on another node.
pub(super) struct NodeDevice {
    node: Arc<Node>,
}

impl NodeDevice {
    pub(super) fn open(
        node: &Arc<Node>,
        options: &EngineOptions,
        config: &SchedulerConfig,
    ) -> Result<NodeDevice, ModelError> {
        node.order(&NodeOrder::Open(Box::new((options.clone(), config.clone()))))?;
        Ok(NodeDevice { node: Arc::clone(node) })
    }

    pub(super) fn order(&self, order: &NodeOrder) -> Result<Vec<u32>, ModelError> {
        self.node.order(order)
    }
}

impl Drop for NodeDevice {
    fn drop(&mut self) {
        if !self.node.is_lost() {
            // A node that cannot free its memory has ended, or is missed by the next order.
            let _ = self.node.order(&NodeOrder::Close);
        }
    }
}

/// The order that is being carried out, by its number. Held while it is aborted, so that no later one is.
type Current = Mutex<Option<u64>>;

impl Model {
    /// Carries out the orders of node 0, which runs an engine for this model, until node 0 drops the model or
    /// ends. The model is one of [`Model::from_source_nodes`], on a node other than 0.
    ///
    /// # Errors
    /// [`ModelError::Without`] for any other model. What fails within an order is told node 0.
    pub fn follow(&self) -> Result<(), ModelError> {
        let group = self.followers().map(|(group, _)| group);
        let leader = group.as_ref().and_then(|group| group.leader());
        let (Some(group), Some(leader)) = (&group, leader) else {
            return Err(ModelError::Without { what: "node 0 to follow" });
        };
        let first_rank = group.first_rank();
        let communicator = Arc::clone(group.communicator(first_rank));
        let current = Arc::new(Current::default());
        let (orders, queue) = channel();
        let (link, running) = (Arc::clone(leader), Arc::clone(&current));
        let receive = move || {
            loop {
                match link.receive::<ToNode<NodeOrder>>(None) {
                    Ok(ToNode::Order(number, order)) => {
                        if orders.send((number, order)).is_err() {
                            break;
                        }
                    }
                    Ok(ToNode::Abort(number, reason)) => {
                        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
                        if *running == Some(number) {
                            communicator.abort(&reason);
                        }
                    }
                    Err(_) => {
                        // So that no rank waits for those of node 0.
                        communicator.abort("the process of node 0 has ended");
                        break;
                    }
                }
            }
        };
        let receiver = thread::Builder::new().name("node 0".to_owned()).spawn(receive);
        let receiver = receiver.map_err(|error| {
            let source = Box::new(error);
            BackendError::Device { backend: "rank", call: "spawn", source }
        })?;
        self.carry_out_all(queue, leader, &current, first_rank);
        leader.close();
        // It ends with the connection.
        let _ = receiver.join();
        Ok(())
    }

    fn carry_out_all(
        &self,
        queue: Receiver<(u64, NodeOrder)>,
        leader: &Link,
        current: &Current,
        first_rank: u32,
    ) {
        let set = |number| *current.lock().unwrap_or_else(PoisonError::into_inner) = number;
        let mut device = None;
        for (number, order) in queue {
            set(Some(number));
            let done = self.carry_out(order, &mut device);
            set(None);
            if leader.send(&Answer::new(done, first_rank)).is_err() {
                break;
            }
        }
    }

    fn carry_out(&self, order: NodeOrder, device: &mut Option<ModelDevice>) -> Result<Vec<u32>, ModelError> {
        match order {
            NodeOrder::Limits(options) => Ok(options.limits(self).to_words()),
            NodeOrder::Pages(options, limits) => Ok(vec![options.pages_on_node(self, limits)?]),
            NodeOrder::Open(engine) => {
                *device = None;
                let (options, config) = *engine;
                *device = Some(ModelDevice::new(self, &options, &config)?);
                Ok(Vec::new())
            }
            NodeOrder::Run(order) => {
                let device = device.as_mut().ok_or(ModelError::Without { what: "engine to run steps of" })?;
                device.carry_out(&order)
            }
            NodeOrder::Close => {
                *device = None;
                Ok(Vec::new())
            }
        }
    }
}
