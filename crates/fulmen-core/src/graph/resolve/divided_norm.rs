//! Nodes of norms over rows that are divided among ranks.

use super::{Checked, Node};
use crate::graph::checks::same;
use crate::graph::{MeanSquaresCall, RmsScaleCall};

impl Node<'_> {
    pub(super) fn mean_squares(&self) -> Checked<MeanSquaresCall> {
        let m = self.m();
        same("the output's width", 2u32, self.width())?;
        let widths = [self.input(0)?.width(), self.input(1)?.width()];
        let inputs =
            [self.rows(0, "the first input", widths[0], m)?, self.rows(1, "the second input", widths[1], m)?];
        Ok(MeanSquaresCall { inputs, output: self.data_ptr, m, widths })
    }

    pub(super) fn rms_scale(&self) -> Checked<RmsScaleCall> {
        let (m, width, params) = (self.m(), self.width(), &self.params);
        let columns = self.input(1)?.width();
        Ok(RmsScaleCall {
            input: self.rows(0, "the input", width, m)?,
            means: self.rows(1, "the means", columns, m)?,
            gamma: params.gamma_ptr,
            output: self.data_ptr,
            m,
            width,
            columns,
            column: params.int_param,
            ranks: params.ranks,
            epsilon: params.scalar,
        })
    }
}
