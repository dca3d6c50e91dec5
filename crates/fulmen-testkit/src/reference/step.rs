//! Between decode steps: token penalties, and the tokens and positions of the next step.

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::sampling::{NO_TOKEN, Penalties};
use fulmen_core::{Slots, TensorId};

use super::{Data, Interpreter, ReferenceError, Result};

impl Interpreter {
    /// The sequence of each row, checked.
    pub(super) fn sequence_rows(
        &self,
        sequences: Option<TensorId>,
        rows: usize,
        history: TensorId,
    ) -> Result<Vec<usize>> {
        let limit = self.rows(history) as u32;
        let numbers = sequences.map_or_else(|| Ok(vec![0; rows]), |id| self.ints(id))?;
        let checked = numbers.into_iter().map(|value| {
            if value < limit { Ok(value as usize) } else { Err(index("the sequence", value, limit)) }
        });
        checked.collect()
    }

    /// See [`Penalties`]. NaN and infinities follow the arithmetic.
    pub(super) fn penalize(
        &self,
        logits: TensorId,
        penalties: TensorId,
        history: TensorId,
        slots: &Slots,
    ) -> Result<Vec<f64>> {
        let (mut values, width) = (self.floats(logits)?, self.width(logits));
        let (tokens, capacity) = (self.ints(history)?, self.width(history));
        let positions = self.ints(slots.positions)?;
        let sequences = self.sequence_rows(slots.sequences, positions.len(), history)?;
        let words = self.ints(penalties)?;
        for (row, logits) in values.chunks_mut(width).enumerate() {
            let penalties: Penalties =
                bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[4 * row..][..4]));
            let end = positions[row] as usize + 1;
            if end > capacity {
                return Err(index("the position", positions[row], capacity as u32));
            }
            let start = end.saturating_sub(penalties.window as usize);
            let mut counts = HashMap::<u32, u32>::new();
            for &token in &tokens[sequences[row] * capacity..][start..end] {
                *counts.entry(token).or_default() += 1;
            }
            for (token, count) in counts {
                let limit = width as u32;
                let logit = logits.get_mut(token as usize).ok_or_else(|| index("the token", token, limit))?;
                let repeat = f64::from(penalties.repeat);
                *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
                *logit -= f64::from(count) * f64::from(penalties.frequency) + f64::from(penalties.presence);
            }
        }
        Ok(values)
    }

    /// The token of each row at its position of the history, where `NO_TOKEN` becomes 0.
    pub(super) fn gather_tokens(&mut self, history: TensorId, slots: &Slots) -> Result<Vec<Data>> {
        let (mut tokens, capacity) = (self.ints(history)?, self.width(history));
        let positions = self.ints(slots.positions)?;
        let sequences = self.sequence_rows(slots.sequences, positions.len(), history)?;
        let mut values = Vec::with_capacity(positions.len());
        for (&position, sequence) in positions.iter().zip(sequences) {
            if position as usize >= capacity {
                return Err(index("the position", position, capacity as u32));
            }
            let token = &mut tokens[sequence * capacity + position as usize];
            if *token == NO_TOKEN {
                *token = 0;
            }
            values.push(*token);
        }
        self.set_ints(history, &tokens)?;
        Ok(vec![Data::Ints { values, undecided: Vec::new() }])
    }

    /// Updates the three states.
    pub(super) fn advance(
        &mut self,
        drawn: TensorId,
        tokens: TensorId,
        positions: TensorId,
        history: TensorId,
        sequences: Option<TensorId>,
    ) -> Result<()> {
        let (drawn, capacity) = (self.ints(drawn)?, self.width(history));
        let sequences = self.sequence_rows(sequences, drawn.len(), history)?;
        let (mut next, mut past) = (self.ints(positions)?, self.ints(history)?);
        for (row, &token) in drawn.iter().enumerate() {
            next[row] = next[row].saturating_add(1).min(capacity as u32 - 1);
            past[sequences[row] * capacity + next[row] as usize] = token;
        }
        self.set_ints(tokens, &drawn)?;
        self.set_ints(positions, &next)?;
        self.set_ints(history, &past)
    }

    fn set_ints(&mut self, id: TensorId, values: &[u32]) -> Result<()> {
        let name = self.name(id);
        match &mut self.tensors[id] {
            Some(Data::Stored { bytes, .. }) => {
                Arc::make_mut(bytes).copy_from_slice(bytemuck::cast_slice(values));
                Ok(())
            }
            _ => Err(ReferenceError::NoData(name)),
        }
    }
}

pub(super) fn index(what: &'static str, value: u32, limit: u32) -> ReferenceError {
    ReferenceError::Index { what, value, limit }
}
