//! The WGSL kernels: functions from a shape and the device's [`Caps`](crate::kernel::Caps) to launches.

pub mod matmul;
