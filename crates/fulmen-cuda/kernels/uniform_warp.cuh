// The role of a warp in a warp-specialized kernel, as a number that the compiler knows to be uniform.
#pragma once
#include "types.cuh"

// The calling warp's number in its block, by a whole warp. A shuffle tells the compiler that all lanes have
// the same: a branch on it does not diverge, so what the branch computes alike in all lanes (descriptors of
// wgmma, addresses of mbarriers) stays in uniform registers. After a branch on threadIdx.x it would be moved
// there before each wgmma.
DEVICE u32 uniform_warp_index() { return __shfl_sync(FULL_WARP, threadIdx.x / 32, 0); }
