//! A program cut at the calls that the host runs: collectives, for devices that cannot exchange values inside
//! a captured program, and host segments. What is between two of them is captured and replayed by itself.

use super::call::{CopyCall, SampleCall};
use super::{OpCall, PlannedCall, Program, ProgramCall};

/// What a program runs up to the next call of the host, or that call.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Calls of this device alone, as planned in the whole program, whose memory they use.
    Calls(Program),
    /// A call that the host runs.
    Host(ProgramCall),
}

impl Program {
    /// The program in segments, in order, cut at the calls that `of_host` chooses. No planned call may
    /// contain one of them and another call.
    pub fn segments(&self, of_host: impl Fn(&OpCall) -> bool) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut pending: Vec<PlannedCall> = Vec::new();
        for planned in self.planned_calls() {
            let calls = &self.calls()[planned.calls.clone()];
            match calls {
                [call] if of_host(&call.call) => {
                    segments.extend(self.segment(std::mem::take(&mut pending)));
                    segments.push(Segment::Host(call.clone()));
                }
                _ => pending.push(planned.clone()),
            }
        }
        segments.extend(self.segment(pending));
        segments
    }

    /// The program of one rank without the others: a copy of its own part in place of each collective. It
    /// takes the time that the rank takes beside its collectives, and computes nothing of use.
    pub fn of_rank_alone(&self) -> Program {
        let alone = |step: &ProgramCall| ProgramCall { call: step.call.of_rank_alone(), ..step.clone() };
        let calls = self.calls().iter().map(alone).collect();
        self.with_planned(calls, self.planned_calls().to_vec())
    }

    /// The program of some of its planned calls, which are consecutive.
    fn segment(&self, mut planned: Vec<PlannedCall>) -> Option<Segment> {
        let (first, end) = (planned.first()?.calls.start, planned.last()?.calls.end);
        let is_planned = self.planned_calls().first().is_some_and(|call| call.first);
        for (number, call) in planned.iter_mut().enumerate() {
            call.calls = call.calls.start - first..call.calls.end - first;
            call.prefetch = call.prefetch.filter(|&call| call < end).map(|call| call - first);
            // The host waits for everything before its call.
            call.first = is_planned && number == 0;
        }
        Some(Segment::Calls(self.with_planned(self.calls()[first..end].to_vec(), planned)))
    }
}

impl OpCall {
    /// The copy of this rank's own part in place of a collective; other calls as they are. Nothing is copied
    /// in place. What is sampled from candidates of all ranks is the column in place of its token, since the
    /// tokens of other ranks are not there.
    pub fn of_rank_alone(&self) -> OpCall {
        let (input, output, bytes) = match self {
            OpCall::AllReduce(call) => (call.input, call.output, call.n_elements.saturating_mul(4)),
            OpCall::AllGather(call) => {
                let elements = (call.m as usize).saturating_mul(call.width as usize);
                (call.input, call.output, elements.saturating_mul(4))
            }
            OpCall::Sample(call) => return OpCall::Sample(SampleCall { tokens: None, ..call.clone() }),
            other => return other.clone(),
        };
        OpCall::Copy(CopyCall { input, output, bytes: if input == output { 0 } else { bytes } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AllGatherCall, AllReduceCall, UnaryCall};

    fn silu(at: u64) -> OpCall {
        OpCall::Silu(UnaryCall { input: at, output: at, n_elements: 4, scalar: 1.0 })
    }

    fn reduce(at: u64) -> OpCall {
        OpCall::AllReduce(AllReduceCall { input: at, output: at, n_elements: 4, ranks: 2 })
    }

    #[test]
    fn segments_are_the_calls_between_those_of_the_host_in_their_order() {
        let calls = [reduce(16), silu(32), silu(48), reduce(64), reduce(80), silu(96)];
        let program = Program::check_calls(calls.clone()).unwrap();
        let mut again = Vec::new();
        let mut kinds = Vec::new();
        for segment in program.segments(OpCall::is_collective) {
            match segment {
                Segment::Host(call) => {
                    kinds.push(0);
                    again.push(call.call);
                }
                Segment::Calls(part) => {
                    kinds.push(part.calls().len());
                    let planned = part.planned_calls();
                    assert_eq!(planned.len(), part.calls().len());
                    for call in planned {
                        again.extend(part.calls()[call.calls.clone()].iter().map(|step| step.call.clone()));
                    }
                }
            }
        }
        assert_eq!(again, calls);
        assert_eq!(kinds, [0, 2, 0, 0, 1]);
        assert!(Program::check_calls([]).unwrap().segments(OpCall::is_collective).is_empty());
        assert_eq!(program.segments(|_| false).len(), 1);
    }

    #[test]
    fn a_rank_alone_copies_its_own_part() {
        let gather = AllGatherCall { input: 16, output: 256, m: 3, width: 5, ranks: 2 };
        let program = Program::check_calls([silu(32), reduce(16), OpCall::AllGather(gather)]).unwrap();
        let alone = program.of_rank_alone();
        assert_eq!(alone.planned_calls(), program.planned_calls());
        let calls: Vec<OpCall> = alone.calls().iter().map(|step| step.call.clone()).collect();
        let copy = |input, output, bytes| OpCall::Copy(CopyCall { input, output, bytes });
        assert_eq!(calls, [silu(32), copy(16, 16, 0), copy(16, 256, 60)]);
    }
}
