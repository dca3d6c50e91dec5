// Lists the chunks of rows of one sequence (sequence_chunks.cuh) among the rows of a step, and the rows at
// which kernels that walk row by row begin (sequence_walk.cuh). Launched by src/kernels/sequence_chunks.rs
// for causal_conv.cu, gated_delta_rule.cu and gated_delta_chunks.cu.
//
// A range is divided into chunks if it has MIN_RANGE rows or more and all rows of its sequence are in it.
// Every other row is walked: a sequence is one or the other, so that nothing orders the two kinds of kernels.
// The composition of a step is in device memory, so one captured program serves all of them.
//
// Algorithm. One block of THREADS threads. Rows are in groups of 32, with a bit for each row:
//   1. a warp for each group: which rows are the last of their range, and which are walked: inactive rows and
//      the first rows of ranges
//   2. warp 0, a lane for each group: from the last end before the group to its first end is the only range
//      of MIN_RANGE rows or more that ends in the group. A maximum over the lanes before gives the former
//   3. a warp for each such range: whether another row has its sequence; if none has, its first row is not
//      walked
//   4. warp 0: sums of the chunks of the ranges before; warp 1: of the walked rows of the groups before
//   5. writes both lists
//
// Layouts: sequences [m]; the lists as in sequence_chunks.cuh; shared: two words for each group.
// Preconditions: m at most MAX_ROWS; lists for m / MIN_RANGE ranges and as many chunks (a range of MIN_RANGE
// rows or more has at most a chunk for every MIN_RANGE of them), and m walked rows.
// Bound: latency, about 3 us for 2048 rows by estimate. Not measured.
#include "sequence_chunks.cuh"

constexpr u32 THREADS = 1024, WARPS = THREADS / 32, MAX_ROWS = 32768, MAX_GROUPS = MAX_ROWS / 32;

// Mirrored by `ChunkListArgs` in src/kernels/sequence_chunks.rs.
struct ChunkListArgs {
    StateRows rows;
    SequenceChunks to;
};
#include "layout/sequence_chunk_list.cuh"

// The sum over the lanes before this one.
DEVICE u32 sum_before(u32 value) {
    u32 sum = value;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, sum, step);
        if (threadIdx.x % 32 >= step) sum += other;
    }
    return sum - value;
}

// The largest value of the lanes before this one and of `before`.
DEVICE u32 max_before(u32 value, u32 before) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, value, step);
        if (lane >= step) value = max(value, other);
    }
    const u32 other = __shfl_up_sync(FULL_WARP, value, 1);
    return lane > 0 ? max(before, other) : before;
}

// Step 1.
DEVICE void mark(const StateRows& rows, u32 groups, u32* ends, u32* walks) {
    const u32 lane = threadIdx.x % 32;
    for (u32 group = threadIdx.x / 32; group < groups; group += WARPS) {
        const u32 row = 32 * group + lane;
        bool ends_here = false, is_walked = false;
        if (row < rows.m) {
            const u32 number = rows.sequences[row];
            ends_here = row + 1 == rows.m || rows.sequences[row + 1] != number;
            is_walked = number == NO_STATE || row == 0 || rows.sequences[row - 1] != number;
        }
        const u32 end_bits = __ballot_sync(FULL_WARP, ends_here);
        const u32 walk_bits = __ballot_sync(FULL_WARP, is_walked);
        if (lane == 0) ends[group] = end_bits, walks[group] = walk_bits;
    }
}

// Step 2, by one warp. Returns the number of ranges.
DEVICE u32 list_ranges(const ChunkListArgs& args, u32 groups, const u32* ends) {
    const u32 lane = threadIdx.x % 32;
    u32 count = 0, open = 0;  // `open`: the first row of the range that the groups before leave open
    for (u32 first = 0; first < groups; first += 32) {
        const u32 group = first + lane, bits = group < groups ? ends[group] : 0;
        const u32 behind = bits ? 32 * group + 32 - __clz(bits) : 0;
        const u32 start = max_before(behind, open);
        bool is_long = false;
        u32 rows = 0, number = 0;
        if (bits) {
            const u32 end = 32 * group + __ffs(bits) - 1;
            rows = end + 1 - start;
            number = args.rows.sequences[end];
            is_long = rows >= MIN_RANGE && number < args.rows.n_seqs;
        }
        const u32 all = __ballot_sync(FULL_WARP, is_long);
        const u32 index = count + __popc(all & ((1u << lane) - 1));
        if (is_long) args.to.ranges[index] = make_uint4(start, rows, 0, number);
        count += __popc(all);
        open = max(open, __reduce_max_sync(FULL_WARP, behind));
    }
    return count;
}

