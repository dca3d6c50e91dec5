//! Selects the kernels of a fusion group: calls the kernel functions with the shapes of its values, and
//! maps what they bind to values and scratch.

use std::collections::HashMap;

use super::fuse::FusionGroup;
use super::value::{Op, Operand, RowShape, Value};
use crate::error::GpuError;
use crate::kernel::{Caps, Launch};
use crate::kernels::elementwise::{
    Broadcast, ElementwiseProgram, EpilogueLayout, Input, Node, Output, epilogue_source, fused,
};
use crate::kernels::matmul::{self, EpilogueInput, EpilogueSource, MatmulShape};
use crate::kernels::{self, Elem, KernelError, rows, transpose::transpose};
use crate::tune::Tuned;

/// The buffer that a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferRef {
    Value(u32),
    Scratch(usize),
}

/// A range of a buffer; rounding up may put its end past the end of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoundRange {
    pub(super) buffer: BufferRef,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The launches of one group.
#[derive(Debug, Default)]
pub(super) struct LoweredGroup {
    pub(super) launches: Vec<(Launch, Vec<BoundRange>)>,
    pub(super) scratch: Vec<u64>,
}

/// The error of a group that this device cannot run, under the name of the call that recorded it.
fn refused(name: &'static str, error: impl std::fmt::Display) -> GpuError {
    GpuError::Argument {
        call: name,
        what: "the operation".to_owned(),
        expected: "one that this device can run".to_owned(),
        got: error.to_string(),
    }
}

/// Lowers a group; `replaces` is the input whose buffer the result overwrites.
pub(super) fn lower(
    values: &[Value],
    group: &FusionGroup,
    replaces: Option<u32>,
    caps: &Caps,
    tuned: &Tuned,
) -> Result<LoweredGroup, GpuError> {
    let root = &values[group.root as usize];
    let Some(op) = root.op() else { return Ok(LoweredGroup::default()) };
    if !group.matmuls.is_empty() {
        return matmul_with_epilogue(values, group, caps, tuned);
    }
    let of = |list: Result<kernels::LaunchList, KernelError>, inputs: &[u32]| {
        list.map(|list| lower_launches(list, inputs, group.root)).map_err(|e| refused(op.name(), e))
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
            let program = GroupProgram::of(values, group, replaces);
            of(fused(&program.graph, root.len, &program.scalars, caps), &program.inputs)
        }
        Op::Matmul { a, b, shape } => {
            let none = EpilogueSource::none();
            matmul_columns(*a, &[*b], *shape, &none, &[], group.root, op.name(), caps, tuned)
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

fn lower_launches(list: kernels::LaunchList, inputs: &[u32], root: u32) -> LoweredGroup {
    let bound = |binding: &kernels::Binding| BoundRange {
        buffer: match binding.role {
            kernels::Role::Input(i) => BufferRef::Value(inputs[i]),
            kernels::Role::Output(_) => BufferRef::Value(root),
            kernels::Role::Scratch(i) => BufferRef::Scratch(i),
        },
        offset: binding.offset,
        bytes: binding.bytes,
    };
    let launches = list
        .launches
        .into_iter()
        .map(|launch| (launch.launch, launch.bindings.iter().map(bound).collect()))
        .collect();
    LoweredGroup { launches, scratch: list.scratch }
}

/// The element-wise operations of a group as one program.
struct GroupProgram {
    graph: ElementwiseProgram,
    scalars: Vec<f32>,
    /// The value of each input of the graph.
    inputs: Vec<u32>,
}

impl GroupProgram {
    fn of(values: &[Value], group: &FusionGroup, replaces: Option<u32>) -> GroupProgram {
        let mut made =
            GroupProgram { graph: ElementwiseProgram::default(), scalars: Vec::new(), inputs: Vec::new() };
        let mut node_of: HashMap<u32, usize> = HashMap::new();
        let mut input_of: HashMap<Operand, usize> = HashMap::new();
        for &id in &group.members {
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
                made.graph.nodes.push(Node::Scalar(made.scalars.len()));
                made.scalars.push(scalar);
                nodes.push(made.graph.nodes.len() - 1);
            }
            let node = match op {
                Some(op) => {
                    made.graph.nodes.push(Node::Op(op, nodes));
                    made.graph.nodes.len() - 1
                }
                None => nodes[0],
            };
            node_of.insert(id, node);
        }
        made.graph.scalars = made.scalars.len();
        let replaces = replaces.and_then(|id| made.inputs.iter().position(|&input| input == id));
        let output = Output { node: node_of[&group.root], elem: values[group.root as usize].elem, replaces };
        made.graph.outputs.push(output);
        made
    }

    /// The node of an operand that another group computes; one buffer with one broadcast is one input.
    fn input(&mut self, values: &[Value], operand: Operand, known: &mut HashMap<Operand, usize>) -> usize {
        *known.entry(operand).or_insert_with(|| {
            let (id, broadcast) = operand;
            self.graph.inputs.push(Input { elem: values[id as usize].elem, broadcast });
            self.inputs.push(id);
            self.graph.nodes.push(Node::Input(self.inputs.len() - 1));
            self.graph.nodes.len() - 1
        })
    }
}

/// A matmul, or a pair of them, with the group's element-wise operations as epilogue.
fn matmul_with_epilogue(
    values: &[Value],
    group: &FusionGroup,
    caps: &Caps,
    tuned: &Tuned,
) -> Result<LoweredGroup, GpuError> {
    let Some(Op::Matmul { a, shape, .. }) = values[group.matmuls[0] as usize].op() else {
        return Ok(LoweredGroup::default());
    };
    let weights: Vec<u32> = group
        .matmuls
        .iter()
        .filter_map(|&id| match values[id as usize].op() {
            Some(Op::Matmul { b, .. }) => Some(*b),
            _ => None,
        })
        .collect();
    let program = GroupProgram::of(values, group, None);
    let computed: Vec<usize> =
        group.matmuls.iter().filter_map(|id| program.inputs.iter().position(|input| input == id)).collect();
    let text =
        epilogue_source(&program.graph, &computed, u64::from(shape.n)).map_err(|e| refused("matmul", e))?;
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
        extras.push(program.inputs[*input]);
    }
    let source =
        EpilogueSource { expr: text.expr, inputs, functions: text.functions, scalars: program.scalars };
    matmul_columns(*a, &weights, *shape, &source, &extras, group.root, "matmul", caps, tuned)
}

