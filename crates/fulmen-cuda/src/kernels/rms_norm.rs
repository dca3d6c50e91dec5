//! RMS norms.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{AddRmsNormCall, RmsNormCall};

use super::{Launched, threads_for, wide};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    a: u64,
    b: u64,
    gamma: u64,
    sum: u64,
    out: u64,
    width: u32,
    epsilon: f32,
    wide: u32,
    unused: u32,
}

pub(crate) fn launch(queue: &mut Queue, call: &RmsNormCall) -> Launched {
    let RmsNormCall { input, gamma, output, width, rows, epsilon } = *call;
    let params = Params { a: input, b: 0, gamma, sum: 0, out: output, width, epsilon, wide: 0, unused: 0 };
    launch_rows(queue, "rms_norm", rows, params)
}

pub(crate) fn launch_add(queue: &mut Queue, call: &AddRmsNormCall) -> Launched {
    let AddRmsNormCall { a, b, gamma, sum, output, width, rows, epsilon } = *call;
    let params = Params { a, b, gamma, sum, out: output, width, epsilon, wide: 0, unused: 0 };
    launch_rows(queue, "add_rms_norm", rows, params)
}

/// One block a row.
fn launch_rows(queue: &mut Queue, entry: &str, rows: u32, mut params: Params) -> Launched {
    if rows == 0 || params.width == 0 {
        return Ok(0);
    }
    let aligned = wide(&[params.a, params.b, params.gamma, params.sum, params.out]);
    params.wide = if params.width.is_multiple_of(4) { aligned } else { 0 };
    let items = if params.wide == 1 { params.width / 4 } else { params.width };
    let blocks = queue.blocks(entry, rows.into())?;
    queue.launch(&Launch::new("rms_norm", entry, blocks, threads_for(items)), &params)?;
    Ok(1)
}
