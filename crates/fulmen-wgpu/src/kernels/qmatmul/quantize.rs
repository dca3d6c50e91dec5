//! A as int8 codes, for the products that are made of them.

use crate::kernel::{Access, Caps, Kernel, Launch, fold_grid};
use crate::kernels::matmul::PlanError;
use crate::kernels::plan::threads as within;
use crate::kernels::template::expand;
use crate::kernels::workgroup::{WorkgroupOp, WorkgroupReduce};

const TEMPLATE: &str = include_str!("quantize.wgsl");

/// The functions that make codes and store them in `dst`.
pub(in crate::kernels) const CODES: &str = include_str!("codes.wgsl");

/// Vectors of a row: three for each of whole groups of eight items.
pub(super) fn stride(k: u32) -> u32 {
    (k / 32).div_ceil(8) * 24
}

/// Bytes of `m` rows.
pub(super) fn bytes(m: u32, k: u32) -> u64 {
    u64::from(m) * u64::from(stride(k)) * 16
}

/// Text: where `put_item` stores an item of a row of `k` elements. Row and item are names or in brackets where they have to be.
pub(in crate::kernels) fn place_of_item(k: u32, row: &str, item: &str) -> String {
    format!("{row} * {}u + ({item} >> 3u) * 24u + ({item} & 7u)", stride(k))
}

/// Binds A and the codes.
pub(super) fn launch(m: u32, k: u32, caps: &Caps) -> Result<Launch, PlanError> {
    // Few values in all: small workgroups reach more of the device.
    let threads = caps.max_invocations.min(32);
    let count = u32::try_from(u64::from(m) * u64::from(k / 32)).map_err(|_| PlanError::Grid)?;
    let workgroups = fold_grid(count.div_ceil(threads).into(), caps.max_workgroups).ok_or(PlanError::Grid)?;
    let kernel = Kernel {
        label: "qmatmul quantize".into(),
        wgsl: expand(TEMPLATE, &[("threads", &threads.to_string()), ("codes", CODES)]),
        access: vec![Access::Read, Access::ReadWrite],
        param_words: 4,
    };
    Ok(Launch { kernel, params: vec![m, k, stride(k), count], workgroups })
}

/// Bytes of `m` rows of `k` elements as codes.
pub fn codes_bytes(m: u32, k: u32) -> u64 {
    bytes(m, k)
}

/// A as codes: binds A (`[m, k]` in f32) and the codes, [`codes_bytes`] long.
///
/// # Errors
/// Where the launch has too many workgroups.
pub fn quantize_a(m: u32, k: u32, caps: &Caps) -> Result<Launch, PlanError> {
    launch(m, k, caps)
}

/// The RMS norm of A and its codes in one launch: binds A, the gain (`[k]`), the norm (`[m, k]`) and the codes. `k` is a
/// multiple of 32.
///
/// # Errors
/// Where the launch has too many workgroups.
pub fn norm_and_codes(m: u32, k: u32, epsilon: f32, caps: &Caps) -> Result<Launch, PlanError> {
    let threads = within(if k >= 4096 { 512 } else { 256 }, caps);
    let workgroups = fold_grid(m.into(), caps.max_workgroups).ok_or(PlanError::Grid)?;
    let group = WorkgroupReduce::new(&[WorkgroupOp::Sum], threads, threads, caps);
    let wgsl = expand(
        include_str!("norm_and_codes.wgsl"),
        &[
            ("threads", &threads.to_string()),
            ("codes", CODES),
            ("group", &group.functions()),
            ("arguments", &group.arguments()),
            ("begin", &group.init()),
        ],
    );
    let access = vec![Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite];
    let kernel = Kernel { label: "rms_norm quantize".into(), wgsl, access, param_words: 4 };
    Ok(Launch { kernel, params: vec![m, k, stride(k), epsilon.to_bits()], workgroups })
}
