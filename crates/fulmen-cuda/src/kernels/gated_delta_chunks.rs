//! The chunkwise gated delta rule for prefill (`gated_delta_chunks.cu`).

use fulmen_core::GatedDeltaRuleCall;

use super::delta_heads::DeltaHeads;
use super::{Launched, wide};
use crate::device::Caps;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Rows of a chunk.
const CHUNK: u32 = 64;
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
        m: u32,
        chunks: u32,
        heads: DeltaHeads,
        epsilon: f32,
        unused: u32,
    }
}

/// The fewest rows for which two launches and a whole chunk are faster than a walk over the rows.
const MIN_ROWS: u32 = 32;

/// Shared memory of a block of the first kernel: k, q and a matrix.
const PREPARE_BYTES: u32 = 4 * CHUNK * (2 * HEAD_PITCH + CHUNK_PITCH);

/// Shared memory of a block of the scan: k and q, two matrices, W and U, the state, two factors of each row.
const SCAN_BYTES: u32 =
    4 * (CHUNK * (2 * HEAD_PITCH + 2 * CHUNK_PITCH + 2 * COLUMN_PITCH) + MAX_HEAD * COLUMN_PITCH + 2 * CHUNK);

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 2048;

/// Whether the kernels take a call: many rows of one sequence. They depend on the number of rows.
pub(crate) fn takes(caps: Caps, call: &GatedDeltaRuleCall) -> bool {
    call.sequences.is_none()
        && call.m >= MIN_ROWS
        && call.heads.head_dim.is_multiple_of(COLUMNS)
        && call.heads.head_dim <= MAX_HEAD
        && wide(&[call.input, call.state.ptr, call.output]) == 1
        && SCAN_BYTES.max(PREPARE_BYTES) + STATIC_BYTES <= caps.shared_bytes
}

pub(super) fn launch(queue: &mut Queue, call: &GatedDeltaRuleCall) -> Launched {
    let heads = call.heads;
    let chunks = call.m.div_ceil(CHUNK);
    let each = heads.n_v_heads as usize * chunks as usize * 4;
    let (matrix_bytes, factor_bytes) = (each * 2 * (CHUNK * CHUNK) as usize, each * 4 * CHUNK as usize);
    let scratch = queue.scratch(matrix_bytes + factor_bytes)?;
    let args = DeltaChunksArgs {
        x: call.input,
        alpha: call.alpha,
        beta: call.beta,
        decay: call.decay,
        dt: call.dt,
        positions: call.positions,
        state: call.state.ptr,
        y: call.output,
        matrices: scratch,
        factors: scratch + matrix_bytes as u64,
        m: call.m,
        chunks,
        heads: heads.into(),
        epsilon: call.epsilon,
        unused: 0,
    };
    let columns = heads.head_dim / COLUMNS;
    let rows = queue.rows("gated_delta_chunks", heads.n_v_heads.into())?;
    for (entry, blocks, shared) in
        [("gated_delta_prepare", chunks, PREPARE_BYTES), ("gated_delta_scan", columns, SCAN_BYTES)]
    {
        let launch = Launch::new("gated_delta_chunks", entry, blocks, THREADS).rows(rows).shared(shared);
        queue.launch(&launch, &args)?;
    }
    Ok(2)
}
