//! The calls of an RMS norm over rows whose columns are divided among ranks.
//!
//! ```text
//! q, k ─► MeanSquares ─► means [m, 2] ─► AllReduce ─┬─► RmsScale of q
//!                                                   └─► RmsScale of k
//! ```
//!
//! All ranks have as many columns, so the mean of the squares of a whole row is the mean of those of its
//! parts. That holds where several ranks have the same columns, too, if all columns are on as many.

use super::call_check::matrix;
use super::checks::*;
use super::collective::check_ranks;
use super::operands::{apart, area, f32_rows, output};
use super::work::{CacheUse, Work};
use crate::{BackendError, LookUp, Problem};

/// The means of the squares of each row of two inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanSquaresCall {
    /// `[m, widths[i]]` each.
    pub inputs: [u64; 2],
    /// `[m, 2]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns of the inputs.
    pub widths: [u32; 2],
}

/// `output = x / sqrt(mean + epsilon) · gamma` for each row `x`, where the mean is given.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsScaleCall {
    /// `[m, width]`.
    pub input: u64,
    /// `[m, columns]`: the means of squares, added up over the ranks.
    pub means: u64,
    /// `width` gains.
    pub gamma: u64,
    /// `[m, width]`. May be the address of the input.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns of the input.
    pub width: u32,
    /// Columns of the means.
    pub columns: u32,
    /// The one of the input.
    pub column: u32,
    /// What the means are divided by.
    pub ranks: u32,
    /// Added to the mean.
    pub epsilon: f32,
}

/// The number of a column is one of those that there are.
pub(crate) fn check_column(column: u32, columns: u32) -> Checked<()> {
    let (what, expected) = ("the column of the means", "less than the columns that there are");
    (column < columns).then_some(()).ok_or(Problem::Value { what, expected, got: column.into() })
}

impl MeanSquaresCall {
    pub(super) fn check(&self) -> Checked<()> {
        for (input, width) in self.inputs.into_iter().zip(self.widths) {
            at_least_1("the width of an input", width)?;
            matrix("an input", input, self.m, width)?;
        }
        matrix("the output", self.output, self.m, 2)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let reads = [
            Some(f32_rows(memory, "the first input", self.inputs[0], self.m, self.widths[0])?),
            Some(f32_rows(memory, "the second input", self.inputs[1], self.m, self.widths[1])?),
        ];
        apart(&[output(memory, "the output", self.output, self.m, 2)?], &reads)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let read: u64 = self.widths.iter().map(|&width| area(self.m, width) as u64).sum();
        Work { flops: 2 * read, bytes: 4 * (read + area(self.m, 2) as u64) }
    }
}

impl RmsScaleCall {
    pub(super) fn check(&self) -> Checked<()> {
        check_ranks(self.ranks)?;
        check_column(self.column, self.columns)?;
        epsilon(self.epsilon)?;
        matrix("the input", self.input, self.m, self.width)?;
        matrix("the means", self.means, self.m, self.columns)?;
        matrix("the gain", self.gamma, 1, self.width)?;
        matrix("the output", self.output, self.m, self.width)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.width == 0
    }

    /// Looks up every operand.
    pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
        let input = f32_rows(memory, "the input", self.input, self.m, self.width)?;
        let reads = [
            Some(f32_rows(memory, "the means", self.means, self.m, self.columns)?),
            Some(f32_rows(memory, "the gain", self.gamma, 1, self.width)?),
        ];
        let out = output(memory, "the output", self.output, self.m, self.width)?;
        out.apart_or_same(input)?;
        apart(&[out], &reads)
    }

    pub(super) fn work(&self, _: CacheUse) -> Work {
        let elements = area(self.m, self.width) as u64;
        let moved = 2 * elements + u64::from(self.width) + area(self.m, self.columns) as u64;
        Work { flops: 2 * elements, bytes: 4 * moved }
    }
}
