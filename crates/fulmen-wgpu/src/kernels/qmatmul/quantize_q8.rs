//! q8 activations: A as int8 quants with a scale for every 32 (`quantize_q8.wgsl`, `rms_norm_q8.wgsl`).

use crate::kernel::{Caps, Kernel, Launch, StorageBinding, fold_grid};
use crate::kernels::launch_list::threads as within;
use crate::kernels::matmul::MatmulError;
use crate::kernels::preprocess::{render, values};
use crate::kernels::workgroup::{WorkgroupOp, WorkgroupReduce};

/// Vectors of a row: three for each block, in whole groups of eight blocks.
pub(in crate::kernels) fn stride(k: u32) -> u32 {
    (k / 32).div_ceil(8) * 24
}

/// Text: where `put_q8_block` stores a block of a row of `k` elements. Row and block are names or in
/// parentheses.
pub(in crate::kernels) fn q8_block_place(k: u32, row: &str, block: &str) -> String {
    format!("{row} * {}u + ({block} >> 3u) * 24u + ({block} & 7u)", stride(k))
}

/// Bytes of `m` rows of `k` elements as q8 activations.
pub fn q8_bytes(m: u32, k: u32) -> u64 {
    u64::from(m) * u64::from(stride(k)) * 16
}

/// Quantizes A: binds A (`[m, k]` in f32) and the q8 activations, [`q8_bytes`] long.
///
/// # Errors
/// Where the launch has too many workgroups.
pub fn quantize_q8(m: u32, k: u32, caps: &Caps) -> Result<Launch, MatmulError> {
    // Few values in all: small workgroups reach more of the device.
    let threads = caps.max_invocations.min(32);
    let count = u32::try_from(u64::from(m) * u64::from(k / 32)).map_err(|_| MatmulError::Grid)?;
    let workgroups =
        fold_grid(count.div_ceil(threads).into(), caps.max_workgroups).ok_or(MatmulError::Grid)?;
    let kernel = Kernel {
        label: "qmatmul quantize_q8".into(),
        wgsl: render("qmatmul/quantize_q8.wgsl", &values![threads]),
        bindings: vec![
            StorageBinding::read("src", "vec4<f32>"),
            StorageBinding::read_write("dst", "vec4<u32>"),
        ],
        param_words: 4,
    };
    Ok(Launch { kernel, params: vec![m, k, stride(k), count], workgroups })
}

/// The RMS norm of A, in f32 and as q8 activations, in one launch: binds A, the gain (`[k]`), the norm (`[m,
/// k]`) and the q8 activations. `k` is a multiple of 32.
///
/// # Errors
/// Where the launch has too many workgroups.
pub fn rms_norm_q8(m: u32, k: u32, epsilon: f32, caps: &Caps) -> Result<Launch, MatmulError> {
    let threads = within(if k >= 4096 { 512 } else { 256 }, caps);
    let workgroups = fold_grid(m.into(), caps.max_workgroups).ok_or(MatmulError::Grid)?;
    let reduce = WorkgroupReduce::new(&[WorkgroupOp::Sum], threads, threads, caps);
    let wgsl = render("qmatmul/rms_norm_q8.wgsl", reduce.values());
    let bindings = vec![
        StorageBinding::read("src", "vec4<f32>"),
        StorageBinding::read("gamma", "vec4<f32>"),
        StorageBinding::read_write("norm", "vec4<f32>"),
        StorageBinding::read_write("dst", "vec4<u32>"),
    ];
    let kernel = Kernel { label: "rms_norm_q8".into(), wgsl, bindings, param_words: 4 };
    Ok(Launch { kernel, params: vec![m, k, stride(k), epsilon.to_bits()], workgroups })
}
