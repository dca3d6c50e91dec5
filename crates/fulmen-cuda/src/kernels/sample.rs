//! A token from each row of logits.

use bytemuck::{Pod, Zeroable};
use fulmen_core::SampleCall;

use super::{Launched, threads_for};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    logits: u64,
    states: u64,
    out: u64,
    largest: u64,
    masses: u64,
    counts: u64,
    fault: u64,
    width: u32,
    part: u32,
    parts: u32,
    unused: u32,
}

/// Logits that are worth a block.
const PART: u32 = 4096;

/// The most parts of a row.
const MOST_PARTS: u32 = 256;

/// Bins of the histogram, and threads of the block that draws.
const BINS: u32 = 1024;

pub(crate) fn launch(queue: &mut Queue, call: &SampleCall) -> Launched {
    let SampleCall { logits, states, output, m, n } = *call;
    if m == 0 {
        return Ok(0);
    }
    let rows = queue.blocks("sample", m.into())?;
    let parts = n.div_ceil(PART).clamp(1, MOST_PARTS);
    let part = n.div_ceil(parts);
    let (keys, bins) = (m as usize * parts as usize * 8, m as usize * BINS as usize);
    let largest = queue.scratch(keys + bins * (8 + 4))?;
    let masses = largest + keys as u64;
    let params = Params {
        logits,
        states,
        out: output,
        largest,
        masses,
        counts: masses + 8 * bins as u64,
        fault: queue.fault(),
        width: n,
        part,
        parts,
        unused: 0,
    };
    let threads = threads_for(part);
    queue.launch(&Launch::new("sample", "sample_largest", rows, threads).rows(parts), &params)?;
    queue.launch(&Launch::new("sample", "sample_histogram", rows, threads).rows(parts), &params)?;
    queue.launch(&Launch::new("sample", "sample", rows, BINS), &params)?;
    Ok(3)
}
