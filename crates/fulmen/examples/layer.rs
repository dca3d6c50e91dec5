//! One transformer layer: recorded as a logical graph, fused, planned, and run for a few steps on the CPU.
//!
//! ```text
//! cargo run --release -p fulmen --example layer
//! ```

use std::time::Instant;

use fulmen::core::{CacheSpec, Tensor, quant};
use fulmen::prelude::*;

const HEADS: Heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 128 };
const HIDDEN: u32 = 2560;
const FFN: u32 = 9728;
const EPSILON: f32 = 1e-6;

/// Attention and feed-forward, as in the paper; the planner takes care of fusion.
fn record(b: &mut GraphBuilder, x: Tensor, positions: Tensor) -> Result<Tensor, BuildError> {
    let spec = RopeSpec::new(RopePairing::NeoX, HEADS.head_dim, 1e6);
    let rotation = Rotation { spec, positions, factors: None };
    // A sequence of 8 pages of 128 positions each.
    let table = b.page_table("pages", 1, 8)?;
    let cache = b.kv_cache("kv", CacheSpec { dtype: DType::F16, n_pages: 8, table, heads: HEADS })?;
    let norm = b.vector("attn_norm", HIDDEN)?;
    let wq = b.weight("attn_q", DType::Q4_K, HEADS.q_width(), HIDDEN)?;
    let wk = b.weight("attn_k", DType::Q4_K, HEADS.kv_width(), HIDDEN)?;
    let wv = b.weight("attn_v", DType::Q6_K, HEADS.kv_width(), HIDDEN)?;
    let wo = b.weight("attn_output", DType::Q4_K, HIDDEN, HEADS.q_width())?;

    let h = b.rms_norm(x, norm, EPSILON)?;
    let (q, k, v) = (b.mul_mat(h, wq)?, b.mul_mat(h, wk)?, b.mul_mat(h, wv)?);
    let (q, k) = (b.rope(q, HEADS.head_dim, rotation)?, b.rope(k, HEADS.head_dim, rotation)?);
    b.kv_store(k, v, cache, positions, None)?;
    let attended = b.cache_attention(q, cache, positions, None, (HEADS.head_dim as f32).sqrt().recip())?;
    let o = b.mul_mat(attended, wo)?;
    let x = b.add(x, o)?;

    let norm = b.vector("ffn_norm", HIDDEN)?;
    let gate = b.weight("ffn_gate", DType::Q4_K, FFN, HIDDEN)?;
    let up = b.weight("ffn_up", DType::Q4_K, FFN, HIDDEN)?;
    let down = b.weight("ffn_down", DType::Q6_K, HIDDEN, FFN)?;
    let h = b.rms_norm(x, norm, EPSILON)?;
    let (g, u) = (b.mul_mat(h, gate)?, b.mul_mat(h, up)?);
    let g = b.silu(g)?;
    let gated = b.mul(g, u)?;
    let d = b.mul_mat(gated, down)?;
    b.add(x, d)
}

/// Weights with a mean square of 1 / k, so that activations keep their scale.
fn weights(dtype: DType, rows: u32, k: u32) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut state = 1u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let scale = if rows == 1 { 0.0 } else { (3.0 / k as f32).sqrt() };
    let row: Vec<f32> = (0..k).map(|_| if rows == 1 { 1.0 } else { draw() * scale }).collect();
    // All rows are shifts of one row: quantizing 100 million numbers would take longer than the example.
    let row = quant::quantize_to_vec(dtype, &row)?;
    Ok(row.repeat(rows as usize))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = GraphBuilder::new();
    let positions = b.indices("positions", 1)?;
    let x = b.input("x", 1, HIDDEN)?;
    let y = record(&mut b, x, positions)?;
    b.output("y", y)?;
    let plan = b.finish().plan(&PlanOptions::default())?;
    println!("{}", plan.graph);

    let mut cpu = CpuDispatcher::new();
    let mut bindings = Bindings::new();
    let mut bytes = 0;
    for tensor in &plan.graph.tensors {
        use fulmen::core::Role;
        let name = tensor.name.as_deref().unwrap_or("");
        let ptr = match tensor.role {
            Role::Weight => {
                bytes += tensor.bytes()?;
                cpu.import(std::sync::Arc::new(weights(tensor.dtype, tensor.rows, tensor.width)?))?
            }
            Role::State => cpu.alloc(tensor.bytes()?)?,
            Role::Input | Role::Computed => continue,
        };
        bindings.set(name, ptr);
        if name == "pages" {
            let pages: Vec<u8> = (0u32..8).flat_map(u32::to_le_bytes).collect();
            cpu.write(ptr, &pages)?;
        }
    }
    let layer = plan.bind(&mut cpu, &bindings)?;
    layer.write_f32(&mut cpu, "x", &vec![0.5; HIDDEN as usize])?;

    let steps = 32u32;
    let start = Instant::now();
    for position in 0..steps {
        layer.write_u32(&mut cpu, "positions", &[position])?;
        layer.run(&mut cpu)?;
    }
    let seconds = start.elapsed().as_secs_f64() / f64::from(steps);
    let y = layer.read_f32(&mut cpu, "y")?;
    let threads = cpu.threads();
    println!("y[0..4] = {:?}", &y[..4]);
    println!(
        "{:.2} ms a layer and step on {threads} threads ({}): {:.1} GB/s of weights, arena {} KiB",
        seconds * 1e3,
        cpu.isa(),
        bytes as f64 / seconds / 1e9,
        plan.arena_bytes / 1024
    );
    Ok(())
}
