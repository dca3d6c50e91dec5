//! A to f16 with a scale per row (`convert_f16.wgsl`), for the cooperative-matrix GEMM.

use super::{Elem, MatmulError};
use crate::kernel::{Caps, Kernel, Launch, StorageBinding, fold_grid};
use crate::kernels::preprocess::{render, values};

/// Elements of a row, padded to a multiple of every depth of a k-tile.
pub(in crate::kernels) fn padded_k(k: u32) -> u64 {
    u64::from(k).next_multiple_of(64)
}

/// Bytes of the rows, and of their scales.
pub(in crate::kernels) fn bytes(m: u32, k: u32) -> [u64; 2] {
    [u64::from(m) * padded_k(k) * 2, u64::from(m) * 4]
}

/// Binds A, the rows in f16, and the scales.
pub(in crate::kernels) fn launch(m: u32, k: u32, caps: &Caps) -> Result<Launch, MatmulError> {
    let threads = 1u32 << caps.max_invocations.clamp(1, 256).ilog2();
    let workgroups = fold_grid(m.into(), caps.max_workgroups).ok_or(MatmulError::Grid)?;
    let k_width = if k.is_multiple_of(4) { 4u32 } else { 1 };
    let kernel = Kernel {
        label: "matmul convert_f16".into(),
        wgsl: render("matmul/convert_f16.wgsl", &values![threads, k_width]),
        bindings: vec![
            StorageBinding::read("src", Elem::F32.wgsl(k_width)),
            StorageBinding::read_write("dst", "vec4<f16>"),
            StorageBinding::read_write("scales", "f32"),
        ],
        param_words: 3,
    };
    let stride = u32::try_from(padded_k(k) / 4).map_err(|_| MatmulError::Grid)?;
    // The kernel counts vectors in 32 bits.
    u32::try_from(u64::from(m) * u64::from(stride)).map_err(|_| MatmulError::Grid)?;
    Ok(Launch { kernel, params: vec![m, k, stride], workgroups })
}
