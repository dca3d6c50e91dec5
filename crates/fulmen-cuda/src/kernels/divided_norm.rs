//! RMS norm of rows whose columns are divided among ranks (`divided_norm.cu`).

use fulmen_core::{MeanSquaresCall, RmsScaleCall};

use super::{Launched, threads_for};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "divided_norm.cu";

    struct MeanSquaresArgs {
        a: DevicePtr,
        b: DevicePtr,
        means: DevicePtr,
        width_a: u32,
        width_b: u32,
    }

    struct RmsScaleArgs {
        x: DevicePtr,
        means: DevicePtr,
        gamma: DevicePtr,
        out: DevicePtr,
        n: u64,
        width: u32,
        columns: u32,
        column: u32,
        ranks: u32,
        epsilon: f32,
        unused: u32,
    }
}

/// One block per row of each input.
pub(crate) fn launch_mean_squares(queue: &mut Queue, call: &MeanSquaresCall) -> Launched {
    let MeanSquaresCall { inputs: [a, b], output, m, widths: [width_a, width_b] } = *call;
    if m == 0 {
        return Ok(0);
    }
    let args = MeanSquaresArgs { a, b, means: output, width_a, width_b };
    let blocks = queue.blocks("mean_squares", 2 * u64::from(m))?;
    let threads = threads_for(width_a.max(width_b));
    queue.launch(&Launch::new("divided_norm", "mean_squares", blocks, threads), &args)?;
    Ok(1)
}

/// One thread per element.
pub(crate) fn launch_rms_scale(queue: &mut Queue, call: &RmsScaleCall) -> Launched {
    let RmsScaleCall { input, means, gamma, output, m, width, columns, column, ranks, epsilon } = *call;
    let n = u64::from(m) * u64::from(width);
    if n == 0 {
        return Ok(0);
    }
    let (x, out) = (input, output);
    let args = RmsScaleArgs { x, means, gamma, out, n, width, columns, column, ranks, epsilon, unused: 0 };
    let blocks = queue.blocks("rms_scale", n.div_ceil(256))?;
    queue.launch(&Launch::new("divided_norm", "rms_scale", blocks, 256), &args)?;
    Ok(1)
}
