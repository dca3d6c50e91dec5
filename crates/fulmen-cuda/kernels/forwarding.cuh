// Forwarded activations: how a small-M GEMM passes its f32 result to the next one as f16 fragments
// (f16_fragments.cuh) too, so that no kernel in between has to convert it, and how the next one reads them.
//
// Writer (epilogue). A block that finishes an output tile has 16 columns (one K slice) of the next x but no
// whole row, so it cannot scale rows to a common power of two (row_scaling.cuh). It stores the values
// unscaled, and, for each tile and 8 rows, flags that say whether f16 represents the values. If an RMS norm
// follows, the values are multiplied by its weights (gamma); the norm's factor 1/rms, one number per row, is
// left to the reader, for which the tile's sums of squares are stored:
//
//     norm(y) W^T = (y * gamma) W^T * (1 / rms(y))
//
// Reader (activation producer warp). It starts copying the fragments before it knows whether they are usable,
// reads the flags and the sums of squares meanwhile, and publishes both. If a row does not fit f16 (rare),
// the consumer warps repack their part of x from f32 with row scaling before they multiply.
#pragma once

#include "ptx/barrier.cuh"
#include "row_scaling.cuh"

// One u32 of flags per tile and 8 rows, bit r % 8 of each byte for row r. Several are combined by `or`.
//   FLAG_NORMAL  at least one of four adjacent elements has a magnitude >= FORWARD_MIN
//   FLAG_TINY    all four are below it, and at least one is not zero
//   FLAG_HUGE    a magnitude or the sum of the slice is >= FORWARD_MAX, or not finite
constexpr u32 FLAG_NORMAL = 1, FLAG_TINY = 1 << 8, FLAG_HUGE = 1 << 16;
constexpr u32 FORWARD_MIN = 0x3a800000, FORWARD_MAX = 0x47000000;  // the bits of 2^-10 and 2^15

// Nothing is too large, and rows that have tiny values also have normal ones.
DEVICE bool fits_f16(u32 flags) { return (flags >> 16) == 0 && (flags >> 8 & ~flags & 0xff) == 0; }

struct ForwardedOutput {
    u8* fragments[K_ORDERS];  // null: nothing is forwarded
    u32* flags;               // [tiles, rows / 8]
    float* squares;           // [rows, tiles]: sums of squares
    const float* gamma;       // weights of the RMS norm that follows, or null
};

struct ForwardedInput {
    const u32* flags;      // null: not forwarded by a GEMM; rows are scaled, with known row scales
    const float* squares;  // null: no norm
    const float* x;        // the f32 values that the fragments were made of, [rows, k]
    const float* gamma;    // what they were multiplied by, or null
    float* normed;         // where the norm's f32 result goes, or null
};

// ---- Writer -----------------------------------------------------------------------------------------------

// Forwards columns [column, column + 4) of a tile for one row. The four lanes of a quad hold one row, the
// warp 8 rows.
template <int ROWS, bool NORM>
DEVICE void store_forwarded(const ForwardedOutput& out, u32 tile, u32 tiles, u32 row, u32 column, float4 v,
                            float4 gamma) {
    const PackedF16x4 packed(NORM ? v * gamma : v);
    const u32 abs_max = packed.abs_max;
    u32 flags = abs_max >= FORWARD_MIN ? FLAG_NORMAL : abs_max ? FLAG_TINY : 0;
    if (max(abs_max, abs_bits(packed.slice_sum)) >= FORWARD_MAX) flags |= FLAG_HUGE;
    flags = __reduce_or_sync(FULL_WARP, flags << row % 8);
    if (row % 8 == 0 && column == 0) out.flags[tile * (ROWS / 8) + row / 8] = flags;
#pragma unroll
    for (int order = 0; order < K_ORDERS; order++)
        store_fragment_x4(out.fragments[order], order, ROWS, row, tile * K_SLICE + column, packed.values,
                          packed.slice_sum);
    if constexpr (NORM) {
        const float squares = quad_sum(sum_of_squares(v));
        if (column == 0) out.squares[row * tiles + tile] = squares;
    }
}

// ---- Reader -----------------------------------------------------------------------------------------------

// Replaces fragments that do not fit f16: packs columns [first, first + columns) of the m rows of x, times
// gamma if there is one, with row scaling, and multiplies `row_scales` by the inverse. Called by all consumer
// warps (all but the last warp) after every copy of the fragments has arrived.
template <int ROWS>
__device__ __noinline__ void repack_from_f32(const float* x, u32 m, const float* gamma, float* row_scales,
                                             u8* fragments, u32 order, u32 k, u32 first, u32 columns) {
    const u32 lane = threadIdx.x & 31, threads = blockDim.x - 32;
    bar_sync<1>(threads);
#pragma unroll 1
    for (u32 row = threadIdx.x / 32; row < m; row += threads / 32) {
        auto value = [&](u32 at) {
            const float4 v = ldcg4(x + (u64)row * k + first + at);
            return gamma ? v * ldcg4(gamma + first + at) : v;
        };
        u32 abs_max = 0;
#pragma unroll 1
        for (u32 at = lane * 4; at < columns; at += 128) abs_max = max(abs_max, abs_max_bits(value(at)));
        const u32 exponent = row_scale_exponent(__reduce_max_sync(FULL_WARP, abs_max));
        const float scale = power_of_two(exponent);
#pragma unroll 1
        for (u32 at = lane * 4; at < columns; at += 128) {
            const PackedF16x4 packed(value(at) * scale);
            store_fragment_x4(fragments, order, ROWS, row, at, packed.values, packed.slice_sum);
        }
        if (lane == 0) row_scales[row] *= power_of_two(254 - exponent);
    }
    bar_sync<1>(threads);
}

