//! Rows of W as f32 (`dequantize.wgsl`), for the f32 GEMM kernels.

use std::ops::Range;

use super::QuantWeight;
use super::format::Format;
use crate::kernel::{Caps, Kernel, Launch, StorageBinding, fold_grid};
use crate::kernels::matmul::MatmulError;
use crate::kernels::preprocess::{render, values};

/// Writes the rows; binds W and the values.
pub(super) fn launch(
    format: Format,
    weight: QuantWeight,
    rows: Range<u32>,
    caps: &Caps,
) -> Result<Launch, MatmulError> {
    let threads = caps.max_invocations.min(128);
    let blocks = u64::from(rows.end - rows.start) * u64::from(weight.k / 32);
    let count = u32::try_from(blocks).map_err(|_| MatmulError::Grid)?;
    let workgroups =
        fold_grid(count.div_ceil(threads).into(), caps.max_workgroups).ok_or(MatmulError::Grid)?;
    let values = values![threads, format: format.name(), unpack: format.unpack()];
    let kernel = Kernel {
        label: format!("qmatmul dequantize {:?}", weight.dtype).into(),
        wgsl: render("qmatmul/dequantize.wgsl", &values),
        bindings: vec![
            StorageBinding::read("w", "vec4<u32>"),
            StorageBinding::read_write("dst", "vec4<f32>"),
        ],
        param_words: 3,
    };
    Ok(Launch { kernel, params: vec![weight.k, rows.start, count], workgroups })
}
