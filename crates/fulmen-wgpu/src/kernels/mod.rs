//! The kernels, each a function from the shape of the work and [`Caps`](crate::kernel::Caps) to launches.
//!
//! - [`elementwise`]: the table of element-wise ops, and whole trees of them as one kernel.
//! - [`reduce`]: sum, maximum, minimum and dot product of arrays of any length.
//! - [`rows`]: softmax, norms and reductions along the rows of a matrix.
//! - [`matmul`]: matrix products with epilogues.
//! - [`qmatmul`]: the same with block-quantized weights.
//! - [`mod@embed`]: rows of a table by token.
//! - [`mod@rope`]: rotary position embedding.
//! - [`kv`]: rows of keys and values into a cache, with norm and rotation on the way.
//! - [`mod@attention`]: causal grouped-query attention.
//! - [`mod@argmax`], [`mod@sample`], [`mod@penalize`], [`mod@advance`]: from logits to the next step.
//! - [`mod@transpose`], [`mod@copy`], [`mod@fill`].
//!
//! Beside each function lies its WGSL, with `{{name}}` where a value is put in. Work that does not fit one binding
//! becomes several launches, so each gives a [`Plan`].
//!
//! **Padding.** Buffers are bound up to a multiple of 16 bytes, so that whole `vec4`s can be loaded. What lies
//! between the last element and that multiple never reaches a result, and is never written, but for one case: the
//! unused half of the last word of packed 16-bit floats becomes 0.

pub mod advance;
pub mod argmax;
pub mod attention;
mod bind;
pub mod copy;
pub mod elementwise;
pub mod embed;
pub mod fault;
pub mod fill;
pub mod kv;
pub mod matmul;
pub mod penalize;
mod plan;
mod preprocess;
pub mod qmatmul;
pub mod reduce;
pub mod rope;
pub mod rows;
pub mod sample;
mod storage;
mod template;
pub mod transpose;
mod workgroup;

pub use plan::{Binding, KernelError, Plan, Role, Step};
pub use storage::Elem;
