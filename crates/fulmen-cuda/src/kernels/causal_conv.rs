//! Causal convolution with a state (`causal_conv.cu`).

use fulmen_core::CausalConvCall;

use super::Launched;
use super::recurrent::StateRows;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "causal_conv.cu";

    struct CausalConvArgs {
        x: DevicePtr,
        weight: DevicePtr,
        state: DevicePtr,
        y: DevicePtr,
        rows: StateRows,
        channels: u32,
        unused: u32,
    }
}

/// One thread per channel of each row.
pub(crate) fn launch(queue: &mut Queue, call: &CausalConvCall) -> Launched {
    if call.m == 0 {
        return Ok(0);
    }
    let rows = StateRows::new(queue, call.state, call.positions, call.sequences, call.m);
    let blocks = queue.blocks("causal_conv", u64::from(call.channels).div_ceil(128))?;
    let starts = queue.rows("causal_conv", rows.starts())?;
    let (x, weight, state, y) = (call.input, call.weight, call.state.ptr, call.output);
    let args = CausalConvArgs { x, weight, state, y, rows, channels: call.channels, unused: 0 };
    let entry = format!("causal_conv_{}", call.taps);
    queue.launch(&Launch::new("causal_conv", &entry, blocks, 128).rows(starts), &args)?;
    Ok(1)
}
