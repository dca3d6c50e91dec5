//! Launches of the matmul by expert id for every weight type and every shape, and of the sum of the results
//! of a row's experts (`expert_generic.cu`).

use fulmen_core::ExpertDownCall;

use super::experts::{GatedActivation, PairProjection};
use super::{Launched, at_row, type_name, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "expert_generic.cu";

    struct ExpertGenericArgs {
        x: DevicePtr,
        w: DevicePtr,
        ids: DevicePtr,
        bias: DevicePtr,
        gate: DevicePtr,
        weights: DevicePtr,
        out: DevicePtr,
        fault: DevicePtr,
        activation: GatedActivation,
        n: u32,
        k: u32,
        n_experts: u32,
        top_k: u32,
        pairs_per_row_of_x: u32,
        aligned: u32,
    }

    struct ExpertSumArgs {
        pairs: DevicePtr,
        ids: DevicePtr,
        residual: DevicePtr,
        out: DevicePtr,
        n: u32,
        top_k: u32,
    }
}

/// Pairs of a launch: the second dimension of a grid.
const MAX_PAIRS: u32 = u16::MAX as u32;

/// A warp per pair and column.
pub(super) fn launch(queue: &mut Queue, projection: &PairProjection) -> Launched {
    let &PairProjection { x, x_by_pair, ids, weight, bias, out, m, k, top, n_experts, .. } = projection;
    let (n, (gate, weights, activation)) = (projection.n(), projection.epilogue());
    let entry = format!("expert_generic_{}", type_name(weight.dtype));
    let blocks = queue.blocks(&entry, n.div_ceil(4).into())?;
    let launch_rows = (MAX_PAIRS / top).max(1);
    let mut launched = 0;
    for first in (0..m).step_by(launch_rows as usize) {
        let (pair, pairs) = (first * top, launch_rows.min(m - first) * top);
        let args = ExpertGenericArgs {
            x: at_row(x, if x_by_pair { pair } else { first }, k),
            w: weight.ptr,
            ids: at_row(ids, pair, 1),
            bias: bias.unwrap_or(0),
            gate: at_row(gate, pair, n),
            weights: at_row(weights, pair, 1),
            out: at_row(out, pair, n),
            fault: queue.fault(),
            activation,
            n,
            k,
            n_experts,
            top_k: top,
            pairs_per_row_of_x: if x_by_pair { 1 } else { top },
            aligned: if k.is_multiple_of(4) { wide(&[x]) } else { 0 },
        };
        let rows = queue.rows(&entry, pairs.into())?;
        queue.launch(&Launch::new("expert_generic", &entry, blocks, 128).rows(rows), &args)?;
        launched += 1;
    }
    Ok(launched)
}

const SUM_THREADS: u32 = 256;

/// The sum of the weighted results of each row at `pairs`, and the residual.
pub(super) fn launch_sum(queue: &mut Queue, call: &ExpertDownCall, pairs: u64) -> Launched {
    let (n, top, residual) = (call.n(), call.top, call.residual.unwrap_or(0));
    let args = ExpertSumArgs { pairs, ids: call.ids, residual, out: call.output, n, top_k: top };
    let blocks = queue.blocks("expert_sum", n.div_ceil(SUM_THREADS).into())?;
    let rows = queue.rows("expert_sum", call.m.into())?;
    queue.launch(&Launch::new("expert_generic", "expert_sum", blocks, SUM_THREADS).rows(rows), &args)?;
    Ok(1)
}
