//! Argmax of each row (`argmax.cu`).

use fulmen_core::ArgMaxCall;

use super::{Launched, threads_for};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "argmax.cu";

    struct ArgmaxArgs {
        x: DevicePtr,
        part_keys: DevicePtr,
        out: DevicePtr,
        width: u32,
        part_width: u32,
        parts: u32,
        unused: u32,
    }
}

/// Elements that are worth a block.
const PART_WIDTH: u32 = 4096;

/// Parts that a warp of the second kernel reduces quickly.
const MAX_PARTS: u32 = 128;

pub(crate) fn launch(queue: &mut Queue, call: &ArgMaxCall) -> Launched {
    let ArgMaxCall { input, output, m, n } = *call;
    if m == 0 {
        return Ok(0);
    }
    let blocks = queue.blocks("argmax", m.into())?;
    let parts = n.div_ceil(PART_WIDTH).clamp(1, MAX_PARTS);
    let part_width = n.div_ceil(parts);
    let part_keys =
        if parts == 1 { 0 } else { queue.scratch(m as usize * parts as usize * size_of::<u64>())? };
    let args = ArgmaxArgs { x: input, part_keys, out: output, width: n, part_width, parts, unused: 0 };
    let first = Launch::new("argmax", "argmax", blocks, threads_for(part_width)).rows(parts);
    queue.launch(&first, &args)?;
    if parts == 1 {
        return Ok(1);
    }
    let second = Launch::new("argmax", "argmax_of_parts", blocks, 32);
    queue.launch(&second, &args)?;
    Ok(2)
}
