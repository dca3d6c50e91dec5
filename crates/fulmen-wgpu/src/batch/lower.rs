//! From a unit to launches: the kernel functions are called with the shapes of the values, and what they bind becomes
//! values and scratch.

use std::collections::HashMap;

use super::group::Unit;
use super::value::{Op, Operand, RowShape, Value};
use crate::error::GpuError;
use crate::kernel::{Caps, Launch};
use crate::kernels::elementwise::{
    Broadcast, ElementwiseProgram, EpilogueLayout, Input, Node, Output, epilogue_source, fused,
};
use crate::kernels::matmul::{self, EpilogueInput, EpilogueSource, MatmulShape};
use crate::kernels::{self, Elem, KernelError, rows, transpose::transpose};
use crate::tune::Tuned;

/// What a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Value(u32),
    Scratch(usize),
}

/// A range of a buffer; `bytes` may go beyond its end by what rounding up adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) place: Place,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The launches of one unit.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    pub(super) launches: Vec<(Launch, Vec<Bound>)>,
    pub(super) scratch: Vec<u64>,
}

/// Why a unit cannot run here, as an error of the call that recorded it.
fn refused(name: &'static str, error: impl std::fmt::Display) -> GpuError {
    GpuError::Argument {
        call: name,
        what: "the operation".to_owned(),
        expected: "one that this device can run".to_owned(),
        got: error.to_string(),
    }
}

/// Lowers a unit; `replaces` is the input in whose buffer the result goes.
pub(super) fn lower(
    values: &[Value],
    unit: &Unit,
    replaces: Option<u32>,
    caps: &Caps,
    tuned: &Tuned,
) -> Result<Lowered, GpuError> {
    let root = &values[unit.root as usize];
    let Some(op) = root.op() else { return Ok(Lowered::default()) };
    if !unit.products.is_empty() {
        return product(values, unit, caps, tuned);
    }
    let of = |plan: Result<kernels::Plan, KernelError>, inputs: &[u32]| {
        plan.map(|plan| from_plan(plan, inputs, unit.root)).map_err(|e| refused(op.name(), e))
    };
    let elem = |id: u32| values[id as usize].elem;
    let matrix = |x: u32, shape: &RowShape| rows::Rows {
        rows: shape.rows,
        width: shape.width,
        input: elem(x),
        output: root.elem,
        in_place: replaces == Some(x),
    };
    match op {
        Op::Elementwise { .. } | Op::Cast { .. } => {
            let cone = Program::of(values, unit, replaces);
            of(fused(&cone.program, root.len, &cone.scalars, caps), &cone.inputs)
        }
        Op::Matmul { a, b, shape } => {
            let none = EpilogueSource::none();
            matmul_columns(*a, &[*b], *shape, &none, &[], unit.root, op.name(), caps, tuned)
        }
        Op::Reduce { op: reduction, args } => {
            let (first, len) = (args[0], values[args[0] as usize].len);
            of(kernels::reduce::reduce(*reduction, len, elem(first), caps), args)
        }
        Op::Softmax { x, shape } => of(rows::softmax(&matrix(*x, shape), caps), &[*x]),
        Op::RmsNorm { x, gamma, shape, eps } => {
            of(rows::rms_norm(&matrix(*x, shape), *eps, elem(*gamma), caps), &[*x, *gamma])
        }
        Op::LayerNorm { x, gamma, beta, shape, eps } => {
            of(rows::layer_norm(&matrix(*x, shape), *eps, elem(*gamma), caps), &[*x, *gamma, *beta])
        }
        Op::Transpose { x, shape } => of(transpose(shape.rows, shape.width, elem(*x), caps), &[*x]),
    }
}

fn from_plan(plan: kernels::Plan, inputs: &[u32], root: u32) -> Lowered {
    let bound = |binding: &kernels::Binding| Bound {
        place: match binding.role {
            kernels::Role::Input(i) => Place::Value(inputs[i]),
            kernels::Role::Output(_) => Place::Value(root),
            kernels::Role::Scratch(i) => Place::Scratch(i),
        },
        offset: binding.offset,
        bytes: binding.bytes,
    };
    let launches =
        plan.steps.into_iter().map(|step| (step.launch, step.bindings.iter().map(bound).collect())).collect();
    Lowered { launches, scratch: plan.scratch }
}

