//! Calls of a part of the computation that the host runs, on another device, between two segments of a
//! program.

use super::call_check::matrix;
use super::checks::Checked;
use super::operands::{apart, area, output, span};
use super::{CacheUse, Work};
use crate::{BackendError, LookUp, Problem};

/// The most inputs of a host segment.
pub const MAX_HOST_INPUTS: usize = 4;

/// An input of a [`HostSegmentCall`]: rows of 32-bit values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInput {
    /// `[m, width]`.
    pub ptr: u64,
    /// Values per row.
    pub width: u32,
}

/// [`TensorOp::HostSegment`](super::TensorOp::HostSegment).
#[derive(Clone, Debug, PartialEq)]
pub struct HostSegmentCall {
    /// Which of the segments of a model.
    pub segment: u32,
    /// What it reads: 1 to [`MAX_HOST_INPUTS`].
    pub inputs: Vec<HostInput>,
    /// `[m, n]` f32.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns of the output.
    pub n: u32,
    /// Whether a row must get the same bits in a call of any number of rows; see
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

/// The number of inputs is one that can be passed.
pub(crate) fn check_host_inputs(count: usize) -> Checked<()> {
    match (1..=MAX_HOST_INPUTS).contains(&count) {
        true => Ok(()),
        false => Err(Problem::Arity { expected: "1, 2, 3 or 4", got: count }),
    }
}

impl HostInput {
    /// Bytes of `m` rows.
    pub fn bytes(&self, m: u32) -> usize {
        area(m, self.width).saturating_mul(4)
    }
}

impl HostSegmentCall {
    /// Bytes of the output.
    pub fn output_bytes(&self) -> usize {
        area(self.m, self.n).saturating_mul(4)
    }

    pub(super) fn check(&self) -> Checked<()> {
        check_host_inputs(self.inputs.len())?;
        self.inputs.iter().try_for_each(|input| matrix("an input", input.ptr, self.m, input.width))?;
        matrix("the output", self.output, self.m, self.n)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let mut reads = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            reads.push(Some(span::<u32>(memory, "an input", input.ptr, area(self.m, input.width), false)?));
        }
        apart(&[output(memory, "the output", self.output, self.m, self.n)?], &reads)
    }

    /// What crosses between the devices; what the host computes is work of its own device.
    pub(super) fn work(&self, _: CacheUse) -> Work {
        let read = self.inputs.iter().map(|input| input.bytes(self.m)).fold(0, usize::saturating_add);
        Work { flops: 0, bytes: read.saturating_add(self.output_bytes()) as u64 }
    }
}
