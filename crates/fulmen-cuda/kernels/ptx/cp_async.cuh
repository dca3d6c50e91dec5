// cp.async: asynchronous copies of 16 bytes per thread from global to shared memory (compute capability 8.0
// and up).
#pragma once
#include "ptx/shared.cuh"

DEVICE void cp_async_16(SharedAddress to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Writes zeros where `valid` is false; the address must be mapped all the same.
DEVICE void cp_async_16_zfill(SharedAddress to, const void* from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// With an L2 prefetch of the whole 128-byte line.
DEVICE void cp_async_16_l2_128(SharedAddress to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same, predicated instead of branched around.
DEVICE void cp_async_16_l2_128_if(bool predicate, SharedAddress to, const void* from) {
    asm volatile(
        "{\n.reg .pred wanted;\n"
        "setp.ne.u32 wanted, %2, 0;\n"
        "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(to),
        "l"(from), "r"((u32)predicate)
        : "memory");
}

DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N committed groups are still in flight.
template <int N>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
