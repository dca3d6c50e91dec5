//! Between steps: tokens from the history, and drawn tokens into it.

use fulmen_core::{AdvanceCall, GatherTokensCall, TokenHistory};

use super::operands::check_below;
use super::{CpuDispatcher, Launched};
use crate::kernels::{advance, gather_tokens};

impl CpuDispatcher {
    pub(super) fn gather_tokens(&mut self, call: &GatherTokensCall) -> Launched {
        let TokenHistory { ptr, n_seqs, capacity } = call.history;
        let positions = self.indices("positions", call.positions, call.m)?;
        let sequences = call.sequences.map(|ptr| self.indices("sequences", ptr, call.m)).transpose()?;
        let history = self.memory.span_mut::<u32>("the history", ptr, n_seqs as usize * capacity as usize)?;
        let out = self.memory.span_mut::<u32>("the output", call.output, call.m as usize)?;
        for output in [history, out] {
            output.apart_from(positions)?;
            sequences.map_or(Ok(()), |sequences| output.apart_from(sequences))?;
        }
        out.apart_from(history)?;
        // SAFETY: looked up, and disjoint from each other.
        let (positions, sequences) = unsafe { (positions.slice(), sequences.map(|s| s.slice())) };
        check_below("the sequence", sequences.unwrap_or(&[]), n_seqs)?;
        check_below("the position", positions, capacity)?;
        // SAFETY: as above.
        let (history, out) = unsafe { (history.slice_mut(), out.slice_mut()) };
        gather_tokens::gather_tokens(history, capacity as usize, positions, sequences, out);
        Ok(1)
    }

    pub(super) fn advance(&mut self, call: &AdvanceCall) -> Launched {
        let (m, TokenHistory { ptr, n_seqs, capacity }) = (call.m as usize, call.history);
        let drawn = self.indices("the sampled tokens", call.drawn, call.m)?;
        let sequences = call.sequences.map(|ptr| self.indices("sequences", ptr, call.m)).transpose()?;
        let tokens = self.memory.span_mut::<u32>("tokens", call.tokens, m)?;
        let positions = self.memory.span_mut::<u32>("positions", call.positions, m)?;
        let history = self.memory.span_mut::<u32>("the history", ptr, n_seqs as usize * capacity as usize)?;
        for output in [tokens, positions, history] {
            output.apart_from(drawn)?;
            sequences.map_or(Ok(()), |sequences| output.apart_from(sequences))?;
        }
        tokens.apart_from(positions)?;
        history.apart_from(tokens)?;
        history.apart_from(positions)?;
        // SAFETY: looked up, and disjoint from each other.
        let (drawn, sequences) = unsafe { (drawn.slice(), sequences.map(|s| s.slice())) };
        check_below("the sequence", sequences.unwrap_or(&[]), n_seqs)?;
        // SAFETY: as above.
        let (tokens, positions, history) =
            unsafe { (tokens.slice_mut(), positions.slice_mut(), history.slice_mut()) };
        advance::advance(drawn, sequences, capacity as usize, tokens, positions, history);
        Ok(1)
    }
}
