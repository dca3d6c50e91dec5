//! Text form of a logical graph: one line per op, or a Graphviz diagram.

use std::fmt::{self, Write as _};

use super::{LogicalGraph, Role, TensorId};

impl LogicalGraph {
    fn label(&self, id: TensorId) -> String {
        self.tensors[id].name.as_deref().map_or_else(|| format!("%{id}"), str::to_owned)
    }

    fn typed(&self, id: TensorId) -> String {
        let tensor = &self.tensors[id];
        format!("{}: {} {}x{}", self.label(id), tensor.dtype, tensor.rows, tensor.width)
    }

    /// The graph as Graphviz DOT: `dot -Tsvg`. Weights are listed in the node of the op that reads them.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph logical_graph {\n  node [shape=box, fontname=\"sans-serif\"];\n");
        // Writing to a String does not fail.
        for (id, tensor) in self.tensors.iter().enumerate() {
            if matches!(tensor.role, Role::Input | Role::State) {
                let label = self.typed(id).escape_default().to_string();
                let _ = writeln!(dot, "  t{id} [label=\"{label}\", style=rounded];");
            }
        }
        let mut made_by = std::collections::HashMap::new();
        for (index, node) in self.ops.iter().enumerate() {
            let operands = node.op.operands();
            let is_weight = |id: &TensorId| self.tensors[*id].role == Role::Weight;
            let weights: Vec<String> =
                operands.iter().copied().filter(is_weight).map(|id| self.typed(id)).collect();
            let outputs: Vec<String> = node.outputs.iter().map(|&id| self.typed(id)).collect();
            let mut lines = vec![node.op.name().to_owned()];
            lines.extend(weights.into_iter().chain(outputs).map(|line| line.escape_default().to_string()));
            let _ = writeln!(dot, "  op{index} [label=\"{}\"];", lines.join("\\n"));
            for id in operands.into_iter().filter(|id| !is_weight(id)) {
                let from = made_by.get(&id).map_or_else(|| format!("t{id}"), |op| format!("op{op}"));
                let _ = writeln!(dot, "  {from} -> op{index};");
            }
            made_by.extend(node.outputs.iter().map(|&id| (id, index)));
        }
        dot + "}\n"
    }
}

impl fmt::Display for LogicalGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.ops {
            let outputs: Vec<String> = node.outputs.iter().map(|&id| self.typed(id)).collect();
            let operands: Vec<String> = node.op.operands().into_iter().map(|id| self.label(id)).collect();
            let arrow = if outputs.is_empty() { "" } else { " = " };
            writeln!(f, "{}{arrow}{}({})", outputs.join(", "), node.op.name(), operands.join(", "))?;
        }
        let outputs: Vec<String> = self.outputs.iter().map(|&id| self.label(id)).collect();
        writeln!(f, "return {}", outputs.join(", "))
    }
}
