// targets: 90
// Rows of activations in 16 bits (see `f16_fragments.cuh`), after an optional RMS norm. One block a row.
#include "row_scaling.cuh"

struct Params {
  const float* x;
  const float* gamma;  // null: no norm
  float* normed;       // where the norm's result goes, or null
  u8* out[ORDERS];     // null: not in this order
  float* factors;      // what the sums of a row are to be multiplied with
  float epsilon;
  u32 k;
  u32 columns;  // rows of x; further rows are zero
  u32 unused;
};

constexpr int HELD = 4;  // times four elements that a thread keeps

// Four elements of a row; the lanes of a warp have neighbours.
template <int ROWS>
DEVICE void store4(const Params& params, u32 row, u32 at, float4 v) {
  const Four four(v);
#pragma unroll
  for (int order = 0; order < ORDERS; order++)
    if (params.out[order]) store_halves(params.out[order], order, ROWS, row, at, four.halves, four.sum);
}

// A block of the grid's second dimension for each of ROWS rows.
template <int ROWS>
DEVICE void run(const Params& params) {
  __shared__ float sums[32];
  __shared__ u32 most[32];
  const u32 row = blockIdx.y, length = row < params.columns ? params.k : 0;
  const u32 padded = (params.k + HALVES_CHUNK - 1) / HALVES_CHUNK * HALVES_CHUNK, each = blockDim.x * 4;
  const bool norm = params.gamma;
  const float* x = params.x + (u64)row * params.k;
  pdl_launch_dependents();
  // The weights of the step have driven the gain out of the cache: it is called before anything is waited for.
  if (norm && threadIdx.x == 0 && row < 2) cp_async_bulk_prefetch_l2_covering(params.gamma, params.k * 4);
  pdl_wait();
  auto gain_at = [&](u32 at) { return norm && at < length ? __ldcg((const float4*)(params.gamma + at)) : make_float4(1, 1, 1, 1); };
  float4 held[HELD], gain[HELD];
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const u32 at = threadIdx.x * 4 + i * each;
    held[i] = at < length ? __ldcg((const float4*)(x + at)) : make_float4(0, 0, 0, 0);
    gain[i] = gain_at(at);
  }
  // The sum of squares, and the largest of what will be there but for the norm's factor: as an integer, so that NaN is larger
  // than everything.
  float sum = 0;
  u32 largest = 0;
  auto see = [&](float4 v, float4 g) {
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    largest = max(largest, largest_of(times(v, g)));
  };
#pragma unroll
  for (int i = 0; i < HELD; i++) see(held[i], gain[i]);
  for (u32 at = threadIdx.x * 4 + HELD * each; at < length; at += each) see(*(const float4*)(x + at), gain_at(at));
  const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(FULL_WARP, sum, step);
    largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
  }
  if (lane == 0) sums[threadIdx.x / 32] = sum, most[threadIdx.x / 32] = largest;
  __syncthreads();
  sum = lane < warps ? sums[lane] : 0, largest = lane < warps ? most[lane] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(FULL_WARP, sum, step);
    largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
  }
  const float factor = norm ? rsqrtf(sum / (float)params.k + params.epsilon) : 1;
  const u32 up = scale_of(magnitude(__uint_as_float(largest) * factor));
  const float scale = power_of_two(up);
  if (threadIdx.x == 0) params.factors[row] = power_of_two(254 - up);
  auto put = [&](u32 at, float4 v, float4 g) {
    if (norm) {
      v = make_float4(v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w);
      if (params.normed && at < length) *(float4*)(params.normed + (u64)row * params.k + at) = v;
    }
    store4<ROWS>(params, row, at, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
  };
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const u32 at = threadIdx.x * 4 + i * each;
    if (at < padded) put(at, held[i], gain[i]);
  }
  for (u32 at = threadIdx.x * 4 + HELD * each; at < padded; at += each)
    put(at, at < length ? *(const float4*)(x + at) : make_float4(0, 0, 0, 0), gain_at(at));
}

extern "C" __global__ void __launch_bounds__(1024) pack_f16_fragments_rows8(const __grid_constant__ Params params) { run<8>(params); }
extern "C" __global__ void __launch_bounds__(1024) pack_f16_fragments_rows16(const __grid_constant__ Params params) { run<16>(params); }
