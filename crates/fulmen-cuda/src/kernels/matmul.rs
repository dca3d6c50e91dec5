//! Which kernels take a matmul: the GEMV or the small-M GEMM for few rows, the tensor-core GEMM for many, and
//! the generic kernels for what is left.

use fulmen_core::{GateUpCall, MulMatCall};

use super::{Launched, gemm, matmul_generic, small_m};
use crate::queue::Queue;

pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall) -> Launched {
    small_m::launch(queue, call, None)
        .or_else(|| gemm::launch(queue, call))
        .unwrap_or_else(|| matmul_generic::launch(queue, call))
}

pub(crate) fn launch_gate_up(queue: &mut Queue, call: &GateUpCall) -> Launched {
    small_m::launch_gate_up(queue, call, None)
        .or_else(|| gemm::launch_gate_up(queue, call))
        .unwrap_or_else(|| matmul_generic::launch_gate_up(queue, call))
}