/// The element-wise operations of a unit as one program.
struct Program {
    program: ElementwiseProgram,
    scalars: Vec<f32>,
    /// The value of each input of the program.
    inputs: Vec<u32>,
}

impl Program {
    fn of(values: &[Value], unit: &Unit, replaces: Option<u32>) -> Program {
        let mut made =
            Program { program: ElementwiseProgram::default(), scalars: Vec::new(), inputs: Vec::new() };
        let mut node_of: HashMap<u32, usize> = HashMap::new();
        let mut input_of: HashMap<Operand, usize> = HashMap::new();
        for &id in &unit.members {
            let (op, args, scalars): (_, Vec<Operand>, &[f32]) = match values[id as usize].op() {
                Some(Op::Elementwise { op, args, scalars }) => (Some(*op), args.clone(), scalars),
                Some(Op::Cast { x }) => (None, vec![(*x, Broadcast::Full)], &[]),
                _ => continue,
            };
            let mut nodes: Vec<usize> = Vec::new();
            for operand in args {
                let node = node_of.get(&operand.0).copied();
                nodes.push(node.unwrap_or_else(|| made.input(values, operand, &mut input_of)));
            }
            for &scalar in scalars {
                made.program.nodes.push(Node::Scalar(made.scalars.len()));
                made.scalars.push(scalar);
                nodes.push(made.program.nodes.len() - 1);
            }
            let node = match op {
                Some(op) => {
                    made.program.nodes.push(Node::Op(op, nodes));
                    made.program.nodes.len() - 1
                }
                None => nodes[0],
            };
            node_of.insert(id, node);
        }
        made.program.scalars = made.scalars.len();
        let replaces = replaces.and_then(|id| made.inputs.iter().position(|&input| input == id));
        let output = Output { node: node_of[&unit.root], elem: values[unit.root as usize].elem, replaces };
        made.program.outputs.push(output);
        made
    }

    /// The node of an operand that another unit made; one buffer laid out in one way is one input.
    fn input(&mut self, values: &[Value], operand: Operand, known: &mut HashMap<Operand, usize>) -> usize {
        *known.entry(operand).or_insert_with(|| {
            let (id, broadcast) = operand;
            self.program.inputs.push(Input { elem: values[id as usize].elem, broadcast });
            self.inputs.push(id);
            self.program.nodes.push(Node::Input(self.inputs.len() - 1));
            self.program.nodes.len() - 1
        })
    }
}

/// A product, or a pair of them, with the unit's element-wise operations as epilogue.
fn product(values: &[Value], unit: &Unit, caps: &Caps, tuned: &Tuned) -> Result<Lowered, GpuError> {
    let Some(Op::Matmul { a, shape, .. }) = values[unit.products[0] as usize].op() else {
        return Ok(Lowered::default());
    };
    let weights: Vec<u32> = unit
        .products
        .iter()
        .filter_map(|&id| match values[id as usize].op() {
            Some(Op::Matmul { b, .. }) => Some(*b),
            _ => None,
        })
        .collect();
    let cone = Program::of(values, unit, None);
    let computed: Vec<usize> =
        unit.products.iter().filter_map(|id| cone.inputs.iter().position(|input| input == id)).collect();
    let text =
        epilogue_source(&cone.program, &computed, u64::from(shape.n)).map_err(|e| refused("matmul", e))?;
    let mut inputs = Vec::new();
    let mut extras = Vec::new();
    for (input, layout) in &text.inputs {
        inputs.push(match layout {
            EpilogueLayout::PerElement => EpilogueInput::PerElement,
            EpilogueLayout::PerColumn => EpilogueInput::PerColumn,
            EpilogueLayout::PerRow => EpilogueInput::PerRow,
            EpilogueLayout::Scalar => {
                return Err(refused("matmul", "an epilogue with a single number as input"));
            }
        });
        extras.push(cone.inputs[*input]);
    }
    let source = EpilogueSource { expr: text.expr, inputs, functions: text.functions, scalars: cone.scalars };
    matmul_columns(*a, &weights, *shape, &source, &extras, unit.root, "matmul", caps, tuned)
}

