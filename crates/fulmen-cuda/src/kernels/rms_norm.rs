//! RMS norm, alone and after a residual add (`rms_norm.cu`).

use fulmen_core::{AddRmsNormCall, RmsNormCall};

use super::{Launched, threads_for, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "rms_norm.cu";

    struct RmsNormArgs {
        a: DevicePtr,
        b: DevicePtr,
        gamma: DevicePtr,
        sum: DevicePtr,
        out: DevicePtr,
        width: u32,
        epsilon: f32,
        vectorized: u32,
        unused: u32,
    }
}

pub(crate) fn launch(queue: &mut Queue, call: &RmsNormCall) -> Launched {
    let RmsNormCall { input, gamma, output, width, rows, epsilon } = *call;
    let args =
        RmsNormArgs { a: input, b: 0, gamma, sum: 0, out: output, width, epsilon, vectorized: 0, unused: 0 };
    launch_rows(queue, "rms_norm", rows, args)
}

pub(crate) fn launch_add(queue: &mut Queue, call: &AddRmsNormCall) -> Launched {
    let AddRmsNormCall { a, b, gamma, sum, output, width, rows, epsilon } = *call;
    let args = RmsNormArgs { a, b, gamma, sum, out: output, width, epsilon, vectorized: 0, unused: 0 };
    launch_rows(queue, "add_rms_norm", rows, args)
}

/// One block per row.
fn launch_rows(queue: &mut Queue, entry: &str, rows: u32, mut args: RmsNormArgs) -> Launched {
    if rows == 0 || args.width == 0 {
        return Ok(0);
    }
    let aligned = wide(&[args.a, args.b, args.gamma, args.sum, args.out]);
    args.vectorized = if args.width.is_multiple_of(4) { aligned } else { 0 };
    let items = if args.vectorized == 1 { args.width / 4 } else { args.width };
    let blocks = queue.blocks(entry, rows.into())?;
    queue.launch(&Launch::new("rms_norm", entry, blocks, threads_for(items)), &args)?;
    Ok(1)
}
