// Rows of a step by sequence, for kernels with a recurrent state: the blocks (or threads) of the first row of
// a sequence walk over all its rows in their order.
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

    // `row`, if it is the first one of its sequence. Rows of a sequence mostly follow each other, so the
    // search goes backward. Without sequences the grid has one row (`starts` in recurrent.rs), so row is 0.
    DEVICE u32 first(u32 row) const {
        if (!sequences) return row;
        const u32 number = sequences[row];
        if (number == NO_STATE) return NO_ROW;
        if (number >= n_seqs) {
            report(fault, FAULT_SEQUENCE, row, number, n_seqs);
            return NO_ROW;
        }
        for (u32 earlier = row; earlier > 0; earlier--) {
            if (sequences[earlier - 1] == number) return NO_ROW;
        }
        return row;
    }

    // The next row of the same sequence.
    DEVICE u32 next(u32 row) const {
        if (!sequences) return row + 1 < m ? row + 1 : NO_ROW;
        const u32 number = sequences[row];
        for (u32 later = row + 1; later < m; later++) {
            if (sequences[later] == number) return later;
        }
        return NO_ROW;
    }
};
#include "layout/sequence_walk.cuh"
