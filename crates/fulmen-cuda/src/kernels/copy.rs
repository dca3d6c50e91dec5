//! Copies.

use bytemuck::{Pod, Zeroable};
use fulmen_core::CopyCall;

use super::Launched;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    from: u64,
    to: u64,
    bytes: u64,
}

pub(crate) fn launch(queue: &mut Queue, call: &CopyCall) -> Launched {
    let params = Params { from: call.input, to: call.output, bytes: call.bytes as u64 };
    if params.bytes == 0 {
        return Ok(0);
    }
    let (unit, entry) = match params.from | params.to {
        both if both.is_multiple_of(16) => (16, "copy16"),
        both if both.is_multiple_of(4) => (4, "copy4"),
        _ => (1, "copy1"),
    };
    // At least one block, whose first threads copy what is less than a unit.
    let blocks = queue.blocks(entry, (params.bytes / unit).div_ceil(256).max(1))?;
    queue.launch(&Launch::new("copy", entry, blocks, 256), &params)?;
    Ok(1)
}
