// The ring of a warp of the GEMV kernels: stages in shared memory that the warp streams its weights into.
//
// Compute capability 9.0 and up: lane 0 copies by TMA bulk copies. `full` of a stage, an mbarrier, has one
// arrival with the bytes of its copies. 8.x: all lanes copy 16 bytes each by cp.async, and a stage is one
// commit group.
//
// For each stage in turn: in the first RING_COPY_LANES lanes `ring_expect` with the bytes of all copies, then
// `ring_copy` for each; then `ring_commit` by all lanes, also if nothing is left to copy. The warp calls
// `ring_wait` before it reads a stage, and `__syncwarp` before it fills it again. No warp waits for another.
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/tma.cuh"

constexpr u32 MAX_STAGES = 2;

#if __CUDA_ARCH__ >= 900

// Initializes the mbarriers `full[STAGES]` of this warp.
template <u32 STAGES = MAX_STAGES>
DEVICE void ring_init(u64* full) {
    if ((threadIdx.x & 31) < STAGES) {
        mbarrier_init(&full[threadIdx.x & 31], 1);
        fence_proxy_async();
    }
    __syncwarp();
}

// The first lanes of the warp, which copy.
constexpr u32 RING_COPY_LANES = 1;

DEVICE void ring_expect(u64* full, u32 bytes) { mbarrier_arrive_expect_tx(full, bytes); }

// Copies the 16-byte chunks that cover `bytes` at `from`; the first one goes to `to`.
DEVICE void ring_copy(u8* to, const u8* from, u32 bytes, u64* full) {
    cp_async_bulk_covering(to, from, bytes, full);
}

DEVICE void ring_commit() {}

// Waits until the stage is full; `parity` is that of its current use. `args.stages`: stages of the ring.
template <u32 STAGES = MAX_STAGES, class Args>
DEVICE void ring_wait(u64* full, u32 parity, const Args& args) {
    mbarrier_wait_parity(full, parity);
}

// A copy for the whole block, on an mbarrier of its own that thread 0 initializes: after a barrier, the first
// BLOCK_COPY_THREADS threads announce and start it, and all threads wait.
constexpr u32 BLOCK_COPY_THREADS = 1;
DEVICE void block_copy_init(u64* full) {
    mbarrier_init(full, 1);
    fence_proxy_async();
}
DEVICE void block_copy_expect(u64* full, u32 bytes) { mbarrier_arrive_expect_tx(full, bytes); }
DEVICE void block_copy(u8* to, const u8* from, u32 bytes, u64* full) {
    cp_async_bulk_covering(to, from, bytes, full);
}
DEVICE void block_copy_wait(u64* full) { mbarrier_wait_parity(full, 0); }

// Prefetches `bytes` into L2, where there is an instruction for it.
DEVICE void prefetch_l2(const void* from, u32 bytes) { cp_async_bulk_prefetch_l2_covering(from, bytes); }

#else

template <u32 STAGES = MAX_STAGES>
DEVICE void ring_init(u64*) {}
constexpr u32 RING_COPY_LANES = 32;
DEVICE void ring_expect(u64*, u32) {}
DEVICE void ring_copy(u8* to, const u8* from, u32 bytes, u64*) {
    const u8* start = (const u8*)covering_start(from);
    const u32 end = covering_bytes(from, bytes);
#pragma unroll 4
    for (u32 at = (threadIdx.x & 31) * 16; at < end; at += 512)
        cp_async_16_l2_128(shared_address(to + at), start + at);
}
DEVICE void ring_commit() { cp_async_commit(); }
template <u32 STAGES = MAX_STAGES, class Args>
DEVICE void ring_wait(u64*, u32, const Args& args) {
    static_assert(STAGES <= 3);
    if (STAGES > 2 && args.stages > 2)
        cp_async_wait<2>();
    else if (args.stages > 1)
        cp_async_wait<1>();
    else
        cp_async_wait<0>();
    __syncwarp();
}
constexpr u32 BLOCK_COPY_THREADS = 1024;
DEVICE void block_copy_init(u64*) {}
DEVICE void block_copy_expect(u64*, u32) {}
DEVICE void block_copy(u8* to, const u8* from, u32 bytes, u64*) {
    for (u32 at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16)
        cp_async_16(shared_address(to + at), from + at);
    cp_async_commit();
}
DEVICE void block_copy_wait(u64*) {
    cp_async_wait<0>();
    __syncthreads();
}
DEVICE void prefetch_l2(const void*, u32) {}

#endif
