// Decode attention (attention_decode.cu): the mainloop of a warp, scores and softmax over its tiles.
#pragma once

#include "attention_decode_f16.cuh"
#include "attention_decode_f32.cuh"
#include "attention_decode_prologue.cuh"
#include "attention_decode_q8_0.cuh"

template <typename Block>
struct Mainloop {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, SPLITS = Block::SPLITS, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    static constexpr int TILES_PER_ROUND = Block::TILES_PER_ROUND;

    const Block& block;
    // A warp's state of the online softmax: lane 4 g + t holds query head g. `math` holds Q and O.
    TileMath<Block, Block::TYPE> math;
    float q_scale;
    float row_max, row_sum;

    DEVICE explicit Mainloop(const Block& block) : block(block) {}

    DEVICE void begin() {
        math.load_queries(block);
        q_scale = block.shared.q_scale[block.lane / 4];
        math.clear();
        row_max = Block::MASKED, row_sum = 0;
    }

    // Turns scores, s[i][j] of position 8 i + 2 t + j, into P = 2^(S - max) and returns the factor that
    // rescales what was accumulated before. S is the sum of both arguments; SINGLE_ROW uses the first alone,
    // to save code.
    DEVICE float online_softmax(u32 tile, float (&s)[2][2], const float (&s_odd)[2][2]) {
        float new_max = row_max;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 p = tile * TILE + i * 8 + block.lane % 4 * 2 + j;
                const float score = (SINGLE_ROW ? s[i][j] : s[i][j] + s_odd[i][j]) * q_scale;
                s[i][j] = !block.sees(p)      ? Block::MASKED
                          : Block::SCORE_MODS ? block.args.scores.capped(score)
                                              : score;
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
                s[i][j] = block.sees(p) ? exp2f(s[i][j] - new_max) : 0;
                sum += s[i][j];
            }
        row_sum = row_sum * rescale + sum;
        return rescale;
    }

    DEVICE void run(TileLoader<Block>& loader) {
        begin();
        // The page of a tile is known a round before it is loaded.
        u32 stage = 0, next_round = STAGES - 1, next_page = loader.head_page(next_round);
        for (u32 tile = block.first_tile; tile < block.tiles; tile += TILES_PER_ROUND) {
            const u32 next = tile + (STAGES - 1) * TILES_PER_ROUND,
                      at = block.ring + stage * Block::STAGE_BYTES;
            // The previous stage is free. The newest position of a later round is in the cache, written by
            // this block.
            if (next < block.tiles)
                loader.load_tile(next_page, next, stage == 0 ? STAGES - 1 : stage - 1, block.position + 1);
            cp_async_commit();
            next_page = loader.head_page(++next_round);
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            if (Block::SCORE_MODS && tile * TILE < block.first_visible) {
                // P = 0 times a value behind the window that is not finite would be NaN.
                Block::Tile::clear_values(block.lane, at, block.first_visible - tile * TILE);
                __syncwarp();
            }
            float s[2][2] = {}, s_odd[2][2] = {};
            math.compute_scores(block.lane, at, s, s_odd);
            const float rescale = online_softmax(tile, s, s_odd);
            math.accumulate_values(block.lane, at, s, rescale);
            __syncwarp();
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        cp_async_wait<0>();
        math.finish();
        row_sum = quad_sum(row_sum);
    }
};
