//! What comes back from the device: results of steps, and launches that failed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Scheduler;
use super::sequence::{Place, Sequence};
use crate::error::{DeviceLost, LaunchError, RequestError};
use crate::request::{Event, FinishReason, RequestId};
use crate::step::{NextToken, Sampled, StepOutput, StepPlan};

/// A step that was planned and not completed.
pub(super) struct InFlight {
    pub(super) number: u64,
    pub(super) rows: u32,
    /// In the order of rows.
    pub(super) parts: Vec<Part>,
    /// The rows with results, and the tokens after them.
    pub(super) outputs: Vec<(u32, NextToken)>,
}

/// The rows of one sequence in a step.
pub(super) struct Part {
    pub(super) id: RequestId,
    pub(super) epoch: u32,
    /// The first row.
    pub(super) first: u32,
    /// The positions of the rows.
    pub(super) start: u32,
    pub(super) end: u32,
}

/// The most steps that run before their size is doubled after the device was out of memory.
const LONGEST_GROWTH_PAUSE: u32 = 1024;

impl InFlight {
    /// The requests for which a token is sampled.
    pub(super) fn sampling(&self) -> impl Iterator<Item = RequestId> {
        let sampling = self.outputs.iter().filter(|(_, next)| *next == NextToken::Sample);
        sampling.filter_map(|&(row, _)| self.find(row)).map(|(part, _)| part.id)
    }

    /// The sequence and the position of a row.
    fn find(&self, row: u32) -> Option<(&Part, u32)> {
        let after = self.parts.partition_point(|part| part.first <= row);
        let part = self.parts.get(after.checked_sub(1)?)?;
        (row < self.rows).then_some((part, part.start + row - part.first))
    }
}

impl Scheduler {
    /// Takes the results of the oldest step in flight. An error if they do not belong to it: then the device
    /// is not usable any more.
    pub fn complete(&mut self, output: StepOutput) -> Result<(), DeviceLost> {
        let Some(step) = self.in_flight.pop_front() else {
            return Err(DeviceLost("results were returned, and no step is in flight".to_owned()));
        };
        if output.sampled.len() != step.outputs.len() {
            let (got, expected) = (output.sampled.len(), step.outputs.len());
            return Err(DeviceLost(format!("step {}: expected {expected} tokens, got {got}", step.number)));
        }
        for fault in output.faults {
            let Some((part, position)) = step.find(fault.row) else {
                let reason =
                    format!("step {} of {} rows: a fault in row {}", step.number, step.rows, fault.row);
                return Err(DeviceLost(reason));
            };
            let id = part.id;
            self.abandon(id);
            self.fail(id, RequestError::Row { position, reason: fault.reason });
        }
        for part in &step.parts {
            if let Some(sequence) = self.sequences.get_mut(&part.id)
                && sequence.epoch == part.epoch
            {
                sequence.completed = sequence.completed.max(part.end);
            }
        }
        for (&(row, next), sampled) in step.outputs.iter().zip(output.sampled) {
            let Some((part, position)) = step.find(row) else { continue };
            match next {
                NextToken::Sample => {
                    self.take_closing_token(part.id, position, &sampled);
                    self.take_token(part.id, sampled);
                }
                NextToken::Known(_) => self.take_prompt_token(part.id, position, sampled),
            }
        }
        for part in &step.parts {
            self.cache_pages(part.id);
            self.note_closing(part.id, part.epoch, part.end);
        }
        self.grow_steps();
        Ok(())
    }

    /// Adds the log-probability of the token of the prompt after `position`, unless it is known: a row that
    /// runs once more says nothing new.
    fn take_prompt_token(&mut self, id: RequestId, position: u32, sampled: Sampled) {
        let scores = self.sequences.get_mut(&id).and_then(|sequence| sequence.prompt_scores.as_mut());
        if let Some(scores) = scores.filter(|scores| scores.tokens.len() == position as usize + 1) {
            scores.tokens.push(sampled);
        }
    }

