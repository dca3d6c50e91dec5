//! The kernels of the CPU backend.

pub mod mul_mat;
