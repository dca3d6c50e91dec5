//! Times the kernels of models in the shapes of Qwen3-4B and Llama-3.2-1B, some layers in one pass:
//! `cargo run --release -p fulmen-wgpu --example bench_model_kernels [FILTER]`.

use std::collections::HashMap;

use fulmen_core::{DType, Heads, RopePairing, RopeSpec, sampling::SampleState};
use fulmen_wgpu::{
    Dispatch, DispatchList, GpuBuffer, GpuDevice, GpuError, PipelineCache,
    kernels::{
        LaunchList, Role,
        argmax::argmax,
        attention::{Attention, AttentionKernel, KvInput, attention_by},
        kv::{Cache, KvStore, RopeStore, rope_store},
        sample::sample,
    },
};

/// Layers, each with buffers of its own, so that nothing is left in a cache.
const LAYERS: usize = 24;

struct Bench {
    gpu: GpuDevice,
    cache: PipelineCache,
    filter: String,
}

impl Bench {
    /// The time of one layer, in microseconds.
    fn time(
        &self,
        name: &str,
        plan: &LaunchList,
        data: &[(Role, &[u8])],
        work: [f64; 2],
    ) -> Result<(), GpuError> {
        if !name.contains(&self.filter) {
            return Ok(());
        }
        let data: HashMap<Role, &[u8]> = data.iter().copied().collect();
        let mut steps = Vec::new();
        for _ in 0..LAYERS {
            let mut sizes = HashMap::<Role, u64>::new();
            for part in plan.launches.iter().flat_map(|step| &step.bindings) {
                let size = sizes.entry(part.role).or_default();
                *size = (*size).max(part.offset + part.bytes);
            }
            let mut buffers = HashMap::<Role, GpuBuffer>::new();
            for (role, size) in sizes {
                let buffer = match data.get(&role) {
                    Some(bytes) => {
                        let mut bytes = bytes.to_vec();
                        bytes.resize(size as usize, 0);
                        self.gpu.create_buffer_with("bench", &bytes)?
                    }
                    None => self.gpu.create_buffer("bench", size)?,
                };
                buffers.insert(role, buffer);
            }
            for step in &plan.launches {
                let slices = step.bindings.iter();
                let bindings = slices.map(|b| buffers[&b.role].slice(b.offset..b.offset + b.bytes)).collect();
                steps.push(Dispatch {
                    pipeline: self.cache.get(&self.gpu, &step.launch.kernel)?,
                    bindings,
                    params: step.launch.params.clone(),
                    workgroups: step.launch.workgroups,
                    label: step.launch.kernel.label.to_string(),
                });
            }
        }
        let program = DispatchList::compile(&self.gpu, steps)?;
        let mut times = Vec::new();
        for _ in 0..9 {
            times.push(program.time_us()? / LAYERS as f64);
        }
        times.sort_by(f64::total_cmp);
        let us = times[times.len() / 2];
        let [bytes, flops] = work;
        println!(
            "{name:<44} {us:9.2} µs  {:7.0} GB/s  {:7.2} TFLOP/s  in {} launches",
            bytes / us / 1e3,
            flops / us / 1e6,
            plan.launches.len()
        );
        if std::env::var_os("STEPS").is_some() {
            let profile = program.profile()?;
            let n = plan.launches.len();
            for at in 0..n {
                let sum: f64 = profile.dispatches.iter().skip(at).step_by(n).map(|s| s.duration_us).sum();
                println!("    {} {:.2} µs", profile.dispatches[at].label, sum / LAYERS as f64);
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let bench = Bench { gpu: GpuDevice::new()?, cache: PipelineCache::new(), filter };
    let caps = bench.gpu.caps();
    println!("{} {caps:?}", bench.gpu.info().name);
    let qwen = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 128 };
    let llama = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 64 };
    for (model, heads) in [("qwen3-4b", qwen), ("llama-1b", llama)] {
        for dtype in [DType::F16, DType::Q8_0] {
            for (kind, m, seen) in [
                (AttentionKernel::Decode, 1u32, 128u32),
                (AttentionKernel::Decode, 1, 1024),
                (AttentionKernel::Decode, 1, 8192),
                (AttentionKernel::Decode, 8, 1024),
                (AttentionKernel::Decode, 32, 512),
                (AttentionKernel::PrefillTiled, 32, 512),
                (AttentionKernel::PrefillTiled, 512, 512),
                (AttentionKernel::PrefillTiled, 2048, 2048),
            ] {
                let n_pages = seen.max(4096) / 128;
                let cache = Cache { dtype, n_pages, n_seqs: 1, seq_pages: n_pages };
                let kv = KvInput::Cache { cache, sequences: false };
                let scale = 1.0 / (heads.head_dim as f32).sqrt();
                let plan = attention_by(kind, &Attention { m, heads, scores: scale.into(), kv }, &caps)?;
                let first = seen - m.min(seen);
                let positions: Vec<u32> = (0..m).map(|r| if m == 8 { seen - 1 } else { first + r }).collect();
                let total: f64 = positions.iter().map(|&p| f64::from(p) + 1.0).sum();
                let row = dtype.bytes(heads.head_dim as usize)? as f64 * f64::from(heads.n_kv_heads) * 2.0;
                let work = [f64::from(seen) * row, 4.0 * total * f64::from(heads.q_width())];
                let name = format!("{model} {dtype:?} {kind:?} m={m} seen={seen}");
                let pages: Vec<u32> = (0..n_pages).collect();
                let data = [
                    (Role::Input(3), bytemuck::cast_slice(&positions)),
                    (Role::Input(10), bytemuck::cast_slice(&pages)),
                ];
                bench.time(&name, &plan, &data, work)?;
            }
        }
        for m in [1u32, 512, 2048] {
            let cache = Cache { dtype: DType::F16, n_pages: 32, n_seqs: 1, seq_pages: 32 };
            let store = KvStore { m, heads, cache, sequences: false };
            let rope = RopeSpec::new(RopePairing::NeoX, heads.head_dim, 1e6);
            for factors in [false, true] {
                let spec = RopeStore { store, rope, factors, q_norm: true, k_norm: true, epsilon: 1e-6 };
                let plan = rope_store(&spec, &caps)?;
                let positions: Vec<u32> = (0..m).map(|r| r + 1000).collect();
                let factor_values = vec![3.5f32; heads.head_dim as usize];
                let pages: Vec<u32> = (0..32).collect();
                let data = [
                    (Role::Input(3), bytemuck::cast_slice(&positions)),
                    (Role::Input(8), bytemuck::cast_slice(&pages)),
                    (Role::Input(7), bytemuck::cast_slice(&factor_values)),
                ];
                let bytes = f64::from(m) * f64::from(2 * heads.q_width() + 3 * heads.kv_width()) * 4.0;
                let name = format!("{model} rope_store m={m} factors={factors}");
                bench.time(&name, &plan, &data, [bytes, 0.0])?;
            }
        }
    }
    let n = 151_936u32;
    let mut seed = 1u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32
    };
    let logits: Vec<f32> = (0..n).map(|_| ((0..6).map(|_| random()).sum::<f32>() - 3.0) * 4.0).collect();
    let bytes = bytemuck::cast_slice(&logits);
    bench.time("argmax", &argmax(1, n, &caps)?, &[(Role::Input(0), bytes)], [f64::from(n) * 4.0, 0.0])?;
    let plain = SampleState { temperature: 1.0, ..SampleState::greedy() };
    for (name, state) in [
        ("greedy", SampleState::greedy()),
        ("plain", plain),
        ("qwen3", SampleState { temperature: 0.6, top_k: 20, top_p: 0.95, ..plain }),
        ("min_p", SampleState { min_p: 0.05, ..plain }),
    ] {
        let data = [(Role::Input(0), bytes), (Role::Output(1), bytemuck::bytes_of(&state))];
        bench.time(
            &format!("sample {name}"),
            &sample(1, n, false, &caps)?,
            &data,
            [f64::from(n) * 8.0, 0.0],
        )?;
    }
    Ok(())
}
