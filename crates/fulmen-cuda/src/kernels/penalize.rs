//! Logits made less likely for tokens that came before.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{CopyCall, PenalizeCall};

use super::{Launched, copy};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    logits: u64,
    penalties: u64,
    history: u64,
    positions: u64,
    sequences: u64,
    counts: u64,
    fault: u64,
    width: u32,
    n_seqs: u32,
    capacity: u32,
    unused: u32,
}

/// A copy where it is not in place, and one block a row.
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
    let params = Params {
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
    queue.launch(&Launch::new("penalize", "penalize", blocks, 256), &params)?;
    Ok(launched + 1)
}
