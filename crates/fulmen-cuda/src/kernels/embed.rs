//! Embedding lookup (`embed.cu`).

use fulmen_core::EmbedCall;

use super::{Launched, type_name};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "embed.cu";

    struct EmbedArgs {
        table: DevicePtr,
        tokens: DevicePtr,
        out: DevicePtr,
        fault: DevicePtr,
        rows: u32,
        first: u32,
        held: u32,
        width: u32,
        blocks_per_row: u32,
        unused: u32,
    }
}

const THREADS: u32 = 128;

/// Eight elements per thread.
pub(crate) fn launch(queue: &mut Queue, call: &EmbedCall) -> Launched {
    if call.m == 0 || call.width == 0 {
        return Ok(0);
    }
    let blocks_per_row = call.width.div_ceil(8 * THREADS);
    let args = EmbedArgs {
        table: call.table.ptr,
        tokens: call.tokens,
        out: call.output,
        fault: queue.fault(),
        rows: call.whole().of,
        first: call.whole().first,
        held: call.table.rows,
        width: call.width,
        blocks_per_row,
        unused: 0,
    };
    let entry = format!("embed_{}", type_name(call.table.dtype));
    let blocks = queue.blocks("embed", u64::from(call.m) * u64::from(blocks_per_row))?;
    queue.launch(&Launch::new("embed", &entry, blocks, THREADS), &args)?;
    Ok(1)
}
