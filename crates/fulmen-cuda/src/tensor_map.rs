//! Tensor maps: the descriptors of TMA loads.

use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys;

use crate::error::CudaError;
use crate::handles::Context;

/// A `CUtensorMap`, passed to kernels by value (compute capability 9.0 and up).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(crate) struct TensorMap([u64; 16]);

impl TensorMap {
    /// Describes a contiguous 2D tensor of bytes that is loaded in tiles. Tensor and tile are given as
    /// (width, rows). The address and the widths are multiples of 16, and a tile is at most 256 bytes wide.
    pub(crate) fn of_bytes(
        context: &Context,
        ptr: u64,
        tensor: (u32, u32),
        tile: (u32, u32),
    ) -> Result<TensorMap, CudaError> {
        context.bind()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let size = [u64::from(tensor.0), u64::from(tensor.1)];
        let stride = [u64::from(tensor.0)];
        let tile = [tile.0, tile.1];
        // SAFETY: the driver reads the arrays, which have one element per dimension (one less for the
        // strides), writes the map, and does not access the address.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2,
                ptr as *mut _,
                size.as_ptr(),
                stride.as_ptr(),
                tile.as_ptr(),
                [1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                // A promotion to 256 bytes is slower.
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        result.result().map_err(|error| context.error("cuTensorMapEncodeTiled", error))?;
        Ok(TensorMap(map.opaque))
    }
}
