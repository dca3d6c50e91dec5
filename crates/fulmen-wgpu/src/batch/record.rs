//! Recording operations. Every method has a `try_…` variant that returns a [`GpuError`] instead of panicking.

use std::sync::Arc;

use half::f16;

use super::GpuCommandBatch;
use super::value::{BufferId, Op, RowShape, Source, Value};
use crate::buffer::GpuBuffer;
use crate::error::GpuError;
use crate::kernels::Elem;
use crate::kernels::elementwise::{Broadcast, ElementwiseOp};
use crate::kernels::matmul::{Layout, MatmulShape};
use crate::kernels::reduce::Reduction;
use crate::transfer::vec_of;

pub(super) type RecordResult = Result<BufferId, GpuError>;

/// Layout and epilogue of a matmul.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MatmulOptions {
    /// B is `[n, k]`, as weights are stored, instead of `[k, n]`.
    pub transposed_b: bool,
    /// `n` values that are added to each row.
    pub bias: Option<BufferId>,
    /// A unary op without scalars that is applied after the bias.
    pub activation: Option<ElementwiseOp>,
    /// `[m, n]`, added at the end.
    pub residual: Option<BufferId>,
}

/// Recording methods that panic where their `try_…` variants return an error.
macro_rules! recorders {
    ($($(#[$doc:meta])* $name:ident, $try_name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Panics
            #[doc = concat!("Where [`", stringify!($try_name), "`](Self::", stringify!($try_name),
                ") returns an error.")]
            #[track_caller]
            pub fn $name(&mut self, $($arg: $ty),*) -> BufferId {
                self.$try_name($($arg),*).unwrap_or_else(|error| panic!("{error}"))
            }
        )*
    };
}

/// Methods for unary and binary ops of the element-wise table.
macro_rules! elementwise {
    (one: $($one:ident $one_try:ident $One:ident),*; two: $($two:ident $two_try:ident $Two:ident),*;) => {
        recorders! {
            $(#[doc = concat!("[`", stringify!($One), "`](ElementwiseOp::", stringify!($One),
                ") of each element.")]
            $one, $one_try(x: BufferId);)*
            $(#[doc = concat!("[`", stringify!($Two), "`](ElementwiseOp::", stringify!($Two),
                ") of two arrays of one length.")]
            $two, $two_try(a: BufferId, b: BufferId);)*
        }
        $(
            #[doc = concat!("[`", stringify!($one), "`](Self::", stringify!($one), ") or an error.")]
            ///
            /// # Errors
            /// [`GpuError::Argument`] where an argument is of another batch.
            pub fn $one_try(&mut self, x: BufferId) -> RecordResult {
                self.elementwise(stringify!($one), ElementwiseOp::$One, &[(x, Broadcast::Full)], &[])
            }
        )*
        $(
            #[doc = concat!("[`", stringify!($two), "`](Self::", stringify!($two), ") or an error.")]
            ///
            /// # Errors
            /// [`GpuError::Argument`] where an argument is of another batch or the lengths differ.
            pub fn $two_try(&mut self, a: BufferId, b: BufferId) -> RecordResult {
                let full = Broadcast::Full;
                self.elementwise(stringify!($two), ElementwiseOp::$Two, &[(a, full), (b, full)], &[])
            }
        )*
    };
}

pub(super) fn wrong(call: &'static str, what: &str, expected: impl ToString, got: impl ToString) -> GpuError {
    GpuError::Argument { call, what: what.to_owned(), expected: expected.to_string(), got: got.to_string() }
}

/// `a · b`, or an error that names the call.
fn area(call: &'static str, a: u64, b: u64) -> Result<u64, GpuError> {
    a.checked_mul(b).filter(|&n| n <= u64::MAX / 64).ok_or_else(|| {
        wrong(call, "the number of elements", "one that fits memory", format!("{a} times {b}"))
    })
}

