//! Logit biases and token masks (`mask_logits.cu`).

use fulmen_core::{CopyCall, LogitSlots, MaskLogitsCall};

use super::{Launched, copy};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "mask_logits.cu";
    constants: [PART];

    struct MaskLogitsArgs {
        logits: DevicePtr,
        edits: DevicePtr,
        masks: DevicePtr,
        slots: DevicePtr,
        fault: DevicePtr,
        width: u32,
        n_slots: u32,
        capacity: u32,
        mask_words: u32,
    }
}

/// Logits of a block.
const PART: u32 = 4096;

/// A copy if it is not in place, and one block per part of a row.
pub(crate) fn launch(queue: &mut Queue, call: &MaskLogitsCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let bytes = call.m as usize * call.n as usize * size_of::<f32>();
    let mut launched = 0;
    if call.output != call.logits {
        launched += copy::launch(queue, &CopyCall { input: call.logits, output: call.output, bytes })?;
    }
    let LogitSlots { edits_ptr, masks_ptr, n_slots, capacity } = call.state;
    let args = MaskLogitsArgs {
        logits: call.output,
        edits: edits_ptr,
        masks: masks_ptr,
        slots: call.slots.unwrap_or(0),
        fault: queue.fault(),
        width: call.n,
        n_slots,
        capacity,
        mask_words: call.n.div_ceil(32),
    };
    let rows = queue.blocks("mask_logits", call.m.into())?;
    let parts = queue.rows("mask_logits", call.n.div_ceil(PART).into())?;
    queue.launch(&Launch::new("mask_logits", "mask_logits", rows, 256).rows(parts), &args)?;
    Ok(launched + 1)
}
