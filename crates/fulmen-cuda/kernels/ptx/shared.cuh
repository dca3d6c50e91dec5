// Addresses in shared memory, plain stores to it, and the fence between the generic and the async proxy.
#pragma once
#include "types.cuh"

// A 32-bit address in the shared window, as PTX instructions take it.
typedef u32 SharedAddress;

DEVICE SharedAddress shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

DEVICE void st_shared_u32(SharedAddress to, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

DEVICE void st_shared_v4_zero(SharedAddress to) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(to), "r"(0) : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later accesses by the async proxy (TMA,
// wgmma).
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// threadIdx.x read again from its special register: values derived from it do not occupy registers before
// this point.
DEVICE u32 reload_tid_x() {
    u32 index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}
