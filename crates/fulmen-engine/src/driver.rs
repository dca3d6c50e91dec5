//! Runs a scheduler against a device.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error::{ConfigError, DeviceLost, LaunchError, RequestError};
use crate::request::{Event, Request, RequestId};
use crate::scheduler::complete::panic_message;
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::step::{StepOutput, StepPlan};

/// A step that a device was told to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// A device that runs steps.
///
/// Steps run in the order of their launches, each with its prologue before its rows, and do not overlap: what
/// a step reads is not changed by one that was launched after it. All memory of pages, tables and slots is
/// allocated beforehand; the scheduler decides what lies where.
pub trait StepDevice {
    /// Starts a step and returns before its results are there. Where it fails, nothing of the step has run.
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError>;

    /// Waits for a step and returns its results. Steps are waited for in the order of their launches.
    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost>;

    /// The results of a step, if they are there already. Devices of hosts that must not block have it.
    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, DeviceLost> {
        self.wait(ticket).map(Some)
    }

    /// Prepares something that a later step would otherwise wait for, such as the program of a bucket.
    /// `false` if nothing is left. Called while no step is in flight and nothing else is to do.
    fn warm_up(&mut self) -> Result<bool, DeviceLost> {
        Ok(false)
    }
}

impl<D: StepDevice + ?Sized> StepDevice for Box<D> {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        (**self).launch(plan)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        (**self).wait(ticket)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, DeviceLost> {
        (**self).poll(ticket)
    }

    fn warm_up(&mut self) -> Result<bool, DeviceLost> {
        (**self).warm_up()
    }
}

/// What a call of [`Driver::step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do.
    Busy,
    /// All requests have ended.
    Idle,
    /// The device is lost, and all requests have ended with an error.
    Lost,
}

/// Steps that may be in flight: the next one is launched before the results of the last one are read.
const DEPTH: usize = 2;

/// A scheduler and its device. It has no thread and no clock; [`Engine`](crate::Engine) runs one in a thread.
///
/// ```
/// use std::time::Duration;
/// use fulmen_engine::mock::MockDevice;
/// use fulmen_engine::{Driver, Progress, Request, SchedulerConfig};
///
/// let config = SchedulerConfig::new(1000, 4096, 64);
/// let mut driver = Driver::new(config.clone(), MockDevice::new(&config))?;
/// driver.submit(Request::new(vec![1, 2, 3], 5), Duration::ZERO)?;
/// while driver.step(Duration::ZERO) == Progress::Busy {}
/// assert_eq!(driver.take_events().len(), 6); // 5 tokens and the end
/// driver.scheduler().counted_back()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Driver<D> {
    scheduler: Scheduler,
    /// `None` after it was lost.
    device: Option<D>,
    lost: String,
    /// Steps in flight, the oldest first.
    tickets: VecDeque<Ticket>,
}

impl<D: StepDevice> Driver<D> {
    /// A driver without requests.
    pub fn new(config: SchedulerConfig, device: D) -> Result<Driver<D>, ConfigError> {
        let scheduler = Scheduler::new(config)?;
        Ok(Driver { scheduler, device: Some(device), lost: String::new(), tickets: VecDeque::new() })
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, for faults that tests inject.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// The device, unless it was lost.
    pub fn device(&self) -> Option<&D> {
        self.device.as_ref()
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request, now: Duration) -> Result<RequestId, RequestError> {
        if self.device.is_none() {
            return Err(RequestError::DeviceLost { reason: self.lost.clone() });
        }
        self.scheduler.submit(request, now)
    }

    /// Ends a request that has not ended. `false` if it has.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.scheduler.cancel(id)
    }

    /// Ends a request with an error of the caller.
    pub(crate) fn fail(&mut self, id: RequestId, error: RequestError) -> bool {
        self.scheduler.fail(id, error)
    }

    /// The events since the last call.
    pub fn take_events(&mut self) -> Vec<(RequestId, Event)> {
        self.scheduler.take_events()
    }

    /// Replaces a lost device. The device comes back if there is one already.
    pub fn reopen(&mut self, device: D) -> Result<(), D> {
        if self.device.is_some() {
            return Err(device);
        }
        self.device = Some(device);
        self.scheduler.device_replaced();
        Ok(())
    }

    /// Launches a step, and waits for the oldest one if enough are in flight or nothing could be launched.
    pub fn step(&mut self, now: Duration) -> Progress {
        let launched = self.launch(now);
        if self.tickets.len() >= DEPTH || !launched {
            self.wait();
        }
        self.progress()
    }

    /// Like [`step`](Driver::step) without waiting: takes the results of the oldest step if they are there.
    pub fn poll_step(&mut self, now: Duration) -> Progress {
        if self.tickets.len() < DEPTH {
            self.launch(now);
        }
        let polled = match (self.tickets.front().copied(), &mut self.device) {
            (Some(ticket), Some(device)) => survive(|| device.poll(ticket)),
            _ => Ok(None),
        };
        if let Some(output) = polled.transpose() {
            self.complete(output);
        }
        self.progress()
    }

    /// Lets an idle device prepare something that a later step would wait for. `false` if it is not idle, or
    /// if nothing is left to prepare.
    pub fn warm_up(&mut self) -> bool {
        let Some(device) = self.device.as_mut().filter(|_| self.tickets.is_empty()) else { return false };
        survive(|| device.warm_up()).unwrap_or_else(|DeviceLost(reason)| {
            self.lose(reason);
            false
        })
    }

    /// Waits for all steps in flight.
    pub fn settle(&mut self) {
        while !self.tickets.is_empty() {
            self.wait();
        }
    }

    fn progress(&self) -> Progress {
        match self.device {
            None => Progress::Lost,
            Some(_) if self.scheduler.unfinished() == 0 && self.tickets.is_empty() => Progress::Idle,
            Some(_) => Progress::Busy,
        }
    }

    /// Plans and launches the next step. `false` if there is none.
    fn launch(&mut self, now: Duration) -> bool {
        let Some(device) = &mut self.device else { return false };
        let Some(plan) = self.scheduler.plan(now) else { return false };
        match survive(|| device.launch(&plan)) {
            Ok(ticket) => {
                self.tickets.push_back(ticket);
                true
            }
            Err(LaunchError::Lost(DeviceLost(reason))) => {
                self.lose(reason);
                false
            }
            Err(error) => {
                self.scheduler.launch_failed(plan, error);
                false
            }
        }
    }

    fn wait(&mut self) {
        let (Some(ticket), Some(device)) = (self.tickets.front().copied(), &mut self.device) else { return };
        let output = survive(|| device.wait(ticket));
        self.complete(output);
    }

    fn complete(&mut self, output: Result<StepOutput, DeviceLost>) {
        self.tickets.pop_front();
        if let Err(DeviceLost(reason)) = output.and_then(|output| self.scheduler.complete(output)) {
            self.lose(reason);
        }
    }

    /// Ends all requests and drops the device.
    fn lose(&mut self, reason: String) {
        self.tickets.clear();
        self.scheduler.device_lost(&reason);
        self.lost = reason;
        let device = self.device.take();
        // A device in an unknown state may also panic when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(device)));
    }
}

/// Calls a device; one that panics is lost.
fn survive<T, E: From<DeviceLost>>(call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(DeviceLost(format!("the device {}", panic_message(&*panic))).into()))
}
