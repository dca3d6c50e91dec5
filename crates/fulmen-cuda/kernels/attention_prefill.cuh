// What the two prefill attention kernels share (attention_prefill.cu, attention_prefill_hopper.cu): the tile
// of query rows, queries as f16, masked values that are not finite, and the epilogue.
//
// A query row is a pair of a batch row and a query head of one KV head: row q of a tile is query head q %
// group of batch row first_row + q / group. So the heads of a group share the K and V tiles.
#pragma once
#include "attention_args.cuh"
#include "common.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"

// The tile of BLOCK_M query rows that a block computes: blockIdx.x is the KV head; blockIdx.y counts from the
// last rows of the batch, whose causal length is greatest, to the first. With a work list a tile has rows of
// one chunk, and there are blocks for the most tiles that chunks can have; those without one have no rows.
template <int HEAD_DIM, u32 BLOCK_M>
struct QueryTile {
    u32 group, n_heads, kv_head, first_row, rows;  // rows: of the batch

    DEVICE QueryTile(const AttentionArgs& args)
        : group(args.group),
          n_heads(args.n_heads),
          kv_head(blockIdx.x),
          first_row((gridDim.y - 1 - blockIdx.y) * (BLOCK_M / args.group)),
          rows(min(BLOCK_M / args.group, args.slots.m - first_row)) {
        if (args.work) find_chunk(args, gridDim.y - 1 - blockIdx.y);
    }

    // Tile `index` of all chunks.
    DEVICE void find_chunk(const AttentionArgs& args, u32 index) {
        const u32 most = BLOCK_M / group, chunks = min(args.work[0].y, args.max_chunks);
        first_row = rows = 0;
#pragma unroll 4
        for (u32 i = 1; i <= chunks; i++) {
            const uint4 chunk = args.work[i];
            const u32 tiles = (chunk.y + most - 1) / most;
            if (index < tiles) {
                // Rows that the batch does not have are left out.
                const u32 end = min(chunk.x + chunk.y, args.slots.m);
                first_row = min(chunk.x + index * most, end);
                rows = min(most, end - first_row);
                return;
            }
            index -= tiles;
        }
    }

    DEVICE bool has(u32 q_row) const { return q_row / group < rows; }

    // Elements from the start of q (and of the output) to the head of a query row.
    DEVICE u64 head_offset(u32 q_row) const {
        return ((u64)(first_row + q_row / group) * n_heads + kv_head * group + q_row % group) * HEAD_DIM;
    }
};

// A lane's elements of a query head, zeros where there is none.
template <int PER_LANE>
DEVICE void load_query(float (&x)[PER_LANE], const float* q) {
#pragma unroll
    for (int i = 0; i < PER_LANE; i += 2) {
        float2 two = q ? *(const float2*)(q + threadIdx.x % 32 * PER_LANE + i) : make_float2(0.0f, 0.0f);
        x[i] = two.x, x[i + 1] = two.y;
    }
}

// Stores a query head that a warp holds as f16, times `sign` and a power of two that scales its largest value
// to [1, 2), and returns the inverse of that power. `to` is the address of the lane's elements.
template <int PER_LANE>
DEVICE float store_query_f16(const float (&x)[PER_LANE], SharedAddress to, float sign = 1.0f) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) bits = max(bits, abs_bits(x[i]));
    const Pow2Scale scale = Pow2Scale::of<0>(__reduce_max_sync(FULL_WARP, bits));
    const float down = scale.down * sign;
#pragma unroll
    for (int i = 0; i < PER_LANE; i += 2)
        st_shared_u32(to + i * 2, MmaF16::pack(x[i] * down, x[i + 1] * down));
    return scale.up;
}

DEVICE bool is_finite_f16(u16 bits) { return (bits & 0x7c00) != 0x7c00; }
DEVICE bool is_finite_f16x2(u32 word) {
    return (word & 0x7c00u) != 0x7c00u && (word & 0x7c000000u) != 0x7c000000u;
}

// The positions that a thread's two query rows see: from `begin` on, which is 0 without a window, up to
// `end`.
template <bool SCORE_MODS>
struct VisibleKeys {
    u32 begin[2], end[2];

    DEVICE bool has(u32 row, u32 at) const { return at < end[row] && (!SCORE_MODS || at >= begin[row]); }
};

// The scale of the scores in base 2 of a row of the batch.
template <bool SCORE_MODS>
DEVICE float score_scale(const AttentionArgs& args, u32 row) {
    if constexpr (!SCORE_MODS) return args.scale * LOG2_E;
    return args.scale * args.scores.temperature(args.slots.positions[row]) * args.scores.base2_scale();
}

// Where the mask hides positions of a V tile from some query rows, P = 0 times a value that is not finite
// would be NaN: such values are added to O of the rows that see them and zeroed in the tile before the MMA.
// By all THREADS of `Kernel`, whose chunk_offset is the layout of the tile.
template <typename Kernel, typename Visible, int N_TILES>
DEVICE void exclude_non_finite(u8* v_tile, u32 first_position, const Visible& visible,
                               float (&o)[N_TILES][4]) {
#pragma unroll 1
    for (u32 key = 0; key < Kernel::BLOCK_N; key++)
#pragma unroll
        for (u32 i = 0; i < N_TILES; i++)
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u16 bits =
                    *(const u16*)(v_tile + Kernel::chunk_offset(key, i) + (threadIdx.x % 4 * 2 + j) * 2);
                if (is_finite_f16(bits)) continue;
                if (visible.has(0, first_position + key)) o[i][j] += f16_to_f32(bits);
                if (visible.has(1, first_position + key)) o[i][2 + j] += f16_to_f32(bits);
            }
    Kernel::sync();
    for (u32 at = threadIdx.x; at < Kernel::BLOCK_N * N_TILES * 8; at += Kernel::THREADS)
        if (!is_finite_f16(((u16*)v_tile)[at])) ((u16*)v_tile)[at] = 0;
    Kernel::sync();
}

// Writes O / sum of the thread's query rows q_row and q_row + 8 from MMA accumulators; with sinks, each is
// one more term of its row's sum.
template <bool SCORE_MODS, int HEAD_DIM, u32 BLOCK_M, typename Softmax>
DEVICE void write_output(const AttentionArgs& args, const QueryTile<HEAD_DIM, BLOCK_M>& tile, u32 q_row,
                         const float (&o)[HEAD_DIM / 8][4], const Softmax& softmax) {
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const float sum = quad_sum(softmax.row_sum[j]);
        if (!tile.has(q_row + 8 * j)) continue;
        float inverse = softmax_inverse(sum);
        if (SCORE_MODS && sum != 0.0f) {
            const u32 head = tile.kv_head * tile.group + (q_row + 8 * j) % tile.group;
            inverse = normalize_with_sink(1.0f, sum, softmax.row_max[j], args.scores.sink_of(head));
        }
        float* out = args.out + tile.head_offset(q_row + 8 * j) + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++)
            *(float2*)(out + i * 8) = make_float2(o[i][2 * j] * inverse, o[i][2 * j + 1] * inverse);
    }
}
