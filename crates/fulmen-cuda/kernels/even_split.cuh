// Work items split evenly over blocks, clusters or warps, and the integer division that it takes.
#pragma once

#include "types.cuh"

// Integer division, shorter than the integer sequence. Exact for dividends below 2^21 and divisors below
// 2^24: (dividend + 0.5) / divisor is at least 0.5 / divisor away from any integer, and the approximate
// division is off by 2 ulp, so by (dividend + 0.5) / divisor * 2^-22 at most.
DEVICE u32 quotient(u32 dividend, u32 divisor) {
    return (u32)__fdividef((float)dividend + 0.5f, (float)divisor);
}

// Items split evenly: the first `extra` ranges have `each` + 1 items, the others `each`.
struct EvenSplit {
    u32 each, extra;

    DEVICE u32 begin(u32 range) const { return range * each + min(range, extra); }
    // The range that an item belongs to.
    DEVICE u32 owner(u32 item) const {
        const u32 in_larger = extra * (each + 1);
        return item < in_larger ? quotient(item, each + 1) : extra + quotient(item - in_larger, each);
    }
};
#include "layout/even_split.cuh"
