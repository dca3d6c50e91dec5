//! q8 activations: one row quantized to int8, the activation operand of the GEMV (`q8_activations.cuh`).
//! Gate-up and attention forward their output in this form.

use crate::layout::kernel_args;
use crate::queue::{ForwardFormat, Forwarded, Queue};

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

/// Describes the forwarded q8 activations of an f32 row.
pub(crate) fn forwarded(row: u64, k: u32) -> Forwarded {
    Forwarded { format: ForwardFormat::Q8, source: row, rows: 1, width: k }
}

/// Where a launch may forward a row of `k` elements to, if it can.
pub(crate) fn reserve(queue: &mut Queue, k: u32) -> Option<u64> {
    can_forward(k).then(|| queue.reserve_forward_buffer(bytes(k))).flatten()
}

/// Whether a row of `k` elements can be forwarded.
pub(crate) fn can_forward(k: u32) -> bool {
    k > 0 && k.is_multiple_of(UNIT)
}
