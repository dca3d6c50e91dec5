//! A program as the end of another kernel.

use super::{Broadcast, ElementwiseProgram, source::source};
use crate::kernels::KernelError;

/// How an epilogue's input is laid over the matrix that the kernel makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueInput {
    /// An element of its own for each.
    PerElement,
    /// One for each column: a bias.
    PerColumn,
    /// One for each row.
    PerRow,
    /// One for all.
    Scalar,
}

/// A program as text for the end of another kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpilogueSource {
    /// An f32 expression over the f32 values `v`, the element that the kernel computed, and `e0`, `e1`, …, the elements of
    /// `inputs`; the program's scalars are named by what was asked for.
    pub expr: String,
    /// The program's inputs that it reads, but for the one that is `v`: `e0`, `e1`, … in this order.
    pub inputs: Vec<(usize, EpilogueInput)>,
    /// The declarations that it needs. All their names begin with `Ew` or `ew_`.
    pub functions: String,
    /// The words of parameters that it needs: one f32 for each of the program's scalars.
    pub scalars: usize,
}

/// The program as text for the end of a kernel that makes a matrix of `columns` columns. Input `accumulator` is what the
/// kernel computed; scalar `j` is written as `scalar(j)`, for example `params.s0`.
///
/// # Errors
/// [`KernelError::Invalid`] where the program is malformed, has several outputs, or broadcasts along rows of another
/// length.
pub fn epilogue_source(
    program: &ElementwiseProgram,
    accumulator: usize,
    columns: u64,
    scalar: impl Fn(usize) -> String,
) -> Result<EpilogueSource, KernelError> {
    program.check()?;
    let invalid = |reason: String| KernelError::Invalid { op: program.label(), reason };
    if program.outputs.len() != 1 {
        return Err(invalid(format!("an epilogue has one output, this program {}", program.outputs.len())));
    }
    if accumulator >= program.inputs.len() {
        return Err(invalid(format!("the accumulator is input {accumulator} of {}", program.inputs.len())));
    }
    let text = source(program);
    let (mut inputs, mut args) = (Vec::new(), Vec::new());
    for i in text.inputs {
        if i == accumulator {
            args.push("v".to_owned());
            continue;
        }
        let laid = match program.inputs[i].broadcast {
            Broadcast::Full => EpilogueInput::PerElement,
            Broadcast::Scalar => EpilogueInput::Scalar,
            Broadcast::Row { n } if n == columns => EpilogueInput::PerColumn,
            Broadcast::Column { n } if n == columns => EpilogueInput::PerRow,
            Broadcast::Row { n } | Broadcast::Column { n } => {
                return Err(invalid(format!("input {i} has rows of {n} elements, the matrix has {columns}")));
            }
        };
        args.push(format!("e{}", inputs.len()));
        inputs.push((i, laid));
    }
    args.extend((0..program.scalars).map(scalar));
    let aliases = "alias EwF = f32;\nalias EwI = i32;\nalias EwU = u32;\nalias EwB = bool;\n";
    Ok(EpilogueSource {
        expr: format!("ew_program({})", args.join(", ")),
        inputs,
        functions: format!("{aliases}{}", text.functions),
        scalars: program.scalars,
    })
}
