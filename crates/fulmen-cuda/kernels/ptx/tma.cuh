// TMA (compute capability 9.0 and up): bulk copies from global to shared memory that complete on an mbarrier,
// tile loads through a tensor map, and bulk prefetches into L2.
#pragma once
#include "ptx/mbarrier.cuh"

// Copies `bytes`; addresses and size are multiples of 16.
DEVICE void cp_async_bulk(SharedAddress to, const void* from, u32 bytes, SharedAddress barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// Prefetches `bytes` into L2; address and size are multiples of 16.
DEVICE void cp_async_bulk_prefetch_l2(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Unaligned ranges: bytes of the 16-byte chunks that cover `bytes` at `from`, and the start of the first one.
DEVICE u32 covering_bytes(const void* from, u32 bytes) { return ((u32)((u64)from & 15) + bytes + 15) & ~15u; }
DEVICE const void* covering_start(const void* from) { return (const void*)((u64)from & ~15ull); }

// Copies the 16-byte chunks that cover `bytes` at `from`; the first one goes to `to`.
DEVICE void cp_async_bulk_covering(void* to, const void* from, u32 bytes, u64* barrier) {
    cp_async_bulk(shared_address(to), covering_start(from), covering_bytes(from, bytes),
                  shared_address(barrier));
}
DEVICE void cp_async_bulk_prefetch_l2_covering(const void* from, u32 bytes) {
    cp_async_bulk_prefetch_l2(covering_start(from), covering_bytes(from, bytes));
}

// A CUtensorMap that the driver has encoded on the host (tensor_map.rs).
struct __align__(64) TensorMap { u64 opaque[16]; };

DEVICE void prefetch_tensormap(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the tile whose first byte is `column` of `row`. Out-of-bounds bytes are zero-filled and count as
// transferred. The innermost coordinate must be a multiple of 16 bytes.
DEVICE void tma_load_2d(SharedAddress to, const TensorMap* map, u32 column, u32 row, SharedAddress barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}
DEVICE void tma_load_2d(void* to, const TensorMap* map, u32 column, u32 row, u64* barrier) {
    tma_load_2d(shared_address(to), map, column, row, shared_address(barrier));
}
