// Bulk copies from global into shared memory, and the barriers that tell when they are there (compute capability 9.0 and up).
#pragma once

#include "common.cuh"

#define DEVICE __device__ __forceinline__

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// A barrier that is passed when `arrivals` have come and all announced bytes are there.
DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialized barriers known to the copies; those from here on come after what was written here by other means.
DEVICE void barriers_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives, and announces bytes.
DEVICE void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

DEVICE void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

DEVICE void barrier_wait(u64* barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::"r"(shared_address(barrier)), "r"(parity)
      : "memory");
}

// Some warps of a block, of `threads` threads, meet; one that only comes does not wait.
DEVICE void warps_meet(u32 threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
DEVICE void warp_comes(u32 threads) { asm volatile("bar.arrive 1, %0;" ::"r"(threads) : "memory"); }

// Whole 16-byte pieces around `bytes` at `from`.
DEVICE u32 pieces_around(const u8* from, u32 bytes) { return ((u32)((u64)from & 15) + bytes + 15) & ~15u; }

// Copies the pieces around `bytes` at `from`; `to` is where the first piece goes.
DEVICE void bulk_copy(u8* to, const u8* from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"((u64)from & ~15ull), "r"(pieces_around(from, bytes)), "r"(shared_address(barrier))
               : "memory");
}

// Calls the pieces around `bytes` into the L2 cache.
DEVICE void bulk_prefetch(const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((u64)from & ~15ull), "r"(pieces_around((const u8*)from, bytes)) : "memory");
}

// ---------------------------------------------------------------- boxes

// True in one lane of the warp, always the same: the compiler knows that, and so copies of boxes take few instructions.
DEVICE bool elected() {
  u32 yes;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(yes));
  return yes;
}

// A tensor of two dimensions that the driver has described, to be copied by boxes.
struct __align__(64) TensorMap {
  u64 opaque[16];
};

DEVICE void call_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Copies the box that begins with byte `column` of `row`. What is past the end of the tensor becomes zero, and counts.
DEVICE void box_copy(u8* to, const TensorMap* map, u32 column, u32 row, u64* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)), "l"(map),
               "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}

// ---------------------------------------------------------------- clusters

// Says that this warp has begun, and knows the barriers that it has initialized: others wait for that before they write to the block.
DEVICE void cluster_begin() { asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Puts a value into the shared memory of another block of the cluster.
DEVICE void remote_store(float* pointer, u32 rank, float value) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(pointer)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
