//! Copies of bytes (`copy.cu`).

use fulmen_core::CopyCall;

use super::Launched;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "copy.cu";

    struct CopyArgs {
        from: DevicePtr,
        to: DevicePtr,
        bytes: u64,
    }
}

pub(crate) fn launch(queue: &mut Queue, call: &CopyCall) -> Launched {
    let args = CopyArgs { from: call.input, to: call.output, bytes: call.bytes as u64 };
    if args.bytes == 0 {
        return Ok(0);
    }
    let (unit, entry) = match args.from | args.to {
        both if both.is_multiple_of(16) => (16, "copy16"),
        both if both.is_multiple_of(4) => (4, "copy4"),
        _ => (1, "copy1"),
    };
    // At least one block, whose first threads copy what is less than a unit.
    let blocks = queue.blocks(entry, (args.bytes / unit).div_ceil(256).max(1))?;
    queue.launch(&Launch::new("copy", entry, blocks, 256), &args)?;
    Ok(1)
}
