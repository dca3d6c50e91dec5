//! A weight matrix of a GEMM of few rows, with its output (`gemm_weight.cuh`).

use super::small_m::Matmul;
use super::wide;
use crate::layout::{DevicePtr, kernel_args};

/// The most weight matrices of one launch, but of the GEMV with quantized weights.
pub(super) const MAX_WEIGHTS: usize = 3;

kernel_args! {
    file: "gemm_weight.cuh";
    constants: [MAX_WEIGHTS];

    #[derive(Debug, Default, PartialEq)]
    pub(super) struct GemmWeight {
        pub(super) data: DevicePtr,
        pub(super) out: DevicePtr,
        pub(super) bias: DevicePtr,
        pub(super) residual: DevicePtr,
        pub(super) rows: u32,
        pub(super) row_bytes: u32,
        pub(super) first_tile: u32,
        pub(super) vectorized: u32,
    }
}

impl GemmWeight {
    /// The weight of a matmul with rows of `k` columns, or `None` if a row has 4 GiB or more.
    pub(super) fn new(matmul: &Matmul, k: u32, first_tile: u32) -> Option<GemmWeight> {
        let weight = GemmWeight {
            data: matmul.weight.ptr,
            out: matmul.out,
            bias: matmul.bias,
            residual: matmul.residual,
            rows: matmul.weight.rows,
            row_bytes: matmul.row_bytes(k)?,
            first_tile,
            vectorized: 0,
        };
        Some(GemmWeight { vectorized: weight.can_vectorize().into(), ..weight })
    }

    /// Whether four consecutive elements of everything that is read or written can be one aligned float4.
    pub(super) fn can_vectorize(&self) -> bool {
        self.rows.is_multiple_of(4) && wide(&[self.out, self.bias, self.residual]) == 1
    }
}
