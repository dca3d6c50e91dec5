//! Row-wise ops: norms and softmax.

use fulmen_core::{
    AddRmsNormCall, BinaryCall, MeanSquaresCall, RmsNormCall, RmsScaleCall, SoftMaxCall, UnaryCall,
};

use super::{LaunchCount, WgpuDispatcher};
use crate::kernels::{
    Elem, Role,
    elementwise::ElementwiseOp,
    rows::{self, RmsScale, Rows},
};

fn shape(rows: u32, width: u32, in_place: bool) -> Rows {
    Rows { rows: rows.into(), width: width.into(), in_place, ..Rows::default() }
}

impl WgpuDispatcher {
    pub(super) fn rms_norm(&mut self, call: &RmsNormCall) -> LaunchCount {
        let &RmsNormCall { input, gamma, output, width, rows, epsilon } = call;
        self.writes(output);
        let x = self.matrix("the input", input, rows, width)?;
        let gamma = self.matrix("the gain", gamma, 1, width)?;
        let out = self.matrix("the output", output, rows, width)?;
        let shape = shape(rows, width, input == output);
        let launches = rows::rms_norm(&shape, epsilon, Elem::F32, &self.queue.caps());
        self.queue.run_launches(launches, &[x, gamma], &[out])
    }

    /// The sum, then its norm.
    pub(super) fn add_rms_norm(&mut self, call: &AddRmsNormCall) -> LaunchCount {
        let &AddRmsNormCall { a, b, gamma, sum, output, width, rows, epsilon } = call;
        let n_elements = (rows as usize).saturating_mul(width as usize);
        let added = self.binary(&[ElementwiseOp::Add], &BinaryCall { a, b, output: sum, n_elements })?;
        let norm = RmsNormCall { input: sum, gamma, output, width, rows, epsilon };
        Ok(added + self.rms_norm(&norm)?)
    }

    pub(super) fn mean_squares(&mut self, call: &MeanSquaresCall) -> LaunchCount {
        let &MeanSquaresCall { inputs, output, m, widths } = call;
        self.writes(output);
        let a = self.matrix("the first input", inputs[0], m, widths[0])?;
        let b = self.matrix("the second input", inputs[1], m, widths[1])?;
        let means = self.matrix("the output", output, m, 2)?;
        let launches = rows::mean_squares(m, widths, &self.queue.caps());
        self.queue.run_launches(launches, &[a, b], &[means])
    }

    pub(super) fn rms_scale(&mut self, call: &RmsScaleCall) -> LaunchCount {
        let &RmsScaleCall { input, means, gamma, output, m, width, columns, column, ranks, epsilon } = call;
        self.writes(output);
        let in_place = input == output;
        let mut operands = vec![
            (Role::Input(1), self.matrix("the means", means, m, columns)?),
            (Role::Input(2), self.matrix("the gain", gamma, 1, width)?),
            (Role::Output(0), self.matrix("the output", output, m, width)?),
        ];
        if !in_place {
            operands.push((Role::Input(0), self.matrix("the input", input, m, width)?));
        }
        let spec = RmsScale { m, width, columns, column, ranks, epsilon, in_place };
        self.queue.run_launches_with(rows::rms_scale(&spec, &self.queue.caps()), operands)
    }

    pub(super) fn softmax(&mut self, call: &SoftMaxCall) -> LaunchCount {
        let &SoftMaxCall { input, output, width, rows, scale } = call;
        let n_elements = (rows as usize).saturating_mul(width as usize);
        let mut launched = 0;
        let mut input = input;
        if scale != 1.0 {
            let scaled = UnaryCall { input, output, n_elements, scalar: scale };
            launched += self.unary(ElementwiseOp::Scale, &scaled)?;
            input = output;
        }
        self.writes(output);
        let x = self.matrix("the input", input, rows, width)?;
        let out = self.matrix("the output", output, rows, width)?;
        let launches = rows::softmax(&shape(rows, width, input == output), &self.queue.caps());
        Ok(launched + self.queue.run_launches(launches, &[x], &[out])?)
    }
}
