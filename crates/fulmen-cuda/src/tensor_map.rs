//! Descriptions of tensors, by which kernels copy boxes of them with one instruction.

use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys;

use crate::error::CudaError;
use crate::handles::Context;

/// A tensor of two dimensions, as kernels take it (compute capability 9.0 and up).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(crate) struct TensorMap([u64; 16]);

impl TensorMap {
    /// Bytes in rows that follow one another, to be copied by boxes; both are a width and a number of rows. Widths and the address are
    /// multiples of 16, and a box is no wider than 256.
    pub(crate) fn of_bytes(
        context: &Context,
        ptr: u64,
        all: (u32, u32),
        part: (u32, u32),
    ) -> Result<TensorMap, CudaError> {
        context.bind()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let size = [u64::from(all.0), u64::from(all.1)];
        let stride = [u64::from(all.0)];
        let part = [part.0, part.1];
        // SAFETY: the driver reads the arrays, which have an element for each dimension (strides but for the first), writes the map, and does
        // not read from the address.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2,
                ptr as *mut _,
                size.as_ptr(),
                stride.as_ptr(),
                part.as_ptr(),
                [1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                // Of 256 bytes it was slower.
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        result.result().map_err(|error| context.error("cuTensorMapEncodeTiled", error))?;
        Ok(TensorMap(map.opaque))
    }
}
