//! What can go wrong, as types: a [`Problem`] says what was expected and what was found; [`GraphError`],
//! [`BuildError`] and [`ExecError`] say where.

use crate::{DType, DTypeError, graph::TensorOp};

/// One thing that is wrong with a node or a call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Too few or too many inputs.
    #[error("takes {expected} inputs, got {got}")]
    Arity {
        /// What the op takes, in words.
        expected: &'static str,
        /// What it was given.
        got: usize,
    },
    /// An input that does not come before the node that uses it: a forward reference, the node itself (a
    /// cycle), or no node at all.
    #[error(
        "input {position} refers to node {input}, which does not come before it (the graph has {nodes} nodes)"
    )]
    Order {
        /// Which input, from 0.
        position: usize,
        /// The node it names.
        input: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A null address where data is required.
    #[error("{what} is a null pointer")]
    Null {
        /// Which address.
        what: &'static str,
    },
    /// A required parameter that was not given.
    #[error("{what} is not set")]
    Missing {
        /// Which parameter.
        what: &'static str,
    },
    /// A size that is inconsistent with the others.
    #[error("{what} must be {expected}, got {got}")]
    Size {
        /// Which size.
        what: &'static str,
        /// The size that would fit.
        expected: u64,
        /// The size given.
        got: u64,
    },
    /// A size that must be a multiple of another.
    #[error("{what} must be a multiple of {of}, got {got}")]
    Multiple {
        /// Which size.
        what: &'static str,
        /// What it must be a multiple of.
        of: u64,
        /// The size given.
        got: u64,
    },
    /// Data of another type than the op takes.
    #[error("{what} must be {expected}, got {got}")]
    Type {
        /// Which tensor.
        what: &'static str,
        /// The types it takes.
        expected: &'static str,
        /// The type given.
        got: DType,
    },
    /// A number outside its range.
    #[error("{what} must be {expected}, got {got}")]
    Value {
        /// Which number.
        what: &'static str,
        /// The range, in words.
        expected: &'static str,
        /// The number given.
        got: f64,
    },
    /// A view whose address is not an output of the viewed node.
    #[error("address {ptr:#x} is not an output of node {node}")]
    NotAnOutput {
        /// The address.
        ptr: u64,
        /// The node viewed.
        node: usize,
    },
    /// A tensor that belongs to another builder.
    #[error("{what} belongs to another graph builder")]
    Foreign {
        /// Which tensor.
        what: &'static str,
    },
    /// A tensor that an op updates but that is not a state.
    #[error("{what} must be a state: the op changes it")]
    NotAState {
        /// Which tensor.
        what: &'static str,
    },
    /// A name that is already used.
    #[error("the name {0:?} is taken")]
    Duplicate(String),
    /// A tensor that already has a name: an input, a weight, or an output given twice.
    #[error("the tensor is already named {0:?}")]
    Named(String),
    /// A tensor without an address, or a name of no tensor.
    #[error("no tensor named {0:?} is bound")]
    Unbound(String),
    /// A size that does not fit the type or the address space.
    #[error(transparent)]
    DType(#[from] DTypeError),
}

/// A graph that cannot run: which node, and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("node {node} ({op}{}): {problem}", quoted(name.as_deref()))]
pub struct GraphError {
    /// Index of the node.
    pub node: usize,
    /// Its op.
    pub op: TensorOp,
    /// Its name, if it has one.
    pub name: Option<Box<str>>,
    /// What is wrong with it.
    pub problem: Problem,
}

fn quoted(name: Option<&str>) -> String {
    name.map(|name| format!(" {name:?}")).unwrap_or_default()
}

/// A call of the [`GraphBuilder`](crate::GraphBuilder) that failed: which call, and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{call}: {problem}")]
pub struct BuildError {
    /// The method.
    pub call: &'static str,
    /// What is wrong with its arguments.
    pub problem: Problem,
}

/// An error of a backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend has no kernel for this.
    #[error("{backend} cannot run {what}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// The op, with the type or shape that is not supported.
        what: String,
    },
    /// An address range that is not inside one allocation of this device.
    #[error("{what}: {bytes} bytes at {ptr:#x} are not inside an allocation of this device")]
    Address {
        /// Which operand.
        what: &'static str,
        /// Its address.
        ptr: u64,
        /// Its length.
        bytes: usize,
    },
    /// An address that is not aligned for its type.
    #[error("{what}: address {ptr:#x} is not aligned to {align} bytes")]
    Alignment {
        /// Which operand.
        what: &'static str,
        /// Its address.
        ptr: u64,
        /// The alignment it needs.
        align: usize,
    },
    /// An output that overlaps an operand it must not overlap.
    #[error("{output} overlaps {operand}, which this op does not support")]
    Overlap {
        /// The output.
        output: &'static str,
        /// The operand.
        operand: &'static str,
    },
    /// A write to memory that was imported read-only.
    #[error("{what}: {ptr:#x} is in read-only memory")]
    ReadOnly {
        /// Which operand.
        what: &'static str,
        /// Its address.
        ptr: u64,
    },
    /// A token, position or sequence number outside its range.
    #[error("{what} of row {row} is {value}, but there are only {limit}")]
    Index {
        /// What is indexed.
        what: &'static str,
        /// The row of the batch.
        row: usize,
        /// The value found.
        value: u32,
        /// The first value that is out of range.
        limit: u32,
    },
    /// An invalid parameter in device memory.
    #[error("{what} of row {row}: {detail}")]
    Parameter {
        /// Which parameter.
        what: &'static str,
        /// The row of the batch.
        row: usize,
        /// What is wrong with it.
        detail: String,
    },
    /// Not enough device memory.
    #[error(
        "out of memory: {needed} bytes needed, {}",
        available.map_or("free memory unknown".to_owned(), |n| format!("{n} available"))
    )]
    OutOfMemory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free, if the device reports them.
        available: Option<u64>,
    },
    /// A captured program that cannot be replayed.
    #[error("program {program} cannot be replayed: {reason}")]
    Replay {
        /// The number of the program.
        program: u64,
        /// Why not.
        reason: String,
    },
    /// A collective failed, because of this rank or of another one.
    #[error(transparent)]
    Collective(Box<crate::CommunicatorError>),
    /// An error of the device's driver or API.
    #[error("{backend}: {call} failed: {source}")]
    Device {
        /// The backend.
        backend: &'static str,
        /// The call that failed.
        call: &'static str,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<crate::CommunicatorError> for BackendError {
    fn from(error: crate::CommunicatorError) -> BackendError {
        BackendError::Collective(Box::new(error))
    }
}

/// Why [`execute_graph`](crate::execute_graph) stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The graph is not valid; nothing was run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A plan could not be bound to the device.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The backend failed at a node; the nodes before it have run.
    #[error("node {node} ({op}{}): {source}", quoted(name.as_deref()))]
    Node {
        /// Index of the node.
        node: usize,
        /// Its op.
        op: TensorOp,
        /// Its name, if it has one.
        name: Option<Box<str>>,
        /// The backend's error.
        source: BackendError,
    },
    /// The backend failed outside any node: an allocation, a transfer, waiting for the device.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl ExecError {
    /// Converts to a backend error of `call` that keeps the node as its source. Errors that a caller may want
    /// to handle, out of memory and unsupported ops, are returned unchanged.
    pub fn into_backend(self, backend: &'static str, call: &'static str) -> BackendError {
        match self {
            ExecError::Backend(error) => error,
            ExecError::Node { source, .. }
                if matches!(source, BackendError::OutOfMemory { .. } | BackendError::Unsupported { .. }) =>
            {
                source
            }
            error => BackendError::Device { backend, call, source: Box::new(error) },
        }
    }
}
