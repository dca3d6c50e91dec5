//! Planning a step: decode rows first, then prefill chunks.

use std::time::Duration;

use super::complete::{InFlight, Part};
use super::sequence::{Place, Sequence};
use super::{STALL_LIMIT, Scheduler};
use crate::error::RequestError;
use crate::pages::Writer;
use crate::request::RequestId;
use crate::step::{LogitsRow, NextToken, PrefillChunk, StepPlan, TableEdit, TokenMask};

/// A prompt is long if it fills the budget of more steps than this.
const LONG_PROMPT: u32 = 4;

impl Scheduler {
    /// The next step, or `None` if no row can run before a step in flight is completed. The step counts as in
    /// flight from now on: either it is launched, or [`launch_failed`](Scheduler::launch_failed) is called.
    pub fn plan(&mut self, now: Duration) -> Option<StepPlan> {
        self.step += 1;
        self.expire(now);
        self.admit();
        let mut plan = StepPlan { number: self.step, ..StepPlan::default() };
        let mut parts = Vec::new();
        self.plan_decode(&mut plan, &mut parts);
        self.plan_prefill(&mut plan, &mut parts);
        if parts.is_empty() {
            self.note_stall();
            return None;
        }
        self.stalled = 0;
        plan.prologue = std::mem::take(&mut self.prologue);
        plan.prologue.transfers = std::mem::take(&mut self.memory.transfers);
        plan.bucket = self.config.bucket(plan.rows.active);
        plan.rows.pad(plan.bucket);
        let outputs = plan.logits.iter().map(|logits| (logits.row, logits.next)).collect();
        self.in_flight.push_back(InFlight { number: self.step, rows: plan.rows.active, parts, outputs });
        self.stats.count_step(&plan);
        Some(plan)
    }

    /// The running sequences in the order of their ranks.
    fn in_order(&self, filter: impl Fn(&Sequence) -> bool) -> Vec<RequestId> {
        let ids = self.running.iter().map(|rank| rank.id);
        ids.filter(|id| filter(&self.sequences[id])).collect()
    }

    /// A row for each decoding sequence.
    fn plan_decode(&mut self, plan: &mut StepPlan, parts: &mut Vec<Part>) {
        for id in self.in_order(|sequence| !sequence.is_prefilling() && sequence.has_row()) {
            if plan.rows.active == self.row_limit {
                break;
            }
            // A sequence that was preempted by one before it has no pages any more.
            let position = self.sequences[&id].planned;
            if self.prepare_rows(id, position + 1).is_err() {
                continue;
            }
            self.add_rows(id, position + 1, Writer::Decode, plan, parts);
        }
        plan.decode_rows = plan.rows.active;
    }

    /// Chunks of prompts, up to the budget. The first prompt in line takes all of it, but a long one leaves
    /// half to the others, so that short prompts do not wait for its end.
    fn plan_prefill(&mut self, plan: &mut StepPlan, parts: &mut Vec<Part>) {
        let prompts = self.in_order(|sequence| sequence.is_prefilling() && sequence.has_row());
        let mut budget = self.row_limit.saturating_sub(plan.rows.active);
        if plan.decode_rows > 0 {
            let count = u32::try_from(prompts.len()).unwrap_or(u32::MAX);
            budget = budget.min(self.config.prefill_rows_beside(plan.decode_rows, count));
        }
        let mut outputs = self.config.prompt_outputs;
        let mut others: u32 = prompts.iter().map(|id| self.sequences[id].prefill_rows()).sum();
        for id in prompts {
            if budget == 0 {
                break;
            }
            let sequence = &self.sequences[&id];
            others = others.saturating_sub(sequence.prefill_rows());
            let long = sequence.prefill_rows() / LONG_PROMPT > budget;
            let share = if long { budget - others.min(budget / 2) } else { budget };
            self.skip_cached(id);
            let sequence = &self.sequences[&id];
            let start = sequence.planned;
            let (scored, chunk_end) =
                (sequence.scored_positions(), |share| self.chunk_end(sequence, share, outputs));
            let Some(end) = chunk_end(share).or_else(|| chunk_end(budget)) else {
                // One that waits for room for its results holds up no other prompt.
                if scored.is_empty() {
                    break;
                }
                continue;
            };
            if self.prepare_rows(id, end).is_err() {
                continue;
            }
            let first = plan.rows.active;
            if self.add_rows(id, end, Writer::Prefill, plan, parts) {
                let rows = first..plan.rows.active;
                plan.chunks.push(PrefillChunk {
                    slot: plan.rows.slots[first as usize],
                    position: start,
                    rows,
                });
                budget -= end - start;
                outputs = outputs.saturating_sub(end.min(scored.end).saturating_sub(scored.start));
            }
        }
    }

