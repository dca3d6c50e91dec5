//! Layers with a recurrent state: causal convolution and the gated delta rule.
//!
//! Rows of a sequence are processed in their order; a row at position 0 starts from zeros, whatever the state
//! held, NaN included. NaN and infinities follow the arithmetic: once in a state, they stay until the next
//! position 0. States are rounded to f32 at the end of an op.

use std::sync::Arc;

use fulmen_core::{DeltaHeads, NO_STATE, Slots, TensorId};

use super::step::index;
use super::{Data, Interpreter, ReferenceError, Result, sigmoid, silu};

impl Interpreter {
    /// Position and sequence of each row, checked; no sequence for inactive ones.
    fn state_rows(&self, state: TensorId, slots: &Slots) -> Result<Vec<(u32, Option<usize>)>> {
        let positions = self.ints(slots.positions)?;
        let numbers = slots.sequences.map_or_else(|| Ok(vec![0; positions.len()]), |id| self.ints(id))?;
        let limit = self.rows(state) as u32;
        let sequence = |number| match number {
            NO_STATE => Ok(None),
            number if number < limit => Ok(Some(number as usize)),
            number => Err(index("the sequence", number, limit)),
        };
        let sequences: Result<Vec<Option<usize>>> = numbers.into_iter().map(sequence).collect();
        Ok(positions.into_iter().zip(sequences?).collect())
    }

    fn set_floats(&mut self, id: TensorId, values: &[f64]) -> Result<()> {
        let name = self.name(id);
        match &mut self.tensors[id] {
            Some(Data::Stored { bytes, .. }) => {
                let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
                Arc::make_mut(bytes).copy_from_slice(bytemuck::cast_slice(&values));
                Ok(())
            }
            _ => Err(ReferenceError::NoData(name)),
        }
    }

    /// The last inputs of a channel times its taps, then SiLU.
    pub(super) fn causal_conv(
        &mut self,
        x: TensorId,
        weight: TensorId,
        state: TensorId,
        slots: &Slots,
    ) -> Result<Vec<f64>> {
        let (values, weights) = (self.floats(x)?, self.floats(weight)?);
        let (channels, taps, rows) = (self.width(x), self.width(weight), self.state_rows(state, slots)?);
        let mut states = self.floats(state)?;
        let mut output = Vec::with_capacity(values.len());
        for (row, (position, sequence)) in values.chunks(channels).zip(rows) {
            let Some(sequence) = sequence else {
                output.extend(std::iter::repeat_n(0.0, channels));
                continue;
            };
            let past = &mut states[sequence * (taps - 1) * channels..][..(taps - 1) * channels];
            if position == 0 {
                past.fill(0.0);
            }
            for (channel, x) in row.iter().enumerate() {
                let inputs = past[channel..].iter().step_by(channels).chain([x]);
                let sum: f64 = inputs.zip(&weights[channel * taps..][..taps]).map(|(x, w)| x * w).sum();
                output.push(silu(sum));
            }
            past.rotate_left(channels);
            past[(taps - 2) * channels..].copy_from_slice(row);
        }
        self.set_floats(state, &states)?;
        Ok(output)
    }

    /// See [`GatedDeltaRuleCall`](fulmen_core::GatedDeltaRuleCall).
    pub(super) fn gated_delta_rule(
        &mut self,
        [qkv, alpha, beta]: [TensorId; 3],
        [decay, dt]: [TensorId; 2],
        state: TensorId,
        slots: &Slots,
        heads: DeltaHeads,
        epsilon: f32,
    ) -> Result<Vec<f64>> {
        let (x, alpha, beta) = (self.floats(qkv)?, self.floats(alpha)?, self.floats(beta)?);
        let (decay, dt, rows) = (self.floats(decay)?, self.floats(dt)?, self.state_rows(state, slots)?);
        let (d, values, keys) = (heads.head_dim as usize, heads.n_v_heads as usize, heads.n_k_heads as usize);
        let mut states = self.floats(state)?;
        let mut output = Vec::new();
        for (row, (position, sequence)) in rows.into_iter().enumerate() {
            let Some(sequence) = sequence else {
                output.extend(std::iter::repeat_n(0.0, values * d));
                continue;
            };
            for head in 0..values {
                let state = &mut states[(sequence * values + head) * d * d..][..d * d];
                if position == 0 {
                    state.fill(0.0);
                }
                let of =
                    |first: usize, head: usize| &x[row * heads.width() as usize + (first + head) * d..][..d];
                let key_head = heads.key_head(head as u32) as usize;
                let q = l2_normalized(of(0, key_head), epsilon);
                let k = l2_normalized(of(keys, key_head), epsilon);
                let v = of(2 * keys, head);
                let gate = (decay[head] * softplus(alpha[row * values + head] + dt[head])).exp();
                let beta = sigmoid(beta[row * values + head]);
                state.iter_mut().for_each(|s| *s *= gate);
                for column in 0..d {
                    let predicted: f64 = (0..d).map(|i| k[i] * state[i * d + column]).sum();
                    let update = beta * (v[column] - predicted);
                    (0..d).for_each(|i| state[i * d + column] += k[i] * update);
                    let read: f64 = (0..d).map(|i| q[i] * state[i * d + column]).sum();
                    output.push(read / (d as f64).sqrt());
                }
            }
        }
        self.set_floats(state, &states)?;
        Ok(output)
    }
}

/// The row divided by its L2 norm, but at least by epsilon.
fn l2_normalized(row: &[f64], epsilon: f32) -> Vec<f64> {
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let divisor = if norm < f64::from(epsilon) { f64::from(epsilon) } else { norm };
    row.iter().map(|x| x / divisor).collect()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
