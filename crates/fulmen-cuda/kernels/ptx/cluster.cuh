// Thread block clusters: the cluster barrier and stores into the shared memory of other blocks (distributed
// shared memory). Compute capability 9.0 and up.
#pragma once
#include "ptx/shared.cuh"

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address that `pointer`, in this block's shared memory, has in block `rank` of the cluster.
DEVICE SharedAddress mapa(const void* pointer, u32 rank) {
    SharedAddress remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(pointer)), "r"(rank));
    return remote;
}

// Stores a value at the place of `pointer` in block `rank`.
DEVICE void st_shared_cluster(float* pointer, u32 rank, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mapa(pointer, rank)), "f"(value) : "memory");
}

// Stores four values at the place of `pointer` in block `rank`, and completes 16 bytes on `barrier` there.
DEVICE void st_async_v4(float* pointer, u64* barrier, u32 rank, float4 v) {
    const SharedAddress to = mapa(pointer, rank), remote_barrier = mapa(barrier, rank);
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(to),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(remote_barrier)
        : "memory");
}