    /// Adds a token to its sequence, unless the sequence has ended meanwhile.
    fn take_token(&mut self, id: RequestId, sampled: Sampled) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            self.stats.dropped_rows += 1;
            return;
        };
        let token = sampled.token;
        sequence.pending -= 1;
        if token >= self.config.vocabulary {
            let reason = format!("token {token} was sampled from a vocabulary of {}", self.config.vocabulary);
            let position = sequence.len();
            self.fail(id, RequestError::Row { position, reason });
            return;
        }
        sequence.tokens.push(token);
        self.stats.generated_tokens += 1;
        if let Some(scores) = sequence.prompt_scores.take() {
            self.events.push((id, Event::Prompt(scores.tokens)));
        }
        self.events.push((id, Event::Token(sampled)));
        let accepted = match &mut sequence.constraint {
            Some(constraint) => guarded(|| constraint.accept(token)),
            None => Ok(()),
        };
        if sequence.stop.matches(sequence.generated()) {
            self.finish(id, FinishReason::Stop);
        } else if sequence.len() >= sequence.max_len.0 {
            let reason = sequence.max_len.1;
            self.finish(id, reason);
        } else if let Err(reason) = accepted {
            self.fail(id, RequestError::Constraint { reason });
        }
    }

    fn cache_pages(&mut self, id: RequestId) {
        let sequence = self.sequences.get_mut(&id).filter(|sequence| sequence.use_prefix_cache);
        let Some(Sequence { place: Place::Running { pages, .. }, tenant, tokens, completed, .. }) = sequence
        else {
            return;
        };
        self.memory.cache_full_pages(tenant, tokens, *completed, pages);
        self.memory.attach_states(id, *completed, pages, None);
    }

    /// Takes back the newest plan, of which nothing has run: its rows are planned again, and what it should
    /// have done before them is done by the next step.
    ///
    /// Out of memory: the next steps have half the rows; if no fewer rows are possible, the last request of
    /// the plan fails. A request that the device rejects fails alone. Otherwise all requests with rows in
    /// the plan fail.
    pub fn launch_failed(&mut self, plan: StepPlan, error: LaunchError) {
        let Some(step) = self.in_flight.pop_back() else { return };
        for part in &step.parts {
            self.abandon(part.id);
            if let Some(sequence) = self.sequences.get_mut(&part.id) {
                sequence.planned = part.start;
                if let Some(scores) = &mut sequence.prompt_scores {
                    scores.asked = scores.asked.min(part.start);
                }
            }
        }
        for id in step.sampling() {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.pending -= 1;
            }
        }
        let (mut prologue, slots) = (plan.prologue, plan.rows.slots);
        prologue.transfers.append(&mut self.memory.transfers);
        self.memory.transfers = std::mem::take(&mut prologue.transfers);
        self.prologue.prepend(prologue);
        self.stats.failed_launches += 1;
        match error {
            LaunchError::OutOfMemory(reason) => self.shrink_steps(&step, reason),
            LaunchError::Rejected { slot, reason } => {
                let rejected = step.parts.iter().find(|part| slots.get(part.first as usize) == Some(&slot));
                match rejected {
                    Some(part) => drop(self.fail(part.id, RequestError::Rejected { reason })),
                    None => self.fail_parts(&step, &format!("slot {slot}, which has no rows: {reason}")),
                }
            }
            LaunchError::Failed(reason) => self.fail_parts(&step, &reason),
            LaunchError::Lost(DeviceLost(reason)) => self.device_lost(&reason),
        }
    }

    /// After a launch that failed for lack of memory, steps grow again when some have succeeded: more of them
    /// each time that memory is short again.
    fn grow_steps(&mut self) {
        self.steps_before_growth = self.steps_before_growth.saturating_sub(1);
        if self.row_limit < self.config.max_rows() && self.steps_before_growth == 0 {
            self.row_limit = self.row_limit.saturating_mul(2).min(self.config.max_rows());
            self.steps_before_growth = self.growth_pause;
        }
    }

    fn shrink_steps(&mut self, step: &InFlight, reason: String) {
        self.growth_pause = (2 * self.growth_pause).clamp(1, LONGEST_GROWTH_PAUSE);
        self.steps_before_growth = self.growth_pause;
        let smallest = if self.config.batch_invariant { self.config.page_size } else { 1 };
        if step.rows > smallest {
            self.row_limit = (step.rows / 2).max(smallest);
            return;
        }
        let last = step.parts.iter().filter_map(|part| self.sequences.get(&part.id)).max_by_key(|s| s.rank);
        if let Some(id) = last.map(|sequence| sequence.id) {
            self.fail(id, RequestError::DeviceOutOfMemory { rows: step.rows as usize, reason });
        }
    }

    fn fail_parts(&mut self, step: &InFlight, reason: &str) {
        for part in &step.parts {
            let error = RequestError::LaunchFailed { step: step.number, reason: reason.to_owned() };
            self.fail(part.id, error);
        }
    }
}

/// Calls foreign code, whose panic is an error like any other.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panic_message(&*panic)))
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}
