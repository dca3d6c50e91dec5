//! Generates the WGSL of a graph of element-wise ops: the helper functions that it needs, and one
//! function that computes its outputs.

use std::collections::{BTreeSet, HashMap};

use super::{ElementwiseOp, ElementwiseProgram, Node, Output};
use crate::kernels::preprocess::render;

/// A WGSL file with functions on `EwF` that ops need, in the order of their dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Helper {
    Nan,
    Clamp,
    Exp,
    Log,
    Sigmoid,
    Tanh,
    Gelu,
}

impl Helper {
    /// Its WGSL file.
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Nan => "elementwise/nan.wgsl",
            Self::Clamp => "elementwise/clamp.wgsl",
            Self::Exp => "elementwise/exp.wgsl",
            Self::Log => "elementwise/log.wgsl",
            Self::Sigmoid => "elementwise/sigmoid.wgsl",
            Self::Tanh => "elementwise/tanh.wgsl",
            Self::Gelu => "elementwise/gelu.wgsl",
        }
    }
}

/// The WGSL of a program.
pub(super) struct ProgramSource {
    /// The inputs that it reads, in order.
    pub(super) inputs: Vec<usize>,
    /// The helpers, a function for each op, and `ew_program(x0, …, s0, …)` of the inputs as `EwF` and
    /// all scalars as f32, which gives `EwF`, or `EwOut` with the members `o0`, … where there are
    /// several outputs.
    pub(super) functions: String,
}

/// A distinct value.
#[derive(PartialEq, Eq, Hash)]
enum Value {
    Input(usize),
    Scalar(usize),
    Op(ElementwiseOp, Vec<usize>),
}

/// The text of a program that was checked. Values that no output needs are left out and equal ones
/// computed once; names depend on nothing but the program.
pub(super) fn source(program: &ElementwiseProgram) -> ProgramSource {
    let needed = needed(program);
    let mut numbers: HashMap<Value, usize> = HashMap::new();
    let mut names: Vec<String> = Vec::new();
    let (mut lets, mut ops, mut helpers, mut inputs) = (String::new(), Vec::new(), Vec::new(), Vec::new());
    // The distinct value of each node.
    let mut of_node = vec![usize::MAX; program.nodes.len()];
    // For each distinct value: values whose NaN may have been lost on the way to it.
    let mut lost: Vec<BTreeSet<usize>> = Vec::new();
    let mut loses: BTreeSet<usize> = BTreeSet::new();
    let mut computed = 0;
    for (at, node) in program.nodes.iter().enumerate() {
        if !needed[at] {
            continue;
        }
        let value = match node {
            Node::Input(i) => Value::Input(*i),
            Node::Scalar(j) => Value::Scalar(*j),
            Node::Op(op, args) => Value::Op(*op, args.iter().map(|&arg| of_node[arg]).collect()),
        };
        if let Some(&number) = numbers.get(&value) {
            of_node[at] = number;
            continue;
        }
        let name = match &value {
            Value::Input(i) => {
                inputs.push(*i);
                format!("x{i}")
            }
            Value::Scalar(j) => format!("EwF(s{j})"),
            Value::Op(op, args) => {
                let args: Vec<&str> = args.iter().map(|&arg| names[arg].as_str()).collect();
                lets += &format!("    let v{computed} = ew_op_{}({});\n", op.name(), args.join(", "));
                ops.push(*op);
                helpers.extend_from_slice(op.row().helpers);
                computed += 1;
                format!("v{}", computed - 1)
            }
        };
        let mut losing = BTreeSet::new();
        if let Value::Op(op, args) = &value {
            losing.extend(args.iter().flat_map(|&arg| &lost[arg]).copied());
            // What a chain of such ops lost, its first one did.
            losing.extend(args.iter().copied().filter(|&arg| op.loses_nan() && !loses.contains(&arg)));
            if op.loses_nan() {
                loses.insert(names.len());
            }
        }
        lost.push(losing);
        of_node[at] = names.len();
        numbers.insert(value, names.len());
        names.push(name);
    }
    inputs.sort_unstable();
    let result = |output: &Output| {
        let number = of_node[output.node];
        let nans: Vec<String> = lost[number].iter().map(|&at| format!("ew_is_nan({})", names[at])).collect();
        match nans.is_empty() {
            true => names[number].clone(),
            false => format!("ew_or_nan({}, {})", names[number], nans.join(" | ")),
        }
    };
    let results = program.outputs.iter().map(result).collect();
    let functions =
        helper_functions(helpers) + &op_functions(ops) + &program_function(program, &inputs, &lets, results);
    ProgramSource { inputs, functions }
}

/// Which nodes an output needs.
fn needed(program: &ElementwiseProgram) -> Vec<bool> {
    let mut needed = vec![false; program.nodes.len()];
    for output in &program.outputs {
        needed[output.node] = true;
    }
    for at in (0..program.nodes.len()).rev() {
        if let (true, Node::Op(_, args)) = (needed[at], &program.nodes[at]) {
            args.iter().for_each(|&arg| needed[arg] = true);
        }
    }
    needed
}

fn helper_functions(mut helpers: Vec<Helper>) -> String {
    helpers.sort_unstable();
    helpers.dedup();
    helpers.into_iter().map(|helper| render(helper.file(), &[])).collect()
}

fn op_functions(ops: Vec<ElementwiseOp>) -> String {
    let used = ElementwiseOp::ALL.iter().filter(|op| ops.contains(op));
    used.map(|op| {
        let row = op.row();
        let args: Vec<String> = row.names.iter().map(|name| format!("{name}: EwF")).collect();
        format!("fn ew_op_{}({}) -> EwF {{ return {}; }}\n", row.name, args.join(", "), row.wgsl)
    })
    .collect()
}

fn program_function(
    program: &ElementwiseProgram,
    inputs: &[usize],
    lets: &str,
    results: Vec<String>,
) -> String {
    let args: Vec<String> = inputs
        .iter()
        .map(|i| format!("x{i}: EwF"))
        .chain((0..program.scalars).map(|j| format!("s{j}: f32")))
        .collect();
    let args = args.join(", ");
    if let [only] = &results[..] {
        return format!("fn ew_program({args}) -> EwF {{\n{lets}    return {only};\n}}\n");
    }
    let members: String = (0..results.len()).map(|k| format!("    o{k}: EwF,\n")).collect();
    let results = results.join(", ");
    format!(
        "struct EwOut {{\n{members}}}\n\
         fn ew_program({args}) -> EwOut {{\n{lets}    return EwOut({results});\n}}\n"
    )
}
