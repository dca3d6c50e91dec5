//! gpt-oss: what its files must have, and MXFP4 weights on every backend. Its logits are compared with
//! llama.cpp's in `architectures.rs` and with a plain f64 implementation in `logits.rs`.

mod tiny;

use std::sync::Arc;

use fulmen_core::{Backend, DType};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};
use tiny::{GPT_OSS, Tiny};

#[test]
fn keys_and_tensors_of_its_own_are_refused_by_name() {
    let with = |key: &str, value: u32| {
        let mut tiny = Tiny::new(GPT_OSS, 1);
        tiny.metadata.set(format!("gpt-oss.{key}"), value);
        tiny.refusal()
    };
    for (key, value, expected) in [
        ("attention.sliding_window", 0, "must be from 1 to 268435456, is 0"),
        ("attention.sliding_window_pattern", 0, "must be from 1 to 1024, is 0"),
        ("expert_used_count", 8, "must be from 1 to 7, is 8"),
    ] {
        assert_eq!(with(key, value), format!("metadata key \"gpt-oss.{key}\" {expected}"));
    }
    for name in [
        "blk.0.attn_sinks.weight",
        "blk.1.attn_output.bias",
        "blk.0.ffn_gate_inp.bias",
        "blk.1.ffn_down_exps.bias",
        "blk.0.post_attention_norm.weight",
    ] {
        let mut tiny = Tiny::new(GPT_OSS, 1);
        tiny.remove(name);
        assert!(tiny.refusal().starts_with(&format!("tensor {name:?} is missing (")), "{name}");
    }
    let mut tiny = Tiny::new(GPT_OSS, 1);
    tiny.put("blk.0.ffn_norm.weight", &[64], DType::F32, &[1.0; 64]);
    assert_eq!(tiny.refusal(), "1 tensor does not belong to a gpt-oss model: \"blk.0.ffn_norm.weight\"");
    let mut tiny = Tiny::new(GPT_OSS, 1);
    tiny.put("blk.0.attn_sinks.weight", &[5], DType::F32, &[0.0; 5]);
    let sinks = "tensor \"blk.0.attn_sinks.weight\" must have the shape [6], has [5]";
    assert_eq!(tiny.refusal(), sinks);
}

/// The logits behind a prompt, fed whole but for its last tokens.
fn logits(recipe: &str, device: Box<dyn Backend + Send>) -> Vec<f32> {
    let shape = ModelShape::preset("tiny-gpt-oss").unwrap();
    let source = Synth::new(shape, recipe.parse().unwrap(), 1).source().unwrap();
    let session = SessionOptions { context: 128, cache: DType::F32, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let mut session = Model::from_source(Arc::new(source), device, options).unwrap().session().unwrap();
    let prompt: Vec<u32> = (0..50).map(|at| (3 + 101 * at) % 500).collect();
    session.feed(0, &prompt[..47]).unwrap();
    prompt[47..].iter().map(|token| session.logits(0, &[*token]).unwrap()).next_back().unwrap()
}

fn nmse(a: &[f32], b: &[f32]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    error / b.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>()
}

/// Quantized weights change the logits by their rounding, and backends agree on them.
#[test]
fn mxfp4_experts_run_on_cpu_and_wgpu() {
    let cpu = || Box::new(CpuDispatcher::with_threads(2));
    let exact = logits("f32", cpu());
    let stored = logits("mxfp4_moe", cpu());
    let error = nmse(&stored, &exact);
    assert!((1e-5..0.1).contains(&error), "MXFP4 against F32: {error:e}");
    let wgpu = Box::new(fulmen_wgpu::WgpuDispatcher::open(0).unwrap());
    let error = nmse(&logits("mxfp4_moe", wgpu), &stored);
    assert!(error < 1e-3, "wgpu against CPU: {error:e}");
}
