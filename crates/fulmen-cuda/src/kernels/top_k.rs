//! The largest values of rows (`top_k.cu`).

use fulmen_core::{BackendError, TopKCall};

use super::Launched;
use crate::BACKEND;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "top_k.cu";
    constants: [PART, PART_THREADS, MAX_PARTS];

    struct TopKArgs {
        x: DevicePtr,
        values: DevicePtr,
        indices: DevicePtr,
        part_keys: DevicePtr,
        width: u32,
        parts: u32,
        k: u32,
        first: u32,
    }
}

/// Values of a block of `top_k_parts`.
const PART: u32 = 4096;

/// Threads of a block of `top_k_parts`.
const PART_THREADS: u32 = 1024;

/// The most parts of a row: each has a thread of `top_k`.
const MAX_PARTS: u32 = 1024;

/// One block per part of a row, then one per row.
pub(crate) fn launch(queue: &mut Queue, call: &TopKCall) -> Launched {
    let &TopKCall { input: x, values, indices, m, n: width, k, first } = call;
    if m == 0 || k == 0 {
        return Ok(0);
    }
    let parts = width.div_ceil(PART);
    if parts > MAX_PARTS {
        let what = format!("TopK of {width} columns; {} are possible", MAX_PARTS * PART);
        return Err(BackendError::Unsupported { backend: BACKEND, what });
    }
    let rows = queue.blocks("top_k", m.into())?;
    let part_keys = queue.scratch(m as usize * parts as usize * k as usize * 8)?;
    let args = TopKArgs { x, values, indices, part_keys, width, parts, k, first };
    let parts_launch = Launch::new("top_k", "top_k_parts", rows, PART_THREADS).rows(parts);
    queue.launch(&parts_launch, &args)?;
    let threads = parts.next_multiple_of(32);
    queue.launch(&Launch::new("top_k", "top_k", rows, threads), &args)?;
    Ok(2)
}
