//! q8 activations: one row quantized to int8, the activation operand of the GEMV (`q8_activations.cuh`).
//! Gate-up and attention forward their output in this form.

use fulmen_core::ActivationForm;

use crate::forward::FormKind;
use crate::layout::kernel_args;

const Q8_GROUP_ELEMENTS: u32 = 512;
const Q8_GROUP_BYTES: usize = 768;

/// Columns of a unit: forwarded rows are whole units.
const UNIT: u32 = 64;

kernel_args! {
    file: "q8_activations.cuh";
    constants: [Q8_GROUP_ELEMENTS, Q8_GROUP_BYTES];
}

/// Bytes of a quantized row of `k` elements.
pub(crate) fn bytes(k: u32) -> usize {
    k.div_ceil(Q8_GROUP_ELEMENTS) as usize * Q8_GROUP_BYTES
}

/// The q8 activations of an f32 row.
pub(crate) fn form(row: u64, k: u32) -> ActivationForm {
    FormKind::Q8.of(row, [1, k], bytes(k), None)
}

/// Whether a row of `k` elements can be forwarded.
pub(crate) fn can_forward(k: u32) -> bool {
    k > 0 && k.is_multiple_of(UNIT)
}