/// The launches of a matmul whose B may be too large for one binding: one per slice of columns.
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
) -> Result<LoweredGroup, GpuError> {
    let mut lowered = LoweredGroup::default();
    if shape.m == 0 || shape.n == 0 {
        return Ok(lowered);
    }
    let failed = |e: matmul::MatmulError| refused(name, e);
    if weights.len() == 2 {
        let list = matmul::pair_launches(shape, epilogue, caps).map_err(failed)?;
        add_matmul(&mut lowered, list, a, weights, (shape, 0), extras, root);
        return Ok(lowered);
    }
    for columns in matmul::split_columns(shape, caps).map_err(failed)? {
        let from = columns.start;
        let part = MatmulShape { n: columns.end - columns.start, ..shape };
        let choice = tuned.choose(part, false, caps).ok_or_else(|| failed(matmul::MatmulError::NoKernel))?;
        let list = matmul::launches_with(choice, shape, columns.clone(), epilogue, caps).map_err(failed)?;
        add_matmul(&mut lowered, list, a, weights, (part, from), extras, root);
    }
    Ok(lowered)
}

fn add_matmul(
    lowered: &mut LoweredGroup,
    list: matmul::MatmulLaunches,
    a: u32,
    weights: &[u32],
    (part, from): (MatmulShape, u32),
    extras: &[u32],
    root: u32,
) {
    let first_scratch = lowered.scratch.len();
    lowered.scratch.extend(list.scratch);
    let row = u64::from(part.k) * part.elem.bytes();
    for launch in list.launches {
        let whole = |buffer| BoundRange { buffer, offset: 0, bytes: u64::MAX };
        let bound = |role: &matmul::MatmulBuffer| match *role {
            matmul::MatmulBuffer::A => whole(BufferRef::Value(a)),
            matmul::MatmulBuffer::B(i) if from == 0 && part.b == matmul::Layout::Kn => {
                whole(BufferRef::Value(weights[usize::from(i)]))
            }
            matmul::MatmulBuffer::B(i) => BoundRange {
                buffer: BufferRef::Value(weights[usize::from(i)]),
                offset: u64::from(from) * row,
                // An odd number of f16 elements ends in the middle of a word.
                bytes: (u64::from(part.n) * row).next_multiple_of(16),
            },
            matmul::MatmulBuffer::Out => whole(BufferRef::Value(root)),
            matmul::MatmulBuffer::Extra(i) => whole(BufferRef::Value(extras[i as usize])),
            matmul::MatmulBuffer::Scratch(i) => whole(BufferRef::Scratch(first_scratch + i as usize)),
        };
        let bindings = launch.buffers.iter().map(bound).collect();
        lowered.launches.push((launch.launch, bindings));
    }
}

/// Operands whose buffer the group's result could reuse: of the same type and size, and read element by
/// element.
pub(super) fn replaceable(values: &[Value], group: &FusionGroup) -> Vec<u32> {
    let root = &values[group.root as usize];
    let alike = |id: &u32| {
        let value = &values[*id as usize];
        value.len == root.len && value.elem == root.elem && value.op().is_some()
    };
    let candidates: Vec<u32> = match root.op() {
        _ if !group.matmuls.is_empty() => Vec::new(),
        Some(Op::Softmax { x, .. } | Op::RmsNorm { x, .. } | Op::LayerNorm { x, .. }) => vec![*x],
        Some(Op::Elementwise { .. } | Op::Cast { .. }) => {
            let reads = |id: u32| {
                group.members.iter().all(|&member| match values[member as usize].op() {
                    Some(Op::Elementwise { args, .. }) => {
                        args.iter().all(|&(arg, broadcast)| arg != id || broadcast == Broadcast::Full)
                    }
                    _ => true,
                })
            };
            group.inputs(values).into_iter().filter(|&id| reads(id)).collect()
        }
        _ => Vec::new(),
    };
    // A kernel binds the buffer once, so the types must agree.
    candidates.into_iter().filter(alike).filter(|_| matches!(root.elem, Elem::F32 | Elem::F16)).collect()
}
