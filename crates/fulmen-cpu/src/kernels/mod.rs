//! The kernels, one file for each op.
//!
//! A kernel takes the pool to run on, the instruction set to use, and plain memory. Those that may work in place
//! take pointers: each input is either at the same address as the output or does not overlap it. The others take
//! slices. Wrong lengths panic; they are mistakes of the caller, not of the model.
//!
//! A kernel gives the same bits on any number of threads. Another instruction set may round otherwise.

pub mod advance;
pub mod argmax;
pub mod attention;
pub mod copy;
pub mod elementwise;
pub mod embed;
pub mod kv_store;
pub mod mul_mat;
mod parallel;
pub mod penalize;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod softmax;
#[cfg(test)]
mod testing;
