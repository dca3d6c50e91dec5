//! The chunkwise gated delta rule for prefill (`gated_delta_chunks.cu`).

use fulmen_core::{BackendError, GatedDeltaRuleCall};

use super::delta_heads::DeltaHeads;
use super::sequence_chunks::{CHUNK_ROWS, RowKernels, SequenceChunks};
use super::wide;
use crate::device::Caps;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Rows of a chunk.
const CHUNK: u32 = CHUNK_ROWS;
/// Columns of the state that a block of the scan has.
const COLUMNS: u32 = 32;
/// The largest head.
const MAX_HEAD: u32 = 128;
const THREADS: u32 = 256;
/// Floats from row to row in shared memory: of heads, of matrices of a chunk, and of columns.
const HEAD_PITCH: u32 = MAX_HEAD + 4;
const CHUNK_PITCH: u32 = CHUNK + 4;
const COLUMN_PITCH: u32 = COLUMNS + 4;

kernel_args! {
    file: "gated_delta_chunks.cu";
    constants: [CHUNK, COLUMNS, MAX_HEAD, THREADS, HEAD_PITCH, CHUNK_PITCH, COLUMN_PITCH];

    struct DeltaChunksArgs {
        x: DevicePtr,
        alpha: DevicePtr,
        beta: DevicePtr,
        decay: DevicePtr,
        dt: DevicePtr,
        positions: DevicePtr,
        state: DevicePtr,
        y: DevicePtr,
        matrices: DevicePtr,
        factors: DevicePtr,
        chunks: SequenceChunks,
        heads: DeltaHeads,
        epsilon: f32,
        unused: u32,
    }
}

/// Shared memory of a block of the first kernel: k, q and a matrix.
const PREPARE_BYTES: u32 = 4 * CHUNK * (2 * HEAD_PITCH + CHUNK_PITCH);

/// Shared memory of a block of the scan: k and q, two matrices, W and U, the state, two factors of each row.
const SCAN_BYTES: u32 =
    4 * (CHUNK * (2 * HEAD_PITCH + 2 * CHUNK_PITCH + 2 * COLUMN_PITCH) + MAX_HEAD * COLUMN_PITCH + 2 * CHUNK);

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 2048;

/// The kernels of a call. They depend on the number of rows, so a batch-invariant call has walks.
pub(super) fn kernels(caps: Caps, call: &GatedDeltaRuleCall) -> RowKernels {
    let takes = !call.batch_invariant
        && call.heads.head_dim.is_multiple_of(COLUMNS)
        && call.heads.head_dim <= MAX_HEAD
        && wide(&[call.input, call.state.ptr, call.output]) == 1
        && SCAN_BYTES.max(PREPARE_BYTES) + STATIC_BYTES <= caps.shared_bytes;
    if takes { RowKernels::of(call.m, call.sequences, call.decode) } else { RowKernels::Walk }
}

/// Floats of a row's matrices, and of its factors, for each value head.
const ROW_MATRICES: usize = 2 * CHUNK as usize;
const ROW_FACTORS: usize = 4;

fn matrix_bytes(call: &GatedDeltaRuleCall) -> usize {
    4 * ROW_MATRICES * call.heads.n_v_heads as usize * call.m as usize
}

/// Scratch memory of the kernels.
pub(super) fn scratch_bytes(call: &GatedDeltaRuleCall) -> usize {
    let factors = 4 * ROW_FACTORS * call.heads.n_v_heads as usize * call.m as usize;
    matrix_bytes(call) + factors.next_multiple_of(16)
}

/// Two launches over the chunks of rows. `memory` has [`scratch_bytes`].
pub(super) fn launch(
    queue: &mut Queue,
    call: &GatedDeltaRuleCall,
    chunks: SequenceChunks,
    memory: u64,
) -> Result<(), BackendError> {
    let heads = call.heads;
    let args = DeltaChunksArgs {
        x: call.input,
        alpha: call.alpha,
        beta: call.beta,
        decay: call.decay,
        dt: call.dt,
        positions: call.positions,
        state: call.state.ptr,
        y: call.output,
        matrices: memory,
        factors: memory + matrix_bytes(call) as u64,
        chunks,
        heads: heads.into(),
        epsilon: call.epsilon,
        unused: 0,
    };
    let prepare = Launch::new("gated_delta_chunks", "gated_delta_prepare", chunks.max_chunks(), THREADS);
    let rows = queue.rows("gated_delta_prepare", heads.n_v_heads.into())?;
    queue.launch(&prepare.rows(rows).shared(PREPARE_BYTES), &args)?;
    // One block has the shared memory of an SM; each takes items until there are no more.
    let items = u64::from(heads.head_dim / COLUMNS) * u64::from(heads.n_v_heads);
    let at_once = match chunks.is_list() {
        true => (items * u64::from(chunks.max_ranges())).min(queue.caps().multiprocessors.into()),
        false => items,
    };
    let blocks = queue.blocks("gated_delta_scan", at_once)?;
    let scan = Launch::new("gated_delta_chunks", "gated_delta_scan", blocks, THREADS);
    queue.launch(&scan.shared(SCAN_BYTES), &args)?;
    Ok(())
}
