//! Element-wise ops.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BinaryCall, UnaryCall};

use super::{Launched, wide};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    a: u64,
    b: u64,
    out: u64,
    n: u64,
    scalar: f32,
    wide: u32,
}

pub(crate) fn binary(queue: &mut Queue, entry: &str, call: &BinaryCall) -> Launched {
    let n = call.n_elements as u64;
    let wide = wide(&[call.a, call.b, call.output]);
    launch(queue, entry, Params { a: call.a, b: call.b, out: call.output, n, scalar: 0.0, wide })
}

pub(crate) fn unary(queue: &mut Queue, entry: &str, call: &UnaryCall) -> Launched {
    let n = call.n_elements as u64;
    let (wide, scalar) = (wide(&[call.input, call.output]), call.scalar);
    launch(queue, entry, Params { a: call.input, b: 0, out: call.output, n, scalar, wide })
}

/// Four elements a thread.
fn launch(queue: &mut Queue, entry: &str, params: Params) -> Launched {
    if params.n == 0 {
        return Ok(0);
    }
    let blocks = queue.blocks(entry, params.n.div_ceil(4 * 256))?;
    queue.launch(&Launch::new("elementwise", entry, blocks, 256), &params)?;
    Ok(1)
}
