//! The gated delta rule row by row (`gated_delta_rule.cu`), or in chunks for prefill.

use fulmen_core::GatedDeltaRuleCall;

use super::delta_heads::DeltaHeads;
use super::recurrent::StateRows;
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
        heads: DeltaHeads,
        epsilon: f32,
        unused: u32,
    }
}

/// In chunks if those kernels take the call; else a block for some columns of a value head of each row.
pub(crate) fn launch(queue: &mut Queue, call: &GatedDeltaRuleCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    if gated_delta_chunks::takes(queue.caps(), call) {
        return gated_delta_chunks::launch(queue, call);
    }
    let heads = call.heads;
    let rows = StateRows::new(queue, call.state, call.positions, call.sequences, call.m);
    let columns = u64::from(heads.head_dim.div_ceil(COLUMNS));
    let blocks = queue.blocks("gated_delta_rule", columns * u64::from(heads.n_v_heads))?;
    let starts = queue.rows("gated_delta_rule", rows.starts())?;
    let args = GatedDeltaRuleArgs {
        x: call.input,
        alpha: call.alpha,
        beta: call.beta,
        decay: call.decay,
        dt: call.dt,
        state: call.state.ptr,
        y: call.output,
        rows,
        heads: heads.into(),
        epsilon: call.epsilon,
        unused: 0,
    };
    // A thread holds a quarter of a column.
    let entry = format!("gated_delta_rule_{}", heads.head_dim.div_ceil(4).next_power_of_two().max(8));
    queue.launch(&Launch::new("gated_delta_rule", &entry, blocks, THREADS).rows(starts), &args)?;
    Ok(1)
}
