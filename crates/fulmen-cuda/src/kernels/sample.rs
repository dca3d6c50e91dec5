//! Samples a token from each row of logits (`sample.cu`).

use fulmen_core::SampleCall;

use super::{Launched, threads_for};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "sample.cu";
    constants: [BINS, SHORTLIST];

    struct SampleArgs {
        logits: DevicePtr,
        tokens: DevicePtr,
        states: DevicePtr,
        out: DevicePtr,
        part_keys: DevicePtr,
        masses: DevicePtr,
        counts: DevicePtr,
        lists: DevicePtr,
        list_sizes: DevicePtr,
        list_bins: DevicePtr,
        fault: DevicePtr,
        width: u32,
        part_width: u32,
        parts: u32,
        unused: u32,
    }
}

/// Logits that are worth a block.
const PART_WIDTH: u32 = 4096;

/// The most parts of a row.
const MAX_PARTS: u32 = 256;

/// Bins of the histogram, and threads of a block of `sample`.
const BINS: u32 = 1024;

/// Candidates of the shortlist of a part.
const SHORTLIST: u32 = 256;

pub(crate) fn launch(queue: &mut Queue, call: &SampleCall) -> Launched {
    let SampleCall { logits, tokens, states, output, m, n } = *call;
    if m == 0 {
        return Ok(0);
    }
    let rows = queue.blocks("sample", m.into())?;
    let parts = n.div_ceil(PART_WIDTH).clamp(1, MAX_PARTS);
    let part_width = n.div_ceil(parts);
    let (all_parts, bins) = (m as usize * parts as usize, m as usize * BINS as usize);
    let lists = all_parts * SHORTLIST as usize;
    // Keys and masses first, which have 8 bytes, then counts, which have 4.
    let part_keys = queue.scratch(8 * (all_parts + bins + lists) + 4 * (bins + 2 * all_parts))?;
    let masses = part_keys + 8 * all_parts as u64;
    let first_list = masses + 8 * bins as u64;
    let counts = first_list + 8 * lists as u64;
    let list_sizes = counts + 4 * bins as u64;
    let args = SampleArgs {
        logits,
        tokens: tokens.unwrap_or(0),
        states,
        out: output,
        part_keys,
        masses,
        counts,
        lists: first_list,
        list_sizes,
        list_bins: list_sizes + 4 * all_parts as u64,
        fault: queue.fault(),
        width: n,
        part_width,
        parts,
        unused: 0,
    };
    let threads = threads_for(part_width);
    queue.launch(&Launch::new("sample", "sample_largest", rows, threads).rows(parts), &args)?;
    queue.launch(&Launch::new("sample", "sample_histogram", rows, threads).rows(parts), &args)?;
    queue.launch(&Launch::new("sample", "sample", rows, BINS), &args)?;
    Ok(3)
}
