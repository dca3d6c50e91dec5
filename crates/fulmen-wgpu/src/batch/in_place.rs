//! Operations in place: the result overwrites the first operand.
//!
//! The memory plan reuses the buffer of an operand that nothing reads later, but never that of an
//! upload or an import, which the next run needs unchanged. An operation recorded in place does
//! overwrite them, and the operand cannot be used after that.
//!
//! Other readers of a value that will be overwritten are stored before that happens (`compile.rs`,
//! targets), so that fusion does not move them behind the write and they are not recomputed from a
//! buffer that has changed.

use super::GpuCommandBatch;
use super::record::{RecordResult, for_each_op, recorders, wrong};
use super::value::{BufferId, Source};
use crate::error::GpuError;
use crate::kernels::Elem;
use crate::kernels::elementwise::ElementwiseOp;

/// Records operations that overwrite their first operand: see [`GpuCommandBatch::in_place`].
#[derive(Debug)]
pub struct InPlace<'a> {
    batch: &'a mut GpuCommandBatch,
}

/// The methods of the element-wise op table.
macro_rules! in_place {
    (one: $($one:ident $one_try:ident $One:ident),*; two: $($two:ident $two_try:ident $Two:ident),*;) => {
        recorders! {
            $(#[doc = concat!("[`", stringify!($one), "`](GpuCommandBatch::", stringify!($one),
                "), overwriting `x`.")]
            $one, $one_try(x: BufferId);)*
            $(#[doc = concat!("[`", stringify!($two), "`](GpuCommandBatch::", stringify!($two),
                "), overwriting `a`.")]
            $two, $two_try(a: BufferId, b: BufferId);)*
        }
        in_place_methods! {
            $($one, $one_try(x);)*
            $($two, $two_try(a, b: BufferId);)*
        }
    };
}

/// Methods that record through the batch's method of the same name, then mark the operand as overwritten.
macro_rules! in_place_methods {
    ($($name:ident, $try_name:ident($first:ident $(, $arg:ident: $ty:ty)*);)*) => {
        $(
            #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), ") or an error.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($try_name), "`](GpuCommandBatch::", stringify!($try_name),
                "), and ",
                "[`GpuError::Argument`] where the first operand cannot be overwritten.")]
            pub fn $try_name(&mut self, $first: BufferId $(, $arg: $ty)*) -> RecordResult {
                self.batch.check_in_place(stringify!($name), $first)?;
                let result = self.batch.$try_name($first $(, $arg)*)?;
                self.batch.overwrite(stringify!($name), $first, result)
            }
        )*
    };
}

