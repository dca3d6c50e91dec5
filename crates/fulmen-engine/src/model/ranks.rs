//! The steps of an engine's device on all ranks of its model.
//!
//! The device of rank 0 is that of the engine. Those of the other ranks get the same plans and read the same
//! results, which rank 0 compares with its own. A node with several ranks does the same among them: what this
//! says of rank 0 is there the first rank of the node, which node 0 gives its orders.

use std::sync::Arc;

use fulmen_model::ModelError;
use serde::{Deserialize, Serialize};

use super::device::{ModelDevice, Pending};
use super::nodes::{NodeDevice, NodeOrder};
use super::options::EngineOptions;
use crate::driver::Ticket;
use crate::ranks::{Workers, same_on_all_ranks};
use crate::scheduler::SchedulerConfig;
use crate::step::{StepOutput, StepPlan};

/// What all ranks do at the same time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum RankOrder {
    /// Launches a step behind `before` others. What is behind them has failed on another rank, and then this
    /// is the same step `again`, or one that begins with its transfers.
    Launch { plan: Arc<StepPlan>, before: usize, again: bool },
    /// Waits for the oldest step, for the tokens that it has drawn.
    Complete,
    /// Waits for the devices.
    Synchronize,
}

impl RankOrder {
    fn carry_out(&self, device: &mut ModelDevice) -> Result<Vec<u32>, ModelError> {
        match self {
            RankOrder::Launch { plan, before, again } => {
                device.launch_on_rank(plan, *before, *again)?;
                Ok(Vec::new())
            }
            RankOrder::Complete => {
                let pending = device.pending.pop_front();
                let pending = pending.ok_or(ModelError::Without { what: "step in flight" })?;
                Ok(tokens(&device.complete(pending)?))
            }
            RankOrder::Synchronize => {
                device.synchronize_rank()?;
                Ok(Vec::new())
            }
        }
    }
}

/// What carries out the orders beside the first rank.
pub(super) enum Follower {
    /// Another rank of this process.
    Rank(Box<ModelDevice>),
    /// The ranks of another process.
    Node(NodeDevice),
}

impl Follower {
    fn carry_out(&mut self, order: &RankOrder) -> Result<Vec<u32>, ModelError> {
        match self {
            Follower::Rank(device) => order.carry_out(device),
            Follower::Node(device) => device.order(&NodeOrder::Run(order.clone())),
        }
    }
}

impl ModelDevice {
    /// Devices of the other ranks, if this is that of the first.
    pub(super) fn start_followers(
        &self,
        options: &EngineOptions,
        config: &SchedulerConfig,
    ) -> Result<Option<Workers<Follower>>, ModelError> {
        let Some((group, models)) = self.model.followers() else { return Ok(None) };
        let _between_steps = self.model.between_steps()?;
        let mut followers = Vec::new();
        for (rank, model) in (group.first_rank() + 1..).zip(models) {
            let device = ModelDevice::on_rank(&model, options, config);
            let device = device.map_err(|error| group.of_rank(rank, error))?;
            followers.push((rank, Follower::Rank(Box::new(device))));
        }
        for node in group.led() {
            let device = NodeDevice::open(node, options, config)?;
            followers.push((node.first_rank, Follower::Node(device)));
        }
        if followers.is_empty() {
            return Ok(None);
        }
        Workers::start(&group, followers).map(Some)
    }

    /// Carries out an order of node 0 on all ranks of this process.
    pub(super) fn carry_out(&mut self, order: &RankOrder) -> Result<Vec<u32>, ModelError> {
        let carried_out = match self.followers.take() {
            None => order.carry_out(self).map(|tokens| vec![tokens]),
            Some(followers) => {
                let shared = order.clone();
                let of_follower = move |follower: &mut Follower| follower.carry_out(&shared);
                let carried_out = followers.run(of_follower, || order.carry_out(self));
                self.followers = Some(followers);
                carried_out
            }
        };
        let mut tokens = carried_out?;
        same_on_all_ranks(&tokens)?;
        Ok(tokens.swap_remove(0))
    }

    /// Launches a step on every rank.
    pub(super) fn launch_on_ranks(&mut self, plan: &StepPlan) -> Result<Ticket, ModelError> {
        let launched = self.try_launch_on_ranks(plan, self.launch_failed);
        self.launch_failed = launched.is_err();
        launched
    }

    fn try_launch_on_ranks(&mut self, plan: &StepPlan, again: bool) -> Result<Ticket, ModelError> {
        let before = self.pending.len();
        if self.followers.is_none() {
            return self.launch_on_rank(plan, before, again);
        }
        let order = RankOrder::Launch { plan: Arc::new(plan.clone()), before, again };
        if let Err(error) = self.carry_out(&order) {
            self.pending.truncate(before);
            return Err(error);
        }
        let launched = self.pending.back().map(|pending| pending.ticket);
        launched.ok_or(ModelError::Without { what: "step that was launched" })
    }

    /// [`RankOrder::Launch`] on this rank.
    fn launch_on_rank(&mut self, plan: &StepPlan, before: usize, again: bool) -> Result<Ticket, ModelError> {
        self.pending.truncate(before);
        let pending = self.start(plan, again)?;
        let ticket = pending.ticket;
        self.pending.push_back(pending);
        Ok(ticket)
    }

    /// Waits for the results of a step on every rank; `pending` is that of this one.
    pub(super) fn complete_on_ranks(&mut self, pending: Pending) -> Result<StepOutput, ModelError> {
        let Some(followers) = self.followers.take() else { return self.complete(pending) };
        let mut output = StepOutput::default();
        let completed = followers.run(
            |follower: &mut Follower| follower.carry_out(&RankOrder::Complete),
            || {
                output = self.complete(pending)?;
                Ok(tokens(&output))
            },
        );
        self.followers = Some(followers);
        same_on_all_ranks(&completed?)?;
        Ok(output)
    }

    /// Waits for the devices of all ranks.
    pub(super) fn synchronize_ranks(&mut self) -> Result<(), ModelError> {
        self.carry_out(&RankOrder::Synchronize).map(drop)
    }
}

fn tokens(output: &StepOutput) -> Vec<u32> {
    output.sampled.iter().map(|sampled| sampled.token).collect()
}
