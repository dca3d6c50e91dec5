// The index of each row's largest element: the lowest among equals. NaN and -inf never win; a row of nothing else
// gives 0.
//
// An element and its index are one 64-bit number whose maximum is the answer, so that parts of a row can be reduced in
// any order. Wide rows are cut into parts, one block each, and a second kernel takes the largest of the parts.
#include "ordered_key.cuh"

struct ArgMaxParams {
    const float* x;
    u64* parts;  // [rows, gridDim.y]: the largest of each part
    u32* out;
    u32 width;
    u32 part;  // elements of a part
};

extern "C" __global__ void __launch_bounds__(1024) argmax(const __grid_constant__ ArgMaxParams p) {
    __shared__ u64 warps[32];
    pdl_begin();
    u64 from = (u64)blockIdx.y * p.part, to = min((u64)p.width, from + p.part);
    u64 key = largest_of(p.x + (u64)blockIdx.x * p.width, from, to, warps);
    if (threadIdx.x != 0) return;
    if (gridDim.y == 1) {
        p.out[blockIdx.x] = key == 0 ? 0 : index_of(key);
    } else {
        p.parts[(u64)blockIdx.x * gridDim.y + blockIdx.y] = key;
    }
}

// One warp a row; `part` is the number of parts here.
extern "C" __global__ void __launch_bounds__(32) argmax_of_parts(const __grid_constant__ ArgMaxParams p) {
    pdl_begin();
    u64 key = 0;
    for (u32 i = threadIdx.x; i < p.part; i += 32) {
        u64 other = p.parts[(u64)blockIdx.x * p.part + i];
        key = other > key ? other : key;
    }
    key = warp_max(key);
    if (threadIdx.x == 0) p.out[blockIdx.x] = key == 0 ? 0 : index_of(key);
}
