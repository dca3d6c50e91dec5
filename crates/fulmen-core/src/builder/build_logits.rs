//! Builder methods of what follows the logits: biases, token masks, penalties, log-probabilities, sampling
//! and the tokens of the next step.

use super::build::{Built, Tensor, id_of};
use super::op::{Op, Slots};
use super::{GraphBuilder, OpNode, Role, TensorDef};
use crate::graph::checks::{at_least_1, check_first_index, check_top, check_top_k};
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
        Ok(self.emit_with_indices(op, rows, 1 + top))
    }

    /// The `k` largest values of each row in descending order, `[rows, k]`, and their columns, each plus
    /// `first`. See [`TopKCall`](crate::TopKCall).
    pub fn top_k(&mut self, x: Tensor, k: u32, first: u32) -> Built<(Tensor, Tensor)> {
        let call = self.call("top_k");
        let (rows, width) = call.rows("the input", x)?;
        call.check(check_top_k(k))?;
        call.check(check_first_index(first, width))?;
        self.not_empty("top_k", width)?;
        Ok(self.emit_with_indices(Op::TopK { x: x.id(), k, first }, rows, k))
    }

    /// Values and as many indices.
    fn emit_with_indices(&mut self, op: Op, rows: u32, width: u32) -> (Tensor, Tensor) {
        let values = self.emit(op, rows, width);
        let def = TensorDef { name: None, rows, width, dtype: DType::U32, role: Role::Computed };
        let indices = self.push(def);
        self.graph.ops.last_mut().expect("an op was just added").outputs.push(indices.id());
        (values, indices)
    }

    /// Index of the largest element of each row.
    pub fn argmax(&mut self, x: Tensor) -> Built<Tensor> {
        let (rows, width) = self.call("argmax").rows("the input", x)?;
        self.not_empty("argmax", width)?;
        Ok(self.emit_indices(Op::ArgMax { x: x.id() }, rows))
    }

    /// A token sampled from each row of logits with the row's state.
    pub fn sample(&mut self, logits: Tensor, states: Tensor) -> Built<Tensor> {
        self.sample_from(logits, None, states)
    }

    /// As [`sample`](GraphBuilder::sample) from the logits of the given `tokens`; of equal logits the lowest
    /// token must come first.
    pub fn sample_tokens(&mut self, logits: Tensor, tokens: Tensor, states: Tensor) -> Built<Tensor> {
        self.sample_from(logits, Some(tokens), states)
    }

    fn sample_from(&mut self, logits: Tensor, tokens: Option<Tensor>, states: Tensor) -> Built<Tensor> {
        let call = self.call("sample");
        let (rows, width) = call.rows("the logits", logits)?;
        if let Some(tokens) = tokens {
            let (token_rows, count) = call.words("the tokens", tokens)?;
            call.size("the rows of the tokens", rows, token_rows)?;
            call.size("the width of the tokens", width, count)?;
        }
        call.size("the rows of the states", rows, call.def("the states", states)?.rows)?;
        call.size("the width of the states", 8, call.def("the states", states)?.width)?;
        self.not_empty("sample", width)?;
        let (tokens, states) = (id_of(tokens), states.id());
        Ok(self.emit_indices(Op::Sample { logits: logits.id(), tokens, states }, rows))
    }

    /// Applies each row's penalties to the logits of the tokens in `history` (`[sequences, capacity]`) up to
    /// the row's position.
    pub fn penalize(
        &mut self,
        logits: Tensor,
        penalties: Tensor,
        history: Tensor,
        positions: Tensor,
        sequences: Option<Tensor>,
    ) -> Built<Tensor> {
        let call = self.call("penalize");
        let (rows, width) = call.rows("the logits", logits)?;
        call.size("the rows of the penalties", rows, call.def("the penalties", penalties)?.rows)?;
        call.size("the width of the penalties", 4, call.def("the penalties", penalties)?.width)?;
        call.history(history)?;
        call.indices("positions", positions, rows)?;
        sequences.map_or(Ok(()), |sequences| call.indices("sequences", sequences, rows))?;
        self.not_empty("penalize", width)?;
        let slots = Slots { positions: positions.id(), sequences: id_of(sequences) };
        let (penalties, history) = (penalties.id(), history.id());
        Ok(self.emit(Op::Penalize { logits: logits.id(), penalties, history, slots }, rows, width))
    }

    /// The token of each row: that of its sequence in `history` (`[sequences, capacity]`), a state, at its
    /// position. A [`NO_TOKEN`](crate::sampling::NO_TOKEN) there gives token 0 and is replaced by it.
    pub fn gather_tokens(
        &mut self,
        history: Tensor,
        positions: Tensor,
        sequences: Option<Tensor>,
    ) -> Built<Tensor> {
        let call = self.call("gather_tokens");
        call.history(history)?;
        call.state("the history", history)?;
        let rows = call.def("positions", positions)?.rows;
        call.indices("positions", positions, rows)?;
        sequences.map_or(Ok(()), |sequences| call.indices("sequences", sequences, rows))?;
        let slots = Slots { positions: positions.id(), sequences: id_of(sequences) };
        Ok(self.emit_indices(Op::GatherTokens { history: history.id(), slots }, rows))
    }

    /// Prepares the next decode step: copies the sampled tokens to `tokens`, increments `positions` but not
    /// past the last position, and stores each token in `history` (`[sequences, capacity]`) at its position.
    /// All three are states.
    pub fn advance(
        &mut self,
        drawn: Tensor,
        tokens: Tensor,
        positions: Tensor,
        history: Tensor,
        sequences: Option<Tensor>,
    ) -> Built<()> {
        let call = self.call("advance");
        let rows = call.def("the sampled tokens", drawn)?.rows;
        call.indices("the sampled tokens", drawn, rows)?;
        for (what, tensor) in [("tokens", tokens), ("positions", positions)] {
            call.indices(what, tensor, rows)?;
            call.state(what, tensor)?;
        }
        call.history(history)?;
        call.state("the history", history)?;
        sequences.map_or(Ok(()), |sequences| call.indices("sequences", sequences, rows))?;
        let (drawn, tokens, positions) = (drawn.id(), tokens.id(), positions.id());
        let op = Op::Advance { drawn, tokens, positions, history: history.id(), sequences: id_of(sequences) };
        self.graph.ops.push(OpNode { op, outputs: Vec::new() });
        Ok(())
    }

    fn emit_indices(&mut self, op: Op, rows: u32) -> Tensor {
        let output = self.emit(op, rows, 1);
        self.graph.tensors[output.id()].dtype = DType::U32;
        output
    }
}
