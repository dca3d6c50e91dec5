//! Whole layers, small: the shapes of Qwen3, Llama and Qwen2 with their caches, for tests of fusion, memory
//! sharing and steps.

use std::sync::Arc;

use fulmen_core::{
    BuildError, CacheSpec, DType, ExecError, GraphBuilder, Heads, LogicalGraph, Problem, RopePairing,
    RopeSpec, Rotation,
};

use crate::draw::{Draw, Pools, normal};
use crate::reference::DataSet;

/// The variant of a transformer layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerKind {
    /// A name for messages.
    pub name: &'static str,
    /// A norm of each query and key head, as Qwen3 has it.
    pub head_norms: bool,
    /// Biases of Q, K and V, as Qwen2 has them.
    pub biases: bool,
    /// Frequency factors of RoPE, as Llama 3 has them.
    pub factors: bool,
    /// Which elements RoPE rotates together.
    pub pairing: RopePairing,
}

/// The kinds of layers that models have.
pub const LAYERS: [LayerKind; 3] = [
    LayerKind { name: "qwen3", head_norms: true, biases: false, factors: false, pairing: RopePairing::NeoX },
    LayerKind {
        name: "llama",
        head_norms: false,
        biases: false,
        factors: true,
        pairing: RopePairing::Interleaved,
    },
    LayerKind { name: "qwen2", head_norms: false, biases: true, factors: false, pairing: RopePairing::NeoX },
];

/// The sizes of a small model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// What the layers have.
    pub kind: LayerKind,
    /// How many there are.
    pub layers: u32,
    /// Rows of a run.
    pub m: u32,
    /// Type of the weights.
    pub weights: DType,
    /// Type of the cache.
    pub cache: DType,
    /// Sequences in the cache; with more than one the graph has an input `sequences`.
    pub n_seqs: u32,
}

/// Columns of a hidden row.
pub const HIDDEN: u32 = 256;
const INNER: u32 = 512;
const HEADS: Heads = Heads { n_heads: 6, n_kv_heads: 2, head_dim: 32 };
const EPSILON: f32 = 1e-6;

impl LayerSpec {
    /// The graph: from rows `x` to rows `y`.
    pub fn graph(&self) -> Result<LogicalGraph, BuildError> {
        let (kind, m, k) = (self.kind, self.m, HIDDEN);
        let mut b = GraphBuilder::new();
        let positions = b.indices("positions", m)?;
        let sequences = if self.n_seqs > 1 { Some(b.indices("sequences", m)?) } else { None };
        let factors = if kind.factors { Some(b.vector("factors", HEADS.head_dim / 2)?) } else { None };
        let spec = RopeSpec::new(kind.pairing, HEADS.head_dim, 10_000.0);
        let rotation = Rotation { spec, positions, factors };
        // One page for each sequence.
        let table = b.page_table("pages", self.n_seqs, 1)?;
        let mut x = b.input("x", m, HIDDEN)?;
        for layer in 0..self.layers {
            let mut weight = |name: &str, rows: u32, k: u32| {
                // 192 is no multiple of 256.
                let dtype = if (k as usize).is_multiple_of(self.weights.block_len()) {
                    self.weights
                } else {
                    DType::F32
                };
                b.weight(&format!("{layer}.{name}"), dtype, rows, k)
            };
            let (wq, wk) = (weight("q", HEADS.q_width(), k)?, weight("k", HEADS.kv_width(), k)?);
            let (wv, wo) = (weight("v", HEADS.kv_width(), k)?, weight("o", HIDDEN, HEADS.q_width())?);
            let (gate, up) = (weight("gate", INNER, k)?, weight("up", INNER, k)?);
            let down = weight("down", HIDDEN, INNER)?;
            let mut vector = |name: &str, len: u32| b.vector(&format!("{layer}.{name}"), len);
            let (norm, ffn_norm) = (vector("norm", HIDDEN)?, vector("ffn_norm", HIDDEN)?);
            let mut optional = |wanted: bool, name: &str, len: u32| {
                if wanted { vector(name, len).map(Some) } else { Ok(None) }
            };
            let q_norm = optional(kind.head_norms, "q_norm", HEADS.head_dim)?;
            let k_norm = optional(kind.head_norms, "k_norm", HEADS.head_dim)?;
            let bq = optional(kind.biases, "q_bias", HEADS.q_width())?;
            let bk = optional(kind.biases, "k_bias", HEADS.kv_width())?;
            let bv = optional(kind.biases, "v_bias", HEADS.kv_width())?;
            let cache = CacheSpec { dtype: self.cache, n_pages: self.n_seqs + 1, table, heads: HEADS };
            let cache = b.kv_cache(&format!("{layer}.kv"), cache)?;

            let h = b.rms_norm(x, norm, EPSILON)?;
            let mut q = b.linear(h, wq, bq, None)?;
            let mut k = b.linear(h, wk, bk, None)?;
            let v = b.linear(h, wv, bv, None)?;
            if let (Some(q_norm), Some(k_norm)) = (q_norm, k_norm) {
                q = b.rms_norm(q, q_norm, EPSILON)?;
                k = b.rms_norm(k, k_norm, EPSILON)?;
            }
            let q = b.rope(q, HEADS.head_dim, rotation)?;
            let k = b.rope(k, HEADS.head_dim, rotation)?;
            b.kv_store(k, v, cache, positions, sequences)?;
            let scale = 1.0 / (HEADS.head_dim as f32).sqrt();
            let attended = b.cache_attention(q, cache, positions, sequences, scale)?;
            let o = b.mul_mat(attended, wo)?;
            x = b.add(x, o)?;
            let h = b.rms_norm(x, ffn_norm, EPSILON)?;
            let (g, u) = (b.mul_mat(h, gate)?, b.mul_mat(h, up)?);
            let g = b.silu(g)?;
            let f = b.mul(g, u)?;
            let d = b.mul_mat(f, down)?;
            x = b.add(x, d)?;
        }
        b.output("y", x)?;
        Ok(b.finish())
    }

