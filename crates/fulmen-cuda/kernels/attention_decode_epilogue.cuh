// Decode attention (attention_decode.cu): combines the partial results of warps, of the blocks of a cluster
// or, without clusters, of splits, and writes the output in all its forms.
#pragma once

#include "attention_decode_mainloop.cuh"

// Where the partial result of a split of a part of the heads lies in `partials`.
template <int HEAD_DIM>
DEVICE u64 partial_offset(const AttentionDecodeArgs& args, u32 row, u32 part, u32 split) {
    const u64 first = (u64)row * args.n_kv_heads * HeadPart::parts(args);
    return ((first + part) * args.splits + split) * (MAX_GROUP * (HEAD_DIM + 2));
}

template <typename Block>
struct Epilogue {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, SPLITS = Block::SPLITS, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;

    const Block& block;
    const Mainloop<Block>& mainloop;

    DEVICE Epilogue(const Block& block, const Mainloop<Block>& mainloop) : block(block), mainloop(mainloop) {}

    // Rescales O and the sums of all warps to the block's max per head and stores them in shared memory, O
    // over the rings.
    DEVICE void share_warp_partials() {
        if (block.lane % 4 == 0) block.shared.warp_max[block.warp][block.lane / 4] = mainloop.row_max;
        __syncthreads();
        float* warp_o = (float*)block.rings;  // [WARPS][MAX_GROUP][HEAD_DIM]
        if (block.lane / 4 < block.group) {
            float block_max = Block::MASKED;
#pragma unroll
            for (int w = 0; w < Block::WARPS; w++)
                block_max = fmaxf(block_max, block.shared.warp_max[w][block.lane / 4]);
            const float weight = exp2f(mainloop.row_max - block_max);
            if (block.lane % 4 == 0) {
                block.shared.warp_sum[block.warp][block.lane / 4] = mainloop.row_sum * weight;
                if (block.warp == 0) block.shared.block_max[block.lane / 4] = block_max;
            }
            mainloop.math.store(warp_o + (block.warp * MAX_GROUP + block.lane / 4) * HEAD_DIM, block.lane % 4,
                                weight);
        }
        __syncthreads();
    }

    // Element `at` of the group's output, in all its forms.
    DEVICE void write_output(u32 at, float value) {
        block.args.out[((u64)block.row * block.args.n_heads + block.part.first_head) * HEAD_DIM + at] = value;
        if (SINGLE_ROW && block.args.out_q8)
            quantize_q8_row_x1(block.args.out_q8, block.part.first_head * HEAD_DIM + at, value);
        if (!SINGLE_ROW && block.args.out_f16_scales)
            store_f16_fragment(block.args, block.row, block.part.first_head * HEAD_DIM + at, value);
    }

    // O / sum of a head of the group. `max`: what both are relative to.
    DEVICE float normalize(u32 head, float o, float sum, float max) const {
        return Block::SCORE_MODS ? normalize_with_sink(o, sum, max, block.shared.sinks[head]) : o / sum;
    }

    // Adds up the warps' partials. A single block writes the output; in a cluster each element goes to the
    // block that finishes it, `slice` elements per block.
    DEVICE void combine_warps(u32 slice) {
        const float* warp_o = (const float*)block.rings;
        const float inverse = __fdividef(1.0f, (float)slice);
        if constexpr (HAS_CLUSTERS && SPLITS > 1) cluster_wait();  // all blocks have started
        for (u32 at = threadIdx.x; at < block.group * HEAD_DIM; at += Block::THREADS) {
            u32 head = at / HEAD_DIM;
            float o = 0, sum = 0;
#pragma unroll
            for (int w = 0; w < Block::WARPS; w++) {
                o += warp_o[w * MAX_GROUP * HEAD_DIM + at];
                sum += block.shared.warp_sum[w][head];
            }
            if (SPLITS == 1) {
                write_output(at, normalize(head, o, sum, block.shared.block_max[head]));
            } else if constexpr (!HAS_CLUSTERS) {
                float* to = block.args.partials +
                            partial_offset<HEAD_DIM>(block.args, block.row, blockIdx.x / SPLITS, block.split);
                to[at] = o;
                if (at % HEAD_DIM == 0) {
                    to[MAX_GROUP * HEAD_DIM + head] = block.shared.block_max[head];
                    to[MAX_GROUP * (HEAD_DIM + 1) + head] = sum;
                }
            } else {
                const u32 to = (u32)(((float)at + 0.5f) * inverse), index = at - to * slice;
                st_shared_cluster(&block.partials.o[block.split][index], to, o);
                if (index == 0 || at % HEAD_DIM == 0) {
                    st_shared_cluster(&block.partials.max[block.split][head], to,
                                      block.shared.block_max[head]);
                    st_shared_cluster(&block.partials.sum[block.split][head], to, sum);
                }
            }
        }
    }

