//! Norms of rows whose columns are divided among ranks.

use fulmen_core::{MeanSquaresCall, RmsScaleCall};

use super::{CpuDispatcher, Launched};
use crate::kernels::divided_norm::{self, Means};

impl CpuDispatcher {
    pub(super) fn mean_squares(&mut self, call: &MeanSquaresCall) -> Launched {
        let &MeanSquaresCall { inputs: [a, b], output, m, widths } = call;
        let a = self.f32_rows("the first input", a, m, widths[0])?;
        let b = self.f32_rows("the second input", b, m, widths[1])?;
        let means = self.f32_rows_mut("the output", output, m, 2)?;
        means.apart_from(a)?;
        means.apart_from(b)?;
        // SAFETY: looked up, and the output is disjoint from the inputs.
        unsafe {
            let widths = widths.map(|width| width as usize);
            divided_norm::mean_squares(
                &self.pool,
                self.isa,
                [a.slice(), b.slice()],
                widths,
                means.slice_mut(),
            );
        }
        Ok(1)
    }

    pub(super) fn rms_scale(&mut self, call: &RmsScaleCall) -> Launched {
        let &RmsScaleCall { m, width, columns, column, ranks, epsilon, .. } = call;
        let input = self.f32_rows("the input", call.input, m, width)?;
        let sums = self.f32_rows("the means", call.means, m, columns)?;
        let gamma = self.f32_rows("the gain", call.gamma, 1, width)?;
        let output = self.f32_rows_mut("the output", call.output, m, width)?;
        output.apart_or_same(input)?;
        output.apart_from(sums)?;
        output.apart_from(gamma)?;
        let (x, out) = (input.ptr.cast::<f32>().cast_const(), output.ptr.cast::<f32>());
        // SAFETY: looked up; the output is the input or disjoint from it, and disjoint from the rest.
        unsafe {
            let (columns, column) = (columns as usize, column as usize);
            let means = Means { sums: sums.slice(), columns, column, ranks, epsilon };
            divided_norm::rms_scale(&self.pool, self.isa, x, means, gamma.slice(), out);
        }
        Ok(1)
    }
}
