//! Softmax over rows.

use bytemuck::{Pod, Zeroable};
use fulmen_core::SoftMaxCall;

use super::{Launched, threads_for};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: u64,
    out: u64,
    width: u32,
    scale: f32,
}

pub(crate) fn launch(queue: &mut Queue, call: &SoftMaxCall) -> Launched {
    let SoftMaxCall { input, output, width, rows, scale } = *call;
    if rows == 0 || width == 0 {
        return Ok(0);
    }
    let blocks = queue.blocks("softmax", rows.into())?;
    let launch = Launch::new("softmax", "softmax", blocks, threads_for(width));
    queue.launch(&launch, &Params { x: input, out: output, width, scale })?;
    Ok(1)
}
