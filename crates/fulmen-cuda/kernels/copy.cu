// Copy of bytes that do not overlap. One thread per unit of 16, 4 or 1 bytes, by the alignment of both
// addresses; the first threads also copy the bytes past the last whole unit. Launched by src/kernels/copy.rs.
// It may copy a KV page, and attention_decode.cu may read the cache before its `pdl_wait`, so the next kernel
// does not start early (ptx/pdl.cuh).
// Layouts: bytes. Preconditions: both addresses are multiples of the unit.
// Bound: memory bandwidth. Not measured.
#include "common.cuh"

// Mirrored by `CopyArgs` in src/kernels/copy.rs.
struct CopyArgs {
    const u8* from;
    u8* to;
    u64 bytes;
};
#include "layout/copy.cuh"

template <typename Unit>
DEVICE void copy_units(const CopyArgs& args) {
    pdl_wait();
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, units = args.bytes / sizeof(Unit);
    if (at < units) ((Unit*)args.to)[at] = ((const Unit*)args.from)[at];
    u64 rest = units * sizeof(Unit) + at;
    if (sizeof(Unit) > 1 && at < sizeof(Unit) && rest < args.bytes) args.to[rest] = args.from[rest];
}

extern "C" __global__ void __launch_bounds__(256) copy16(const __grid_constant__ CopyArgs args) {
    copy_units<uint4>(args);
}
extern "C" __global__ void __launch_bounds__(256) copy4(const __grid_constant__ CopyArgs args) {
    copy_units<u32>(args);
}
extern "C" __global__ void __launch_bounds__(256) copy1(const __grid_constant__ CopyArgs args) {
    copy_units<u8>(args);
}
