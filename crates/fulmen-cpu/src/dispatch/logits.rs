//! Sampling, logit biases, token masks, the largest logits and log-probabilities.

use fulmen_core::sampling::{NO_SLOT, SampleState, SamplingError, is_bias};
use fulmen_core::{BackendError, LogProbsCall, LogitSlots, MaskLogitsCall, SampleCall, TopKCall};

use super::{CpuDispatcher, Launched};
use crate::kernels::{copy, log_probs, mask_logits, sample, top_k};

/// The edits of a slot: whether it is masked, and its biases.
fn edits_of(row: usize, words: &[u32], n: u32) -> Result<(bool, &[[u32; 2]]), BackendError> {
    let invalid = |error: SamplingError| BackendError::Parameter {
        what: "the logit edits",
        row,
        detail: error.to_string(),
    };
    let (header, pairs) = words.split_at(2);
    let (count, capacity) = (header[1], (pairs.len() / 2) as u32);
    let biases = pairs.as_chunks::<2>().0.get(..count as usize);
    let biases = biases.ok_or_else(|| invalid(SamplingError::Biases { count, capacity }))?;
    for &[token, bits] in biases {
        if token >= n {
            return Err(BackendError::Index { what: "the token", row, value: token, limit: n });
        }
        let value = f32::from_bits(bits);
        if !is_bias(value) {
            return Err(invalid(SamplingError::Bias { token, value }));
        }
    }
    Ok((header[0] != 0, biases))
}

impl CpuDispatcher {
    pub(super) fn sample(&mut self, call: &SampleCall) -> Launched {
        let logits = self.f32_rows("the logits", call.logits, call.m, call.n)?;
        let states =
            self.memory.span_mut::<SampleState>("the sampling states", call.states, call.m as usize)?;
        let out = self.memory.span_mut::<u32>("the output", call.output, call.m as usize)?;
        let count = call.m as usize * call.n as usize;
        let tokens = call.tokens.map(|ptr| self.memory.span::<u32>("the tokens", ptr, count)).transpose()?;
        for operand in [Some(logits), tokens].into_iter().flatten() {
            out.apart_from(operand)?;
            states.apart_from(operand)?;
        }
        out.apart_from(states)?;
        // SAFETY: looked up, and disjoint from each other.
        let (logits, tokens) = unsafe { (logits.slice(), tokens.map(|tokens| tokens.slice())) };
        // SAFETY: looked up, and disjoint from each other and from what is read.
        let (states, out) = unsafe { (states.slice_mut::<SampleState>(), out.slice_mut()) };
        for (row, state) in states.iter().enumerate() {
            state.validate().map_err(|e| BackendError::Parameter {
                what: "the sampling state",
                row,
                detail: e.to_string(),
            })?;
        }
        sample::sample(&self.pool, self.isa, logits, call.n as usize, tokens, states, out);
        Ok(1)
    }

    pub(super) fn mask_logits(&mut self, call: &MaskLogitsCall) -> Launched {
        let &MaskLogitsCall { state, m, n, .. } = call;
        let LogitSlots { edits_ptr, masks_ptr, n_slots, .. } = state;
        let (edit_words, mask_words) = (state.edit_words() as usize, n.div_ceil(32) as usize);
        let logits = self.f32_rows("the logits", call.logits, m, n)?;
        let edits = self.memory.span::<u32>("the logit edits", edits_ptr, n_slots as usize * edit_words)?;
        let masks = self.memory.span::<u32>("the token masks", masks_ptr, n_slots as usize * mask_words)?;
        let slots = call.slots.map(|ptr| self.indices("the sampling slots", ptr, m)).transpose()?;
        let out = self.f32_rows_mut("the output", call.output, m, n)?;
        out.apart_or_same(logits)?;
        for operand in [Some(edits), Some(masks), slots].into_iter().flatten() {
            out.apart_from(operand)?;
        }
        // SAFETY: looked up, and the output is disjoint from them.
        let (edits, masks, slots) =
            unsafe { (edits.slice::<u32>(), masks.slice::<u32>(), slots.map(|slots| slots.slice::<u32>())) };
        let slot_of = |row: usize| slots.map_or(row as u32, |slots| slots[row]);
        let of_row = |row: usize| {
            let slot = slot_of(row) as usize;
            edits_of(row, &edits[slot * edit_words..][..edit_words], n)
        };
        for row in 0..m as usize {
            match slot_of(row) {
                NO_SLOT => {}
                value if value >= n_slots => {
                    return Err(BackendError::Index {
                        what: "the sampling slot",
                        row,
                        value,
                        limit: n_slots,
                    });
                }
                _ => _ = of_row(row)?,
            }
        }
        if out.ptr != logits.ptr {
            // SAFETY: looked up, and disjoint from each other.
            unsafe { copy::copy(&self.pool, logits.slice(), out.slice_mut()) };
        }
        // SAFETY: looked up; nothing refers to the logits any more.
        let rows = unsafe { out.slice_mut::<f32>() };
        for (row, logits) in rows.chunks_mut(n as usize).enumerate() {
            if slot_of(row) == NO_SLOT {
                continue;
            }
            let (masked, biases) = of_row(row)?;
            let mask = masked.then(|| &masks[slot_of(row) as usize * mask_words..][..mask_words]);
            mask_logits::mask_logits(logits, biases, mask);
        }
        Ok(1)
    }

    pub(super) fn top_k(&mut self, call: &TopKCall) -> Launched {
        let &TopKCall { m, n, k, first, .. } = call;
        let count = m as usize * k as usize;
        let x = self.f32_rows("the input", call.input, m, n)?;
        let values = self.memory.span_mut::<f32>("the values", call.values, count)?;
        let indices = self.memory.span_mut::<u32>("the indices", call.indices, count)?;
        values.apart_from(x)?;
        indices.apart_from(x)?;
        values.apart_from(indices)?;
        // SAFETY: looked up, and disjoint from each other.
        let (x, values, indices) = unsafe { (x.slice(), values.slice_mut(), indices.slice_mut()) };
        top_k::top_k(&self.pool, self.isa, x, n as usize, k as usize, first, values, indices);
        Ok(1)
    }

    pub(super) fn log_probs(&mut self, call: &LogProbsCall) -> Launched {
        let &LogProbsCall { m, n, top, .. } = call;
        let count = m as usize * (1 + top as usize);
        let logits = self.f32_rows("the logits", call.logits, m, n)?;
        let tokens = self.indices("tokens", call.tokens, m)?;
        let values = self.memory.span_mut::<f32>("the values", call.values, count)?;
        let indices = self.memory.span_mut::<u32>("the tokens of the values", call.indices, count)?;
        for output in [values, indices] {
            output.apart_from(logits)?;
            output.apart_from(tokens)?;
        }
        values.apart_from(indices)?;
        // SAFETY: looked up, and disjoint from each other.
        let (logits, tokens, values, indices) =
            unsafe { (logits.slice(), tokens.slice(), values.slice_mut(), indices.slice_mut()) };
        let (width, top) = (n as usize, top as usize);
        log_probs::log_probs(&self.pool, self.isa, logits, width, tokens, top, values, indices);
        Ok(1)
    }
}