    /// The end of the next prefill chunk, of which so many rows may give log-probabilities of the prompt;
    /// `None` if the budget is too small for one.
    fn chunk_end(&self, sequence: &Sequence, budget: u32, outputs: u32) -> Option<u32> {
        let mut end = sequence.prefill_end.min(sequence.planned.saturating_add(budget));
        let scored = sequence.scored_positions();
        if scored.len() > outputs as usize {
            end = end.min(scored.start + outputs);
        }
        end = self.next_snapshot(sequence).map_or(end, |next| end.min(next));
        if self.config.batch_invariant && end < sequence.prefill_end {
            end -= end % self.config.page_size;
        }
        (end > sequence.planned).then_some(end)
    }

    /// Adds rows up to position `end` of a sequence whose pages are ready. `false` if the request has failed
    /// instead.
    fn add_rows(
        &mut self,
        id: RequestId,
        end: u32,
        writer: Writer,
        plan: &mut StepPlan,
        parts: &mut Vec<Part>,
    ) -> bool {
        let step = self.step;
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let start = sequence.planned;
        let mut mask = match sequence.samples_at(end - 1).then(|| mask_of(sequence)).transpose() {
            Ok(mask) => mask,
            Err(reason) => {
                self.fail(id, RequestError::Constraint { reason });
                return false;
            }
        };
        let Place::Running { slot, pages } = &mut sequence.place else { return false };
        let slot = *slot;
        for (group, list) in pages.lists_mut() {
            let edits = list.take_table_edits();
            self.prologue.table.extend(edits.map(|(index, page)| TableEdit { group, slot, index, page }));
        }
        self.memory.note_writer(pages, start, end, writer);
        let first = plan.rows.active;
        for position in start..end {
            let row = plan.rows.active;
            plan.rows.push(sequence.row(position, slot));
            let Some(next) = sequence.next_token(position) else { continue };
            let logits = match next {
                NextToken::Sample => {
                    plan.rows.sampling[row as usize] = slot;
                    let (logprobs, hidden) = (sequence.logprobs, sequence.hidden);
                    LogitsRow { row, next, logprobs, hidden, mask: mask.take().flatten() }
                }
                NextToken::Known(_) => {
                    let logprobs = sequence.prompt_scores.as_ref().map(|scores| scores.top);
                    LogitsRow { row, next, logprobs, hidden: false, mask: None }
                }
            };
            plan.logits.push(logits);
        }
        sequence.pending += u32::from(sequence.samples_at(end - 1));
        if let Some(scores) = &mut sequence.prompt_scores {
            scores.asked = scores.asked.max(end);
        }
        (sequence.planned, sequence.last_step) = (end, step);
        parts.push(Part { id, epoch: sequence.epoch, first, start, end });
        true
    }

    /// Nothing can run although nothing is in flight: pages could not be allocated. After some tries the
    /// first request gives up, so that the others can go on.
    fn note_stall(&mut self) {
        if !self.in_flight.is_empty() || self.sequences.is_empty() {
            return;
        }
        self.stalled += 1;
        if self.stalled < STALL_LIMIT {
            return;
        }
        if let Some(id) = self.first() {
            self.fail(id, RequestError::OutOfPages { tries: self.stalled });
        }
        self.stalled = 0;
    }
}

/// The mask of the next token of a constrained sequence. A constraint is foreign code: it may panic.
fn mask_of(sequence: &mut Sequence) -> Result<Option<TokenMask>, String> {
    let Some(constraint) = &mut sequence.constraint else { return Ok(None) };
    super::complete::guarded(|| constraint.mask()).map(Some)
}
