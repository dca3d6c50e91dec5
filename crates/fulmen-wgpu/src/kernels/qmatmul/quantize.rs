//! A as int8 codes, for the products that are made of them.

use crate::kernel::{Access, Caps, Kernel, Launch, fold_grid};
use crate::kernels::matmul::PlanError;
use crate::kernels::matmul::text::fill;

const TEMPLATE: &str = include_str!("quantize.wgsl");

/// Vectors of a row: three for each of whole groups of eight items.
pub(super) fn stride(k: u32) -> u32 {
    (k / 32).div_ceil(8) * 24
}

/// Bytes of `m` rows.
pub(super) fn bytes(m: u32, k: u32) -> u64 {
    u64::from(m) * u64::from(stride(k)) * 16
}

/// Binds A and the codes.
pub(super) fn launch(m: u32, k: u32, caps: &Caps) -> Result<Launch, PlanError> {
    // Few values in all: small workgroups reach more of the device.
    let threads = caps.max_invocations.min(32);
    let count = u32::try_from(u64::from(m) * u64::from(k / 32)).map_err(|_| PlanError::Grid)?;
    let workgroups = fold_grid(count.div_ceil(threads).into(), caps.max_workgroups).ok_or(PlanError::Grid)?;
    let kernel = Kernel {
        label: "qmatmul quantize".into(),
        wgsl: fill(TEMPLATE, &[("threads", &threads.to_string())]),
        access: vec![Access::Read, Access::ReadWrite],
        param_words: 4,
    };
    Ok(Launch { kernel, params: vec![m, k, stride(k), count], workgroups })
}