    /// The distributions of the weights of `graph`: matmuls keep the scale of their inputs.
    pub fn draws(&self, graph: &LogicalGraph) -> Vec<(String, Draw)> {
        let mut draws = Vec::new();
        for tensor in &graph.tensors {
            let Some(name) = tensor.name.as_deref() else { continue };
            let draw = match name.rsplit('.').next() {
                Some("norm" | "ffn_norm" | "q_norm" | "k_norm") => Draw::GAIN,
                Some("factors") => Draw::Normal(2.0, 0.2),
                Some("q" | "k" | "v" | "o" | "gate" | "up" | "down")
                    if tensor.rows > 1 && !name.contains("kv.") =>
                {
                    Draw::Normal(0.0, 1.0 / (tensor.width as f32).sqrt())
                }
                _ => continue,
            };
            draws.push((name.to_owned(), draw));
        }
        draws
    }

    /// Random weights and an empty cache (zeros, which no row may see before it is written).
    pub fn data(&self, seed: u64) -> Result<DataSet, ExecError> {
        let graph = self.graph()?;
        let mut draws = self.draws(&graph);
        for name in ["positions", "sequences"] {
            if graph.find(name).is_some() {
                draws.push((name.to_owned(), Draw::Below(1)));
            }
        }
        let drawn = Pools::new(seed).draw_graph(self.kind.name, &graph, &draws);
        Ok(drawn.map_err(|e| BuildError { call: "data", problem: Problem::DType(e) })?)
    }

    /// The inputs of a step: the next rows of one sequence, or one sequence per row.
    pub fn inputs(&self, step: u32) -> Vec<(&'static str, Arc<Vec<u8>>)> {
        let x = ("x", hidden(self.m as usize, step));
        if self.n_seqs == 1 {
            return vec![x, ("positions", words((step * self.m..(step + 1) * self.m).collect()))];
        }
        let positions = words((0..self.m).map(|row| step + 2 * row).collect());
        vec![x, ("positions", positions), ("sequences", words((0..self.m).rev().collect()))]
    }
}

fn words(values: Vec<u32>) -> Arc<Vec<u8>> {
    Arc::new(bytemuck::cast_slice(&values).to_vec())
}

/// Rows of a step, the same for every way of running it.
pub fn hidden(rows: usize, step: u32) -> Arc<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(u64::from(step) + 99);
    Arc::new(bytemuck::cast_slice(&normal(&mut random, rows * HIDDEN as usize, 0.0, 1.0)).to_vec())
}
