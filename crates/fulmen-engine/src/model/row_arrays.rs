//! The rows of a step as the arrays that a program reads.

use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_core::{NO_STATE, PrefillChunk, attention_work};
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
        states: rows().map(|row| states.get(place(row).0 as usize).copied().unwrap_or(NO_STATE)).collect(),
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

#[cfg(test)]
mod tests {
    use super::super::programs::OutputNeeds;
    use super::*;
    use crate::step::{LogitsRow, NextToken, PrefillChunk, Row, RowToken, Rows};

    /// Slot 1 decodes at position 9, and slot 0 runs positions 2 and 3 of its prompt.
    fn plan() -> StepPlan {
        let mut rows = Rows::default();
        for (slot, position) in [(1, 9), (0, 2), (0, 3)] {
            rows.push(Row { token: RowToken::Known(5), position, slot });
        }
        rows.pad(5);
        let output = |row, next| LogitsRow { row, next, logprobs: None, hidden: false, mask: None };
        let logits = [(0, NextToken::Sample), (1, NextToken::Known(7)), (2, NextToken::Sample)];
        StepPlan {
            bucket: 5,
            rows,
            decode_rows: 1,
            chunks: vec![PrefillChunk { slot: 0, position: 2, rows: 1..3 }],
            logits: logits.map(|(row, next)| output(row, next)).to_vec(),
            ..StepPlan::default()
        }
    }

    #[test]
    fn inactive_rows_have_slots_and_no_states_and_known_tokens_draw_into_them() {
        let key = ProgramKey::new(5, 1, 3, 6, OutputNeeds::NONE);
        let (slots, states) = (Slots { sequences: 4, inactive: 2 }, [8, 6, NO_STATE, NO_STATE, NO_STATE]);
        let arrays = row_arrays(&plan(), key, slots, &states, &vec![SlotSampling::default(); 4]).unwrap();
        assert_eq!((arrays.slots, arrays.positions), (vec![1, 0, 0, 4, 5], vec![9, 2, 3, 0, 0]));
        assert_eq!(arrays.states, [6, 8, 8, NO_STATE, NO_STATE]);
        assert_eq!(arrays.output_rows, [0, 1, 2, 0]);
        assert_eq!(arrays.output_slots, [1, 4, 0, 4]);
        assert_eq!(arrays.output_positions, [9, 0, 3, 0]);
    }
}
