//! Products: one or several weights with one input, and gate-up.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{BinaryCall, GateUpCall, MulMatCall, WeightArg};

use super::{Launched, elementwise, gemm, small_m, type_name, wide};
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: u64,
    w: u64,
    bias: u64,
    residual: u64,
    out: u64,
    m: u32,
    n: u32,
    k: u32,
    wide: u32,
}

/// One weight with one input.
#[derive(Clone, Copy, Debug)]
struct Product {
    x: u64,
    weight: WeightArg,
    bias: Option<u64>,
    residual: Option<u64>,
    out: u64,
    m: u32,
    k: u32,
}

/// Rows of activations up to which a warp computes one column of the output: the kernels that there are.
const FEW_ROWS: [u32; 4] = [1, 2, 4, 8];

/// The side of a block's square of the output, for more rows.
const TILE: u32 = 64;

pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall) -> Launched {
    if let Some(launched) = small_m::launch(queue, call, None) {
        return launched;
    }
    if let Some(launched) = gemm::launch(queue, call) {
        return launched;
    }
    let mut launched = 0;
    for part in &call.parts {
        let product = Product {
            x: call.input,
            weight: part.weight,
            bias: part.bias,
            residual: call.residual,
            out: part.output,
            m: call.m,
            k: call.k,
        };
        launched += launch_product(queue, &product)?;
    }
    Ok(launched)
}

/// The products, the gate's into scratch memory, and what is made of both.
pub(crate) fn launch_gate_up(queue: &mut Queue, call: &GateUpCall) -> Launched {
    if let Some(launched) = small_m::launch_gate_up(queue, call, None) {
        return launched;
    }
    if let Some(launched) = gemm::launch_gate_up(queue, call) {
        return launched;
    }
    let GateUpCall { input: x, gate, up, output: out, m, k } = *call;
    let n_elements = m as usize * gate.rows as usize;
    if n_elements == 0 {
        return Ok(0);
    }
    let gates = queue.scratch(n_elements * size_of::<f32>())?;
    let product = Product { x, weight: up, bias: None, residual: None, out, m, k };
    let mut launched = launch_product(queue, &product)?;
    launched += launch_product(queue, &Product { weight: gate, out: gates, ..product })?;
    launched +=
        elementwise::binary(queue, "swiglu", &BinaryCall { a: gates, b: out, output: out, n_elements })?;
    Ok(launched)
}

/// The plain kernels.
fn launch_product(queue: &mut Queue, product: &Product) -> Launched {
    let Product { x, weight, bias, residual, out, m, k } = *product;
    let n = weight.rows;
    if m == 0 || n == 0 {
        return Ok(0);
    }
    let params = Params {
        x,
        w: weight.ptr,
        bias: bias.unwrap_or(0),
        residual: residual.unwrap_or(0),
        out,
        m,
        n,
        k,
        wide: if k.is_multiple_of(4) { wide(&[x]) } else { 0 },
    };
    let name = type_name(weight.dtype);
    match FEW_ROWS.into_iter().find(|&rows| m <= rows) {
        Some(rows) => {
            let entry = format!("matmul_generic_{name}_rows{rows}");
            let blocks = queue.blocks(&entry, n.div_ceil(4).into())?;
            queue.launch(&Launch::new("matmul_generic", &entry, blocks, 128), &params)?;
        }
        None => {
            let entry = format!("matmul_generic_{name}_tile");
            let blocks = queue.blocks(&entry, m.div_ceil(TILE).into())?;
            let columns = queue.rows(&entry, n.div_ceil(TILE).into())?;
            let launch = Launch::new("matmul_generic", &entry, blocks, 256).rows(columns);
            queue.launch(&launch, &params)?;
        }
    }
    Ok(1)
}
