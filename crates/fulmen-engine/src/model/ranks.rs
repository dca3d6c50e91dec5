//! The steps of an engine's device on all ranks of its model.
//!
//! The device of rank 0 is that of the engine. Those of the other ranks get the same plans and read the same
//! results, which rank 0 compares with its own.

use std::sync::Arc;

use fulmen_model::ModelError;

use super::device::{ModelDevice, Pending};
use super::options::EngineOptions;
use crate::driver::Ticket;
use crate::ranks::{Workers, same_on_all_ranks};
use crate::scheduler::SchedulerConfig;
use crate::step::{StepOutput, StepPlan};

impl ModelDevice {
    /// Devices of the other ranks, if this is that of rank 0.
    pub(super) fn start_followers(
        &self,
        options: &EngineOptions,
        config: &SchedulerConfig,
    ) -> Result<Option<Workers<ModelDevice>>, ModelError> {
        let Some((group, models)) = self.model.followers() else { return Ok(None) };
        let _between_steps = self.model.between_steps()?;
        let mut devices = Vec::new();
        for (rank, model) in (1..).zip(models) {
            let device = ModelDevice::on_rank(&model, options, config);
            devices.push(device.map_err(|error| group.of_rank(rank, error))?);
        }
        Workers::start(&group, devices).map(Some)
    }

    /// Launches a step on every rank.
    pub(super) fn launch_on_ranks(&mut self, plan: &StepPlan) -> Result<Ticket, ModelError> {
        let launched = self.try_launch_on_ranks(plan, self.launch_failed);
        self.launch_failed = launched.is_err();
        launched
    }

    fn try_launch_on_ranks(&mut self, plan: &StepPlan, again: bool) -> Result<Ticket, ModelError> {
        let before = self.pending.len();
        let Some(followers) = self.followers.take() else { return self.launch_on_rank(plan, before, again) };
        let shared = Arc::new(plan.clone());
        let launched = followers.run(
            move |device: &mut ModelDevice| device.launch_on_rank(&shared, before, again).map(drop),
            || self.launch_on_rank(plan, before, again).map(drop),
        );
        self.followers = Some(followers);
        if let Err(error) = launched {
            self.pending.truncate(before);
            return Err(error);
        }
        let launched = self.pending.back().map(|pending| pending.ticket);
        launched.ok_or(ModelError::Without { what: "step that was launched" })
    }

    /// Launches a step behind `before` others. What is behind them has failed on another rank, and then this
    /// is the same step `again`, or one that begins with its transfers.
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
            |device: &mut ModelDevice| {
                let pending = device.pending.pop_front();
                let pending = pending.ok_or(ModelError::Without { what: "step in flight" })?;
                Ok(tokens(&device.complete(pending)?))
            },
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
        let Some(followers) = self.followers.take() else { return Ok(self.synchronize_rank()?) };
        let done = followers
            .run(|device: &mut ModelDevice| Ok(device.synchronize_rank()?), || Ok(self.synchronize_rank()?));
        self.followers = Some(followers);
        done.map(drop)
    }
}

fn tokens(output: &StepOutput) -> Vec<u32> {
    output.sampled.iter().map(|sampled| sampled.token).collect()
}
