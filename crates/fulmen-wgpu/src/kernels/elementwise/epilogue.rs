//! A graph of element-wise ops as the epilogue of another kernel.

use super::{Broadcast, ElementwiseProgram, source::source};
use crate::kernels::KernelError;

/// How an epilogue's input is broadcast to the output matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueLayout {
    /// One value per element.
    PerElement,
    /// One value per column: a bias.
    PerColumn,
    /// One value per row.
    PerRow,
    /// One value for all.
    Scalar,
}

/// The WGSL of an epilogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpilogueText {
    /// An f32 expression over f32 values: what the kernel computed, as `v` or, if that is several
    /// values, `v0`, `v1`, …; the elements of `inputs` as `e0`, `e1`, …; the program's scalars as
    /// `params.s0`, `params.s1`, ….
    pub expr: String,
    /// The program's inputs that it reads, but for the computed ones: `e0`, `e1`, … in this order.
    pub inputs: Vec<(usize, EpilogueLayout)>,
    /// The declarations that it needs. All their names begin with `Ew` or `ew_`.
    pub functions: String,
    /// How many of the program's scalars there are.
    pub scalars: usize,
}

/// The program as text for the end of a kernel that makes a matrix of `columns` columns. The inputs in
/// `computed` are what the kernel computed.
///
/// # Errors
/// [`KernelError::Invalid`] where the program is malformed, has several outputs, or broadcasts along
/// rows of another length.
pub fn epilogue_source(
    program: &ElementwiseProgram,
    computed: &[usize],
    columns: u64,
) -> Result<EpilogueText, KernelError> {
    program.check()?;
    let invalid = |reason: String| KernelError::Invalid { op: program.label(), reason };
    if program.outputs.len() != 1 {
        return Err(invalid(format!("an epilogue has one output, this program {}", program.outputs.len())));
    }
    if let Some(i) = computed.iter().find(|&&i| i >= program.inputs.len()) {
        return Err(invalid(format!("the computed value is input {i} of {}", program.inputs.len())));
    }
    let text = source(program);
    let (mut inputs, mut args) = (Vec::new(), Vec::new());
    for i in text.inputs {
        if let Some(at) = computed.iter().position(|&c| c == i) {
            args.push(if computed.len() == 1 { "v".to_owned() } else { format!("v{at}") });
            continue;
        }
        let layout = match program.inputs[i].broadcast {
            Broadcast::Full => EpilogueLayout::PerElement,
            Broadcast::Scalar => EpilogueLayout::Scalar,
            Broadcast::Row { n } if n == columns => EpilogueLayout::PerColumn,
            Broadcast::Column { n } if n == columns => EpilogueLayout::PerRow,
            Broadcast::Row { n } | Broadcast::Column { n } => {
                return Err(invalid(format!("input {i} has rows of {n} elements, the matrix has {columns}")));
            }
        };
        args.push(format!("e{}", inputs.len()));
        inputs.push((i, layout));
    }
    args.extend((0..program.scalars).map(|j| format!("params.s{j}")));
    let aliases = "alias EwF = f32;\nalias EwI = i32;\nalias EwU = u32;\nalias EwB = bool;\n";
    Ok(EpilogueText {
        expr: format!("ew_program({})", args.join(", ")),
        inputs,
        functions: format!("{aliases}{}", text.functions),
        scalars: program.scalars,
    })
}
