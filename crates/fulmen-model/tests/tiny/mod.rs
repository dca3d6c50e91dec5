//! Tiny random models: a source in memory, and their computation in f64, written down once more from the
//! papers.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub(crate) mod reference;

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::{DType, SharedBytes, quant};
use fulmen_cpu::CpuDispatcher;
use fulmen_model::gguf::Metadata;
use fulmen_model::source::{ModelSource, SourceError, TensorInfo};
use fulmen_model::{LoadOptions, Model, ModelError, SessionOptions};

/// A model in memory that tests can change before loading it.
#[derive(Clone)]
pub(crate) struct Tiny {
    pub(crate) metadata: Metadata,
    tensors: Vec<TensorInfo>,
    data: HashMap<String, Arc<Vec<u8>>>,
}

/// Dimensions of a tiny model.
#[derive(Clone, Copy)]
pub(crate) struct TinyShape {
    pub(crate) arch: &'static str,
    pub(crate) layers: u32,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocabulary: usize,
    pub(crate) tied: bool,
    pub(crate) factors: bool,
    pub(crate) dtype: DType,
}

pub(crate) const LLAMA: TinyShape = TinyShape {
    arch: "llama",
    layers: 2,
    hidden: 64,
    inner: 96,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    vocabulary: 101,
    tied: true,
    factors: true,
    dtype: DType::F32,
};
pub(crate) const QWEN2: TinyShape = TinyShape { arch: "qwen2", tied: false, factors: false, ..LLAMA };
/// A head size that is not the hidden size divided by the number of heads.
pub(crate) const QWEN3: TinyShape =
    TinyShape { arch: "qwen3", heads: 6, kv_heads: 3, head_dim: 32, factors: false, ..LLAMA };
pub(crate) const SHAPES: [TinyShape; 3] = [LLAMA, QWEN2, QWEN3];

impl Tiny {
    pub(crate) fn new(shape: TinyShape, seed: u64) -> Tiny {
        let TinyShape { arch, hidden, inner, heads, kv_heads, head_dim, vocabulary, dtype, .. } = shape;
        let mut tiny = Tiny { metadata: Metadata::new(), tensors: Vec::new(), data: HashMap::new() };
        let m = &mut tiny.metadata;
        m.set("general.architecture", arch);
        let mut set = |key: &str, value: u32| m.set(format!("{arch}.{key}"), value);
        set("block_count", shape.layers);
        set("context_length", 256);
        set("embedding_length", hidden as u32);
        set("feed_forward_length", inner as u32);
        set("attention.head_count", heads as u32);
        set("attention.head_count_kv", kv_heads as u32);
        set("attention.key_length", head_dim as u32);
        set("attention.value_length", head_dim as u32);
        tiny.metadata.set(format!("{arch}.rope.freq_base"), 10_000.0f32);
        tiny.metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);

        let mut random = fastrand::Rng::with_seed(seed);
        let mut put = |name: &str, dims: &[usize], dtype: DType, mean: f32, deviation: f32| {
            let elements: usize = dims.iter().product();
            let mut normal = || {
                let radius = (-2.0 * (1.0 - random.f32()).ln()).sqrt();
                mean + deviation * radius * (std::f32::consts::TAU * random.f32()).cos()
            };
            let values: Vec<f32> = (0..elements).map(|_| normal()).collect();
            tiny.put(name, dims, dtype, &values);
        };
        let spread = |k: usize| 1.0 / (k as f32).sqrt();
        // Small compared with what layers add, so that a tied output matrix does not repeat the last token.
        put("token_embd.weight", &[hidden, vocabulary], dtype, 0.0, spread(hidden));
        put("output_norm.weight", &[hidden], DType::F32, 1.0, 0.1);
        if !shape.tied {
            put("output.weight", &[hidden, vocabulary], dtype, 0.0, spread(hidden));
        }
        if shape.factors {
            put("rope_freqs.weight", &[head_dim / 2], DType::F32, 2.0, 0.2);
        }
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        for layer in 0..shape.layers {
            let mut weight = |name: &str, k: usize, n: usize| {
                put(&format!("blk.{layer}.{name}.weight"), &[k, n], dtype, 0.0, spread(k));
            };
            weight("attn_q", hidden, q);
            weight("attn_k", hidden, kv);
            weight("attn_v", hidden, kv);
            weight("attn_output", q, hidden);
            weight("ffn_gate", hidden, inner);
            weight("ffn_up", hidden, inner);
            weight("ffn_down", inner, hidden);
            let mut vector = |name: &str, len: usize, mean: f32, deviation: f32| {
                put(&format!("blk.{layer}.{name}"), &[len], DType::F32, mean, deviation);
            };
            vector("attn_norm.weight", hidden, 1.0, 0.1);
            vector("ffn_norm.weight", hidden, 1.0, 0.1);
            if arch == "qwen3" {
                vector("attn_q_norm.weight", head_dim, 1.0, 0.1);
                vector("attn_k_norm.weight", head_dim, 1.0, 0.1);
            }
            if arch == "qwen2" {
                vector("attn_q.bias", q, 0.0, 0.5);
                vector("attn_k.bias", kv, 0.0, 0.5);
                vector("attn_v.bias", kv, 0.0, 0.5);
            }
        }
        tiny
    }

    /// Adds or replaces a tensor.
    pub(crate) fn put(&mut self, name: &str, dims: &[usize], dtype: DType, values: &[f32]) {
        self.remove(name);
        let info = TensorInfo::new(name, dims, dtype).unwrap();
        let bytes = quant::quantize_to_vec(dtype, values).unwrap();
        assert_eq!(bytes.len(), info.bytes());
        self.tensors.push(info);
        self.data.insert(name.to_owned(), Arc::new(bytes));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.tensors.retain(|info| info.name() != name);
        self.data.remove(name);
    }

    /// Changes bytes of a tensor.
    pub(crate) fn spoil(&mut self, name: &str, at: usize, bytes: &[u8]) {
        let data = Arc::make_mut(self.data.get_mut(name).unwrap());
        data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f64> {
        let info = self.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
        let values = quant::dequantize_to_vec(info.dtype(), &self.data[name], info.elements()).unwrap();
        values.into_iter().map(f64::from).collect()
    }

    pub(crate) fn load(&self, session: SessionOptions) -> Result<Model, ModelError> {
        let device = Box::new(CpuDispatcher::with_threads(2));
        Model::from_source(Arc::new(self.clone()), device, LoadOptions { session, ..LoadOptions::default() })
    }

    /// The error of loading the model.
    pub(crate) fn refusal(&self) -> String {
        self.load(SessionOptions::default()).map(drop).expect_err("the model must be refused").to_string()
    }
}

impl ModelSource for Tiny {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|info| info.name() == name)
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        Ok(Arc::clone(&self.data[name]) as SharedBytes)
    }
}
