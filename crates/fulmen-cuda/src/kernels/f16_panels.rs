//! f16 activations packed as wgmma panels, the activation operand of the mixed-input GEMM
//! (`f16_panels.cuh`).

use fulmen_core::DType;

use super::f16_fragments::K_CHUNK;
use crate::layout::kernel_args;

/// Orders of the k-steps within a chunk, named after a format that needs them.
pub(super) const PANEL_Q4_K: u32 = 0;
pub(super) const PANEL_Q4_0: u32 = 1;
pub(super) const PANEL_Q6_K: u32 = 2;
pub(super) const PANEL_Q8_0: u32 = 3;

kernel_args! {
    file: "f16_panels.cuh";
    constants: [PANEL_Q4_K, PANEL_Q4_0, PANEL_Q6_K, PANEL_Q8_0];
}

/// The order that a weight format needs: `PANEL_ORDER` of the formats in `gemm_mixed_input_formats.cuh`.
pub(super) fn panel_order(dtype: DType) -> Option<u32> {
    match dtype {
        DType::Q4_K | DType::Q5_K => Some(PANEL_Q4_K),
        DType::Q6_K => Some(PANEL_Q6_K),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => Some(PANEL_Q4_0),
        DType::Q8_0 => Some(PANEL_Q8_0),
        _ => None,
    }
}

/// Bytes of `rows` padded rows of `k` columns.
pub(super) fn panel_bytes(rows: u32, k: u32) -> u64 {
    u64::from(k.div_ceil(K_CHUNK)) * u64::from(K_CHUNK) * u64::from(rows) * 2
}
