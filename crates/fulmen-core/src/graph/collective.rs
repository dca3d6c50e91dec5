//! Calls in which all ranks of a group take part: see [`Communicator`](crate::Communicator).

use super::call::CopyCall;
use super::call_check::{elements, matrix};
use super::checks::Checked;
use super::operands::{apart, area, f32_rows, output, span};
use super::{CacheUse, OpCall, Work};
use crate::{BackendError, LookUp, Problem};

/// The most ranks of a group.
pub const MAX_RANKS: u32 = 64;

/// [`TensorOp::AllReduce`](super::TensorOp::AllReduce).
#[derive(Clone, Debug, PartialEq)]
pub struct AllReduceCall {
    /// The values of this rank.
    pub input: u64,
    /// The sums. May be the address of the input.
    pub output: u64,
    /// How many there are.
    pub n_elements: usize,
    /// Ranks of the group.
    pub ranks: u32,
}

/// [`TensorOp::AllGather`](super::TensorOp::AllGather).
#[derive(Clone, Debug, PartialEq)]
pub struct AllGatherCall {
    /// The columns of this rank, `[m, width]` values of four bytes, whose bits are kept.
    pub input: u64,
    /// Those of all ranks, `[m, ranks · width]`, rank 0 first.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns of each rank.
    pub width: u32,
    /// Ranks of the group.
    pub ranks: u32,
}

/// The number of ranks of a group.
pub(crate) fn check_ranks(ranks: u32) -> Checked<()> {
    match (1..=MAX_RANKS).contains(&ranks) {
        true => Ok(()),
        false => Err(Problem::Value { what: "ranks", expected: "from 1 to 64", got: ranks.into() }),
    }
}

/// The columns of all ranks fit 32 bits.
pub(crate) fn check_gathered_width(width: u32, ranks: u32) -> Checked<()> {
    let got = u64::from(width) * u64::from(ranks);
    let (what, expected) = ("the width of all ranks", "less than 2^32");
    match u32::try_from(got) {
        Ok(_) => Ok(()),
        Err(_) => Err(Problem::Value { what, expected, got: got as f64 }),
    }
}

impl OpCall {
    /// Whether all ranks of a group take part.
    pub const fn is_collective(&self) -> bool {
        matches!(self, OpCall::AllReduce(_) | OpCall::AllGather(_))
    }
}

impl AllReduceCall {
    /// The copy that it is for one rank.
    pub fn alone(&self) -> Option<CopyCall> {
        let bytes = self.n_elements.saturating_mul(4);
        (self.ranks == 1).then_some(CopyCall { input: self.input, output: self.output, bytes })
    }

    pub(super) fn check(&self) -> Checked<()> {
        check_ranks(self.ranks)?;
        elements("the input", self.input, self.n_elements)?;
        elements("the output", self.output, self.n_elements)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n_elements == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let from = span::<f32>(memory, "the input", self.input, self.n_elements, false)?;
        span::<f32>(memory, "the output", self.output, self.n_elements, true)?.apart_or_same(from)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = self.n_elements as u64;
        let flops = elements.saturating_mul(u64::from(self.ranks.saturating_sub(1)));
        Work { flops, bytes: elements.saturating_mul(8) }
    }
}

impl AllGatherCall {
    /// Columns of the output.
    pub fn gathered_width(&self) -> u32 {
        self.width.saturating_mul(self.ranks)
    }

    /// The copy that it is for one rank.
    pub fn alone(&self) -> Option<CopyCall> {
        let bytes = area(self.m, self.width).saturating_mul(4);
        (self.ranks == 1).then_some(CopyCall { input: self.input, output: self.output, bytes })
    }

    pub(super) fn check(&self) -> Checked<()> {
        check_ranks(self.ranks)?;
        check_gathered_width(self.width, self.ranks)?;
        matrix("the input", self.input, self.m, self.width)?;
        matrix("the output", self.output, self.m, self.width)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.width == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let from = f32_rows(memory, "the input", self.input, self.m, self.width)?;
        let to = output(memory, "the output", self.output, self.m, self.gathered_width())?;
        apart(&[to], &[Some(from)])
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let read = area(self.m, self.width) as u64;
        let written = read.saturating_mul(self.ranks.into());
        Work { flops: 0, bytes: read.saturating_add(written).saturating_mul(4) }
    }
}
