// Chunks of rows of one sequence, for kernels with a recurrent state. A range is consecutive rows of one
// sequence; its chunks have CHUNK_ROWS rows, the last one as many as are left. sequence_chunk_list.cu
// finds the ranges of a step.
#pragma once
#include "sequence_walk.cuh"

constexpr u32 CHUNK_ROWS = 64;
constexpr u32 MIN_RANGE = 32;  // the fewest rows of a range that is divided into chunks

struct RowRange {
    u32 first, rows;  // no rows: the range is not divided
    u32 first_chunk, sequence;
};

struct RowChunk {
    u32 first, rows, range;
};

// The ranges of a step and their chunks, or the chunks of one sequence, whose state has slot 0. Mirrored by
// `SequenceChunks` in src/kernels/sequence_chunks.rs.
struct SequenceChunks {
    u32* counts;    // chunks, ranges; null for one sequence
    uint4* ranges;  // first row, rows, first chunk, sequence
    uint4* chunks;  // first row, rows, range, 0
    u32* walked;    // their number, and rows at which a walk over all others begins
    u32 m;
    u32 unused;

    DEVICE u32 n_chunks() const { return counts ? __ldcg(counts) : (m + CHUNK_ROWS - 1) / CHUNK_ROWS; }
    DEVICE u32 n_ranges() const { return counts ? __ldcg(counts + 1) : 1; }

    DEVICE RowRange range(u32 index) const {
        if (!counts) return {0, m, 0, 0};
        const uint4 range = __ldcg(ranges + index);
        return {range.x, range.y, range.z, range.w};
    }
    DEVICE RowChunk chunk(u32 index) const {
        if (!counts) return {index * CHUNK_ROWS, min(CHUNK_ROWS, m - index * CHUNK_ROWS), 0};
        const uint4 chunk = __ldcg(chunks + index);
        return {chunk.x, chunk.y, chunk.z};
    }
};
#include "layout/sequence_chunks.cuh"
