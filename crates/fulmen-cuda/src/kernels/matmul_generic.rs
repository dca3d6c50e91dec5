//! Launches of the generic matmul: every weight type and every shape, in f32 (`matmul_generic.cu`).

use fulmen_core::{MulMatCall, WeightArg};

use super::{Launched, type_name, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Rows and columns of a block's output tile, for more rows than [`GEMV_ROWS`].
const TILE: u32 = 64;

kernel_args! {
    file: "matmul_generic.cu";
    constants: [TILE];

    struct MatmulGenericArgs {
        x: DevicePtr,
        w: DevicePtr,
        bias: DevicePtr,
        residual: DevicePtr,
        out: DevicePtr,
        m: u32,
        n: u32,
        k: u32,
        aligned: u32,
    }
}

/// One weight matrix with one input.
#[derive(Clone, Copy, Debug)]
struct Matmul {
    x: u64,
    weight: WeightArg,
    bias: Option<u64>,
    residual: Option<u64>,
    out: u64,
    m: u32,
    k: u32,
}

/// Numbers of rows that there are GEMV kernels for: a warp per column of the output.
const GEMV_ROWS: [u32; 4] = [1, 2, 4, 8];

pub(super) fn launch(queue: &mut Queue, call: &MulMatCall) -> Launched {
    launch_parts(queue, call, false)
}

/// By the tiled kernel whatever the number of rows, so that a row gets the same bits in any batch.
pub(super) fn launch_tiles(queue: &mut Queue, call: &MulMatCall) -> Launched {
    launch_parts(queue, call, true)
}

fn launch_parts(queue: &mut Queue, call: &MulMatCall, tiles: bool) -> Launched {
    let mut launched = 0;
    for part in &call.parts {
        let matmul = Matmul {
            x: call.input,
            weight: part.weight,
            bias: part.bias,
            residual: call.residual,
            out: part.output,
            m: call.m,
            k: call.k,
        };
        launched += launch_matmul(queue, &matmul, tiles)?;
    }
    Ok(launched)
}

fn launch_matmul(queue: &mut Queue, matmul: &Matmul, tiles: bool) -> Launched {
    let Matmul { x, weight, bias, residual, out, m, k } = *matmul;
    let n = weight.rows;
    if m == 0 || n == 0 {
        return Ok(0);
    }
    let args = MatmulGenericArgs {
        x,
        w: weight.ptr,
        bias: bias.unwrap_or(0),
        residual: residual.unwrap_or(0),
        out,
        m,
        n,
        k,
        aligned: if k.is_multiple_of(4) { wide(&[x]) } else { 0 },
    };
    let name = type_name(weight.dtype);
    match GEMV_ROWS.into_iter().find(|&rows| m <= rows && !tiles) {
        Some(rows) => {
            let entry = format!("matmul_generic_{name}_rows{rows}");
            let blocks = queue.blocks(&entry, n.div_ceil(4).into())?;
            queue.launch(&Launch::new("matmul_generic", &entry, blocks, 128), &args)?;
        }
        None => {
            let entry = format!("matmul_generic_{name}_tile");
            let blocks = queue.blocks(&entry, m.div_ceil(TILE).into())?;
            let columns = queue.rows(&entry, n.div_ceil(TILE).into())?;
            let launch = Launch::new("matmul_generic", &entry, blocks, 256).rows(columns);
            queue.launch(&launch, &args)?;
        }
    }
    Ok(1)
}
