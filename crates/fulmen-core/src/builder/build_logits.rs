//! Builder methods of what happens to logits beside sampling: biases, token masks and log-probabilities.

use super::build::{Built, Tensor, id_of};
use super::op::Op;
use super::{GraphBuilder, Role, TensorDef};
use crate::graph::checks::{at_least_1, check_top};
use crate::{DType, Problem};

impl GraphBuilder {
    /// The [`LogitEdits`](crate::sampling::LogitEdits) of each sampling slot, with room for `capacity`
    /// biases.
    pub fn logit_edits(&mut self, name: &str, slots: u32, capacity: u32) -> Built<Tensor> {
        let width = capacity.checked_mul(2).and_then(|words| words.checked_add(2));
        let (what, expected, got) = ("the capacity for biases", "less than 2^31 - 1", capacity.into());
        let problem = Problem::Value { what, expected, got };
        let width = self.call("logit_edits").check(width.ok_or(problem))?;
        self.index_state(name, slots, width)
    }

    /// A token mask per sampling slot: bit `t % 32` of word `t / 32` allows token `t`.
    pub fn token_masks(&mut self, name: &str, slots: u32, vocabulary: u32) -> Built<Tensor> {
        self.index_state(name, slots, vocabulary.div_ceil(32))
    }

    /// Adds the biases of each row's slot to its logits and sets those of the tokens that the slot's mask
    /// excludes to -inf. Without `slots`, row `r` has slot `r`. A row of a slot without either is not changed
    /// and costs next to nothing.
    pub fn mask_logits(
        &mut self,
        logits: Tensor,
        edits: Tensor,
        masks: Tensor,
        slots: Option<Tensor>,
    ) -> Built<Tensor> {
        let call = self.call("mask_logits");
        let (rows, width) = call.rows("the logits", logits)?;
        let (n_slots, words) = call.words("the logit edits", edits)?;
        if words < 2 || !words.is_multiple_of(2) {
            let (what, expected, got) = ("the width of the logit edits", "even and at least 2", words.into());
            return call.fail(Problem::Value { what, expected, got });
        }
        let (masks_of, words) = call.words("the token masks", masks)?;
        call.size("the rows of the token masks", n_slots, masks_of)?;
        call.size("the width of the token masks", width.div_ceil(32), words)?;
        match slots {
            Some(slots) => {
                call.check(at_least_1("the number of sampling slots", n_slots))?;
                call.indices("the sampling slots", slots, rows)?;
            }
            None => call.size("the number of sampling slots", rows, n_slots)?,
        }
        self.not_empty("mask_logits", width)?;
        let (edits, masks) = (edits.id(), masks.id());
        Ok(self.emit(Op::MaskLogits { logits: logits.id(), edits, masks, slots: id_of(slots) }, rows, width))
    }

    /// Log-probabilities, `[rows, 1 + top]`, and the tokens they belong to: of the token of each row, then of
    /// the row's `top` most likely ones. See [`sampling`](crate::sampling#log-probabilities).
    pub fn log_probs(&mut self, logits: Tensor, tokens: Tensor, top: u32) -> Built<(Tensor, Tensor)> {
        let call = self.call("log_probs");
        let (rows, width) = call.rows("the logits", logits)?;
        call.indices("tokens", tokens, rows)?;
        call.check(check_top(top))?;
        self.not_empty("log_probs", width)?;
        let op = Op::LogProbs { logits: logits.id(), tokens: tokens.id(), top };
        let values = self.emit(op, rows, 1 + top);
        let def = TensorDef { name: None, rows, width: 1 + top, dtype: DType::U32, role: Role::Computed };
        let tokens = self.push(def);
        self.graph.ops.last_mut().expect("an op was just added").outputs.push(tokens.id());
        Ok((values, tokens))
    }
}
