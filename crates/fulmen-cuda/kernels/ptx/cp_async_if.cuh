// cp.async that is predicated instead of branched around, from a constant offset behind an address, so that
// copies of one thread share the address (compute capability 8.0 and up).
#pragma once
#include "ptx/shared.cuh"

// Copies 4, 8 or 16 bytes; the smaller ones go through L1.
template <int BYTES, int OFFSET>
DEVICE void cp_async_if(bool predicate, SharedAddress to, const void* from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    if constexpr (BYTES == 16)
        asm volatile(
            "{\n.reg .pred wanted;\n"
            "setp.ne.u32 wanted, %2, 0;\n"
            "@wanted cp.async.cg.shared.global [%0], [%1+%3], 16;\n}" ::"r"(to),
            "l"(from), "r"((u32)predicate), "n"(OFFSET)
            : "memory");
    else
        asm volatile(
            "{\n.reg .pred wanted;\n"
            "setp.ne.u32 wanted, %2, 0;\n"
            "@wanted cp.async.ca.shared.global [%0], [%1+%3], %4;\n}" ::"r"(to),
            "l"(from), "r"((u32)predicate), "n"(OFFSET), "n"(BYTES)
            : "memory");
}
