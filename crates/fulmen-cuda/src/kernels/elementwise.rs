//! Element-wise ops (`elementwise.cu`).

use fulmen_core::{BinaryCall, UnaryCall};

use super::{Launched, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "elementwise.cu";

    struct ElementwiseArgs {
        a: DevicePtr,
        b: DevicePtr,
        out: DevicePtr,
        n: u64,
        scalar: f32,
        vectorized: u32,
    }
}

pub(crate) fn binary(queue: &mut Queue, entry: &str, call: &BinaryCall) -> Launched {
    let n = call.n_elements as u64;
    let vectorized = wide(&[call.a, call.b, call.output]);
    let args = ElementwiseArgs { a: call.a, b: call.b, out: call.output, n, scalar: 0.0, vectorized };
    launch(queue, entry, args)
}

pub(crate) fn unary(queue: &mut Queue, entry: &str, call: &UnaryCall) -> Launched {
    let n = call.n_elements as u64;
    let (vectorized, scalar) = (wide(&[call.input, call.output]), call.scalar);
    launch(queue, entry, ElementwiseArgs { a: call.input, b: 0, out: call.output, n, scalar, vectorized })
}

/// Four elements per thread.
fn launch(queue: &mut Queue, entry: &str, args: ElementwiseArgs) -> Launched {
    if args.n == 0 {
        return Ok(0);
    }
    let blocks = queue.blocks(entry, args.n.div_ceil(4 * 256))?;
    queue.launch(&Launch::new("elementwise", entry, blocks, 256), &args)?;
    Ok(1)
}
