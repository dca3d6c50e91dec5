//! The kernels: functions from the shape of the work and [`Caps`](crate::kernel::Caps) to launches.
//!
//! - [`elementwise`]: the table of element-wise ops, and whole trees of them as one kernel.
//! - [`reduce`]: sum, maximum, minimum and dot product of arrays of any length.
//! - [`rows`]: softmax, norms and reductions along the rows of a matrix.
//! - [`matmul`]: matmul (GEMV, small-M GEMM, GEMM) with epilogues.
//! - [`qmatmul`]: the same with block-quantized weights.
//! - [`mod@embed`]: rows of a table by token.
//! - [`mod@experts`]: routing and matmuls of a mixture of experts.
//! - [`mod@rope`]: rotary position embedding.
//! - [`kv`]: rows of keys and values into a cache, with norm and rotation on the way.
//! - [`mod@attention`]: causal grouped-query attention.
//! - [`recurrent`]: causal convolution and the gated delta rule, with their states, and sigmoid gates.
//! - [`mod@argmax`], [`mod@sample`], [`mod@penalize`], [`mod@mask_logits`], [`mod@top_k`],
//!   [`mod@log_probs`], [`history_rows`]: from logits to the next step.
//! - [`mod@transpose`], [`mod@copy`], [`mod@fill`].
//!
//! Beside each function lies its WGSL, a file for the preprocessor (`preprocess/mod.rs` has the language),
//! with a header that says its algorithm, tiles, bindings and bound. [`mod@catalog`] lists all kernels with
//! their final text. Work that does not fit one binding becomes several launches, so each function gives a
//! [`LaunchList`].
//!
//! **Padding.** Buffers are bound up to a multiple of 16 bytes, so that whole `vec4`s can be loaded. What
//! lies between the last element and that multiple never reaches a result, and is never written, but for one
//! case: the unused half of the last word of packed f16 becomes 0.

pub mod argmax;
pub mod attention;
mod bind;
#[doc(hidden)]
pub mod catalog;
pub mod copy;
pub mod elementwise;
pub mod embed;
pub mod experts;
pub mod fault;
pub mod fill;
pub mod history_rows;
pub mod kv;
mod launch_list;
pub mod log_probs;
pub mod mask_logits;
pub mod matmul;
pub mod penalize;
mod preprocess;
pub mod qmatmul;
pub mod recurrent;
pub mod reduce;
pub mod rope;
pub mod rows;
pub mod sample;
mod storage;
pub mod top_k;
pub mod transpose;
mod workgroup;

pub use launch_list::{Binding, KernelError, KernelLaunch, LaunchList, Role};
pub use storage::Elem;
