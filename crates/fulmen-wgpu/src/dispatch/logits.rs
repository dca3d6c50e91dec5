//! Logit biases, token masks, the largest logits and log-probabilities.

use fulmen_core::{LogProbsCall, LogitSlots, MaskLogitsCall, TopKCall};

use super::{LaunchCount, WgpuDispatcher};
use crate::kernels::{
    Role,
    log_probs::log_probs,
    mask_logits::{MaskLogits, mask_logits},
    top_k::top_k,
};

impl WgpuDispatcher {
    pub(super) fn mask_logits(&mut self, call: &MaskLogitsCall) -> LaunchCount {
        let &MaskLogitsCall { logits, state, slots, output, m, n } = call;
        let LogitSlots { edits_ptr, masks_ptr, n_slots, capacity } = state;
        self.writes(output);
        let words = |width: u32| (n_slots as usize).saturating_mul(width as usize);
        let mut operands = vec![
            (Role::Input(0), self.matrix("the logits", logits, m, n)?),
            (Role::Input(1), self.at("the logit edits", edits_ptr, words(state.edit_words()))?),
            (Role::Input(2), self.at("the token masks", masks_ptr, words(n.div_ceil(32)))?),
            (Role::Output(0), self.matrix("the output", output, m, n)?),
            (Role::Output(1), self.queue.fault()),
        ];
        if let Some(ptr) = slots {
            operands.push((Role::Input(3), self.at("the sampling slots", ptr, m as usize)?));
        }
        let (slots, in_place) = (slots.is_some(), logits == output);
        let spec = MaskLogits { m, n, n_slots, capacity, slots, in_place };
        let launches = mask_logits(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn top_k(&mut self, call: &TopKCall) -> LaunchCount {
        let &TopKCall { input, values, indices, m, n, k, first } = call;
        self.writes(values);
        self.writes(indices);
        let count = (m as usize).saturating_mul(k as usize);
        let x = self.matrix("the input", input, m, n)?;
        let outputs = [self.at("the values", values, count)?, self.at("the indices", indices, count)?];
        let launches = top_k(m, n, k, first, &self.queue.caps());
        self.queue.run_launches(launches, &[x], &outputs)
    }

    pub(super) fn log_probs(&mut self, call: &LogProbsCall) -> LaunchCount {
        let &LogProbsCall { logits, tokens, values, indices, m, n, top } = call;
        self.writes(values);
        self.writes(indices);
        let count = (m as usize).saturating_mul(top as usize + 1);
        let inputs = [self.matrix("the logits", logits, m, n)?, self.at("tokens", tokens, m as usize)?];
        let outputs =
            [self.at("the values", values, count)?, self.at("the tokens of the values", indices, count)?];
        let launches = log_probs(m, n, top, &self.queue.caps());
        self.queue.run_launches(launches, &inputs, &outputs)
    }
}
