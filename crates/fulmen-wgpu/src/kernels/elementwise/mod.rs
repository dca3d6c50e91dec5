//! Element-wise ops: one table, and kernels generated from trees of its rows.
//!
//! [`ElementwiseOp`] is the table: each row has its name, its WGSL, its f64 reference and its test
//! values. [`ElementwiseProgram`] is a tree (or any acyclic graph) of rows over inputs and scalars;
//! [`fused`] makes one kernel of it that reads each input once, and [`epilogue_source`] makes text of
//! it that ends a matrix product.
//!
//! **Special values.** A NaN in gives a NaN out in every op. Results that are subnormal may be 0, as
//! devices differ. `swish`, `gelu` and `gelu_tanh` of -inf are 0, their limit.

mod epilogue;
mod fused;
mod program;
mod reference;
mod source;
mod table;

pub use epilogue::{EpilogueLayout, EpilogueText, epilogue_source};
pub use fused::fused;
pub use program::{Broadcast, ElementwiseProgram, Input, Node, Output};
pub use table::ElementwiseOp;

pub(crate) use source::Helper;