/// Encodes values for the device.
pub(super) fn encode(data: &[f32], elem: Elem) -> Vec<u8> {
    match elem {
        Elem::F32 => bytemuck::cast_slice(data).to_vec(),
        Elem::F16 => data.iter().flat_map(|&x| f16::from_f32(x).to_ne_bytes()).collect(),
    }
}

/// Decodes values from the device, without the padding of their buffer.
pub(super) fn decode(bytes: &[u8], len: u64, elem: Elem) -> Vec<f32> {
    let wanted = usize::try_from(len.saturating_mul(elem.bytes())).unwrap_or(usize::MAX);
    let bytes = &bytes[..bytes.len().min(wanted)];
    match elem {
        Elem::F32 => vec_of(bytes),
        Elem::F16 => bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_ne_bytes(b).to_f32()).collect(),
    }
}

/// Calls a macro with the ops of the element-wise table and their method names.
macro_rules! for_each_op {
    ($with:ident) => {
        $with! {
            one: relu try_relu Relu, sigmoid try_sigmoid Sigmoid, tanh try_tanh Tanh, swish try_swish Swish,
                silu try_silu Swish, gelu try_gelu Gelu, gelu_tanh try_gelu_tanh GeluTanh, exp try_exp Exp,
                log try_log Log, sqrt try_sqrt Sqrt, neg try_neg Neg, abs try_abs Abs;
            two: add try_add Add, sub try_sub Sub, mul try_mul Mul, div try_div Div, maximum try_maximum Max,
                minimum try_minimum Min;
        }
    };
}
pub(super) use {for_each_op, recorders};

impl GpuCommandBatch {
    for_each_op!(elementwise);

    recorders! {
        /// `x · scalar`.
        scale, try_scale(x: BufferId, scalar: f32);
        /// `x + scalar`.
        add_scalar, try_add_scalar(x: BufferId, scalar: f32);
        /// `x`, at least `low` and at most `high`.
        clamp, try_clamp(x: BufferId, low: f32, high: f32);
        /// Adds `bias` to every row of `x`: the rows are as long as the bias.
        bias_add, try_bias_add(x: BufferId, bias: BufferId);
        /// A binary op whose second operand is one row, broadcast to every row of the first.
        with_row, try_with_row(op: ElementwiseOp, x: BufferId, row: BufferId);
        /// A binary op whose second operand has one value per row of the first.
        with_column, try_with_column(op: ElementwiseOp, x: BufferId, column: BufferId);
        /// Converts to f16 storage.
        to_f16, try_to_f16(x: BufferId);
        /// Converts to f32 storage.
        to_f32, try_to_f32(x: BufferId);
        /// The sum of all elements, as one element.
        sum, try_sum(x: BufferId);
        /// The largest element, as one element; NaN if there is one, -inf of nothing.
        max, try_max(x: BufferId);
        /// The smallest element, as one element; NaN if there is one, inf of nothing.
        min, try_min(x: BufferId);
        /// `Σ a[i] · b[i]`, as one element.
        dot, try_dot(a: BufferId, b: BufferId);
        /// Softmax along rows of `width` elements. A row that is all -inf gives zeros.
        softmax, try_softmax(x: BufferId, width: u32);
        /// `x / √(mean(x²) + eps) · gamma` along rows as long as `gamma`.
        rms_norm, try_rms_norm(x: BufferId, gamma: BufferId, eps: f32);
        /// `(x - mean) / √(variance + eps) · gamma + beta` along rows as long as `gamma`.
        layer_norm, try_layer_norm(x: BufferId, gamma: BufferId, beta: BufferId, eps: f32);
        /// `[rows, columns]` to `[columns, rows]`.
        transpose, try_transpose(x: BufferId, rows: u32, columns: u32);
        /// `C = A · B`, row-major: A is `[m, k]`, B is `[k, n]`, C is `[m, n]`.
        matmul, try_matmul(a: BufferId, b: BufferId, m: u32, k: u32, n: u32);
        /// `C = A · Bᵀ`: B is `[n, k]`, as weights are stored.
        matmul_nt, try_matmul_nt(a: BufferId, b: BufferId, m: u32, k: u32, n: u32);
        /// A matmul with bias, activation and residual fused into its epilogue.
        matmul_with, try_matmul_with(
            a: BufferId, b: BufferId, m: u32, k: u32, n: u32, options: MatmulOptions);
        /// A buffer of the caller's on the same device: `len` f32 values that are used without a copy.
        /// It needs the usages `STORAGE` and `COPY_SRC`.
        import_buffer, try_import_buffer(buffer: Arc<wgpu::Buffer>, len: usize);
    }

