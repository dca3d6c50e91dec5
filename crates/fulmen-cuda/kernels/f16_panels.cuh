// f16 activations packed as wgmma panels: the activation operand of the mixed-input GEMM
// (gemm_mixed_input.cu). Not the panels of gemm_panels.cuh: columns are permuted per weight format.
//
// x [m, k] is padded to N rows and to K chunks of 256 columns. A chunk is 16 k-steps of 16 columns for wgmma;
// eight of them are a stage of the GEMM's pipeline. A stage is two panels of four k-steps, K-major with the
// 128-byte swizzle, so that one TMA bulk copy loads it into shared memory as wgmma wants it:
//
//     chunk (2 stages of 256 * N bytes)
//     +-----------------------------+-----------------------------+---------+
//     | panel 0: k-steps 0 to 3     | panel 1: k-steps 4 to 7     | stage 1 |
//     +-----------------------------+-----------------------------+---------+
//     panel: N rows of 128 bytes; the 16-byte vector v of row r is at vector v ^ (r % 8)
//     k-step i of a panel: vectors 2 i and 2 i + 1, 16 f16
//
// The order of columns within K is free as long as weights and activations agree. A k-step has four columns
// of each thread t of a quad, those that the thread dequantizes for its A-fragment (f16_fragments.cuh has the
// same slices): elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the k-step are columns c, c + 2, c + 1, c + 3.
// K-steps lie in the order in which the weight format dequantizes them (PanelOrder), so that a stage is used
// up before the next one is needed.
#pragma once

#include "f16_fragments.cuh"

// Which k-step of a chunk (slice of the thread times 4, plus its word) is the u-th in memory.
enum PanelOrder { PANEL_Q4_K, PANEL_Q4_0, PANEL_Q6_K, PANEL_Q8_0, PANEL_ORDERS };
#include "layout/f16_panels.cuh"

constexpr u32 panel_k_step(u32 order, u32 u) {
    const u32 stage = u / 8, i = u % 8;
    return order == PANEL_Q4_K   ? stage * 4 + i % 2 * 8 + i / 2
           : order == PANEL_Q4_0 ? stage * 8 + i % 2 * 4 + i / 2
           : order == PANEL_Q6_K ? stage * 2 + i % 4 * 4 + i / 4
                                 : u;
}

// The inverse of `panel_k_step`.
constexpr u32 panel_position(u32 order, u32 k_step) {
    return order == PANEL_Q4_K   ? k_step / 4 % 2 * 8 + k_step % 4 * 2 + k_step / 8
           : order == PANEL_Q4_0 ? k_step / 8 * 8 + k_step % 4 * 2 + k_step / 4 % 2
           : order == PANEL_Q6_K ? k_step / 2 % 2 * 8 + k_step % 2 * 4 + k_step / 4
                                 : k_step;
}

constexpr bool panel_orders_are_permutations() {
    for (u32 order = 0; order < PANEL_ORDERS; order++)
        for (u32 u = 0; u < 16; u++)
            if (panel_position(order, panel_k_step(order, u)) != u) return false;
    return true;
}
static_assert(panel_orders_are_permutations());

// The slices of a thread: K_ORDER of the small-M formats.
constexpr u32 panel_slices(u32 order) {
    return order == PANEL_Q6_K || order == PANEL_Q8_0 ? K_INTERLEAVED : K_CONTIGUOUS;
}

// Stores columns `at` to `at + 3` of a row, given as the pairs (0, 2) and (1, 3).
DEVICE void store_panel_x4(u8* panels, u32 order, u32 rows, u32 row, u32 at, uint2 values) {
    const FragmentPlace place(panel_slices(order), at % K_CHUNK);
    const u32 u = panel_position(order, place.k_step);
    u8* to = panels + (u64)(at / K_CHUNK) * (512 * rows) + (u / 4 * rows + row) * 128 + place.t * 4;
    const u32 vector = u % 4 * 2;
    *(u32*)(to + (vector ^ row % 8) * 16) = values.x;
    *(u32*)(to + ((vector + 1) ^ row % 8) * 16) = values.y;
}
