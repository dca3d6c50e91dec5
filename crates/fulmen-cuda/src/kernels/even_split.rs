//! Work items split evenly over blocks, clusters or warps (`even_split.cuh`).

use crate::layout::kernel_args;

kernel_args! {
    file: "even_split.cuh";

    /// Items split evenly: the first `extra` ranges have `each` + 1 items, the others `each`.
    #[derive(Debug, Default, PartialEq)]
    pub(super) struct EvenSplit {
        pub(super) each: u32,
        pub(super) extra: u32,
    }
}

/// Kernels divide the numbers of items exactly below this.
pub(super) const MAX_ITEMS: u64 = 1 << 21;

impl EvenSplit {
    pub(super) fn new(items: u32, ranges: u32) -> EvenSplit {
        EvenSplit { each: items / ranges.max(1), extra: items % ranges.max(1) }
    }
}
