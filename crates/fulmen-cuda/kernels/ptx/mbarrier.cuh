// mbarriers in shared memory: a phase completes when all expected arrivals and all announced bytes have come.
// Compute capability 9.0 and up. Each function takes the barrier's shared address, or a pointer to it.
#pragma once
#include "ptx/shared.cuh"

DEVICE void mbarrier_init(SharedAddress barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialized mbarriers visible to the async proxy and to the other blocks of the cluster.
DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void mbarrier_arrive(SharedAddress barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and announces bytes that asynchronous copies will bring in this phase.
DEVICE void mbarrier_arrive_expect_tx(SharedAddress barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrives when all cp.async copies that this thread has issued so far are complete.
DEVICE void cp_async_mbarrier_arrive_noinc(SharedAddress barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity is complete.
DEVICE void mbarrier_wait_parity(SharedAddress barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "wait:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// The same, and sees what other blocks of the cluster wrote (st.async).
DEVICE void mbarrier_wait_parity_cluster(SharedAddress barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "wait:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

DEVICE void mbarrier_init(u64* barrier, u32 arrivals) { mbarrier_init(shared_address(barrier), arrivals); }
DEVICE void mbarrier_arrive(u64* barrier) { mbarrier_arrive(shared_address(barrier)); }
DEVICE void mbarrier_arrive_expect_tx(u64* barrier, u32 bytes) {
    mbarrier_arrive_expect_tx(shared_address(barrier), bytes);
}
DEVICE void cp_async_mbarrier_arrive_noinc(u64* barrier) {
    cp_async_mbarrier_arrive_noinc(shared_address(barrier));
}
DEVICE void mbarrier_wait_parity(u64* barrier, u32 parity) {
    mbarrier_wait_parity(shared_address(barrier), parity);
}
DEVICE void mbarrier_wait_parity_cluster(u64* barrier, u32 parity) {
    mbarrier_wait_parity_cluster(shared_address(barrier), parity);
}
