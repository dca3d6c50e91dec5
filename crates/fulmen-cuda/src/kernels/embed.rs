//! Rows of a table.

use bytemuck::{Pod, Zeroable};
use fulmen_core::EmbedCall;

use super::{Launched, type_name};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    table: u64,
    tokens: u64,
    out: u64,
    fault: u64,
    rows: u32,
    width: u32,
    blocks_per_row: u32,
    unused: u32,
}

const THREADS: u32 = 128;

/// Eight elements a thread.
pub(crate) fn launch(queue: &mut Queue, call: &EmbedCall) -> Launched {
    if call.m == 0 || call.width == 0 {
        return Ok(0);
    }
    let blocks_per_row = call.width.div_ceil(8 * THREADS);
    let params = Params {
        table: call.table.ptr,
        tokens: call.tokens,
        out: call.output,
        fault: queue.fault(),
        rows: call.table.rows,
        width: call.width,
        blocks_per_row,
        unused: 0,
    };
    let entry = format!("embed_{}", type_name(call.table.dtype));
    let blocks = queue.blocks("embed", u64::from(call.m) * u64::from(blocks_per_row))?;
    queue.launch(&Launch::new("embed", &entry, blocks, THREADS), &params)?;
    Ok(1)
}
