//! Sigmoid gates (`sigmoid_gate.cu`).

use fulmen_core::SigmoidGateCall;

use super::Launched;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "sigmoid_gate.cu";

    struct SigmoidGateArgs {
        x: DevicePtr,
        gate: DevicePtr,
        y: DevicePtr,
        n: u64,
        span: u64,
    }
}

/// One thread per element.
pub(crate) fn launch(queue: &mut Queue, call: &SigmoidGateCall) -> Launched {
    let n = u64::from(call.m) * u64::from(call.n);
    if n == 0 {
        return Ok(0);
    }
    let span = u64::from(call.n / call.gates);
    let args = SigmoidGateArgs { x: call.input, gate: call.gate, y: call.output, n, span };
    let blocks = queue.blocks("sigmoid_gate", n.div_ceil(256))?;
    queue.launch(&Launch::new("sigmoid_gate", "sigmoid_gate", blocks, 256), &args)?;
    Ok(1)
}
