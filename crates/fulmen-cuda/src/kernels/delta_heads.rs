//! The heads of a gated delta net (`delta_heads.cuh`).

use fulmen_core::KeyHeadOrder;

use crate::layout::kernel_args;

kernel_args! {
    file: "delta_heads.cuh";

    pub(super) struct DeltaHeads {
        n_k_heads: u32,
        n_v_heads: u32,
        head_dim: u32,
        key_head_modulo: u32,
    }
}

impl From<fulmen_core::DeltaHeads> for DeltaHeads {
    fn from(heads: fulmen_core::DeltaHeads) -> DeltaHeads {
        DeltaHeads {
            n_k_heads: heads.n_k_heads,
            n_v_heads: heads.n_v_heads,
            head_dim: heads.head_dim,
            key_head_modulo: (heads.order == KeyHeadOrder::Tiled).into(),
        }
    }
}
