//! The gated delta rule row by row (`gated_delta_rule.cu`), or in chunks for prefill.

use fulmen_core::{BackendError, GatedDeltaRuleCall};

use super::delta_heads::DeltaHeads;
use super::recurrent::{StateRows, WalkStarts};
use super::sequence_chunks::{RowKernels, SequenceChunks, launch_list, list_bytes};
use super::{Launched, gated_delta_chunks};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Columns of a state that a block has.
const COLUMNS: u32 = 32;
const THREADS: u32 = 128;

kernel_args! {
    file: "gated_delta_rule.cu";
    constants: [COLUMNS, THREADS];

    struct GatedDeltaRuleArgs {
        x: DevicePtr,
        alpha: DevicePtr,
        beta: DevicePtr,
        decay: DevicePtr,
        dt: DevicePtr,
        state: DevicePtr,
        y: DevicePtr,
        rows: StateRows,
        starts: WalkStarts,
        heads: DeltaHeads,
        epsilon: f32,
        unused: u32,
    }
}

/// In chunks if those kernels take the call, beside walks where it has several sequences; else walks alone.
pub(crate) fn launch(queue: &mut Queue, call: &GatedDeltaRuleCall) -> Launched {
    let m = call.m;
    if m == 0 {
        return Ok(0);
    }
    let rows = StateRows::new(queue, call.state, call.positions, call.sequences, m);
    let kernels = gated_delta_chunks::kernels(queue.caps(), call);
    let bytes = gated_delta_chunks::scratch_bytes(call);
    match kernels {
        RowKernels::Walk => walk(queue, call, rows, WalkStarts::ALL)?,
        RowKernels::Chunks => {
            let memory = queue.scratch(bytes)?;
            gated_delta_chunks::launch(queue, call, SequenceChunks::of_one_sequence(m), memory)?;
        }
        RowKernels::Listed => {
            let memory = queue.scratch(bytes + list_bytes(m))?;
            let chunks = launch_list(queue, rows, m, memory + bytes as u64)?;
            walk(queue, call, rows, chunks.walk_starts())?;
            gated_delta_chunks::launch(queue, call, chunks, memory)?;
        }
    }
    Ok(kernels.launches() + usize::from(kernels != RowKernels::Walk))
}

/// A block for some columns of a value head walks over the rows of a sequence.
fn walk(
    queue: &mut Queue,
    call: &GatedDeltaRuleCall,
    rows: StateRows,
    starts: WalkStarts,
) -> Result<(), BackendError> {
    let heads = call.heads;
    let columns = u64::from(heads.head_dim.div_ceil(COLUMNS));
    let blocks = queue.blocks("gated_delta_rule", columns * u64::from(heads.n_v_heads))?;
    let walks = queue.rows("gated_delta_rule", rows.walks(starts))?;
    let args = GatedDeltaRuleArgs {
        x: call.input,
        alpha: call.alpha,
        beta: call.beta,
        decay: call.decay,
        dt: call.dt,
        state: call.state.ptr,
        y: call.output,
        rows,
        starts,
        heads: heads.into(),
        epsilon: call.epsilon,
        unused: 0,
    };
    // A thread holds a quarter of a column.
    let entry = format!("gated_delta_rule_{}", heads.head_dim.div_ceil(4).next_power_of_two().max(8));
    queue.launch(&Launch::new("gated_delta_rule", &entry, blocks, THREADS).rows(walks), &args)?;
    Ok(())
}