    /// Data that is uploaded when the batch runs.
    pub fn upload(&mut self, data: &[f32]) -> BufferId {
        self.upload_as(data, Elem::F32)
    }

    /// Data that is uploaded as this type when the batch runs, rounded to nearest for f16.
    pub fn upload_as(&mut self, data: &[f32], elem: Elem) -> BufferId {
        let source = Source::Upload { pending: Some(encode(data, elem)), buffer: None };
        self.push(Value::new(data.len() as u64, elem, source))
    }

    fn push(&mut self, value: Value) -> BufferId {
        self.values.push(value);
        // 2^32 values do not fit memory.
        BufferId { batch: self.id, index: (self.values.len() - 1) as u32 }
    }

    fn push_op(&mut self, len: u64, elem: Elem, op: Op) -> BufferId {
        self.push(Value::new(len, elem, Source::Op(op)))
    }

    pub(super) fn index(&self, call: &'static str, id: BufferId) -> Result<u32, GpuError> {
        if id.batch != self.id || id.index as usize >= self.values.len() {
            return Err(wrong(call, "the buffer id", "one of this batch", format!("{id:?}")));
        }
        Ok(id.index)
    }

    pub(super) fn indices(&self, call: &'static str, ids: &[BufferId]) -> Result<Vec<u32>, GpuError> {
        ids.iter().map(|&id| Ok(self.value(call, id)?.0)).collect()
    }

    /// A value of this batch that was not overwritten.
    pub(super) fn value(&self, call: &'static str, id: BufferId) -> Result<(u32, &Value), GpuError> {
        let index = self.index(call, id)?;
        let value = &self.values[index as usize];
        if let Some(by) = value.overwritten_by {
            let name = self.values[by as usize].op().map_or("another value", super::value::Op::name);
            let got = format!("value {index}, which {name} (value {by}) overwrites");
            return Err(wrong(call, "the buffer id", "one that was not overwritten", got));
        }
        Ok((index, value))
    }

    fn elementwise(
        &mut self,
        call: &'static str,
        op: ElementwiseOp,
        args: &[(BufferId, Broadcast)],
        scalars: &[f32],
    ) -> RecordResult {
        let (_, first) = self.value(call, args[0].0)?;
        let len = first.len;
        let mut operands = Vec::with_capacity(args.len());
        for &(id, broadcast) in args {
            let (index, value) = self.value(call, id)?;
            let expected = broadcast.elements(len);
            if value.len != expected {
                return Err(wrong(call, "the number of elements", expected, value.len));
            }
            operands.push((index, broadcast));
        }
        Ok(self.push_op(len, Elem::F32, Op::Elementwise { op, args: operands, scalars: scalars.to_vec() }))
    }

