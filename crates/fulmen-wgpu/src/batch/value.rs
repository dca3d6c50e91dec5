//! What a batch records: values, and the operations that compute them.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::GpuBuffer;
use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::kernels::Elem;
use crate::kernels::elementwise::{Broadcast, ElementwiseOp};
use crate::kernels::matmul::MatmulShape;
use crate::kernels::reduce::Reduction;

/// A value of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId {
    pub(super) batch: u32,
    pub(super) index: u32,
}

/// A process-wide unique number.
pub(super) fn next_batch_id() -> u32 {
    static BATCHES: AtomicU32 = AtomicU32::new(0);
    BATCHES.fetch_add(1, Ordering::Relaxed)
}

/// An array that is, or will be, on the device.
#[derive(Debug)]
pub(super) struct Value {
    /// Number of elements.
    pub(super) len: u64,
    /// Element type in memory.
    pub(super) elem: Elem,
    pub(super) source: Source,
    /// The value that it overwrites, if it was recorded in place.
    pub(super) in_place_of: Option<u32>,
    /// The value that overwrites it; it cannot be used after that.
    pub(super) overwritten_by: Option<u32>,
}

impl Value {
    pub(super) fn new(len: u64, elem: Elem, source: Source) -> Value {
        Value { len, elem, source, in_place_of: None, overwritten_by: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.len * self.elem.bytes()
    }

    /// Data that is still to be uploaded, and the buffer it goes to, which is created here.
    pub(super) fn pending_upload(&mut self, gpu: &GpuDevice) -> Result<Option<(GpuBuffer, &[u8])>, GpuError> {
        let bytes = self.bytes();
        let Source::Upload { pending: Some(data), buffer } = &mut self.source else { return Ok(None) };
        let target = match buffer {
            Some(buffer) => buffer.clone(),
            None => buffer.insert(gpu.create_buffer("upload", bytes)?).clone(),
        };
        Ok(Some((target, data)))
    }

    /// Drops the data, which the device has now.
    pub(super) fn uploaded(&mut self) {
        if let Source::Upload { pending, .. } = &mut self.source {
            *pending = None;
        }
    }

    pub(super) fn op(&self) -> Option<&Op> {
        match &self.source {
            Source::Op(op) => Some(op),
            Source::Upload { .. } | Source::Import(_) => None,
        }
    }
}

/// The upload or import whose buffer a value occupies because it was recorded in place; `None` for all
/// other values.
pub(super) fn alias_root(values: &[Value], id: u32) -> Option<u32> {
    let mut root = id;
    while let Some(overwritten) = values[root as usize].in_place_of {
        root = overwritten;
    }
    (root != id && values[root as usize].op().is_none()).then_some(root)
}

#[derive(Debug)]
pub(super) enum Source {
    /// Host data; `pending` until it is uploaded.
    Upload {
        pending: Option<Vec<u8>>,
        buffer: Option<GpuBuffer>,
    },
    /// A buffer of the caller's.
    Import(GpuBuffer),
    Op(Op),
}

/// An operand of an element-wise operation, and how it is broadcast.
pub(super) type Operand = (u32, Broadcast);

/// The matrix shape of a row-wise operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowShape {
    pub(super) rows: u64,
    pub(super) width: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Elementwise {
        op: ElementwiseOp,
        args: Vec<Operand>,
        scalars: Vec<f32>,
    },
    /// Converts to the element type of the value.
    Cast {
        x: u32,
    },
    Matmul {
        a: u32,
        b: u32,
        shape: MatmulShape,
    },
    Reduce {
        op: Reduction,
        args: Vec<u32>,
    },
    Softmax {
        x: u32,
        shape: RowShape,
    },
    RmsNorm {
        x: u32,
        gamma: u32,
        shape: RowShape,
        eps: f32,
    },
    LayerNorm {
        x: u32,
        gamma: u32,
        beta: u32,
        shape: RowShape,
        eps: f32,
    },
    /// `[rows, width]` to `[width, rows]`.
    Transpose {
        x: u32,
        shape: RowShape,
    },
}

impl Op {
    /// Every value that it reads.
    pub(super) fn args(&self) -> Vec<u32> {
        match self {
            Op::Elementwise { args, .. } => args.iter().map(|&(id, _)| id).collect(),
            Op::Reduce { args, .. } => args.clone(),
            Op::Cast { x } | Op::Softmax { x, .. } | Op::Transpose { x, .. } => vec![*x],
            Op::Matmul { a, b, .. } => vec![*a, *b],
            Op::RmsNorm { x, gamma, .. } => vec![*x, *gamma],
            Op::LayerNorm { x, gamma, beta, .. } => vec![*x, *gamma, *beta],
        }
    }

    /// Whether each element (or row) of the result depends on at most the same element (or row) of
    /// value `id`, so that the result may overwrite it.
    pub(super) fn reads_elementwise(&self, id: u32) -> bool {
        match self {
            Op::Elementwise { args, .. } => {
                args.iter().all(|&(arg, broadcast)| arg != id || broadcast == Broadcast::Full)
            }
            Op::RmsNorm { gamma, .. } => *gamma != id,
            Op::LayerNorm { gamma, beta, .. } => *gamma != id && *beta != id,
            Op::Softmax { .. } | Op::Cast { .. } => true,
            Op::Matmul { .. } | Op::Reduce { .. } | Op::Transpose { .. } => !self.args().contains(&id),
        }
    }

    /// Whether it is computed by a generated element-wise kernel.
    pub(super) fn is_elementwise(&self) -> bool {
        matches!(self, Op::Elementwise { .. } | Op::Cast { .. })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Op::Elementwise { op, .. } => op.name(),
            Op::Cast { .. } => "cast",
            Op::Matmul { .. } => "matmul",
            Op::Reduce { op, .. } => op.name(),
            Op::Softmax { .. } => "softmax",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Transpose { .. } => "transpose",
        }
    }
}
