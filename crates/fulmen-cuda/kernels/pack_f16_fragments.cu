// targets: 90
// Packs f32 activations as f16 after an optional RMS norm: as MMA B-fragments (f16_fragments.cuh), the
// activation operand of the small-M GEMM where no previous kernel has forwarded it, or as panels
// (f16_panels.cuh), that of the mixed-input GEMM. Launched by src/kernels/pack_f16_fragments.rs.
//
// - Algorithm: pack_row.cuh; rows are read from memory, the second time from L2.
// - Grid: one block per row, for fragments padding rows included; up to 1024 threads (`threads` in
//   pack_f16_fragments.rs), four columns per thread and step. The four lanes of a quad store the sum of their
//   K slice with the fragments.
// - Layouts: x [m, k] f32; out as in f16_fragments.cuh (8, 16 or 32 padded rows) or f16_panels.cuh;
//   row_scales [rows] f32; normed [m, k] f32.
// - Preconditions: `x`, `gamma` and `normed` are 16-byte aligned, k is a multiple of 4.
// - Bound: latency; 4 to 5 us alone on an H200 for 16 rows. Most launches are avoided by forwarding
//   (forwarding.cuh) and by the reduction of the mixed-input GEMM.
// - PDL: gamma is prefetched into L2 before `pdl_wait`, everything else is read after it.
#include "pack_row.cuh"
#include "ptx/tma.cuh"

struct PackF16FragmentsArgs {
    const float* x;  // [m, k]
    PackRowArgs row;
    u32 k;
    u32 m;  // rows of x; further rows become zeros
};
#include "layout/pack_f16_fragments.cuh"

constexpr int HELD = 4;

// Where four elements of a row go.
template <int ROWS>
struct Fragments {
    static DEVICE void store(const PackRowArgs& args, u32 row, u32 at, float4 v) {
        const PackedF16x4 packed(v);
#pragma unroll
        for (int order = 0; order < K_ORDERS; order++)
            if (args.packed[order])
                store_fragment_x4(args.packed[order], order, ROWS, row, at, packed.values, packed.slice_sum);
    }
};

// A row in memory.
struct RowInMemory {
    const float* x;
    DEVICE float4 first(u32 at) const { return ldcg4(x + at); }
    DEVICE float4 again(u32 at) const { return ldcg4(x + at); }
};

template <class Layout>
DEVICE void pack(const PackF16FragmentsArgs& args) {
    const u32 row = blockIdx.y;
    pdl_launch_dependents();
    // The weights that were streamed since its last use have evicted gamma from L2.
    if (args.row.gamma && threadIdx.x == 0 && row < 2)
        cp_async_bulk_prefetch_l2_covering(args.row.gamma, args.k * 4);
    pdl_wait();
    RowInMemory source{args.x + (u64)row * args.k};
    pack_row<Layout, HELD>(args.row, source, row, row < args.m ? args.k : 0, args.k);
}

#define ENTRY(NAME, ...)                                          \
    extern "C" __global__ void __launch_bounds__(1024)            \
        NAME(const __grid_constant__ PackF16FragmentsArgs args) { \
        pack<__VA_ARGS__>(args);                                  \
    }
ENTRY(pack_f16_fragments_rows8, Fragments<8>)
ENTRY(pack_f16_fragments_rows16, Fragments<16>)
ENTRY(pack_f16_fragments_rows32, Fragments<32>)
ENTRY(pack_f16_panels, Panels)
