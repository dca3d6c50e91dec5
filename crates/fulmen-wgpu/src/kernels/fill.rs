//! Arrays of one value.

use super::{
    Elem, KernelError, LaunchList,
    elementwise::{ElementwiseProgram, Node, Output, fused},
};
use crate::kernel::Caps;

/// Sets the `len` elements of output 0 to `value`, which is the last word of the parameters.
///
/// # Errors
/// As [`fused`].
pub fn fill(len: u64, value: f32, elem: Elem, caps: &Caps) -> Result<LaunchList, KernelError> {
    let program = ElementwiseProgram {
        scalars: 1,
        nodes: vec![Node::Scalar(0)],
        outputs: vec![Output { elem, ..Output::default() }],
        ..ElementwiseProgram::default()
    };
    fused(&program, len, &[value], caps)
}
