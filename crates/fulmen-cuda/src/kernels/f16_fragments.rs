//! f16 activations packed as MMA fragments, the activation operand of the small-M GEMM (`f16_fragments.cuh`),
//! and what lies beside them: row scales, or the flags and sums of squares of a forwarding GEMM
//! (`forwarding.cuh`).

use fulmen_core::ActivationForm;

use crate::forward::FormKind;
use crate::layout::kernel_args;

pub(super) const K_CHUNK: u32 = 256;
pub(super) const K_SLICE: u32 = 16;

/// Orders of the columns within a chunk.
pub(super) const K_INTERLEAVED: usize = 0;
pub(super) const K_CONTIGUOUS: usize = 1;
pub(super) const K_ORDERS: usize = 2;

kernel_args! {
    file: "f16_fragments.cuh";
    constants: [K_CHUNK, K_SLICE, K_INTERLEAVED, K_CONTIGUOUS, K_ORDERS];
}

/// Padded numbers of rows that there are kernels for.
pub(super) const ROWS: [u32; 3] = [8, 16, 32];

/// `m` rows, padded to what there are kernels for.
pub(super) fn padded_rows(m: u32) -> Option<u32> {
    ROWS.into_iter().find(|&rows| rows >= m)
}

/// K-steps of a chunk: 16 with columns, two with sums of columns.
const STEPS: u32 = 18;

/// Bytes of a chunk of this many padded rows: `rows` times 32 bytes in each k-step.
pub(super) const fn chunk_bytes(rows: u32) -> u32 {
    STEPS * 32 * rows
}

/// The addresses of packed rows and of what belongs to them, in one allocation:
///
/// ```text
/// fragments in each K order | row scales [rows] | flags [k / 16, rows / 8] | sums of squares [rows, k / 16]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct F16Fragments {
    pub(super) fragments: [u64; K_ORDERS],
    pub(super) row_scales: u64,
    pub(super) flags: u64,
    pub(super) squares: u64,
}

impl F16Fragments {
    /// Bytes of `rows` padded rows of `k` columns.
    pub(super) fn bytes(rows: u32, k: u32) -> usize {
        let layout = F16Fragments::at(0, rows, k);
        layout.squares as usize + k.div_ceil(K_SLICE) as usize * rows as usize * 4
    }

    /// The layout of `rows` padded rows at an address.
    pub(super) fn at(address: u64, rows: u32, k: u32) -> F16Fragments {
        let in_order = |order: usize| address + (order * Self::order_bytes(rows, k)) as u64;
        let row_scales = in_order(K_ORDERS);
        let flags = row_scales + u64::from(rows) * 4;
        let squares = flags + u64::from(k.div_ceil(K_SLICE)) * u64::from(rows / 8) * 4;
        F16Fragments { fragments: [in_order(0), in_order(1)], row_scales, flags, squares }
    }

    fn order_bytes(rows: u32, k: u32) -> usize {
        k.div_ceil(K_CHUNK) as usize * chunk_bytes(rows) as usize
    }

    /// The fragments of `m` f32 rows, with row scaling, if they can be forwarded: only whole chunks, as no
    /// one writes the padding of a row.
    pub(super) fn scaled(x: u64, m: u32, width: u32) -> Option<ActivationForm> {
        Some(FormKind::ScaledF16.of(x, [m, width], Self::forwarded_bytes(m, width)?, None))
    }

    /// The fragments that a GEMM forwards: unscaled, and multiplied by the gain of a norm if there is one.
    /// Under the same condition.
    pub(super) fn from_matmul(x: u64, m: u32, width: u32, gamma: Option<u64>) -> Option<ActivationForm> {
        Some(FormKind::MatmulF16.of(x, [m, width], Self::forwarded_bytes(m, width)?, gamma))
    }

    fn forwarded_bytes(m: u32, width: u32) -> Option<usize> {
        let rows = padded_rows(m).filter(|_| width > 0 && width.is_multiple_of(K_CHUNK))?;
        Some(Self::bytes(rows, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_do_not_overlap_and_are_aligned() {
        for rows in ROWS {
            for width in [256, 2560, 9728] {
                let packed = F16Fragments::at(1 << 20, rows, width);
                let bytes = u64::from(width / K_CHUNK * chunk_bytes(rows));
                assert_eq!(packed.fragments, [1 << 20, (1 << 20) + bytes]);
                let (rows_64, slices) = (u64::from(rows), u64::from(width / K_SLICE));
                assert_eq!(packed.row_scales, packed.fragments[1] + bytes);
                assert_eq!(packed.flags, packed.row_scales + rows_64 * 4);
                assert_eq!(packed.squares, packed.flags + slices * rows_64 / 8 * 4);
                let end = packed.squares + slices * rows_64 * 4;
                assert_eq!(F16Fragments::bytes(rows, width) as u64, end - (1 << 20));
                // Both are read as 16-byte vectors, the sums of squares row by row.
                assert!(packed.flags.is_multiple_of(16));
                assert!(packed.squares.is_multiple_of(16) && (slices * 4).is_multiple_of(16));
            }
        }
    }
}
