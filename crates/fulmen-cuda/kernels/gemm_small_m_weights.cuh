// Small-M GEMM (gemm_small_m.cu): the weight loader. Each consumer warp streams its work items, 16 rows of W
// x 256 columns as they lie in a GGUF file, into a ring of `args.stages` stages of its own, so no warp waits
// for another.
//
// - ALIGNED formats (Q4_K, Q5_K: rows are whole 16-byte vectors): one TMA tile load per item, issued by one
//   lane (elect_one). Rows past the end are zero-filled. A stage has 16 rows of CHUNK_BYTES.
// - The others: cp.async of the 16-byte vectors that cover each row's chunk, ROW_VECTORS lanes per row. A
//   stage has 16 rows of ROW_VECTORS * 16 bytes, and a row's chunk starts at its address modulo 16.
//
// Stage mbarriers: `full[stage]` completes when an item has arrived (one arrival with the bytes of the TMA
// loads, or 32 arrivals of cp.async). There is no `empty` barrier: the warp that reads a stage is the one
// that refills it, after a __syncwarp. A stage may also hold accumulators for a while; `fence_proxy_async`
// orders that before the next TMA load.
#pragma once

#include "gemm_small_m_schedule.cuh"
#include "ptx/cp_async.cuh"

// F is the format of the first weights, G of the second; WEIGHTS is 2 for gate and up, whose tiles share a
// stage.
template <class F, class G, int WEIGHTS>
struct WeightRing {
    static constexpr bool TWO_FORMATS = F::CHUNK_BYTES != G::CHUNK_BYTES;
    static_assert(!TWO_FORMATS || (F::ALIGNED && !G::ALIGNED), "TMA for the first format, not the second");

    const GemmSmallMArgs& args;
    const BlockWork& work;
    const bool uses_tma;  // without TMA the format is always G
    const u32 lane, row_bytes;
    u8* ring;
    u64* full;
    u32 stage, parity;
    ItemIterator load_item, item;  // the next item to load, and to multiply
    bool starts_tile;              // no earlier warp has items of the tile of `item`
    // The tile of `load_item`, for TMA: tensor map and row.
    u32 map, row;
    // The same for cp.async: the 16-byte vector with the tile's first byte, that byte's offset in the vector,
    // the bytes of all rows of the tile, and the offset of the lane's vector.
    const u8* start[WEIGHTS];
    u32 skip[WEIGHTS], tile_bytes, lane_offset;
    // The tile of `item`, for cp.async: the low bits of the addresses of rows g and g + 8.
    u32 row_address[WEIGHTS][2];

    // The lane goes through a shuffle, so that the compiler keeps what is derived from it instead of
    // recomputing it for every item.
    DEVICE WeightRing(const GemmSmallMArgs& args, const BlockWork& work, u8* memory, u64* stage_full,
                      u32 warp)
        : args(args),
          work(work),
          uses_tma(F::ALIGNED && !(TWO_FORMATS && work.second_format)),
          lane(__shfl_sync(FULL_WARP, threadIdx.x & 31, threadIdx.x & 31)),
          row_bytes(args.weights[work.second_format ? args.first_format_weights : 0].row_bytes),
          ring(memory + args.x_bytes + warp * args.stages * args.stage_bytes),
          full(stage_full + warp * MAX_STAGES),
          stage(0),
          parity(0) {
        if (lane < MAX_STAGES) mbarrier_init(&full[lane], uses_tma ? 1 : 32);
        fence_proxy_async();
        __syncwarp();
    }

    // Starts with the warp's first item.
    DEVICE void begin(u32 warp) {
        const u32 first = work.items.begin(warp), tile = quotient(first, work.chunks);
        const u32 chunk = first - tile * work.chunks;
        load_item = {work.first_tile + tile, work.first_chunk + chunk}, item = load_item;
        starts_tile = chunk == 0;
        if (!uses_tma) lane_offset = lane / G::ROW_VECTORS * row_bytes + lane % G::ROW_VECTORS * 16;
        begin_load_tile();
        begin_multiply_tile();
    }

    DEVICE u8* stage_data() const { return ring + stage * args.stage_bytes; }
    DEVICE void next_stage() {
        if (++stage == args.stages) stage = 0;
    }

    // ---- Loading

    DEVICE void begin_load_tile() {
        const OutputTile tile(args, work, load_item.tile);
        if (uses_tma) {
            map = tile.weight, row = tile.row;
            return;
        }
        tile_bytes = tile.rows * row_bytes;
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) {
            const u8* data = tile.data(args, w);
            skip[w] = (u32)(u64)data & 15, start[w] = data - skip[w];
        }
    }

    DEVICE void load_tma() const {
        if (!elect_one()) return;
        mbarrier_arrive_expect_tx(&full[stage], WEIGHTS * TILE * F::CHUNK_BYTES);
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++)
            tma_load_2d(stage_data() + w * TILE * F::CHUNK_BYTES, &args.tensor_maps[map + w],
                        load_item.chunk * F::CHUNK_BYTES, row, &full[stage]);
    }

    template <class T>
    DEVICE void load_cp_async() const {
        constexpr u32 STRIDE = T::ROW_VECTORS * 16;
        constexpr u32 ROWS_AT_ONCE = 32 / T::ROW_VECTORS, COPIES = (TILE + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
        const SharedAddress to = shared_address(ring) + lane * 16 + stage * args.stage_bytes;
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) {
            const u32 base = skip[w] + load_item.chunk * T::CHUNK_BYTES + lane_offset,
                      end = skip[w] + tile_bytes;
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                const u32 offset = (base + i * ROWS_AT_ONCE * row_bytes) & ~15u;
                // Vectors past the end of a row are the next row's; only those past the last row do not
                // exist.
                const bool wanted =
                    lane < min(ROWS_AT_ONCE, TILE - i * ROWS_AT_ONCE) * T::ROW_VECTORS && offset < end;
                cp_async_16_l2_128_if(wanted, to + w * TILE * STRIDE + i * ROWS_AT_ONCE * STRIDE,
                                      start[w] + offset);
            }
        }
        cp_async_mbarrier_arrive_noinc(&full[stage]);
    }

    // Starts to load the next item into the current stage.
    DEVICE void load() {
        if (uses_tma)
            load_tma();
        else
            load_cp_async<G>();
        if (load_item.next(work)) begin_load_tile();
    }

    // ---- Reading

    DEVICE void begin_multiply_tile() {
        if (uses_tma) return;
        const OutputTile tile(args, work, item.tile);
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                row_address[w][r] = (u32)(u64)tile.data(args, w) + (lane / 4 + r * 8) * row_bytes;
    }

    // Waits for the item in the current stage.
    DEVICE void wait() {
        mbarrier_wait_parity(&full[stage], parity);
        if (stage + 1 == args.stages) parity ^= 1;
    }

    // The chunk of row g (r = 0) or g + 8 (r = 1) of weight w, in the current stage.
    template <class T>
    DEVICE const u8* row_chunk(u32 w, u32 r, u32 chunk) const {
        constexpr u32 STRIDE = T::ROW_VECTORS * 16;
        const u8* at = stage_data() + w * TILE * STRIDE + (lane / 4 + r * 8) * STRIDE;
        if (!T::ALIGNED) at += (row_address[w][r] + chunk * T::CHUNK_BYTES) & 15;
        return at;
    }
};
