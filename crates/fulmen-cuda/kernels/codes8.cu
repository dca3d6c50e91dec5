// Rows of activations in 8 bits (see `codes8.cuh`), after an optional RMS norm. 16 lanes quantise a unit of 64.
#include "codes8.cuh"

#define DEVICE __device__ __forceinline__
typedef int i32;

struct Params {
  const float* x;
  const float* gamma;  // null: no norm
  float* normed;       // where the norm's result goes, or null
  u8* out;
  float epsilon;
  u32 k;
  u32 columns;  // rows of x; further rows are zero
  u32 unused;
};

// Four elements of a row.
template <int ROWS>
DEVICE void quantise4(u8* out, u32 row, u32 at, float4 v) {
  // As integers, so that NaN is larger than everything and makes the scale NaN.
  u32 bits = max(max(__float_as_uint(v.x) & ~(1u << 31), __float_as_uint(v.y) & ~(1u << 31)),
                 max(__float_as_uint(v.z) & ~(1u << 31), __float_as_uint(v.w) & ~(1u << 31)));
#pragma unroll
  for (int step = 8; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(FULL_WARP, bits, step));
  float largest = __uint_as_float(bits), inverse = largest > 1e-35f ? __fdividef(127.0f, largest) : 0;
  i32 a = __float2int_rn(v.x * inverse), b = __float2int_rn(v.y * inverse);
  i32 c = __float2int_rn(v.z * inverse), d = __float2int_rn(v.w * inverse);
  i32 half = a + b + c + d;
#pragma unroll
  for (int step = 4; step > 0; step /= 2) half += __shfl_xor_sync(FULL_WARP, half, step);
  i32 other = __shfl_xor_sync(FULL_WARP, half, 8);
  u8* chunk = out + (u64)(at / CODES_CHUNK) * Codes8<ROWS>::BYTES;
  *(u32*)(chunk + row * CODES_STRIDE + at % CODES_CHUNK) = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (u32)d << 24;
  if (at % 64 == 0) {
    u32 place = (at % CODES_CHUNK / 64 * ROWS + row) * 4;
    *(float*)(chunk + Codes8<ROWS>::SCALES + place) = largest * (1.0f / 127.0f);
    *(u32*)(chunk + Codes8<ROWS>::SUMS + place) = (half & 0xffff) | (u32)other << 16;
  }
}

// A block of the grid's second dimension for each of ROWS rows; with a norm the first dimension is 1.
template <int ROWS>
DEVICE void run(const Params& params) {
  __shared__ float parts[32];
  begin();
  const u32 row = blockIdx.y, length = row < params.columns ? params.k : 0, padded = (params.k + CODES_CHUNK - 1) / CODES_CHUNK * CODES_CHUNK;
  const float* x = params.x + (u64)row * params.k;
  float factor = 1;
  if (params.gamma) {
    float sum = 0;
    for (u32 at = threadIdx.x * 4; at < length; at += blockDim.x * 4) {
      float4 v = *(const float4*)(x + at);
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    factor = rsqrtf(block_reduce<Sum>(sum, parts) / (float)params.k + params.epsilon);
  }
  for (u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * 4; at < padded; at += gridDim.x * blockDim.x * 4) {
    float4 v = at < length ? *(const float4*)(x + at) : make_float4(0, 0, 0, 0);
    if (params.gamma && at < length) {
      float4 g = *(const float4*)(params.gamma + at);
      v = make_float4(v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w);
      if (params.normed) *(float4*)(params.normed + (u64)row * params.k + at) = v;
    }
    quantise4<ROWS>(params.out, row, at, v);
  }
}

extern "C" __global__ void __launch_bounds__(256) codes8_rows8(const Params params) { run<8>(params); }
extern "C" __global__ void __launch_bounds__(256) codes8_rows16(const Params params) { run<16>(params); }
