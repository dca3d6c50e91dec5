//! Routing of a mixture of experts (`route.cu`).

use fulmen_core::RouteCall;

use super::Launched;
use super::routing::RouteRule;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Rows of a block, one per warp.
const WARPS: u32 = 4;

kernel_args! {
    file: "route.cu";
    constants: [WARPS];

    struct RouteArgs {
        logits: DevicePtr,
        weights: DevicePtr,
        ids: DevicePtr,
        rule: RouteRule,
        m: u32,
        unused: u32,
    }
}

pub(crate) fn launch(queue: &mut Queue, call: &RouteCall) -> Launched {
    let &RouteCall { logits, weights, ids, m, n_experts, .. } = call;
    if m == 0 {
        return Ok(0);
    }
    let args = RouteArgs { logits, weights, ids, rule: RouteRule::new(call), m, unused: 0 };
    // A lane holds this many experts.
    let entry = format!("route_{}", n_experts.div_ceil(32).next_power_of_two());
    let blocks = queue.blocks("route", m.div_ceil(WARPS).into())?;
    queue.launch(&Launch::new("route", &entry, blocks, 32 * WARPS), &args)?;
    Ok(1)
}
