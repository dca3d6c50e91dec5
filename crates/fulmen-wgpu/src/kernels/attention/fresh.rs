//! One row over a cache that does not hold its key and value yet: norm per head, rotation and store come first, in the
//! launch that makes the parts.
//!
//! Every workgroup turns the query heads that it takes. The one whose part ends with the newest position stores key and value
//! there, and then reads them with the rest. Turned queries go to scratch memory, because others may still read the
//! queries where they belong; the second launch brings them there.

use fulmen_core::DType;

use super::{OP, Shape};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Role,
    bind::Bind,
    group::Group,
    kv::RopeStore,
    rope::{check, first_and_second, turn_text},
    template::expand,
};

/// Heads that a workgroup works on at once: up to four of queries, the key and the value.
const TEAMS: u32 = 8;

/// What is done before the parts are made.
pub(super) struct Fresh<'a> {
    pub(super) spec: &'a RopeStore,
    /// Somebody reads the turned queries.
    pub(super) turned: bool,
}

impl Fresh<'_> {
    /// Whether a workgroup of so many threads can do it for `heads` query heads.
    pub(super) fn fits(&self, shape: &Shape, heads: u32, threads: u32) -> Result<bool, KernelError> {
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

    /// Binds queries, keys and values, those of the row and those of the cache.
    pub(super) fn bind(&self, shape: &Shape, bind: &mut Bind<'_>) -> Result<(), KernelError> {
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
        if self.turned {
            bind.write("turned", Role::Scratch(2), "f32", shape.q_bytes)?;
        }
        Ok(())
    }

    /// The functions that the text of [`before`](Fresh::before) calls, and `turned_query(head, unit)`.
    pub(super) fn functions(&self, shape: &Shape, heads: u32, threads: u32, caps: &Caps) -> String {
        let RopeStore { store, rope, factors, q_norm, k_norm, .. } = self.spec;
        let d = shape.heads.head_dim;
        let names: &[&str] = if *q_norm || *k_norm { &["group_sum"] } else { &[] };
        let mut text = Group::new(names, threads, threads / TEAMS, caps).functions;
        text += &turn_text(rope, *factors);
        text += &format!(
            "var<workgroup> fresh: array<f32, {}>;\n\
             fn fresh4(at: u32) -> vec4<f32> {{\n    \
             return vec4<f32>(fresh[at], fresh[at + 1u], fresh[at + 2u], fresh[at + 3u]);\n}}\n\
             fn turned_query(head: u32, unit: u32) -> vec4<f32> {{ return fresh4(head * {d}u + unit * 4u); }}\n",
            (heads + 2) * d
        );
        text + &match store.cache.dtype {
            DType::F32 => "fn encoded(v: vec4<f32>) -> vec4<f32> { return v; }\n".to_owned(),
            _ => format!(
                "{}fn encoded(v: vec4<f32>) -> vec2<u32> {{\n    return vec2<u32>(\
                 half_bits(v.x) | (half_bits(v.y) << 16u), half_bits(v.z) | (half_bits(v.w) << 16u));\n}}\n",
                include_str!("../kv/half.wgsl")
            ),
        }
    }

    /// The text that comes before the queries are loaded.
    pub(super) fn before(&self, shape: &Shape, heads: u32, threads: u32) -> String {
        let RopeStore { rope, q_norm, k_norm, .. } = self.spec;
        let d = shape.heads.head_dim;
        let gain = |with: bool, name: &str| match with {
            true => format!("factor * {name}[d]"),
            false => "1.0".to_owned(),
        };
        let norm = match *q_norm || *k_norm {
            false => String::new(),
            true => expand(
                include_str!("fresh_norm.wgsl"),
                &[
                    ("q_gain", &gain(*q_norm, "q_gamma")),
                    ("k_gain", &gain(*k_norm, "k_gamma")),
                    ("heads", &heads.to_string()),
                    ("head_dim", &d.to_string()),
                    ("team", &(threads / TEAMS).to_string()),
                ],
            ),
        };
        let (first, second) = first_and_second(rope, "i");
        let keep = match self.turned {
            true => format!(
                "    if (chunk == 0u) {{\n        for (var i = thread; i < {}u; i += {threads}u) {{\n            \
                 turned[first_head * {d}u + i] = fresh[i];\n        }}\n    }}\n",
                heads * d
            ),
            false => String::new(),
        };
        expand(
            include_str!("fresh.wgsl"),
            &[
                ("norm", &norm),
                ("first", &first),
                ("second", &second),
                ("keep", &keep),
                ("pairs", &(rope.n_rot / 2).to_string()),
                ("value", &(heads + 1).to_string()),
                ("heads", &heads.to_string()),
                ("head_dim", &d.to_string()),
                ("units", &(d / 4).to_string()),
                ("team", &(threads / TEAMS).to_string()),
                ("threads", &threads.to_string()),
            ],
        )
    }
}
