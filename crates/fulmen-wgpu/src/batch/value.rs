//! What a batch records: values, and the operations that make them.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::GpuBuffer;
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

/// A number that no other batch has.
pub(super) fn next_batch() -> u32 {
    static BATCHES: AtomicU32 = AtomicU32::new(0);
    BATCHES.fetch_add(1, Ordering::Relaxed)
}

/// An array on the device, or one that will be there.
#[derive(Debug)]
pub(super) struct Value {
    /// Elements.
    pub(super) len: u64,
    /// How they are stored.
    pub(super) elem: Elem,
    pub(super) source: Source,
    /// The value whose place it takes, for what was recorded in place.
    pub(super) in_place_of: Option<u32>,
    /// The value that takes its place; from there on it is gone.
    pub(super) overwritten_by: Option<u32>,
}

impl Value {
    pub(super) fn new(len: u64, elem: Elem, source: Source) -> Value {
        Value { len, elem, source, in_place_of: None, overwritten_by: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.len * self.elem.bytes()
    }

    pub(super) fn op(&self) -> Option<&Op> {
        match &self.source {
            Source::Op(op) => Some(op),
            Source::Upload { .. } | Source::Import(_) => None,
        }
    }
}

/// The upload or import in whose buffer a value lies because it was recorded in place; `None` for values that have a
/// buffer of their own, or none.
pub(super) fn home(values: &[Value], id: u32) -> Option<u32> {
    let mut at = id;
    while let Some(before) = values[at as usize].in_place_of {
        at = before;
    }
    (at != id && values[at as usize].op().is_none()).then_some(at)
}

#[derive(Debug)]
pub(super) enum Source {
    /// Data of the host; `pending` until it is on the device.
    Upload {
        pending: Option<Vec<u8>>,
        buffer: Option<GpuBuffer>,
    },
    /// A buffer of the caller.
    Import(GpuBuffer),
    Op(Op),
}

/// An operand of an element-wise operation, and how it is laid over the elements.
pub(super) type Operand = (u32, Broadcast);

/// Rows of a matrix for the operations along rows.
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
    /// The same numbers in the type of the value.
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
    /// Everything that it reads.
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

    /// Whether it reads a value, if at all, as its own elements or rows are laid out: as what it could overwrite.
    pub(super) fn reads_plainly(&self, id: u32) -> bool {
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

    /// Whether a generated kernel computes it element by element.
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
