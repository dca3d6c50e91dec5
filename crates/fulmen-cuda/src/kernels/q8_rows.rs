//! q8 rows: 2 to 8 rows quantized to int8 and packed as MMA fragments, the activation operand of the int8
//! GEMM (`q8_rows.cuh`). Gate-up and attention forward their output in this form.

use fulmen_core::ActivationForm;

use crate::forward::FormKind;
use crate::layout::kernel_args;

/// Bytes of a unit of 64 columns, per row.
const Q8_ROWS_UNIT_BYTES: u32 = 96;
/// Columns that rows are padded to a multiple of.
pub(crate) const Q8_ROWS_HALF: u32 = 128;

kernel_args! {
    file: "q8_rows.cuh";
    constants: [Q8_ROWS_UNIT_BYTES, Q8_ROWS_HALF];
}

/// Most rows.
pub(crate) const MAX_ROWS: u32 = 8;

/// Rows, padded to 2, 4 or 8.
pub(crate) fn padded(m: u32) -> u32 {
    m.max(2).next_power_of_two()
}

/// Bytes of `m` quantized rows of `k` columns.
pub(crate) fn bytes(m: u32, k: u32) -> usize {
    k.div_ceil(Q8_ROWS_HALF) as usize * (2 * Q8_ROWS_UNIT_BYTES * padded(m)) as usize
}

/// The q8 rows of f32 rows.
pub(crate) fn form(x: u64, m: u32, k: u32) -> ActivationForm {
    FormKind::Q8Rows.of(x, [m, k], bytes(m, k), None)
}

/// Whether rows of `k` columns can be forwarded: nobody writes the padding of columns.
pub(crate) fn can_forward(m: u32, k: u32) -> bool {
    (2..=MAX_ROWS).contains(&m) && k > 0 && k.is_multiple_of(Q8_ROWS_HALF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_padded() {
        assert_eq!([2, 3, 4, 5, 7, 8].map(padded), [2, 4, 4, 8, 8, 8]);
        assert_eq!(bytes(8, 2560), 8 * 2560 * 3 / 2);
        assert_eq!(bytes(3, 32), 4 * 128 * 3 / 2);
        assert!(can_forward(2, 128) && !can_forward(2, 192) && !can_forward(1, 128) && !can_forward(9, 128));
    }
}
