//! A in 16 bits, for the products of matrix units.

use super::{PlanError, WeightType};
use crate::kernel::{Access, Caps, Kernel, Launch, fold_grid};
use crate::kernels::template::expand;

const TEMPLATE: &str = include_str!("halve.wgsl");

/// Elements of a row, with what fills its last slab: a multiple of every `bk`.
pub(in crate::kernels) fn row(k: u32) -> u64 {
    u64::from(k).next_multiple_of(64)
}

/// Bytes of the rows, and of their scales.
pub(in crate::kernels) fn bytes(m: u32, k: u32) -> [u64; 2] {
    [u64::from(m) * row(k) * 2, u64::from(m) * 4]
}

/// Binds A, the rows in 16 bits, and the scales.
pub(in crate::kernels) fn launch(m: u32, k: u32, caps: &Caps) -> Result<Launch, PlanError> {
    let threads = 1u32 << caps.max_invocations.clamp(1, 256).ilog2();
    let workgroups = fold_grid(m.into(), caps.max_workgroups).ok_or(PlanError::Grid)?;
    let width = if k.is_multiple_of(4) { 4 } else { 1 };
    let load = match width {
        4 => {
            "    let kv = params.k / 4u;\n    \
             return select(vec4<f32>(), get_src(row * kv + min(v, kv - 1u)), v < kv);"
        }
        _ => {
            "    var four = vec4<f32>();\n    for (var i = 0u; i < 4u; i++) {\n        \
             if (4u * v + i < params.k) { four[i] = get_src(row * params.k + 4u * v + i); }\n    }\n    return four;"
        }
    };
    let text = expand(
        TEMPLATE,
        &[
            ("threads", &threads.to_string()),
            ("element", WeightType::F32.element(width, caps)),
            ("get", &WeightType::F32.getter("src", width, caps)),
            ("load", load),
        ],
    );
    let kernel = Kernel {
        label: "matmul halve".into(),
        wgsl: format!("enable f16;\n{text}"),
        access: vec![Access::Read, Access::ReadWrite, Access::ReadWrite],
        param_words: 3,
    };
    let stride = u32::try_from(row(k) / 4).map_err(|_| PlanError::Grid)?;
    // The kernel counts vectors in 32 bits.
    u32::try_from(u64::from(m) * u64::from(stride)).map_err(|_| PlanError::Grid)?;
    Ok(Launch { kernel, params: vec![m, k, stride], workgroups })
}