impl InPlace<'_> {
    for_each_op!(in_place);

    recorders! {
        /// [`scale`](GpuCommandBatch::scale), overwriting `x`.
        scale, try_scale(x: BufferId, scalar: f32);
        /// [`add_scalar`](GpuCommandBatch::add_scalar), overwriting `x`.
        add_scalar, try_add_scalar(x: BufferId, scalar: f32);
        /// [`clamp`](GpuCommandBatch::clamp), overwriting `x`.
        clamp, try_clamp(x: BufferId, low: f32, high: f32);
        /// [`bias_add`](GpuCommandBatch::bias_add), overwriting `x`.
        bias_add, try_bias_add(x: BufferId, bias: BufferId);
        /// [`with_row`](GpuCommandBatch::with_row), overwriting `x`.
        with_row, try_with_row(x: BufferId, op: ElementwiseOp, row: BufferId);
        /// [`with_column`](GpuCommandBatch::with_column), overwriting `x`.
        with_column, try_with_column(x: BufferId, op: ElementwiseOp, column: BufferId);
        /// [`softmax`](GpuCommandBatch::softmax), overwriting `x`.
        softmax, try_softmax(x: BufferId, width: u32);
        /// [`rms_norm`](GpuCommandBatch::rms_norm), overwriting `x`.
        rms_norm, try_rms_norm(x: BufferId, gamma: BufferId, eps: f32);
        /// [`layer_norm`](GpuCommandBatch::layer_norm), overwriting `x`.
        layer_norm, try_layer_norm(x: BufferId, gamma: BufferId, beta: BufferId, eps: f32);
    }

    in_place_methods! {
        scale, try_scale(x, scalar: f32);
        add_scalar, try_add_scalar(x, scalar: f32);
        clamp, try_clamp(x, low: f32, high: f32);
        bias_add, try_bias_add(x, bias: BufferId);
        softmax, try_softmax(x, width: u32);
        rms_norm, try_rms_norm(x, gamma: BufferId, eps: f32);
        layer_norm, try_layer_norm(x, gamma: BufferId, beta: BufferId, eps: f32);
    }

    /// [`with_row`](Self::with_row) or an error.
    ///
    /// # Errors
    /// As [`try_with_row`](GpuCommandBatch::try_with_row), and [`GpuError::Argument`] where `x` cannot
    /// be overwritten.
    pub fn try_with_row(&mut self, x: BufferId, op: ElementwiseOp, row: BufferId) -> RecordResult {
        self.batch.check_in_place("with_row", x)?;
        let result = self.batch.try_with_row(op, x, row)?;
        self.batch.overwrite("with_row", x, result)
    }

    /// [`with_column`](Self::with_column) or an error.
    ///
    /// # Errors
    /// As [`try_with_row`](Self::try_with_row).
    pub fn try_with_column(&mut self, x: BufferId, op: ElementwiseOp, column: BufferId) -> RecordResult {
        self.batch.check_in_place("with_column", x)?;
        let result = self.batch.try_with_column(op, x, column)?;
        self.batch.overwrite("with_column", x, result)
    }
}

impl GpuCommandBatch {
    /// Records operations that overwrite their first operand, which can be neither used nor read after
    /// that. An upload or an import is changed by the run itself: it needs no second buffer, and the
    /// next run starts from what this one left, unless the upload is [written](Self::write) again.
    ///
    /// ```
    /// use fulmen_wgpu::{GpuCommandBatch, GpuDevice};
    ///
    /// let mut batch = GpuCommandBatch::new(GpuDevice::new()?);
    /// let x = batch.upload(&[1.0, -2.0, 3.0, -4.0]);
    /// let y = batch.in_place().scale(x, 2.0);
    /// for _ in 0..3 {
    ///     batch.execute_blocking()?;
    /// }
    /// assert_eq!(batch.read_blocking(y)?, [8.0, -16.0, 24.0, -32.0]);
    /// # Ok::<(), fulmen_wgpu::GpuError>(())
    /// ```
    pub fn in_place(&mut self) -> InPlace<'_> {
        InPlace { batch: self }
    }

    /// Whether a kernel can overwrite a value.
    fn check_in_place(&self, call: &'static str, x: BufferId) -> Result<(), GpuError> {
        let (_, value) = self.value(call, x)?;
        if value.elem != Elem::F32 {
            return Err(wrong(call, "the type of what is overwritten", "F32", format!("{:?}", value.elem)));
        }
        if let Source::Import(buffer) = &value.source {
            let whole = value.bytes().next_multiple_of(16);
            if buffer.size() < whole {
                let expected = format!("at least {whole} bytes, so that it is whole vectors");
                return Err(wrong(
                    call,
                    "the size of the import that is overwritten",
                    expected,
                    buffer.size(),
                ));
            }
        }
        Ok(())
    }

    /// Marks `x` as overwritten by `result`. Removes the result again if it also reads `x` in another way.
    fn overwrite(&mut self, call: &'static str, x: BufferId, result: BufferId) -> RecordResult {
        let (old, new) = (x.index, result.index);
        let op = self.values[new as usize].op();
        if op.is_some_and(|op| !op.reads_elementwise(old)) {
            self.values.pop();
            let expected = "another value than the one that is overwritten";
            return Err(wrong(call, "a second operand", expected, format!("{x:?}")));
        }
        self.values[new as usize].in_place_of = Some(old);
        self.values[old as usize].overwritten_by = Some(new);
        Ok(result)
    }
}
