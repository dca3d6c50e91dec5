//! Advances sequences by their sampled tokens (`advance.cu`).

use fulmen_core::AdvanceCall;

use super::Launched;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "advance.cu";

    struct AdvanceArgs {
        sampled: DevicePtr,
        tokens: DevicePtr,
        positions: DevicePtr,
        sequences: DevicePtr,
        history: DevicePtr,
        fault: DevicePtr,
        m: u32,
        n_seqs: u32,
        capacity: u32,
        unused: u32,
    }
}

/// One thread per row.
pub(crate) fn launch(queue: &mut Queue, call: &AdvanceCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let args = AdvanceArgs {
        sampled: call.drawn,
        tokens: call.tokens,
        positions: call.positions,
        sequences: call.sequences.unwrap_or(0),
        history: call.history.ptr,
        fault: queue.fault(),
        m: call.m,
        n_seqs: call.history.n_seqs,
        capacity: call.history.capacity,
        unused: 0,
    };
    let blocks = queue.blocks("advance", u64::from(call.m).div_ceil(128))?;
    queue.launch(&Launch::new("advance", "advance", blocks, 128), &args)?;
    Ok(1)
}