// Step 3: ranges whose sequence has other rows are not divided, so they have no rows here.
DEVICE void check_ranges(const ChunkListArgs& args, u32 count, u32* walks) {
    const u32 lane = threadIdx.x % 32;
    for (u32 index = threadIdx.x / 32; index < count; index += WARPS) {
        const uint4 range = args.to.ranges[index];
        bool alone = true;
#pragma unroll 4
        for (u32 row = lane; row < args.rows.m; row += 32) {
            if (row - range.x >= range.y && args.rows.sequences[row] == range.w) alone = false;
        }
        alone = __all_sync(FULL_WARP, alone);
        if (lane > 0) continue;
        if (alone)
            atomicAnd(walks + range.x / 32, ~(1u << range.x % 32));
        else
            args.to.ranges[index].y = 0;
    }
}

// Step 4, by one warp. Returns the number of chunks.
DEVICE u32 number_chunks(const ChunkListArgs& args, u32 count) {
    u32 total = 0;
    for (u32 first = 0; first < count; first += 32) {
        const u32 index = first + threadIdx.x % 32;
        const u32 chunks = index < count ? (args.to.ranges[index].y + CHUNK_ROWS - 1) / CHUNK_ROWS : 0;
        const u32 before = total + sum_before(chunks);
        if (index < count) args.to.ranges[index].z = before;
        total += __reduce_add_sync(FULL_WARP, chunks);
    }
    return total;
}

// Step 4, by one warp: for each group, the walked rows of the groups before. Returns the number of all.
DEVICE u32 number_walks(u32 groups, const u32* walks, u32* offsets) {
    u32 total = 0;
    for (u32 first = 0; first < groups; first += 32) {
        const u32 group = first + threadIdx.x % 32;
        const u32 rows = group < groups ? __popc(walks[group]) : 0;
        const u32 before = total + sum_before(rows);
        if (group < groups) offsets[group] = before;
        total += __reduce_add_sync(FULL_WARP, rows);
    }
    return total;
}

// Step 5.
DEVICE void write_lists(const ChunkListArgs& args, u32 groups, u32 count, const u32* walks,
                        const u32* offsets) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 group = warp; group < groups; group += WARPS) {
        const u32 bits = walks[group], index = offsets[group] + __popc(bits & ((1u << lane) - 1));
        if (bits >> lane & 1) args.to.walked[1 + index] = 32 * group + lane;
    }
    for (u32 index = warp; index < count; index += WARPS) {
        const uint4 range = args.to.ranges[index];
        for (u32 row = lane * CHUNK_ROWS; row < range.y; row += 32 * CHUNK_ROWS) {
            args.to.chunks[range.z + row / CHUNK_ROWS] =
                make_uint4(range.x + row, min(CHUNK_ROWS, range.y - row), index, 0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sequence_chunk_list(const __grid_constant__ ChunkListArgs args) {
    __shared__ u32 ends[MAX_GROUPS], walks[MAX_GROUPS], n_ranges;
    pdl_begin();
    const u32 groups = (args.rows.m + 31) / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    mark(args.rows, groups, ends, walks);
    __syncthreads();
    if (warp == 0) {
        const u32 count = list_ranges(args, groups, ends);
        if (lane == 0) n_ranges = count;
    }
    __syncthreads();
    const u32 count = n_ranges;
    check_ranges(args, count, walks);
    __syncthreads();
    if (warp == 0) {
        const u32 chunks = number_chunks(args, count);
        if (lane == 0) args.to.counts[0] = chunks, args.to.counts[1] = count;
    } else if (warp == 1) {
        // Ends are no longer needed.
        const u32 walked = number_walks(groups, walks, ends);
        if (lane == 0) args.to.walked[0] = walked;
    }
    __syncthreads();
    write_lists(args, groups, count, walks, ends);
}
