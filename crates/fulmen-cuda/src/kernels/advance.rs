//! From one step to the next.

use bytemuck::{Pod, Zeroable};
use fulmen_core::AdvanceCall;

use super::Launched;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    drawn: u64,
    tokens: u64,
    positions: u64,
    sequences: u64,
    history: u64,
    fault: u64,
    m: u32,
    n_seqs: u32,
    capacity: u32,
    unused: u32,
}

/// One thread a row.
pub(crate) fn launch(queue: &mut Queue, call: &AdvanceCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let params = Params {
        drawn: call.drawn,
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
    queue.launch(&Launch::new("advance", "advance", blocks, 128), &params)?;
    // It lets nothing begin before it is done, and has waited for all before it.
    queue.mark_drained();
    Ok(1)
}
