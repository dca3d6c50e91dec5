//! From logits to the next decode step: argmax, sampling, penalties, and advancing tokens and positions.

use fulmen_core::{
    AdvanceCall, ArgMaxCall, BackendError, GatherTokensCall, PenalizeCall, SampleCall, TokenHistory,
    sampling::{Penalties, SampleState},
};

use super::{LaunchCount, WgpuDispatcher};
use crate::buffer::BufferSlice;
use crate::kernels::{
    Role,
    argmax::argmax,
    history_rows::{HistoryRows, advance, gather_tokens},
    penalize::{Penalize, penalize},
    sample::sample,
};

impl WgpuDispatcher {
    pub(super) fn argmax(&mut self, call: &ArgMaxCall) -> LaunchCount {
        let &ArgMaxCall { input, output, m, n } = call;
        self.writes(output);
        let x = self.matrix("the input", input, m, n)?;
        let out = self.at("the output", output, m as usize)?;
        let launches = argmax(m, n, &self.queue.caps());
        self.queue.run_launches(launches, &[x], &[out])
    }

    pub(super) fn sample(&mut self, call: &SampleCall) -> LaunchCount {
        let &SampleCall { logits, tokens, states, output, m, n } = call;
        self.writes(output);
        self.writes(states);
        let mut inputs = vec![self.matrix("the logits", logits, m, n)?];
        inputs.extend(tokens.map(|tokens| self.matrix("the tokens", tokens, m, n)).transpose()?);
        let states =
            self.memory.slice("the sampling states", states, m as usize * size_of::<SampleState>())?;
        let out = self.at("the output", output, m as usize)?;
        let (launches, fault) = (sample(m, n, tokens.is_some(), &self.queue.caps()), self.queue.fault());
        self.queue.run_launches(launches, &inputs, &[out, states, fault])
    }

    pub(super) fn penalize(&mut self, call: &PenalizeCall) -> LaunchCount {
        let &PenalizeCall { logits, penalties, ref history, positions, sequences, output, m, n } = call;
        self.writes(output);
        let rows = m as usize;
        let mut operands = vec![
            (Role::Input(0), self.matrix("the logits", logits, m, n)?),
            (Role::Input(1), self.memory.slice("the penalties", penalties, rows * size_of::<Penalties>())?),
            (Role::Input(2), self.history(history)?),
            (Role::Input(3), self.at("positions", positions, rows)?),
            (Role::Output(0), self.matrix("the output", output, m, n)?),
            (Role::Output(1), self.queue.fault()),
        ];
        if let Some(ptr) = sequences {
            operands.push((Role::Input(4), self.at("sequences", ptr, rows)?));
        }
        let &TokenHistory { n_seqs, capacity, .. } = history;
        let sequences = sequences.is_some();
        let spec = Penalize { m, n, n_seqs, capacity, sequences, in_place: logits == output };
        let launches = penalize(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn gather_tokens(&mut self, call: &GatherTokensCall) -> LaunchCount {
        let &GatherTokensCall { ref history, positions, sequences, output, m } = call;
        self.writes(history.ptr);
        self.writes(output);
        let rows = m as usize;
        let mut operands = vec![
            (Role::Input(0), self.at("positions", positions, rows)?),
            (Role::Output(0), self.at("the output", output, rows)?),
            (Role::Output(1), self.history(history)?),
            (Role::Output(2), self.queue.fault()),
        ];
        if let Some(ptr) = sequences {
            operands.push((Role::Input(1), self.at("sequences", ptr, rows)?));
        }
        let &TokenHistory { n_seqs, capacity, .. } = history;
        let spec = HistoryRows { m, n_seqs, capacity, sequences: sequences.is_some() };
        let launches = gather_tokens(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn advance(&mut self, call: &AdvanceCall) -> LaunchCount {
        let &AdvanceCall { drawn, tokens, positions, sequences, ref history, m } = call;
        self.writes(tokens);
        self.writes(positions);
        self.writes(history.ptr);
        let rows = m as usize;
        let mut operands = vec![
            (Role::Input(0), self.at("the sampled tokens", drawn, rows)?),
            (Role::Output(0), self.at("tokens", tokens, rows)?),
            (Role::Output(1), self.at("positions", positions, rows)?),
            (Role::Output(2), self.history(history)?),
            (Role::Output(3), self.queue.fault()),
        ];
        if let Some(ptr) = sequences {
            operands.push((Role::Input(1), self.at("sequences", ptr, rows)?));
        }
        let &TokenHistory { n_seqs, capacity, .. } = history;
        let spec = HistoryRows { m, n_seqs, capacity, sequences: sequences.is_some() };
        let launches = advance(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    fn history(&self, history: &TokenHistory) -> Result<BufferSlice, BackendError> {
        let tokens = (history.n_seqs as usize).saturating_mul(history.capacity as usize);
        self.at("the history", history.ptr, tokens)
    }
}
