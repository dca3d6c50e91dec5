// A copy of bytes that do not overlap.
#include "common.cuh"

struct CopyParams {
    const u8* from;
    u8* to;
    u64 bytes;
};

// Each thread copies one unit; the first threads also copy the bytes behind the last whole unit.
template <typename Unit>
DEVICE void copy_units(const CopyParams& p) {
    pdl_begin();
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, units = p.bytes / sizeof(Unit);
    if (at < units) ((Unit*)p.to)[at] = ((const Unit*)p.from)[at];
    u64 rest = units * sizeof(Unit) + at;
    if (sizeof(Unit) > 1 && at < sizeof(Unit) && rest < p.bytes) p.to[rest] = p.from[rest];
}

extern "C" __global__ void __launch_bounds__(256) cp_async_16(const __grid_constant__ CopyParams p) { copy_units<uint4>(p); }
extern "C" __global__ void __launch_bounds__(256) copy4(const __grid_constant__ CopyParams p) { copy_units<u32>(p); }
extern "C" __global__ void __launch_bounds__(256) copy1(const __grid_constant__ CopyParams p) { copy_units<u8>(p); }