    /// [`scale`](Self::scale) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_scale(&mut self, x: BufferId, scalar: f32) -> RecordResult {
        self.elementwise("scale", ElementwiseOp::Scale, &[(x, Broadcast::Full)], &[scalar])
    }

    /// [`add_scalar`](Self::add_scalar) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_add_scalar(&mut self, x: BufferId, scalar: f32) -> RecordResult {
        self.elementwise("add_scalar", ElementwiseOp::AddScalar, &[(x, Broadcast::Full)], &[scalar])
    }

    /// [`clamp`](Self::clamp) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_clamp(&mut self, x: BufferId, low: f32, high: f32) -> RecordResult {
        self.elementwise("clamp", ElementwiseOp::Clamp, &[(x, Broadcast::Full)], &[low, high])
    }

    /// [`bias_add`](Self::bias_add) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where an argument is of another batch or `x` is not a whole number of rows.
    pub fn try_bias_add(&mut self, x: BufferId, bias: BufferId) -> RecordResult {
        self.rows_of("bias_add", ElementwiseOp::Add, x, bias)
    }

    /// [`with_row`](Self::with_row) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the op does not take two arrays, an argument is of another batch,
    /// or `x` is not a whole number of rows.
    pub fn try_with_row(&mut self, op: ElementwiseOp, x: BufferId, row: BufferId) -> RecordResult {
        self.rows_of("with_row", op, x, row)
    }

    fn rows_of(&mut self, call: &'static str, op: ElementwiseOp, x: BufferId, row: BufferId) -> RecordResult {
        let (len, n) = (self.value(call, x)?.1.len, self.value(call, row)?.1.len);
        self.two_arrays(call, op)?;
        if n == 0 || !len.is_multiple_of(n) {
            return Err(wrong(call, "the number of elements", format!("a multiple of {n}"), len));
        }
        self.elementwise(call, op, &[(x, Broadcast::Full), (row, Broadcast::Row { n })], &[])
    }

    /// [`with_column`](Self::with_column) or an error.
    ///
    /// # Errors
    /// As [`try_with_row`](Self::try_with_row).
    pub fn try_with_column(&mut self, op: ElementwiseOp, x: BufferId, column: BufferId) -> RecordResult {
        const CALL: &str = "with_column";
        let (len, rows) = (self.value(CALL, x)?.1.len, self.value(CALL, column)?.1.len);
        self.two_arrays(CALL, op)?;
        if rows == 0 || !len.is_multiple_of(rows) {
            return Err(wrong(CALL, "the number of elements", format!("a multiple of {rows}"), len));
        }
        let n = len / rows;
        self.elementwise(CALL, op, &[(x, Broadcast::Full), (column, Broadcast::Column { n: n.max(1) })], &[])
    }

    fn two_arrays(&self, call: &'static str, op: ElementwiseOp) -> Result<(), GpuError> {
        if op.arity() == 2 && op.scalars() == 0 {
            return Ok(());
        }
        Err(wrong(call, "the op", "one of two arrays", op.name()))
    }

    /// [`to_f16`](Self::to_f16) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_to_f16(&mut self, x: BufferId) -> RecordResult {
        self.cast("to_f16", x, Elem::F16)
    }

    /// [`to_f32`](Self::to_f32) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_to_f32(&mut self, x: BufferId) -> RecordResult {
        self.cast("to_f32", x, Elem::F32)
    }

    fn cast(&mut self, call: &'static str, x: BufferId, elem: Elem) -> RecordResult {
        let (x, value) = self.value(call, x)?;
        let len = value.len;
        Ok(self.push_op(len, elem, Op::Cast { x }))
    }

    /// [`sum`](Self::sum) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_sum(&mut self, x: BufferId) -> RecordResult {
        self.reduce("sum", Reduction::Sum, &[x])
    }

    /// [`max`](Self::max) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_max(&mut self, x: BufferId) -> RecordResult {
        self.reduce("max", Reduction::Max, &[x])
    }

    /// [`min`](Self::min) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch.
    pub fn try_min(&mut self, x: BufferId) -> RecordResult {
        self.reduce("min", Reduction::Min, &[x])
    }

    /// [`dot`](Self::dot) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where an argument is of another batch, or the lengths or the types differ.
    pub fn try_dot(&mut self, a: BufferId, b: BufferId) -> RecordResult {
        self.reduce("dot", Reduction::Dot, &[a, b])
    }

    fn reduce(&mut self, call: &'static str, op: Reduction, ids: &[BufferId]) -> RecordResult {
        let args = self.indices(call, ids)?;
        let first = &self.values[args[0] as usize];
        for &id in &args {
            let value = &self.values[id as usize];
            if value.len != first.len {
                return Err(wrong(call, "the number of elements", first.len, value.len));
            }
            if value.elem != first.elem {
                return Err(wrong(
                    call,
                    "the type",
                    format!("{:?}", first.elem),
                    format!("{:?}", value.elem),
                ));
            }
        }
        Ok(self.push_op(1, Elem::F32, Op::Reduce { op, args }))
    }

    /// Rows of `width` elements in a value.
    fn row_shape(&self, call: &'static str, x: BufferId, width: u64) -> Result<(u32, RowShape), GpuError> {
        let (index, value) = self.value(call, x)?;
        if width == 0 || !value.len.is_multiple_of(width) {
            return Err(wrong(call, "the number of elements", format!("a multiple of {width}"), value.len));
        }
        Ok((index, RowShape { rows: value.len / width, width }))
    }

    /// [`softmax`](Self::softmax) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch or not a whole number of rows.
    pub fn try_softmax(&mut self, x: BufferId, width: u32) -> RecordResult {
        let (x, shape) = self.row_shape("softmax", x, width.into())?;
        Ok(self.push_op(shape.rows * shape.width, Elem::F32, Op::Softmax { x, shape }))
    }

    /// [`rms_norm`](Self::rms_norm) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where an argument is of another batch, `x` is not a whole number of rows,
    /// or `eps` is not a finite number of at least 0.
    pub fn try_rms_norm(&mut self, x: BufferId, gamma: BufferId, eps: f32) -> RecordResult {
        const CALL: &str = "rms_norm";
        let (gamma, value) = self.value(CALL, gamma)?;
        let width = value.len;
        let (x, shape) = self.row_shape(CALL, x, width)?;
        check_eps(CALL, eps)?;
        Ok(self.push_op(shape.rows * shape.width, Elem::F32, Op::RmsNorm { x, gamma, shape, eps }))
    }

    /// [`layer_norm`](Self::layer_norm) or an error.
    ///
    /// # Errors
    /// As [`try_rms_norm`](Self::try_rms_norm), and where `beta` is not as long as `gamma` or of
    /// another type.
    pub fn try_layer_norm(&mut self, x: BufferId, gamma: BufferId, beta: BufferId, eps: f32) -> RecordResult {
        const CALL: &str = "layer_norm";
        let ((gamma, gain), (beta, shift)) = (self.value(CALL, gamma)?, self.value(CALL, beta)?);
        if (gain.len, gain.elem) != (shift.len, shift.elem) {
            let of = |value: &Value| format!("{} elements of {:?}", value.len, value.elem);
            return Err(wrong(CALL, "beta", of(gain), of(shift)));
        }
        let width = gain.len;
        let (x, shape) = self.row_shape(CALL, x, width)?;
        check_eps(CALL, eps)?;
        Ok(self.push_op(shape.rows * shape.width, Elem::F32, Op::LayerNorm { x, gamma, beta, shape, eps }))
    }

    /// [`transpose`](Self::transpose) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where `x` is of another batch or not `rows · columns` elements.
    pub fn try_transpose(&mut self, x: BufferId, rows: u32, columns: u32) -> RecordResult {
        const CALL: &str = "transpose";
        let (x, value) = self.value(CALL, x)?;
        let (len, elem) = (area(CALL, rows.into(), columns.into())?, value.elem);
        if value.len != len {
            return Err(wrong(CALL, "the number of elements", len, value.len));
        }
        let shape = RowShape { rows: rows.into(), width: columns.into() };
        Ok(self.push_op(len, elem, Op::Transpose { x, shape }))
    }

    /// [`matmul`](Self::matmul) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where an argument is of another batch, its size is not that of its
    /// matrix, `k` is 0, or A is f16.
    pub fn try_matmul(&mut self, a: BufferId, b: BufferId, m: u32, k: u32, n: u32) -> RecordResult {
        self.matmul_layout("matmul", a, b, (m, k, n), Layout::Kn)
    }

    /// [`matmul_nt`](Self::matmul_nt) or an error.
    ///
    /// # Errors
    /// As [`try_matmul`](Self::try_matmul).
    pub fn try_matmul_nt(&mut self, a: BufferId, b: BufferId, m: u32, k: u32, n: u32) -> RecordResult {
        self.matmul_layout("matmul_nt", a, b, (m, k, n), Layout::Nk)
    }

    /// [`matmul_with`](Self::matmul_with) or an error.
    ///
    /// # Errors
    /// As [`try_matmul`](Self::try_matmul), and where an option does not fit.
    pub fn try_matmul_with(
        &mut self,
        a: BufferId,
        b: BufferId,
        m: u32,
        k: u32,
        n: u32,
        options: MatmulOptions,
    ) -> RecordResult {
        let layout = if options.transposed_b { Layout::Nk } else { Layout::Kn };
        let mut out = self.matmul_layout("matmul_with", a, b, (m, k, n), layout)?;
        if let Some(bias) = options.bias {
            let got = self.value("matmul_with", bias)?.1.len;
            if got != u64::from(n) {
                return Err(wrong("matmul_with", "the length of the bias", n, got));
            }
            out = self.rows_of("matmul_with", ElementwiseOp::Add, out, bias)?;
        }
        if let Some(op) = options.activation {
            if (op.arity(), op.scalars()) != (1, 0) {
                return Err(wrong("matmul_with", "the activation", "an op of one array", op.name()));
            }
            out = self.elementwise("matmul_with", op, &[(out, Broadcast::Full)], &[])?;
        }
        if let Some(residual) = options.residual {
            let full = Broadcast::Full;
            out =
                self.elementwise("matmul_with", ElementwiseOp::Add, &[(out, full), (residual, full)], &[])?;
        }
        Ok(out)
    }

    fn matmul_layout(
        &mut self,
        call: &'static str,
        a: BufferId,
        b: BufferId,
        (m, k, n): (u32, u32, u32),
        layout: Layout,
    ) -> RecordResult {
        let ((a, left), (b, right)) = (self.value(call, a)?, self.value(call, b)?);
        if k == 0 {
            return Err(wrong(call, "k", "at least 1", 0));
        }
        if left.elem != Elem::F32 {
            return Err(wrong(call, "the type of A", "F32", "F16"));
        }
        for (what, value, rows, columns) in
            [("the elements of A", left, m, k), ("the elements of B", right, k, n)]
        {
            let expected = area(call, rows.into(), columns.into())?;
            if value.len != expected {
                return Err(wrong(call, what, expected, value.len));
            }
        }
        let shape = MatmulShape { m, k, n, b: layout, elem: right.elem.into() };
        let len = area(call, m.into(), n.into())?;
        Ok(self.push_op(len, Elem::F32, Op::Matmul { a, b, shape }))
    }

    /// [`import_buffer`](Self::import_buffer) or an error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the buffer is shorter than `len` f32 values or lacks a usage.
    pub fn try_import_buffer(&mut self, buffer: Arc<wgpu::Buffer>, len: usize) -> RecordResult {
        const CALL: &str = "import_buffer";
        let needed = area(CALL, len as u64, 4)?;
        if buffer.size() < needed {
            return Err(wrong(
                CALL,
                "the size of the buffer",
                format!("at least {needed} bytes"),
                buffer.size(),
            ));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        if !buffer.usage().contains(usage) {
            return Err(wrong(
                CALL,
                "the usage of the buffer",
                format!("{usage:?}"),
                format!("{:?}", buffer.usage()),
            ));
        }
        let source = Source::Import(GpuBuffer::from_wgpu(&self.gpu, (*buffer).clone()));
        Ok(self.push(Value::new(len as u64, Elem::F32, source)))
    }
}

fn check_eps(call: &'static str, eps: f32) -> Result<(), GpuError> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    Err(wrong(call, "eps", "a finite number of at least 0", eps))
}
