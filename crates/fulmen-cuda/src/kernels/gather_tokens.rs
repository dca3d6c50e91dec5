//! Gathers the tokens of rows from the history (`gather_tokens.cu`).

use fulmen_core::GatherTokensCall;

use super::Launched;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "gather_tokens.cu";

    struct GatherTokensArgs {
        history: DevicePtr,
        positions: DevicePtr,
        sequences: DevicePtr,
        tokens: DevicePtr,
        fault: DevicePtr,
        m: u32,
        n_seqs: u32,
        capacity: u32,
        unused: u32,
    }
}

/// One thread per row.
pub(crate) fn launch(queue: &mut Queue, call: &GatherTokensCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let args = GatherTokensArgs {
        history: call.history.ptr,
        positions: call.positions,
        sequences: call.sequences.unwrap_or(0),
        tokens: call.output,
        fault: queue.fault(),
        m: call.m,
        n_seqs: call.history.n_seqs,
        capacity: call.history.capacity,
        unused: 0,
    };
    let blocks = queue.blocks("gather_tokens", u64::from(call.m).div_ceil(128))?;
    queue.launch(&Launch::new("gather_tokens", "gather_tokens", blocks, 128), &args)?;
    Ok(1)
}
