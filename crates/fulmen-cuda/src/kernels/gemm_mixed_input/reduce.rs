//! The reduction of the mixed-input GEMM by rows of x: finishes the rows of one result and packs them, after
//! the RMS norm that follows if there is one, as the next GEMM reads them.

use super::Gemm;
use super::args::GemmMixedInputArgs;
use crate::kernels::pack_row::{PackRowArgs, PanelTarget};
use crate::kernels::small_m::FusedNorm;
use crate::layout::kernel_args;
use crate::queue::{Launch, Queue};
use fulmen_core::BackendError;

/// Threads of a block at most.
const MAX_THREADS: u32 = 1024;
/// Above this many rows there are more blocks than SMs, and half the threads for each are faster.
const FEW_ROWS: u32 = 128;
/// Up to this many rows, those of more than [`LONG_ROW`] columns have two blocks each.
const CLUSTER_ROWS: u32 = 64;
const LONG_ROW: u32 = 4 * MAX_THREADS;

kernel_args! {
    file: "gemm_mixed_input_reduce.cu";

    struct ReduceRowsArgs {
        gemm: GemmMixedInputArgs,
        row: PackRowArgs,
        unused: [u32; 2],
    }
}

/// What happens to the rows of a result.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::kernels) struct RowEnd {
    /// The norm of the result.
    pub(in crate::kernels) norm: Option<FusedNorm>,
    /// Where its rows, or those of the norm's result, are packed as panels.
    pub(in crate::kernels) panels: Option<PanelTarget>,
}

impl RowEnd {
    pub(super) fn launch(&self, queue: &mut Queue, gemm: &GemmMixedInputArgs) -> Result<(), BackendError> {
        let row = PackRowArgs::new(self.norm);
        let row = self.panels.map_or(row, |panels| row.panels(&panels));
        let (columns, rows) = (gemm.weights[0].rows, gemm.m);
        let args = ReduceRowsArgs { gemm: *gemm, row, unused: [0; 2] };
        let file = "gemm_mixed_input_reduce";
        let launch = if rows <= CLUSTER_ROWS && columns > LONG_ROW {
            let (entry, threads) =
                ("gemm_mixed_input_reduce_rows_cluster2", threads(columns.div_ceil(2), rows));
            Launch { cluster: 2, ..Launch::new(file, entry, 2 * rows, threads) }
        } else {
            Launch::new(file, "gemm_mixed_input_reduce_rows", rows, threads(columns, rows))
        };
        queue.launch(&launch, &args)?;
        Ok(())
    }
}

/// Whether the rows of a result can be finished by blocks: one matrix, or gate and up, that float4 divide.
pub(super) fn takes(gemms: &[Gemm]) -> bool {
    matches!(gemms, [gemm] if gemm.n_weights == 1 && gemm.weights[0].vectorized == 1)
}

/// Threads for each of m rows, in whole warps: four columns each, so that few loads follow each other.
fn threads(columns: u32, m: u32) -> u32 {
    let of_thread = if m <= FEW_ROWS { 4 } else { 8 };
    columns.div_ceil(of_thread).next_multiple_of(32).clamp(128, MAX_THREADS)
}
