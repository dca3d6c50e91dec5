//! Arrays on a GPU: the command batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fulmen::core::trace::Profile;
use fulmen::prelude::{BufferId, GpuCommandBatch, GpuError};
use fulmen::wgpu::{BatchOptions, Elem, ElementwiseOp};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::process::OfProcess;
use crate::worker::{detached, locked};

/// A value of a batch.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct BatchValue {
    id: BufferId,
}

/// A batch of array operations, recorded and run as one submission.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct CommandBatch {
    batch: OfProcess<Mutex<GpuCommandBatch>>,
}

/// Label, start and duration in microseconds of each kernel, and whether each ran in a pass of its own.
pub(crate) type Times = (Vec<(String, f64, f64)>, bool);

pub(crate) fn times(profile: Profile) -> Times {
    let times = profile.dispatches.into_iter().map(|time| (time.label, time.start_us, time.duration_us));
    (times.collect(), profile.split_passes)
}

type Recorded = Result<BufferId, GpuError>;

impl CommandBatch {
    fn lock(&self) -> Result<MutexGuard<'_, GpuCommandBatch>, Failure> {
        Ok(self.batch.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records an operation, which takes no time.
    fn record(
        &self,
        py: Python<'_>,
        op: impl FnOnce(&mut GpuCommandBatch) -> Recorded + Send,
    ) -> PyResult<BatchValue> {
        let id = locked(py, self.batch.get()?, |batch| Ok(op(batch)?))?;
        Ok(BatchValue { id })
    }
}

/// The op of two arrays with this name.
fn op_of(call: &'static str, name: &str) -> Result<ElementwiseOp, Failure> {
    let op = match name {
        "maximum" => Some(ElementwiseOp::Max),
        "minimum" => Some(ElementwiseOp::Min),
        name => ElementwiseOp::by_name(name),
    };
    Ok(op.ok_or_else(|| unknown_op(call, name))?)
}

#[pymethods]
impl CommandBatch {
    /// An empty batch on a device.
    #[new]
    fn new(py: Python<'_>, device: &str, fuse: bool, share_memory: bool) -> PyResult<CommandBatch> {
        crate::logs::follow(py)?;
        detached(py, || {
            let gpu = crate::device::open_gpu("Batch", device)?;
            let batch = GpuCommandBatch::with_options(gpu, BatchOptions { fuse, share_memory });
            Ok(CommandBatch { batch: OfProcess::new(Mutex::new(batch)) })
        })
    }

    /// The name of the device.
    fn device_name(&self, py: Python<'_>) -> PyResult<String> {
        locked(py, self.batch.get()?, |batch| Ok(batch.device().info().name.clone()))
    }

    /// Data for the device, as f32 or f16.
    fn upload(&self, py: Python<'_>, data: PyReadonlyArray1<'_, f32>, half: bool) -> PyResult<BatchValue> {
        let data = data.as_slice()?;
        let elem = if half { Elem::F16 } else { Elem::F32 };
        let id = detached(py, || Ok(self.lock()?.upload_as(data, elem)))?;
        Ok(BatchValue { id })
    }

    /// Replaces the data of an upload.
    fn write(&self, py: Python<'_>, value: &BatchValue, data: PyReadonlyArray1<'_, f32>) -> PyResult<()> {
        let data = data.as_slice()?;
        detached(py, || Ok(self.lock()?.write(value.id, data)?))
    }

    /// An op of each element.
    fn unary(&self, py: Python<'_>, op: &str, x: &BatchValue) -> PyResult<BatchValue> {
        self.record(py, |batch| match op {
            "relu" => batch.try_relu(x.id),
            "sigmoid" => batch.try_sigmoid(x.id),
            "tanh" => batch.try_tanh(x.id),
            "silu" => batch.try_silu(x.id),
            "gelu" => batch.try_gelu(x.id),
            "gelu_tanh" => batch.try_gelu_tanh(x.id),
            "exp" => batch.try_exp(x.id),
            "log" => batch.try_log(x.id),
            "sqrt" => batch.try_sqrt(x.id),
            "neg" => batch.try_neg(x.id),
            "abs" => batch.try_abs(x.id),
            "to_f16" => batch.try_to_f16(x.id),
            "to_f32" => batch.try_to_f32(x.id),
            "sum" => batch.try_sum(x.id),
            "max" => batch.try_max(x.id),
            "min" => batch.try_min(x.id),
            other => Err(unknown_op("unary", other)),
        })
    }

    /// An op of two arrays of one length.
    fn binary(&self, py: Python<'_>, op: &str, a: &BatchValue, b: &BatchValue) -> PyResult<BatchValue> {
        self.record(py, |batch| match op {
            "add" => batch.try_add(a.id, b.id),
            "sub" => batch.try_sub(a.id, b.id),
            "mul" => batch.try_mul(a.id, b.id),
            "div" => batch.try_div(a.id, b.id),
            "maximum" => batch.try_maximum(a.id, b.id),
            "minimum" => batch.try_minimum(a.id, b.id),
            "dot" => batch.try_dot(a.id, b.id),
            other => Err(unknown_op("binary", other)),
        })
    }

