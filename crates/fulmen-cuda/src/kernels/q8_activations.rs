//! Activations in 8 bits that a kernel hands on to the product behind it (`q8_activations.cuh`).

use crate::queue::{ForwardFormat, Forwarded, Queue};

/// Bytes of the codes of `k` elements.
pub(crate) fn bytes(k: u32) -> usize {
    k.div_ceil(512) as usize * 768
}

/// The codes of a row.
pub(crate) fn of(row: u64, k: u32) -> Forwarded {
    Forwarded { format: ForwardFormat::Q8, source: row, rows: 1, width: k }
}

/// Where a launch may put the codes of its result, if it may.
pub(crate) fn room(queue: &mut Queue, k: u32) -> Option<u64> {
    fit(k).then(|| queue.reserve_forward_buffer(bytes(k))).flatten()
}

/// Whether codes of so many elements can be handed on: products take units of 64.
pub(crate) fn fit(k: u32) -> bool {
    k > 0 && k.is_multiple_of(64)
}
