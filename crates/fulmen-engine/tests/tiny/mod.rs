//! Tiny random models: a source in memory, and their computation in f64, written down once more from the
//! papers.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub(crate) mod delta_net;
pub(crate) mod reference;

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::{DType, SharedBytes, quant};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::gguf::Metadata;
use fulmen_model::source::{ModelSource, SourceError, TensorInfo};

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
    /// Experts of a layer, and those that a row uses.
    pub(crate) experts: Option<(usize, usize)>,
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
    experts: None,
};
pub(crate) const QWEN2: TinyShape = TinyShape { arch: "qwen2", tied: false, factors: false, ..LLAMA };
/// A head size that is not the hidden size divided by the number of heads.
pub(crate) const QWEN3: TinyShape =
    TinyShape { arch: "qwen3", heads: 6, kv_heads: 3, head_dim: 32, factors: false, ..LLAMA };
pub(crate) const QWEN3_MOE: TinyShape = TinyShape { arch: "qwen3moe", experts: Some((7, 3)), ..QWEN3 };
/// With a window, which the prompts of tests cross.
pub(crate) const GPT_OSS: TinyShape = TinyShape { arch: "gpt-oss", factors: false, ..QWEN3_MOE };
/// A delta net in the first layer, attention in the second.
pub(crate) const QWEN35: TinyShape = TinyShape { arch: "qwen35", factors: false, ..LLAMA };
pub(crate) const QWEN35_MOE: TinyShape = TinyShape { arch: "qwen35moe", experts: Some((7, 3)), ..QWEN35 };
pub(crate) const QWEN3_NEXT: TinyShape = TinyShape { arch: "qwen3next", ..QWEN35_MOE };
pub(crate) const HYBRIDS: [TinyShape; 3] = [QWEN35, QWEN35_MOE, QWEN3_NEXT];
pub(crate) const SHAPES: [TinyShape; 8] =
    [LLAMA, QWEN2, QWEN3, QWEN3_MOE, GPT_OSS, QWEN35, QWEN35_MOE, QWEN3_NEXT];

impl TinyShape {
    /// Whether some layers have a delta net in place of attention.
    pub(crate) fn is_hybrid(&self) -> bool {
        matches!(self.arch, "qwen35" | "qwen35moe" | "qwen3next")
    }
}

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
        if let Some((count, used)) = shape.experts {
            set("expert_count", count as u32);
            set("expert_used_count", used as u32);
            set("expert_feed_forward_length", inner as u32);
        }
        if arch == "gpt-oss" {
            set("attention.sliding_window", 12);
        }
        if shape.is_hybrid() {
            delta_net::describe(&mut set, shape.experts.map(|_| inner as u32));
        }
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
            let recurrent = shape.is_hybrid() && layer % 2 == 0;
            if recurrent {
                delta_net::weights(arch, hidden, &mut weight);
            } else {
                // Hybrid models have a gate behind the query of each head.
                weight("attn_q", hidden, if shape.is_hybrid() { 2 * q } else { q });
                weight("attn_k", hidden, kv);
                weight("attn_v", hidden, kv);
                weight("attn_output", q, hidden);
            }
            match shape.experts {
                None => {
                    weight("ffn_gate", hidden, inner);
                    weight("ffn_up", hidden, inner);
                    weight("ffn_down", inner, hidden);
                }
                Some((count, _)) => {
                    let mut put = |name: &str, dims: &[usize], dtype: DType| {
                        let name = format!("blk.{layer}.{name}.weight");
                        put(&name, dims, dtype, 0.0, spread(dims[0]));
                    };
                    put("ffn_gate_inp", &[hidden, count], DType::F32);
                    put("ffn_gate_exps", &[hidden, inner, count], dtype);
                    put("ffn_up_exps", &[hidden, inner, count], dtype);
                    put("ffn_down_exps", &[inner, hidden, count], dtype);
                }
            }
            if shape.is_hybrid() && shape.experts.is_some() {
                for (name, k, n) in [("gate", hidden, inner), ("up", hidden, inner), ("down", inner, hidden)]
                {
                    let name = format!("blk.{layer}.ffn_{name}_shexp.weight");
                    put(&name, &[k, n], dtype, 0.0, spread(k));
                }
                let name = format!("blk.{layer}.ffn_gate_inp_shexp.weight");
                put(&name, &[hidden], DType::F32, 0.0, spread(hidden));
            }
            let gpt_oss = arch == "gpt-oss";
            if let Some((count, _)) = shape.experts.filter(|_| gpt_oss) {
                let mut bias = |name: &str, dims: &[usize]| {
                    put(&format!("blk.{layer}.{name}.bias"), dims, DType::F32, 0.0, 0.5);
                };
                bias("ffn_gate_inp", &[count]);
                bias("ffn_gate_exps", &[inner, count]);
                bias("ffn_up_exps", &[inner, count]);
                bias("ffn_down_exps", &[hidden, count]);
            }
            let mut vector = |name: &str, len: usize, mean: f32, deviation: f32| {
                put(&format!("blk.{layer}.{name}"), &[len], DType::F32, mean, deviation);
            };
            vector("attn_norm.weight", hidden, 1.0, 0.1);
            let late = gpt_oss || shape.is_hybrid();
            vector(if late { "post_attention_norm.weight" } else { "ffn_norm.weight" }, hidden, 1.0, 0.1);
            if recurrent {
                delta_net::vectors(&mut vector);
            }
            if gpt_oss {
                vector("attn_sinks.weight", heads, 0.0, 1.0);
                vector("attn_output.bias", hidden, 0.0, 0.5);
            }
            if arch.starts_with("qwen3") && !recurrent {
                vector("attn_q_norm.weight", head_dim, 1.0, 0.1);
                vector("attn_k_norm.weight", head_dim, 1.0, 0.1);
            }
            if gpt_oss || arch == "qwen2" {
                vector("attn_q.bias", q, 0.0, 0.5);
                vector("attn_k.bias", kv, 0.0, 0.5);
                vector("attn_v.bias", kv, 0.0, 0.5);
            }
        }
        for layer in (0..shape.layers).step_by(2).filter(|_| shape.is_hybrid()) {
            delta_net::put_convolution(&mut tiny, layer, seed);
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
