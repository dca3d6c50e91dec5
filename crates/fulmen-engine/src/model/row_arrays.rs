//! The rows of a step as the arrays that a program reads.

use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_core::{PrefillChunk, attention_work};
use fulmen_model::ModelError;

use super::options::Slots;
use super::programs::ProgramKey;
use super::row_block::RowArrays;
use super::sampling::SlotSampling;
use crate::step::{NO_SLOT, NextToken, StepPlan};

/// The arrays of a step for a program of `key`. `states` are the pages of the recurrent states of slots.
pub(super) fn row_arrays(
    plan: &StepPlan,
    key: ProgramKey,
    slots: Slots,
    states: &[u32],
    sampling: &[SlotSampling],
) -> Result<RowArrays, ModelError> {
    // Inactive rows have slots of their own. They are in no chunk, so that attention leaves them out; in a
    // step without chunks they are like decode rows.
    let rows = || (0..).zip(&plan.rows.slots);
    let place = |(row, &slot): (u32, &u32)| match slot {
        NO_SLOT => slots.of_inactive(row.wrapping_sub(plan.rows.active)),
        slot => (slot, plan.rows.positions[row as usize]),
    };
    let mut arrays = RowArrays {
        positions: rows().map(|row| place(row).1).collect(),
        slots: rows().map(|row| place(row).0).collect(),
        states: rows().map(|row| states.get(place(row).0 as usize).copied().unwrap_or(0)).collect(),
        work: work_list(plan, key.chunks)?,
        ..RowArrays::default()
    };
    let outputs = plan.logits.iter().filter_map(|logits| Some((plan.rows.get(logits.row)?, logits)));
    let greedy = SlotSampling::default();
    for (row, logits) in outputs {
        arrays.output_rows.push(logits.row);
        // The drawn token becomes that of the next position. A known one is there: what its row draws goes to
        // a slot of inactive rows, as that of outputs that nobody wants.
        let sampling = match logits.next {
            NextToken::Sample => &sampling[row.slot as usize],
            NextToken::Known(_) => &greedy,
        };
        let (slot, position) = match logits.next {
            NextToken::Sample => (row.slot, row.position),
            NextToken::Known(_) => (slots.sequences, 0),
        };
        arrays.output_positions.push(position);
        arrays.output_slots.push(slot);
        arrays.sampling.push(sampling.state(row.position));
        arrays.penalties.push(sampling.penalties());
    }
    // A program of an earlier stage has none.
    let outputs = key.outputs as usize;
    arrays.output_rows.resize(outputs, 0);
    arrays.output_positions.resize(outputs, 0);
    arrays.output_slots.resize(outputs, slots.sequences);
    arrays.sampling.resize(outputs, SampleState::greedy());
    arrays.penalties.resize(outputs, Penalties::NONE);
    Ok(arrays)
}

/// Which rows decode and which are prefill chunks, for a program of up to `max_chunks` of them.
fn work_list(plan: &StepPlan, max_chunks: u32) -> Result<Vec<u32>, ModelError> {
    let chunk = |chunk: &crate::step::PrefillChunk| PrefillChunk {
        first_row: chunk.rows.start,
        rows: chunk.rows.end.saturating_sub(chunk.rows.start),
        sequence: chunk.slot,
        first_position: chunk.position,
    };
    let chunks: Vec<PrefillChunk> = plan.chunks.iter().map(chunk).collect();
    attention_work(plan.decode_rows, &chunks, max_chunks).map_err(|problem| ModelError::Option {
        what: "the prefill chunks of a step",
        expected: format!("at most {max_chunks} in order"),
        found: problem.to_string(),
    })
}
