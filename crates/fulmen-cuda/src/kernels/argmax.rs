//! The index of the largest element.

use bytemuck::{Pod, Zeroable};
use fulmen_core::ArgMaxCall;

use super::{Launched, threads_for};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: u64,
    parts: u64,
    out: u64,
    width: u32,
    part: u32,
}

/// Elements that are worth a block.
const PART: u32 = 4096;

/// Parts that a warp of the second kernel goes through quickly.
const MOST_PARTS: u32 = 128;

pub(crate) fn launch(queue: &mut Queue, call: &ArgMaxCall) -> Launched {
    let ArgMaxCall { input, output, m, n } = *call;
    if m == 0 {
        return Ok(0);
    }
    let blocks = queue.blocks("argmax", m.into())?;
    let parts = n.div_ceil(PART).clamp(1, MOST_PARTS);
    let part = n.div_ceil(parts);
    let scratch =
        if parts == 1 { 0 } else { queue.scratch(m as usize * parts as usize * size_of::<u64>())? };
    let params = Params { x: input, parts: scratch, out: output, width: n, part };
    let first = Launch::new("argmax", "argmax", blocks, threads_for(part)).rows(parts);
    queue.launch(&first, &params)?;
    if parts == 1 {
        return Ok(1);
    }
    let second = Launch::new("argmax", "argmax_of_parts", blocks, 32);
    queue.launch(&second, &Params { part: parts, ..params })?;
    Ok(2)
}
