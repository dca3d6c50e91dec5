//! Copies, which also convert.

use super::{
    Elem, KernelError, Plan,
    elementwise::{ElementwiseProgram, Input, Node, Output, fused},
};
use crate::kernel::Caps;

/// Copies `len` elements from input 0 to output 0, of the same or another type.
///
/// # Errors
/// As [`fused`].
pub fn copy(len: u64, from: Elem, to: Elem, caps: &Caps) -> Result<Plan, KernelError> {
    let program = ElementwiseProgram {
        inputs: vec![Input { elem: from, ..Input::default() }],
        nodes: vec![Node::Input(0)],
        outputs: vec![Output { elem: to, ..Output::default() }],
        ..ElementwiseProgram::default()
    };
    fused(&program, len, &[], caps)
}
