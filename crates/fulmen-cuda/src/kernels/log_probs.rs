//! Log-probabilities of tokens (`log_probs.cu`).

use fulmen_core::LogProbsCall;

use super::Launched;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "log_probs.cu";
    constants: [PART, PART_THREADS, ROW_THREADS];

    struct LogProbsArgs {
        logits: DevicePtr,
        tokens: DevicePtr,
        values: DevicePtr,
        indices: DevicePtr,
        part_keys: DevicePtr,
        part_sums: DevicePtr,
        width: u32,
        parts: u32,
        listed: u32,
        top: u32,
    }
}

/// Logits of a block of `log_probs_parts`.
const PART: u32 = 4096;

/// Threads of a block of `log_probs_parts`.
const PART_THREADS: u32 = 1024;

/// Threads of a block of `log_probs`.
const ROW_THREADS: u32 = 256;

/// One block per part of a row, then one per row.
pub(crate) fn launch(queue: &mut Queue, call: &LogProbsCall) -> Launched {
    let &LogProbsCall { logits, tokens, values, indices, m, n, top } = call;
    if m == 0 {
        return Ok(0);
    }
    let rows = queue.blocks("log_probs", m.into())?;
    let (parts, listed) = (queue.rows("log_probs", n.div_ceil(PART).into())?, top.max(1));
    let all_parts = m as usize * parts as usize;
    // Keys first, which have 8 bytes, then sums, which have 4.
    let part_keys = queue.scratch(all_parts * (8 * listed as usize + 4))?;
    let part_sums = part_keys + 8 * (all_parts * listed as usize) as u64;
    let width = n;
    let args =
        LogProbsArgs { logits, tokens, values, indices, part_keys, part_sums, width, parts, listed, top };
    let parts_launch = Launch::new("log_probs", "log_probs_parts", rows, PART_THREADS).rows(parts);
    queue.launch(&parts_launch, &args)?;
    queue.launch(&Launch::new("log_probs", "log_probs", rows, ROW_THREADS), &args)?;
    Ok(2)
}
