//! Softmax over rows.

use fulmen_core::SoftMaxCall;

use super::{Launched, threads_for};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "softmax.cu";

    struct SoftmaxArgs {
        x: DevicePtr,
        out: DevicePtr,
        width: u32,
        scale: f32,
    }
}

pub(crate) fn launch(queue: &mut Queue, call: &SoftMaxCall) -> Launched {
    let SoftMaxCall { input, output, width, rows, scale } = *call;
    if rows == 0 || width == 0 {
        return Ok(0);
    }
    let blocks = queue.blocks("softmax", rows.into())?;
    let launch = Launch::new("softmax", "softmax", blocks, threads_for(width));
    queue.launch(&launch, &SoftmaxArgs { x: input, out: output, width, scale })?;
    Ok(1)
}
