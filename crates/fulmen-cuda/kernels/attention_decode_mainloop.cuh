// Decode attention (attention_decode.cu): the mainloop of a warp, scores and softmax over its tiles.
#pragma once

#include "attention_decode_prologue.cuh"

template <typename Block>
struct Mainloop {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, CLUSTER = Block::CLUSTER, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    static constexpr int TILE_BYTES = Block::TILE_BYTES, TILES_PER_ROUND = Block::TILES_PER_ROUND;

    const Block& block;
    // A warp's state of the online softmax: lane 4 g + t holds query head g and of O dims 8 i + 2 t and 8 i +
    // 2 t + 1.
    u32 q_fragments[HEAD_DIM / 16][2];
    float q_scale;
    float o[HEAD_DIM / 8][2];
    float row_max, row_sum;

    DEVICE explicit Mainloop(const Block& block) : block(block) {}

    DEVICE void begin() {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            q_fragments[step][0] =
                *(const u32*)&block.shared.q[block.lane / 4][step * 16 + block.lane % 4 * 2];
            q_fragments[step][1] =
                *(const u32*)&block.shared.q[block.lane / 4][step * 16 + block.lane % 4 * 2 + 8];
        }
        q_scale = block.shared.q_scale[block.lane / 4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) o[i][0] = o[i][1] = 0;
        row_max = Block::MASKED, row_sum = 0;
    }

    // S = Q K^T of a tile: s[i][j] is position 8 i + 2 t + j. Even and odd steps have accumulators of their
    // own, which makes for shorter chains (not in SINGLE_ROW, to save code).
    DEVICE void compute_scores(u32 k_tile, float (&s)[2][2], float (&s_odd)[2][2]) {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            // Matrices: positions 0-7 and 8-15, first and second 8 dims.
            u32 b[4];
            ldmatrix_x4(b, k_tile + Block::chunk_offset((block.lane & 7) + (block.lane / 16) * 8,
                                                        step * 2 + (block.lane / 8) % 2));
            const u32(&q)[2] = q_fragments[step];
            mma_m16n8k16_f16_rows0_7(!SINGLE_ROW && step % 2 ? s_odd[0] : s[0], q[0], q[1], b[0], b[1]);
            mma_m16n8k16_f16_rows0_7(!SINGLE_ROW && step % 2 ? s_odd[1] : s[1], q[0], q[1], b[2], b[3]);
        }
    }

    // Turns scores into P = 2^(S - max) and returns the factor that rescales what was accumulated before.
    DEVICE float online_softmax(u32 tile, float (&s)[2][2], const float (&s_odd)[2][2]) {
        float new_max = row_max;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 p = tile * TILE + i * 8 + block.lane % 4 * 2 + j;
                s[i][j] = p <= block.position ? (SINGLE_ROW ? s[i][j] : s[i][j] + s_odd[i][j]) * q_scale
                                              : Block::MASKED;
                new_max = fmaxf(new_max, s[i][j]);
            }
        new_max = quad_max(new_max);
        const float rescale = exp2f(row_max - new_max);
        row_max = new_max;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 p = tile * TILE + i * 8 + block.lane % 4 * 2 + j;
                s[i][j] = p <= block.position ? exp2f(s[i][j] - new_max) : 0;
                sum += s[i][j];
            }
        row_sum = row_sum * rescale + sum;
        return rescale;
    }

    // O = rescale * O + P V.
    DEVICE void accumulate_values(u32 v_tile, const float (&p)[2][2], float rescale) {
        const u32 p0 = pack_f16x2(p[0][0], p[0][1]), p1 = pack_f16x2(p[1][0], p[1][1]);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            o[i][0] *= rescale;
            o[i][1] *= rescale;
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            // Matrices: positions 0-7 and 8-15 of the first 8 dims, then of the second.
            u32 b[4];
            ldmatrix_x4_trans(b, v_tile + Block::chunk_offset((block.lane & 7) + (block.lane / 8) % 2 * 8,
                                                              i * 2 + block.lane / 16));
            mma_m16n8k16_f16_rows0_7(o[2 * i], p0, p1, b[0], b[1]);
            mma_m16n8k16_f16_rows0_7(o[2 * i + 1], p0, p1, b[2], b[3]);
        }
    }

    DEVICE void run(TileLoader<Block>& loader) {
        begin();
        u32 stage = 0, next_round = STAGES - 1;
        for (u32 tile = block.first_tile; tile < block.tiles; tile += TILES_PER_ROUND, next_round++) {
            const u32 next = tile + (STAGES - 1) * TILES_PER_ROUND,
                      k_tile = block.ring + stage * 2 * TILE_BYTES;
            if (next_round % 32 == 0) {
                loader.look_up_pages(next_round);
                loader.check_pages(next_round);
            }
            // The previous stage is free. The newest position of a later round is in the cache, written by
            // this block.
            if (next < block.tiles)
                loader.load_tile(next_round, next, stage == 0 ? STAGES - 1 : stage - 1, block.position + 1);
            cp_async_commit();
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            float s[2][2] = {}, s_odd[2][2] = {};
            compute_scores(k_tile, s, s_odd);
            const float rescale = online_softmax(tile, s, s_odd);
            accumulate_values(k_tile + TILE_BYTES, s, rescale);
            __syncwarp();
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        cp_async_wait<0>();
        row_sum = quad_sum(row_sum);
    }
};
