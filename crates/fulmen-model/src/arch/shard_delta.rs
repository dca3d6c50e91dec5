//! How the delta nets of hybrid models are divided among ranks: by key head, with the value heads that read
//! it, their states and the channels of the convolution that lead to them.

use fulmen_core::{DeltaHeads, KeyHeadOrder};

use super::delta_net::DeltaNet;

/// What a rank has of a dimension of a tensor.
pub(super) struct DeltaRanges {
    /// 0 for columns, 1 for rows.
    pub(super) axis: usize,
    /// `(first, size)` of each part, which follow each other on the rank.
    pub(super) ranges: Vec<(usize, usize)>,
}

impl DeltaNet {
    /// The part of each rank.
    pub(super) fn of_ranks(self, ranks: u32) -> DeltaNet {
        let DeltaHeads { n_k_heads, n_v_heads, .. } = self.heads;
        let heads = DeltaHeads { n_k_heads: n_k_heads / ranks, n_v_heads: n_v_heads / ranks, ..self.heads };
        DeltaNet { heads, ..self }
    }

    /// What a rank has of the tensor with this name in a layer; `None` for tensors that every rank has, or
    /// that are none of a delta net.
    pub(super) fn ranges(&self, name: &str, (rank, ranks): (u32, u32)) -> Option<DeltaRanges> {
        let DeltaHeads { n_k_heads, n_v_heads, head_dim, order } = self.heads;
        let [rank, keys, values, width] = [rank, n_k_heads, n_v_heads, head_dim].map(|n| n as usize);
        let own = keys / ranks as usize;
        // The value heads of key heads `rank · own` and on.
        let of_values = |size: usize| -> Vec<(usize, usize)> {
            let group = values / keys;
            match order {
                KeyHeadOrder::Grouped => vec![(rank * own * group * size, own * group * size)],
                KeyHeadOrder::Tiled => {
                    (0..group).map(|at| ((at * keys + rank * own) * size, own * size)).collect()
                }
            }
        };
        let (axis, ranges) = match name {
            // Rows of q, k and v.
            "attn_qkv.weight" | "ssm_conv1d.weight" => {
                let of_keys = |first: usize| ((first + rank * own) * width, own * width);
                let behind = 2 * keys * width;
                let of_values = of_values(width).into_iter().map(|(first, size)| (behind + first, size));
                (1, [of_keys(0), of_keys(keys)].into_iter().chain(of_values).collect())
            }
            "attn_gate.weight" => (1, of_values(width)),
            "ssm_beta.weight" | "ssm_alpha.weight" => (1, of_values(1)),
            "ssm_dt.bias" | "ssm_a" => (0, of_values(1)),
            "ssm_out.weight" => (0, of_values(width)),
            _ => return None,
        };
        Some(DeltaRanges { axis, ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(order: KeyHeadOrder) -> DeltaNet {
        let heads = DeltaHeads { n_k_heads: 4, n_v_heads: 8, head_dim: 10, order };
        DeltaNet { heads, taps: 4, attention_interval: 2 }
    }

    /// The value heads that a rank has.
    fn values(order: KeyHeadOrder, rank: u32) -> Vec<usize> {
        let ranges = net(order).ranges("ssm_a", (rank, 2)).unwrap().ranges;
        ranges.into_iter().flat_map(|(first, size)| first..first + size).collect()
    }

    #[test]
    fn value_heads_are_with_their_key_heads() {
        assert_eq!(values(KeyHeadOrder::Grouped, 0), [0, 1, 2, 3]);
        assert_eq!(values(KeyHeadOrder::Grouped, 1), [4, 5, 6, 7]);
        assert_eq!(values(KeyHeadOrder::Tiled, 0), [0, 1, 4, 5]);
        assert_eq!(values(KeyHeadOrder::Tiled, 1), [2, 3, 6, 7]);
        for order in [KeyHeadOrder::Grouped, KeyHeadOrder::Tiled] {
            let (all, part) = (net(order).heads, net(order).of_ranks(2).heads);
            for rank in 0..2 {
                for (local, &head) in values(order, rank).iter().enumerate() {
                    let key = |heads: DeltaHeads, head: usize| match order {
                        KeyHeadOrder::Grouped => head as u32 / (heads.n_v_heads / heads.n_k_heads),
                        KeyHeadOrder::Tiled => head as u32 % heads.n_k_heads,
                    };
                    assert_eq!(key(all, head), 2 * rank + key(part, local), "{order:?} {head}");
                }
            }
        }
        let qkv = net(KeyHeadOrder::Tiled).ranges("attn_qkv.weight", (1, 2)).unwrap();
        assert_eq!(qkv.ranges, [(20, 20), (60, 20), (100, 20), (140, 20)]);
    }
}
