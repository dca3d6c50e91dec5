//! Graphs of element-wise ops as data.

use super::ElementwiseOp;
use crate::kernels::{Elem, KernelError};

/// How an input of a program is broadcast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Broadcast {
    /// One element per output element.
    #[default]
    Full,
    /// One element for all.
    Scalar,
    /// `n` elements, one per column of rows of `n`: element `i` takes `i % n`. A bias.
    Row {
        /// Elements in a row.
        n: u64,
    },
    /// One element per row of `n`: element `i` takes `i / n`.
    Column {
        /// Elements in a row.
        n: u64,
    },
}

impl Broadcast {
    /// Elements of the input of a program with `len` elements.
    pub fn elements(self, len: u64) -> u64 {
        match self {
            Self::Full => len,
            Self::Scalar => 1,
            Self::Row { n } => n,
            Self::Column { n } => len.div_ceil(n.max(1)),
        }
    }

    /// The simplest equivalent broadcast for `len` elements.
    pub(super) fn simplified(self, len: u64) -> Self {
        match self {
            Self::Row { n: 1 } => Self::Scalar,
            Self::Row { n } if n >= len => Self::Full,
            Self::Column { n: 1 } => Self::Full,
            Self::Column { n } if n >= len => Self::Scalar,
            other => other,
        }
    }
}

/// An input of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Input {
    /// The type of its elements.
    pub elem: Elem,
    /// How it is broadcast.
    pub broadcast: Broadcast,
}

/// A value in a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The element of the input of this number.
    Input(usize),
    /// The scalar of this number.
    Scalar(usize),
    /// An op of the table over nodes before this one: its arrays, then its scalars. Any node may stand
    /// for either.
    Op(ElementwiseOp, Vec<usize>),
}

/// An output of a program, of full length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Output {
    /// The stored node.
    pub node: usize,
    /// The type it is stored as.
    pub elem: Elem,
    /// The input in whose buffer it is stored, which is then bound once, for reading and writing. That
    /// input is [`Broadcast::Full`] and of the same type.
    pub replaces: Option<usize>,
}

/// A tree of element-wise ops, or any graph without cycles: the nodes are in an order in which each
/// comes after its arguments. Two inputs are two buffers: one buffer that is used twice is one input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ElementwiseProgram {
    /// The inputs.
    pub inputs: Vec<Input>,
    /// How many scalars there are.
    pub scalars: usize,
    /// The values, in order.
    pub nodes: Vec<Node>,
    /// What is stored.
    pub outputs: Vec<Output>,
}

impl ElementwiseProgram {
    /// A program of one op on f32 arrays of full length.
    pub fn of(op: ElementwiseOp) -> Self {
        let (arity, scalars) = (op.arity(), op.scalars());
        let mut nodes: Vec<Node> =
            (0..arity).map(Node::Input).chain((0..scalars).map(Node::Scalar)).collect();
        nodes.push(Node::Op(op, (0..arity + scalars).collect()));
        let outputs = vec![Output { node: arity + scalars, ..Output::default() }];
        Self { inputs: vec![Input::default(); arity], scalars, nodes, outputs }
    }

    /// The outputs for one element in f64.
    ///
    /// # Panics
    /// If the program is malformed or there are fewer values than it takes.
    pub fn reference(&self, inputs: &[f64], scalars: &[f64]) -> Vec<f64> {
        let mut values: Vec<f64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let value = match node {
                Node::Input(i) => inputs[*i],
                Node::Scalar(j) => scalars[*j],
                Node::Op(op, args) => {
                    let args: Vec<f64> = args.iter().map(|&arg| values[arg]).collect();
                    op.reference(&args)
                }
            };
            values.push(value);
        }
        self.outputs.iter().map(|output| values[output.node]).collect()
    }

    /// The names of its ops, for labels.
    pub(super) fn label(&self) -> String {
        let mut names = self.nodes.iter().filter_map(|node| match node {
            Node::Op(op, _) => Some(op.name()),
            _ => None,
        });
        match (names.next(), names.next(), names.count()) {
            (None, ..) => "copy".to_owned(),
            (Some(only), None, _) => only.to_owned(),
            (Some(first), Some(second), 0) => format!("{first}+{second}"),
            (Some(first), Some(second), more) => format!("{first}+{second}+{more} more"),
        }
    }

    /// Checks that all indices are valid.
    pub(super) fn check(&self) -> Result<(), KernelError> {
        let invalid = |reason: String| Err(KernelError::Invalid { op: self.label(), reason });
        for (at, node) in self.nodes.iter().enumerate() {
            match node {
                Node::Input(i) if *i >= self.inputs.len() => {
                    return invalid(format!("node {at} is input {i} of {}", self.inputs.len()));
                }
                Node::Scalar(j) if *j >= self.scalars => {
                    return invalid(format!("node {at} is scalar {j} of {}", self.scalars));
                }
                Node::Op(op, args) => {
                    let takes = op.arity() + op.scalars();
                    if args.len() != takes {
                        let (name, got) = (op.name(), args.len());
                        return invalid(format!("node {at}, {name}, takes {takes} values and has {got}"));
                    }
                    if let Some(arg) = args.iter().find(|&&arg| arg >= at) {
                        return invalid(format!("node {at} takes node {arg}, which is not before it"));
                    }
                }
                _ => {}
            }
        }
        if self.outputs.is_empty() {
            return invalid("there is no output".to_owned());
        }
        for (at, output) in self.outputs.iter().enumerate() {
            if output.node >= self.nodes.len() {
                return invalid(format!("output {at} is node {} of {}", output.node, self.nodes.len()));
            }
            let Some(replaced) = output.replaces else { continue };
            let Some(input) = self.inputs.get(replaced) else {
                return invalid(format!("output {at} replaces input {replaced} of {}", self.inputs.len()));
            };
            if *input != (Input { elem: output.elem, broadcast: Broadcast::Full }) {
                return invalid(format!(
                    "output {at} and the input that it replaces differ in type or shape"
                ));
            }
            if self.outputs[..at].iter().any(|other| other.replaces == Some(replaced)) {
                return invalid(format!("two outputs replace input {replaced}"));
            }
        }
        for (at, input) in self.inputs.iter().enumerate() {
            if matches!(input.broadcast, Broadcast::Row { n: 0 } | Broadcast::Column { n: 0 }) {
                return invalid(format!("input {at} has rows of 0 elements"));
            }
        }
        Ok(())
    }
}
