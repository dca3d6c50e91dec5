//! The launch code of each op. `<op>.rs` chooses the kernel of `kernels/<op>.cu` and the grid for a call
//! whose operands were checked, launches it, and returns the number of kernels.
//!
//! A kernel takes one struct, declared by `kernel_args!` (`layout.rs`), which checks it against the CUDA
//! struct.

pub(crate) mod advance;
pub(crate) mod argmax;
pub(crate) mod attention;
pub(crate) mod attention_decode;
mod attention_generic;
mod attention_prefill;
mod attention_scores;
mod catalog;
pub(crate) mod causal_conv;
pub(crate) mod copy;
mod delta_heads;
pub(crate) mod delta_net_step;
pub(crate) mod divided_norm;
pub(crate) mod elementwise;
pub(crate) mod embed;
mod even_split;
mod expert_gemm;
mod expert_gemv;
mod expert_generic;
mod expert_small_m;
mod expert_sort;
pub(crate) mod experts;
mod f16_fragments;
mod f16_panels;
pub(crate) mod gated_delta_chunks;
pub(crate) mod gated_delta_rule;
pub(crate) mod gather_tokens;
mod gemm;
mod gemm_mixed_input;
mod gemm_small_m;
mod gemm_weight;
mod gemv;
mod gemv_float;
mod kv;
pub(crate) mod kv_store;
pub(crate) mod log_probs;
pub(crate) mod mask_logits;
pub(crate) mod matmul;
mod matmul_generic;
mod pack_f16_fragments;
mod pack_row;
pub(crate) mod penalize;
mod q8_activations;
mod recurrent;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rope_store;
pub(crate) mod route;
pub(crate) mod router;
mod routing;
pub(crate) mod sample;
mod sequence_chunks;
pub(crate) mod sigmoid_gate;
pub(crate) mod small_m;
pub(crate) mod softmax;
pub(crate) mod top_k;

pub use catalog::{KernelInfo, catalog, ptx_of};

use fulmen_core::{BackendError, DType};

/// The number of launched kernels.
pub(crate) type Launched = Result<usize, BackendError>;

/// 1 if every address is a multiple of 16, as 16-byte loads and stores require, else 0. A null address is a
/// multiple.
fn wide(addresses: &[u64]) -> u32 {
    u32::from(addresses.iter().all(|ptr| ptr.is_multiple_of(16)))
}

/// The address of a row of `width` f32 values; 0 stays 0.
fn at_row(ptr: u64, row: u32, width: u32) -> u64 {
    if ptr == 0 { 0 } else { ptr + u64::from(row) * u64::from(width) * 4 }
}

/// Whether two ranges, given as address and bytes, do not overlap.
fn apart((a, a_bytes): (u64, u64), (b, b_bytes): (u64, u64)) -> bool {
    a.saturating_add(a_bytes) <= b || b.saturating_add(b_bytes) <= a
}

/// Whether there are kernels for weights of a type: none look up grids yet.
pub(crate) fn supports_weight(dtype: DType) -> bool {
    use DType::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
    !matches!(dtype, IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S)
}

/// The name of a type in kernel names.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Q4_0 => "q4_0",
        DType::Q4_1 => "q4_1",
        DType::Q5_0 => "q5_0",
        DType::Q5_1 => "q5_1",
        DType::Q8_0 => "q8_0",
        DType::Q2_K => "q2_k",
        DType::Q3_K => "q3_k",
        DType::Q4_K => "q4_k",
        DType::Q5_K => "q5_k",
        DType::Q6_K => "q6_k",
        DType::Q8_K => "q8_k",
        DType::MXFP4 => "mxfp4",
        DType::IQ4_NL => "iq4_nl",
        DType::IQ4_XS => "iq4_xs",
        DType::IQ2_XXS => "iq2_xxs",
        DType::IQ2_XS => "iq2_xs",
        DType::IQ2_S => "iq2_s",
        DType::IQ3_XXS => "iq3_xxs",
        DType::IQ3_S => "iq3_s",
        DType::U32 => "u32",
    }
}

/// Threads of a block that processes a row of `width` items: whole warps, at most 1024.
fn threads_for(width: u32) -> u32 {
    width.clamp(1, 1024).next_multiple_of(32)
}
