//! Text form of a graph or program: one line per node or call, or a Graphviz diagram.

use std::fmt::{self, Write as _};

use super::{ComputeGraph, Program, ProgramCall, TensorNode, TensorOp};

fn shape(node: &TensorNode) -> String {
    let [width, inner, m, _] = node.shape;
    match (node.op, inner) {
        (TensorOp::MulMat | TensorOp::GateUp | TensorOp::ExpertGateUp | TensorOp::ExpertDown, k) => {
            format!("{m}x{width} (k {k})")
        }
        (_, 0 | 1) => format!("{m}x{width}"),
        (_, heads) => format!("{m}x{heads}x{width}"),
    }
}

fn weights(node: &TensorNode) -> String {
    let mut types: Vec<&str> =
        [node.params.weight_qtype, node.params.up_qtype].iter().flatten().map(|t| t.name()).collect();
    types.extend(node.params.extra_weights.iter().map(|w| w.weight_qtype.name()));
    types.join("+")
}

impl fmt::Display for ComputeGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            let inputs: Vec<String> = node.inputs.iter().map(|i| format!("%{i}")).collect();
            let name = node.name.as_deref().unwrap_or("");
            let line = format!(
                "%{index:<4} {:<10} {:<18} {:<20} {:#014x} {} {name}",
                node.op.to_string(),
                inputs.join(" "),
                shape(node),
                node.data_ptr,
                weights(node)
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// One line per call: its node, the op with its weights, the name of the result.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ProgramCall { node, name, call } in self.calls() {
            let line = format!("%{node:<4} {:<40} {}", call.label(), name.as_deref().unwrap_or(""));
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl ComputeGraph {
    /// The graph as Graphviz DOT: `dot -Tsvg`.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph graph_of_ops {\n  node [shape=box, fontname=\"sans-serif\"];\n");
        for (index, node) in self.nodes.iter().enumerate() {
            let name = node.name.as_deref().map(|name| format!("{}\\n", name.escape_default()));
            let style = if node.op.launches() { "" } else { ", style=rounded" };
            let (name, shape) = (name.unwrap_or_default(), shape(node));
            // Writing to a String does not fail.
            let _ =
                writeln!(dot, "  n{index} [label=\"{name}{} {}\\n{shape}\"{style}];", node.op, weights(node));
            for input in &node.inputs {
                let _ = writeln!(dot, "  n{input} -> n{index};");
            }
        }
        dot + "}\n"
    }
}
