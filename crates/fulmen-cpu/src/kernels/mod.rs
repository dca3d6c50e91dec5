//! The kernels, one file per op.
//!
//! A kernel takes the pool to run on, the instruction set to use, and plain memory. Those that may work in
//! place take pointers: each input is either at the same address as the output or does not overlap it. The
//! others take slices. Wrong lengths panic: they are bugs of the caller, not of a model.
//!
//! A kernel gives the same bits on any number of threads. Other instruction sets may round differently.

pub mod advance;
pub mod argmax;
pub mod attention;
pub(crate) mod causal_conv;
pub mod copy;
pub(crate) mod divided_norm;
pub mod elementwise;
pub mod embed;
pub(crate) mod gated_delta_rule;
pub mod gather_tokens;
pub mod kv_store;
pub mod log_probs;
pub mod mask_logits;
pub mod mul_mat;
mod parallel;
pub mod penalize;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod sample;
pub(crate) mod sequence_rows;
pub(crate) mod sigmoid_gate;
pub mod softmax;
#[cfg(test)]
mod testing;
pub mod top_k;
