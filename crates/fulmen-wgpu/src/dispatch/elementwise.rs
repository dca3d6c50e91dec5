//! Element-wise ops, each as one kernel composed of rows of the op table.

use fulmen_core::{BinaryCall, UnaryCall};

use super::{LaunchCount, WgpuDispatcher};
use crate::kernels::elementwise::{ElementwiseOp, ElementwiseProgram, Input, Node, Output, fused};

impl WgpuDispatcher {
    /// An op of one operand; an op with a scalar gets the call's scalar.
    pub(super) fn unary(&mut self, op: ElementwiseOp, call: &UnaryCall) -> LaunchCount {
        let mut nodes = vec![Node::Input(0)];
        let mut arguments = vec![0];
        if op.scalars() == 1 {
            nodes.push(Node::Scalar(0));
            arguments.push(1);
        }
        nodes.push(Node::Op(op, arguments));
        self.one_input(nodes, op.scalars(), call)
    }

    /// `max(x, 0)²`.
    pub(super) fn relu2(&mut self, call: &UnaryCall) -> LaunchCount {
        let nodes = vec![
            Node::Input(0),
            Node::Op(ElementwiseOp::Relu, vec![0]),
            Node::Op(ElementwiseOp::Mul, vec![1, 1]),
        ];
        self.one_input(nodes, 0, call)
    }

    /// `c · tanh(x / c)`.
    pub(super) fn softcap(&mut self, call: &UnaryCall) -> LaunchCount {
        let nodes = vec![
            Node::Input(0),
            Node::Scalar(0),
            Node::Op(ElementwiseOp::Div, vec![0, 1]),
            Node::Op(ElementwiseOp::Tanh, vec![2]),
            Node::Op(ElementwiseOp::Mul, vec![3, 1]),
        ];
        self.one_input(nodes, 1, call)
    }

    fn one_input(&mut self, nodes: Vec<Node>, scalars: usize, call: &UnaryCall) -> LaunchCount {
        self.writes(call.output);
        let x = self.at("the input", call.input, call.n_elements)?;
        let out = self.at("the output", call.output, call.n_elements)?;
        let replaces = (call.input == call.output).then_some(0);
        let output = Output { node: nodes.len() - 1, replaces, ..Output::default() };
        let program =
            ElementwiseProgram { inputs: vec![Input::default()], scalars, nodes, outputs: vec![output] };
        let scalars = vec![call.scalar; scalars];
        let launches = fused(&program, call.n_elements as u64, &scalars, &self.queue.caps());
        self.queue.run_launches(launches, &[x], &[out])
    }

    /// A chain of ops: the last takes both operands, those before it only the first.
    pub(super) fn binary(&mut self, ops: &[ElementwiseOp], call: &BinaryCall) -> LaunchCount {
        self.writes(call.output);
        let a = self.at("the first input", call.a, call.n_elements)?;
        let b = self.at("the second input", call.b, call.n_elements)?;
        let out = self.at("the output", call.output, call.n_elements)?;
        // A range that is used twice is bound once.
        let (inputs, second) = if call.a == call.b { (vec![a], 0) } else { (vec![a, b], 1) };
        let mut nodes: Vec<Node> = (0..inputs.len()).map(Node::Input).collect();
        let mut first = 0;
        for (number, op) in ops.iter().enumerate() {
            let last = number + 1 == ops.len();
            nodes.push(Node::Op(*op, if last { vec![first, second] } else { vec![first] }));
            first = nodes.len() - 1;
        }
        let replaces = [call.a, call.b][..inputs.len()].iter().position(|&ptr| ptr == call.output);
        let program = ElementwiseProgram {
            inputs: vec![Input::default(); inputs.len()],
            scalars: 0,
            outputs: vec![Output { node: nodes.len() - 1, replaces, ..Output::default() }],
            nodes,
        };
        let launches = fused(&program, call.n_elements as u64, &[], &self.queue.caps());
        self.queue.run_launches(launches, &inputs, &[out])
    }
}