/// The launches of a product whose B may be too large for one binding.
#[allow(clippy::too_many_arguments)]
fn matmul_columns(
    a: u32,
    weights: &[u32],
    shape: MatmulShape,
    epilogue: &EpilogueSource,
    extras: &[u32],
    root: u32,
    name: &'static str,
    caps: &Caps,
    tuned: &Tuned,
) -> Result<Lowered, GpuError> {
    let mut lowered = Lowered::default();
    if shape.m == 0 || shape.n == 0 {
        return Ok(lowered);
    }
    let failed = |e: matmul::MatmulError| refused(name, e);
    if weights.len() == 2 {
        let plan = matmul::pair_launches(shape, epilogue, caps).map_err(failed)?;
        add_matmul(&mut lowered, plan, a, weights, (shape, 0), extras, root);
        return Ok(lowered);
    }
    for columns in matmul::split_columns(shape, caps).map_err(failed)? {
        let from = columns.start;
        let part = MatmulShape { n: columns.end - columns.start, ..shape };
        let choice = tuned.choose(part, false, caps).ok_or_else(|| failed(matmul::MatmulError::NoKernel))?;
        let plan = matmul::launches_with(choice, shape, columns.clone(), epilogue, caps).map_err(failed)?;
        add_matmul(&mut lowered, plan, a, weights, (part, from), extras, root);
    }
    Ok(lowered)
}

fn add_matmul(
    lowered: &mut Lowered,
    plan: matmul::MatmulLaunches,
    a: u32,
    weights: &[u32],
    (part, from): (MatmulShape, u32),
    extras: &[u32],
    root: u32,
) {
    let first_scratch = lowered.scratch.len();
    lowered.scratch.extend(plan.scratch);
    let row = u64::from(part.k) * part.elem.bytes();
    for step in plan.launches {
        let whole = |place| Bound { place, offset: 0, bytes: u64::MAX };
        let bound = |role: &matmul::MatmulBuffer| match *role {
            matmul::MatmulBuffer::A => whole(Place::Value(a)),
            matmul::MatmulBuffer::B(i) if from == 0 && part.b == matmul::Layout::Kn => {
                whole(Place::Value(weights[usize::from(i)]))
            }
            matmul::MatmulBuffer::B(i) => Bound {
                place: Place::Value(weights[usize::from(i)]),
                offset: u64::from(from) * row,
                // An odd number of 16-bit elements ends in the middle of a word.
                bytes: (u64::from(part.n) * row).next_multiple_of(16),
            },
            matmul::MatmulBuffer::Out => whole(Place::Value(root)),
            matmul::MatmulBuffer::Extra(i) => whole(Place::Value(extras[i as usize])),
            matmul::MatmulBuffer::Scratch(i) => whole(Place::Scratch(first_scratch + i as usize)),
        };
        let bindings = step.buffers.iter().map(bound).collect();
        lowered.launches.push((step.launch, bindings));
    }
}

/// An operand of the unit that its result could take the place of: stored alike, and read element for element.
pub(super) fn replaceable(values: &[Value], unit: &Unit) -> Vec<u32> {
    let root = &values[unit.root as usize];
    let alike = |id: &u32| {
        let value = &values[*id as usize];
        value.len == root.len && value.elem == root.elem && value.op().is_some()
    };
    let candidates: Vec<u32> = match root.op() {
        _ if !unit.products.is_empty() => Vec::new(),
        Some(Op::Softmax { x, .. } | Op::RmsNorm { x, .. } | Op::LayerNorm { x, .. }) => vec![*x],
        Some(Op::Elementwise { .. } | Op::Cast { .. }) => {
            let reads = |id: u32| {
                unit.members.iter().all(|&member| match values[member as usize].op() {
                    Some(Op::Elementwise { args, .. }) => {
                        args.iter().all(|&(arg, broadcast)| arg != id || broadcast == Broadcast::Full)
                    }
                    _ => true,
                })
            };
            unit.inputs(values).into_iter().filter(|&id| reads(id)).collect()
        }
        _ => Vec::new(),
    };
    // The types must agree for a kernel to bind the buffer once.
    candidates.into_iter().filter(alike).filter(|_| matches!(root.elem, Elem::F32 | Elem::F16)).collect()
}
