// Small-M GEMM (gemm_small_m.cu): the mainloop of a consumer warp. It streams the warp's work items through
// its weight ring (gemm_small_m_weights.cuh), multiplies them with x in shared memory (gemm_small_m_mma.cuh)
// and leaves the sums of each tile in shared memory, complete or as a partial.
#pragma once

#include "gemm_small_m_mma.cuh"
#include "gemm_small_m_weights.cuh"

// F and G are the formats of the first and the second weights.
template <class F, class G, int ROWS, bool GATE_UP>
struct Mainloop {
    static constexpr int WEIGHTS = GATE_UP ? 2 : 1;
    static constexpr u32 TILE_FLOATS = Accumulators<ROWS>::TILE_FLOATS;
    static constexpr u32 PARTIAL_FLOATS = WEIGHTS * TILE_FLOATS;
    typedef WeightRing<F, G, WEIGHTS> Ring;

    const GemmSmallMArgs& args;
    const BlockWork& work;
    u8* memory;
    u64* x_full;
    SharedState& state;
    const u32 warp, n_items;
    Accumulators<ROWS> total[WEIGHTS];
    u32 step;
    Ring ring;

    DEVICE Mainloop(const GemmSmallMArgs& args, const BlockWork& work, u8* memory, u64* x_full,
                    u64* stage_full, SharedState& state)
        : args(args),
          work(work),
          memory(memory),
          x_full(x_full),
          state(state),
          warp(threadIdx.x / 32),
          n_items(work.items.begin(warp + 1) - work.items.begin(warp)),
          step(0),
          ring(args, work, memory, stage_full, warp) {
        ring.begin(warp);
    }

    // ---- Partials in shared memory

    // Of the tile that a warp's range stops in.
    DEVICE float* tail_partial(u32 warp) const { return (float*)memory + warp * PARTIAL_FLOATS; }
    // Of a tile that a warp's range goes beyond and others (earlier warps, or blocks of the cluster)
    // contribute to.
    DEVICE float* head_partial(u32 warp, u32 index) const {
        float* all = (float*)(memory + args.x_bytes + args.consumer_warps * args.stages * args.stage_bytes);
        return all + (args.cluster_partials & HEAD_PARTIALS_PER_TILE ? index : warp) * PARTIAL_FLOATS;
    }
    // Received from the blocks of the cluster, by rank, for each tile that this block finishes.
    DEVICE float* cluster_partial(u32 slot) const {
        return (float*)(memory + (args.cluster_partials & ~15u)) + slot * PARTIAL_FLOATS;
    }

    // ---- Mainloop

    DEVICE void clear() {
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) total[w] = {};
    }

    // Waits for all previous kernels and for the producer's mbarriers. x itself is awaited per chunk
    // (x_full). If forwarded fragments do not fit f16, the block repacks x.
    DEVICE void wait_for_x() {
        pdl_wait();
        bar_sync<1>(blockDim.x);
        if (!args.forwarded_in.flags) return;
        mbarrier_wait_parity(&state.fits_ready, 0);
        if (state.fits) return;
        mbarrier_wait_parity(&state.scales_ready, 0);
#pragma unroll 1
        for (u32 i = 0; i < work.chunks; i++) mbarrier_wait_parity(&x_full[i], 0);
        repack_from_f32<ROWS>(args.forwarded_in.x, args.m,
                              args.forwarded_in.squares ? args.forwarded_in.gamma : nullptr, state.row_scales,
                              memory, work.second_format ? G::K_ORDER : F::K_ORDER, args.k_chunks * K_CHUNK,
                              work.first_chunk * K_CHUNK, work.chunks * K_CHUNK);
    }

    template <class T>
    DEVICE void multiply_item() {
        constexpr int AT_ONCE = T::FEW_REGISTERS ? WEIGHTS : 1;
        constexpr int UNROLL = T::FEW_REGISTERS || !GATE_UP ? T::PASSES : 1;
        const u8* x = memory + (ring.item.chunk - work.first_chunk) * F16Fragments<ROWS>::CHUNK_BYTES +
                      ring.lane * F16Fragments<ROWS>::LANE_BYTES;
#pragma unroll
        for (int first = 0; first < WEIGHTS; first += AT_ONCE) {
            T weights[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                weights[i].load_scales(ring.template row_chunk<T>(first + i, 0, ring.item.chunk),
                                       ring.template row_chunk<T>(first + i, 1, ring.item.chunk),
                                       args.k_blocks - ring.item.chunk * 8, ring.lane & 3);
            multiply_chunk<T, ROWS, AT_ONCE, UNROLL>(total + first, weights, x);
        }
    }

    // Multiplies the warp's items up to the end of a tile that it has computed alone, and stores the sums in
    // the current stage of the ring: true, and `index` is the tile. False after the last item; what is left
    // is in a tail partial. Iteration `step` loads item `step` and multiplies item `step - stages + 1`.
    //
    //     item ends its tile   computed alone   last item   the sums
    //     no                                                stay in registers
    //     yes                  yes                          go to the stage; returns true
    //     yes                  no               no          go to a head partial
    //     yes                  no               yes         stay in registers
    //     (after the last item)                             go from registers (zeros if all were stored) to
    //                                                       the tail partial; returns false
    DEVICE bool next_complete_tile(u32& index) {
#pragma unroll 1
        for (;;) {
            if (step < n_items) ring.load();
            ring.next_stage();
            if (++step < args.stages) continue;
            if (step == args.stages) {
                wait_for_x();
                // Not before: registers are scarce there.
                clear();
            }
            const u32 left = n_items + args.stages - step;
            bool complete = false;
            const u32 warp = reload_tid_x() / 32;
            float* to = tail_partial(warp);
            if (left > 0) {
                ring.wait();
                mbarrier_wait_parity(&x_full[ring.item.chunk - work.first_chunk], 0);
                if (Ring::TWO_FORMATS && work.second_format)
                    multiply_item<G>();
                else
                    multiply_item<F>();
                index = ring.item.tile - work.first_tile;
                const bool ends = ring.item.next(work);
                complete = ends && ring.starts_tile && args.cluster_size == 1;
                __syncwarp();
                if (!ends || (left == 1 && !complete)) continue;
                // The weights in the stage have been read.
                to = complete ? (float*)ring.stage_data() : head_partial(warp, index);
                ring.starts_tile = true;
                ring.begin_multiply_tile();
            } else {
                // No warp reads x any more: tail partials take its place.
                bar_sync<1>(args.consumer_warps * 32);
            }
#pragma unroll
            for (int w = 0; w < WEIGHTS; w++) total[w].store(to + w * TILE_FLOATS);
            clear();
            if (complete || left == 0) return complete;
        }
    }
};
