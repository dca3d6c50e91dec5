//! Decode of one row whose key and value are not in the cache yet: per-head norm, RoPE and KV store are
//! fused into the first launch of flash decoding (`fused_rope_store.wgsl`).

use fulmen_core::{DType, RopePairing};

use super::{AttentionShape, OP};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Role,
    bind::KernelBindings,
    kv::RopeStore,
    preprocess::{Value, values},
    rope::{check, sin_cos_values},
    workgroup::{WorkgroupOp, WorkgroupReduce},
};

/// Heads that a workgroup works on at once: up to four query heads, the key and the value.
const TEAMS: u32 = 8;

/// What is fused in front of attention.
pub(super) struct FusedRopeStore<'a> {
    pub(super) spec: &'a RopeStore,
    /// The rotated queries are an output, too.
    pub(super) keep_queries: bool,
}

impl FusedRopeStore<'_> {
    /// Whether a workgroup of `threads` threads can do it for `heads` query heads.
    pub(super) fn fits(&self, shape: &AttentionShape, heads: u32, threads: u32) -> Result<bool, KernelError> {
        let RopeStore { store, rope, .. } = self.spec;
        check(OP, rope, shape.heads.head_dim)?;
        Ok(shape.m == 1
            && matches!(store.cache.dtype, DType::F16 | DType::F32)
            && shape.heads.head_dim.is_multiple_of(4)
            && shape.heads.head_dim <= 128
            && heads == shape.group
            && heads + 2 <= TEAMS
            && threads >= 8 * TEAMS)
    }

    /// Binds queries, keys and values: the row's and the cache's.
    pub(super) fn bind(
        &self,
        shape: &AttentionShape,
        bind: &mut KernelBindings<'_>,
    ) -> Result<(), KernelError> {
        let RopeStore { store, rope, factors, q_norm, k_norm, .. } = *self.spec;
        let element = if store.cache.dtype == DType::F32 { "vec4<f32>" } else { "vec2<u32>" };
        let head = u64::from(shape.heads.head_dim) * 4;
        let row = head * u64::from(shape.heads.n_kv_heads);
        bind.read("q", Role::Input(0), "f32", shape.q_bytes)?;
        bind.write("k", Role::Output(3), element, shape.kv_bytes)?;
        bind.write("v", Role::Output(4), element, shape.kv_bytes)?;
        bind.read("k_new", Role::Input(5), "f32", row)?;
        bind.read("v_new", Role::Input(6), "f32", row)?;
        if q_norm {
            bind.read("q_gamma", Role::Input(7), "f32", head)?;
        }
        if k_norm {
            bind.read("k_gamma", Role::Input(8), "f32", head)?;
        }
        if factors && rope.n_rot > 0 {
            bind.read("factors", Role::Input(9), "f32", u64::from(rope.n_rot / 2) * 4)?;
        }
        if self.keep_queries {
            bind.write("rotated", Role::Scratch(1), "f32", shape.q_bytes)?;
        }
        Ok(())
    }

    /// The values that the fused part of the kernel takes.
    pub(super) fn values(&self, threads: u32, caps: &Caps) -> Vec<(&'static str, Value)> {
        let RopeStore { rope, factors, q_norm, k_norm, .. } = *self.spec;
        let rope_team = threads / TEAMS;
        let ops: &[WorkgroupOp] = if q_norm || k_norm { &[WorkgroupOp::Sum] } else { &[] };
        let mut values = WorkgroupReduce::new(ops, threads, rope_team, caps).values().to_vec();
        values.extend(sin_cos_values(&rope, factors));
        values.extend(values![
            q_norm,
            k_norm,
            rope_team,
            keep_queries: self.keep_queries,
            neox: rope.pairing == RopePairing::NeoX,
            pairs: rope.n_rot / 2,
        ]);
        values
    }
}
