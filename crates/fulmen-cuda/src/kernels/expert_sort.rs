//! Pairs of a row and one of its experts, grouped by expert (`expert_sort.cuh`).

use crate::layout::{DevicePtr, kernel_args};

/// Threads of the block that sorts.
pub(super) const SORT_THREADS: u32 = 1024;
const MAX_EXPERTS: u32 = fulmen_core::MAX_EXPERTS;

// The sort has one thread per expert.
const _: () = assert!(MAX_EXPERTS <= SORT_THREADS);

kernel_args! {
    file: "expert_sort.cuh";
    constants: [SORT_THREADS, MAX_EXPERTS];

    pub(super) struct ExpertTile {
        expert: u32,
        first: u32,
        pairs: u32,
        unused: u32,
    }

    pub(super) struct ExpertSortArgs {
        pub(super) ids: DevicePtr,
        pub(super) order: DevicePtr,
        pub(super) tiles: DevicePtr,
        pub(super) fault: DevicePtr,
        pub(super) pairs: u32,
        pub(super) top_k: u32,
        pub(super) n_experts: u32,
        pub(super) max_tiles: u32,
        pub(super) tile_pairs: u32,
        pub(super) unused: u32,
    }
}

/// Tiles of up to `tile_pairs` pairs of one expert, for the worst routing.
pub(super) fn max_tiles(pairs: usize, n_experts: u32, tile_pairs: u32) -> usize {
    pairs / tile_pairs as usize + pairs.min(n_experts as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_tiles_for_every_routing() {
        for tile in [8, 16, 64] {
            for (pairs, n_experts) in [(1, 1), (1, 8), (8, 128), (64, 2), (65, 2), (4096, 128), (16_384, 128)]
            {
                let experts = n_experts as usize;
                // All pairs have one expert, or every other expert has a last tile of one pair.
                let last = pairs.min(experts) - 1;
                let worst = (pairs - last).div_ceil(tile as usize) + last;
                for tiles in [pairs.div_ceil(tile as usize), worst] {
                    assert!(tiles <= max_tiles(pairs, n_experts, tile), "{pairs} {n_experts} {tile}");
                }
            }
        }
    }
}