    /// An op whose second operand is one row.
    fn with_row(&self, py: Python<'_>, op: &str, x: &BatchValue, row: &BatchValue) -> PyResult<BatchValue> {
        let op = op_of("with_row", op)?;
        self.record(py, |batch| batch.try_with_row(op, x.id, row.id))
    }

    /// An op whose second operand has one value for each row.
    fn with_column(
        &self,
        py: Python<'_>,
        op: &str,
        x: &BatchValue,
        column: &BatchValue,
    ) -> PyResult<BatchValue> {
        let op = op_of("with_column", op)?;
        self.record(py, |batch| batch.try_with_column(op, x.id, column.id))
    }

    /// `x · scalar`.
    fn scale(&self, py: Python<'_>, x: &BatchValue, scalar: f32) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_scale(x.id, scalar))
    }

    /// `x + scalar`.
    fn add_scalar(&self, py: Python<'_>, x: &BatchValue, scalar: f32) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_add_scalar(x.id, scalar))
    }

    /// `x`, at least `low` and at most `high`.
    fn clamp(&self, py: Python<'_>, x: &BatchValue, low: f32, high: f32) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_clamp(x.id, low, high))
    }

    /// Softmax along rows of `width` elements.
    fn softmax(&self, py: Python<'_>, x: &BatchValue, width: u32) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_softmax(x.id, width))
    }

    /// RMS norm along rows as long as the gain.
    fn rms_norm(&self, py: Python<'_>, x: &BatchValue, gamma: &BatchValue, eps: f32) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_rms_norm(x.id, gamma.id, eps))
    }

    /// Layer norm along rows as long as the gain.
    fn layer_norm(
        &self,
        py: Python<'_>,
        x: &BatchValue,
        gamma: &BatchValue,
        beta: &BatchValue,
        eps: f32,
    ) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_layer_norm(x.id, gamma.id, beta.id, eps))
    }

    /// `[rows, columns]` to `[columns, rows]`.
    fn transpose(&self, py: Python<'_>, x: &BatchValue, rows: u32, columns: u32) -> PyResult<BatchValue> {
        self.record(py, |batch| batch.try_transpose(x.id, rows, columns))
    }

    /// `a · b`, or `a · bᵀ`.
    #[allow(clippy::too_many_arguments)]
    fn matmul(
        &self,
        py: Python<'_>,
        a: &BatchValue,
        b: &BatchValue,
        m: u32,
        k: u32,
        n: u32,
        transposed: bool,
    ) -> PyResult<BatchValue> {
        self.record(py, |batch| match transposed {
            true => batch.try_matmul_nt(a.id, b.id, m, k, n),
            false => batch.try_matmul(a.id, b.id, m, k, n),
        })
    }

    /// Runs what was recorded. Does not wait for the device.
    fn execute(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || Ok(self.lock()?.execute_blocking()?))
    }

    /// Runs what was recorded and reads a value, in one submission.
    fn run<'py>(&self, py: Python<'py>, value: &BatchValue) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let values = detached(py, || Ok(self.lock()?.execute_and_read_blocking(&[value.id])?.pop()))?;
        Ok(PyArray1::from_vec(py, values.unwrap_or_default()))
    }

    /// The elements of a value.
    fn read<'py>(&self, py: Python<'py>, value: &BatchValue) -> PyResult<Bound<'py, PyArray1<f32>>> {
        // Memory of Rust becomes that of the array, without a copy.
        let values = detached(py, || Ok(self.lock()?.read_blocking(value.id)?))?;
        Ok(PyArray1::from_vec(py, values))
    }

    /// The elements of a value, into an array that there is.
    fn read_into(
        &self,
        py: Python<'_>,
        value: &BatchValue,
        mut out: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<()> {
        let out = out.as_slice_mut()?;
        detached(py, || Ok(self.lock()?.read_into_blocking(value.id, out)?))
    }

    /// Runs what was recorded, with the time of each kernel.
    fn profile(&self, py: Python<'_>) -> PyResult<Times> {
        detached(py, || Ok(times(self.lock()?.execute_profiled()?)))
    }

    /// Operations, values, and launches of a run.
    fn counts(&self, py: Python<'_>) -> PyResult<(usize, usize, Option<usize>)> {
        locked(py, self.batch.get()?, |batch| {
            Ok((batch.num_operations(), batch.num_buffers(), batch.num_launches()))
        })
    }
}

fn unknown_op(call: &'static str, name: &str) -> GpuError {
    let (what, expected) = ("the op".to_owned(), "one of the element-wise table".to_owned());
    GpuError::Argument { call, what, expected, got: format!("{name:?}") }
}