    // Combines the partials of all blocks for this block's slice and writes it.
    DEVICE void combine_cluster(u32 slice) {
        for (u32 index = threadIdx.x; index < slice; index += Block::THREADS) {
            const u32 at = block.split * slice + index, head = at / HEAD_DIM;
            float cluster_max = Block::MASKED, o = 0, sum = 0;
#pragma unroll
            for (int r = 0; r < SPLITS; r++) cluster_max = fmaxf(cluster_max, block.partials.max[r][head]);
#pragma unroll
            for (int r = 0; r < SPLITS; r++) {
                const float weight = exp2f(block.partials.max[r][head] - cluster_max);
                o += weight * block.partials.o[r][index];
                sum += weight * block.partials.sum[r][head];
            }
            write_output(at, normalize(head, o, sum, cluster_max));
        }
    }

    // `query`: the warp's rotated query.
    DEVICE void run(const typename Block::Head& query) {
        share_warp_partials();
        const u32 slice = block.group * HEAD_DIM / SPLITS;
        combine_warps(slice);
        if constexpr (!HAS_CLUSTERS) return;
        if constexpr (SPLITS > 1) {
            cluster_arrive();
            cluster_wait();
        }
        // q_out may be q: all blocks have read it.
        if (block.args.fused_store && block.split == 0 && block.warp < block.group)
            query.store(
                block.args.q_out +
                    ((u64)block.row * block.args.n_heads + block.part.first_head + block.warp) * HEAD_DIM,
                block.neox);
        if constexpr (HAS_CLUSTERS && SPLITS > 1) combine_cluster(slice);
    }
};

// Without clusters: combines the splits of a row, one element of the output per thread.
template <int HEAD_DIM>
DEVICE void combine_splits(const AttentionDecodeArgs& args) {
    const u32 row = blockIdx.y, width = args.n_heads * HEAD_DIM, at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= width) return;
    const u64 element = (u64)row * width + at;
    if (args.sequences && args.sequences[row] == NO_SEQUENCE) {
        args.out[element] = 0;
        return;
    }
    const u32 group = args.n_heads / args.n_kv_heads, parts = HeadPart::parts(args);
    const u32 each = (group + parts - 1) / parts;  // heads of a part
    const u32 query_head = at / HEAD_DIM, in_group = query_head % group;
    const u32 part = query_head / group * parts + in_group / each, head = in_group % each;
    const u32 index = head * HEAD_DIM + at % HEAD_DIM;
    float max = -1e30f, o = 0, sum = 0;
#pragma unroll 4
    for (u32 split = 0; split < args.splits; split++) {
        const float* from = args.partials + partial_offset<HEAD_DIM>(args, row, part, split);
        const float other = from[MAX_GROUP * HEAD_DIM + head], all = fmaxf(max, other);
        const float rescale = exp2f(max - all), weight = exp2f(other - all);
        o = o * rescale + weight * from[index];
        sum = sum * rescale + weight * from[MAX_GROUP * (HEAD_DIM + 1) + head];
        max = all;
    }
    const float value = normalize_with_sink(o, sum, max, args.scores.sink_of(query_head));
    args.out[element] = value;
    if (args.out_q8) quantize_q8_row_x1(args.out_q8, at, value);
    if (args.fused_store) args.q_out[element] = args.rotated[element];
}
