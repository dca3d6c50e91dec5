// Argmax of each row: the index of the largest element, the lowest among equals. NaN and -inf never win; a
// row of nothing else gives 0.
//
// Algorithm: a two-level reduction over 64-bit keys (ordered_key.cuh), whose maximum is the answer in any
// order.
// - argmax: grid rows x parts (up to 128 parts of about 4096 elements), up to 1024 threads; warp shuffles,
//   then one value per warp through shared memory. With one part it writes the index, else a key per part.
// - argmax_of_parts: one warp per row reduces the keys of its parts.
// Layouts: x [rows, width] f32; keys [rows, parts]; indices [rows]. Launched by src/kernels/argmax.rs.
// Preconditions: none.
// Bound: memory bandwidth, x is read once; latency for one row. Not measured.
#include "ordered_key.cuh"

struct ArgmaxArgs {
    const float* x;  // [rows, width]
    u64* part_keys;  // [rows, parts]: the largest key of each part
    u32* out;        // [rows]
    u32 width;
    u32 part_width;  // elements of a part
    u32 parts;
    u32 unused;
};
#include "layout/argmax.cuh"

DEVICE u32 index_or_zero(u64 key) { return key == 0 ? 0 : key_index(key); }

extern "C" __global__ void __launch_bounds__(1024) argmax(const __grid_constant__ ArgmaxArgs args) {
    __shared__ u64 warp_keys[32];
    pdl_begin();
    u64 begin = (u64)blockIdx.y * args.part_width, end = min((u64)args.width, begin + args.part_width);
    u64 key = block_max_key(args.x + (u64)blockIdx.x * args.width, begin, end, warp_keys);
    if (threadIdx.x != 0) return;
    if (gridDim.y == 1) {
        args.out[blockIdx.x] = index_or_zero(key);
    } else {
        args.part_keys[(u64)blockIdx.x * gridDim.y + blockIdx.y] = key;
    }
}

extern "C" __global__ void __launch_bounds__(32) argmax_of_parts(const __grid_constant__ ArgmaxArgs args) {
    pdl_begin();
    u64 key = warp_max_key(args.part_keys + (u64)blockIdx.x * args.parts, args.parts);
    if (threadIdx.x == 0) args.out[blockIdx.x] = index_or_zero(key);
}
