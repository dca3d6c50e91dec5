//! Which kernels take a matmul: the GEMV for one row, the small-M or the mixed-input GEMM for small batches,
//! the tensor-core GEMM for prefill, and the generic kernels for what is left.

use fulmen_core::{BinaryCall, GateActivation, GateUpCall, MulMatCall, Projection};

use super::{Launched, elementwise, gemm, matmul_generic, small_m};
use crate::forward::Forwarding;
use crate::queue::Queue;

pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall) -> Launched {
    launch_planned(queue, call, &Forwarding::default())
}

/// Reads what was forwarded to the call, and forwards its output.
pub(crate) fn launch_planned(queue: &mut Queue, call: &MulMatCall, forwarding: &Forwarding<'_>) -> Launched {
    if call.batch_invariant {
        return launch_batch_invariant(queue, call);
    }
    small_m::launch(queue, call, None, forwarding)
        .or_else(|| gemm::launch(queue, call))
        .unwrap_or_else(|| matmul_generic::launch(queue, call))
}

/// By kernels whose sums have an order that depends on the weights alone: the small-M GEMM with the
/// configuration of 16 rows, and the tiles of the generic kernel.
fn launch_batch_invariant(queue: &mut Queue, call: &MulMatCall) -> Launched {
    small_m::launch_batch_invariant(queue, call).unwrap_or_else(|| matmul_generic::launch_tiles(queue, call))
}

pub(crate) fn launch_gate_up(queue: &mut Queue, call: &GateUpCall) -> Launched {
    launch_gate_up_planned(queue, call, &Forwarding::default())
}

/// Reads what was forwarded to the call, and forwards its output.
pub(crate) fn launch_gate_up_planned(
    queue: &mut Queue,
    call: &GateUpCall,
    forwarding: &Forwarding<'_>,
) -> Launched {
    if call.batch_invariant {
        return small_m::launch_gate_up_batch_invariant(queue, call)
            .unwrap_or_else(|| launch_gate_and_up(queue, call));
    }
    small_m::launch_gate_up(queue, call, None, forwarding)
        .or_else(|| gemm::launch_gate_up(queue, call))
        .unwrap_or_else(|| launch_gate_and_up(queue, call))
}

/// Up into the output, gate into scratch memory, then the activation of both.
fn launch_gate_and_up(queue: &mut Queue, call: &GateUpCall) -> Launched {
    let GateUpCall { input, gate, up, activation, output, m, k, batch_invariant } = *call;
    let n_elements = m as usize * gate.rows as usize;
    if n_elements == 0 {
        return Ok(0);
    }
    let gates = queue.scratch(n_elements * size_of::<f32>())?;
    let mut launched = 0;
    for (weight, output) in [(up, output), (gate, gates)] {
        let parts = vec![Projection { weight, bias: None, output }];
        let matmul = MulMatCall { input, parts, residual: None, m, k, batch_invariant };
        if batch_invariant {
            launched += matmul_generic::launch_tiles(queue, &matmul)?;
            continue;
        }
        // Kernels for several rows use the scratch memory themselves.
        let forwarding = Forwarding::default();
        let fast = if m == 1 { small_m::launch(queue, &matmul, None, &forwarding) } else { None };
        launched += fast.unwrap_or_else(|| matmul_generic::launch(queue, &matmul))?;
    }
    let entry = match activation {
        GateActivation::Silu => "swiglu",
        GateActivation::GeluTanh => "geglu",
    };
    let gated = BinaryCall { a: gates, b: output, output, n_elements };
    Ok(launched + elementwise::binary(queue, entry, &gated)?)
}
