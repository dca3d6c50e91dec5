//! Repetition, frequency and presence penalties (`penalize.cu`).

use fulmen_core::{CopyCall, PenalizeCall};

use super::{Launched, copy};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "penalize.cu";

    struct PenalizeArgs {
        logits: DevicePtr,
        penalties: DevicePtr,
        history: DevicePtr,
        positions: DevicePtr,
        sequences: DevicePtr,
        counts: DevicePtr,
        fault: DevicePtr,
        width: u32,
        n_seqs: u32,
        capacity: u32,
        unused: u32,
    }
}

/// A copy if it is not in place, and one block per row.
pub(crate) fn launch(queue: &mut Queue, call: &PenalizeCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let elements = call.m as usize * call.n as usize;
    let bytes = elements * size_of::<f32>();
    let counts = queue.scratch(elements * size_of::<u32>())?;
    let mut launched = 0;
    if call.output != call.logits {
        launched += copy::launch(queue, &CopyCall { input: call.logits, output: call.output, bytes })?;
    }
    let args = PenalizeArgs {
        logits: call.output,
        penalties: call.penalties,
        history: call.history.ptr,
        positions: call.positions,
        sequences: call.sequences.unwrap_or(0),
        counts,
        fault: queue.fault(),
        width: call.n,
        n_seqs: call.history.n_seqs,
        capacity: call.history.capacity,
        unused: 0,
    };
    let blocks = queue.blocks("penalize", call.m.into())?;
    queue.launch(&Launch::new("penalize", "penalize", blocks, 256), &args)?;
    Ok(launched + 1)
}
