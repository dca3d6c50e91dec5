//! Rows of W as f32.

use std::ops::Range;

use super::QuantWeight;
use super::format::Format;
use crate::kernel::{Access, Caps, Kernel, Launch, fold_grid};
use crate::kernels::matmul::PlanError;
use crate::kernels::template::expand;

const TEMPLATE: &str = include_str!("dequantize.wgsl");

/// Writes the rows; binds W and the values.
pub(super) fn launch(
    format: Format,
    weight: QuantWeight,
    rows: Range<u32>,
    caps: &Caps,
) -> Result<Launch, PlanError> {
    let threads = caps.max_invocations.min(128);
    let items = u64::from(rows.end - rows.start) * u64::from(weight.k / 32);
    let count = u32::try_from(items).map_err(|_| PlanError::Grid)?;
    let workgroups = fold_grid(count.div_ceil(threads).into(), caps.max_workgroups).ok_or(PlanError::Grid)?;
    let (text, threads) = (format.text(), threads.to_string());
    let kernel = Kernel {
        label: format!("qmatmul dequantize {:?}", weight.dtype).into(),
        wgsl: expand(TEMPLATE, &[("threads", &threads), ("format", &text), ("unpack", format.unpack())]),
        access: vec![Access::Read, Access::ReadWrite],
        param_words: 3,
    };
    Ok(Launch { kernel, params: vec![weight.k, rows.start, count], workgroups })
}
