// Rows of a step by sequence, for kernels with a recurrent state: the blocks (or threads) of the first row of
// a sequence walk over all its rows in their order. Whole warps search for rows.
#pragma once
#include "common.cuh"

constexpr u32 NO_ROW = 0xFFFFFFFFu;
constexpr u32 NO_STATE = 0xFFFFFFFFu;  // the sequence number of an inactive row, whose output is 0

// Positions and sequence numbers of the rows, and the slots of their states. Mirrored by `StateRows` in
// src/kernels/recurrent.rs.
struct StateRows {
    const u32* positions;  // [m]
    const u32* sequences;  // [m] or null: all 0
    Fault* fault;
    u32 m;
    u32 n_seqs;

    DEVICE u32 sequence(u32 row) const { return sequences ? sequences[row] : 0; }

    DEVICE bool inactive(u32 row) const { return sequence(row) == NO_STATE; }

    // `row`, if it is the first one of its sequence. Called by whole warps, with the same row in all lanes.
    // Without sequences the grid has one row (`starts` in recurrent.rs), so row is 0.
    DEVICE u32 first(u32 row) const {
        if (!sequences) return row;
        const u32 number = sequences[row];
        if (number == NO_STATE) return NO_ROW;
        if (number >= n_seqs) {
            report(fault, FAULT_SEQUENCE, row, number, n_seqs);
            return NO_ROW;
        }
        for (u32 from = 0; from < row; from += SEARCHED) {
            if (search(number, from, row) != NO_ROW) return NO_ROW;
        }
        return row;
    }

    // The next row of the same sequence. Called by whole warps, with the same row in all lanes.
    DEVICE u32 next(u32 row) const {
        if (!sequences) return row + 1 < m ? row + 1 : NO_ROW;
        const u32 number = sequences[row];
        for (u32 from = row + 1; from < m; from += SEARCHED) {
            const u32 found = search(number, from, m);
            if (found != NO_ROW) return found;
        }
        return NO_ROW;
    }

  private:
    static constexpr u32 SEARCHED = 128;  // rows at once, four of each lane

    // The first of SEARCHED rows from `from` on, below `end`, that is of sequence `number`.
    DEVICE u32 search(u32 number, u32 from, u32 end) const {
        u32 found = NO_ROW;
#pragma unroll
        for (u32 i = SEARCHED / 32; i-- > 0;) {
            const u32 row = from + 32 * i + threadIdx.x % 32;
            if (row < end && sequences[row] == number) found = row;
        }
        return __reduce_min_sync(FULL_WARP, found);
    }
};

// The rows at which blocks begin to walk: a list (sequence_chunk_list.cu), of which the second grid dimension
// takes every gridDim.y-th element, or else a row for each block of that dimension.
struct WalkStarts {
    const u32* list;  // their number, then the rows; or null

    DEVICE u32 count() const { return list ? __ldcg(list) : gridDim.y; }
    DEVICE u32 row(u32 index) const { return list ? __ldcg(list + 1 + index) : index; }
};
#include "layout/sequence_walk.cuh"
