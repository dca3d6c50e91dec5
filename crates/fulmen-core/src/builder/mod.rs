//! The logical graph: tensors without addresses, and the passes that lower it to a program for a device.
//!
//! ```text
//! GraphBuilder → LogicalGraph → fuse → plan → bind → Program
//! ```

mod bind;
mod build;
mod build_collective;
mod build_experts;
mod build_host_segment;
mod build_logits;
mod build_recurrent;
mod builder_call;
mod fuse;
mod lower;
mod op;
mod plan;
mod print;
mod rows;

pub use bind::{Bindings, BoundGraph};
pub use build::{Cache, CacheSpec, GraphBuilder, Rotation, Tensor};
pub use build_experts::{ExpertLinear, Routed};
pub use build_recurrent::{DeltaInputs, RecurrentRows};
pub use fuse::Fusions;
pub use op::{BinaryKind, CacheRef, Linear, Op, Slots, TensorId, UnaryKind};
pub use plan::{Placement, Plan, PlanOptions, Sharing};

use crate::{DType, DTypeError};

/// Where a tensor's data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Written by the caller before a run; it keeps its value until it is written again.
    Input,
    /// Constant: bound by name.
    Weight,
    /// Persists across runs, which change it (KV cache, sampling states): bound by name.
    State,
    /// Computed by an op of the graph.
    Computed,
}

/// A tensor of a logical graph: `rows` rows of `width` elements.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDef {
    /// Name; inputs, weights, states and outputs always have one.
    pub name: Option<Box<str>>,
    /// Rows.
    pub rows: u32,
    /// Elements per row.
    pub width: u32,
    /// Element type.
    pub dtype: DType,
    /// Where its data comes from.
    pub role: Role,
}

impl TensorDef {
    /// Elements.
    pub fn elements(&self) -> usize {
        (self.rows as usize).saturating_mul(self.width as usize)
    }

    /// Bytes; rows are contiguous.
    pub fn bytes(&self) -> Result<usize, DTypeError> {
        let overflow = DTypeError::Overflow { dtype: self.dtype, elements: self.elements() };
        self.dtype.bytes(self.width as usize)?.checked_mul(self.rows as usize).ok_or(overflow)
    }
}

/// An op and the tensors that it writes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpNode {
    /// The op with its operands.
    pub op: Op,
    /// The tensors it writes.
    pub outputs: Vec<TensorId>,
}

/// Tensors and ops in the order in which they run. Made by [`GraphBuilder::finish`].
#[derive(Clone, Debug, PartialEq)]
pub struct LogicalGraph {
    /// All tensors.
    pub tensors: Vec<TensorDef>,
    /// Ops, in order.
    pub ops: Vec<OpNode>,
    /// Tensors that the caller reads after a run.
    pub outputs: Vec<TensorId>,
}

impl LogicalGraph {
    /// The tensor with this name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().position(|tensor| tensor.name.as_deref() == Some(name))
    }
}