// Reads what the writer stored beside the fragments, for K chunks [chunk, end_chunk), by one warp. The
// constructor issues the loads of the flags: before the copies of the fragments, so that they do not queue
// behind those.
template <int ROWS>
struct ForwardedInputReader {
    static constexpr u32 FLAGS_PER_TILE = ROWS / 8, LANES_PER_ROW = 32 / ROWS, UNROLL = 10;
    const ForwardedInput& in;
    const u32 lane;
    uint4 first_flags[3] = {};
    u32 flags_at, flags_end;  // in uint4

    DEVICE ForwardedInputReader(const ForwardedInput& in, u32 chunk, u32 end_chunk, u32 lane)
        : in(in), lane(lane) {
        constexpr u32 PER_CHUNK = K_CHUNK / K_SLICE * FLAGS_PER_TILE / 4;
        flags_at = chunk * PER_CHUNK + lane, flags_end = end_chunk * PER_CHUNK;
#pragma unroll
        for (int i = 0; i < 3; i++)
            if (flags_at + i * 32 < flags_end)
                first_flags[i] = __ldcg((const uint4*)in.flags + flags_at + i * 32);
    }

    // Whether the fragments can be used as they are.
    DEVICE bool fits() const {
        auto either = [](uint4 a, uint4 b) { return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w); };
        uint4 all = either(either(first_flags[0], first_flags[1]), first_flags[2]);
#pragma unroll 1
        for (u32 at = flags_at + 96; at < flags_end; at += 32)
            all = either(all, __ldcg((const uint4*)in.flags + at));
        // Word i of the vector is of rows 8 (i % FLAGS_PER_TILE) on.
        if (FLAGS_PER_TILE == 4)
            return fits_f16(__reduce_or_sync(FULL_WARP, all.x)) &&
                   fits_f16(__reduce_or_sync(FULL_WARP, all.y)) &&
                   fits_f16(__reduce_or_sync(FULL_WARP, all.z)) &&
                   fits_f16(__reduce_or_sync(FULL_WARP, all.w));
        const u32 even = __reduce_or_sync(FULL_WARP, all.x | all.z),
                  odd = __reduce_or_sync(FULL_WARP, all.y | all.w);
        return FLAGS_PER_TILE == 1 ? fits_f16(even | odd) : fits_f16(even) && fits_f16(odd);
    }

    // 1 / rms of the lane's row (lane / LANES_PER_ROW), from the sums of squares of all its tiles.
    DEVICE float inverse_rms(u32 k, float epsilon) const {
        const u32 tiles = k / K_SLICE;
        const float* squares = in.squares + lane / LANES_PER_ROW * tiles;
        float sum = 0;
#pragma unroll 1
        for (u32 at = lane % LANES_PER_ROW * 4; at < tiles; at += UNROLL * LANES_PER_ROW * 4) {
            float4 v[UNROLL] = {};
#pragma unroll
            for (u32 i = 0; i < UNROLL; i++)
                if (at + i * LANES_PER_ROW * 4 < tiles) v[i] = ldcg4(squares + at + i * LANES_PER_ROW * 4);
#pragma unroll
            for (u32 i = 0; i < UNROLL; i++) sum += v[i].x + v[i].y + v[i].z + v[i].w;
        }
        if (LANES_PER_ROW > 1) sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        if (LANES_PER_ROW == 4) sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        return rsqrtf(__fdividef(sum, (float)k) + epsilon);
    }

    // This block's part of the norm's f32 result of m rows, 128 columns of one row at a time. Lanes hold
    // 1 / rms of their row.
    DEVICE void write_normed(u32 m, u32 k, float inverse_rms) const {
#pragma unroll 1
        for (u32 index = blockIdx.x; index < ROWS * k / 128; index += gridDim.x) {
            const u32 row = index % ROWS, column = index / ROWS * 128 + lane * 4;
            if (row >= m) continue;
            const float4 x = ldcg4(in.x + row * k + column), gamma = ldcg4(in.gamma + column);
            const float factor = __shfl_sync(FULL_WARP, inverse_rms, row * LANES_PER_ROW);
            *(float4*)(in.normed + row * k + column) = x * factor * gamma;
        }
    }
};
