//! A Hugging Face folder of gpt-oss is the same model as the GGUF file: experts in MXFP4, whose blocks and
//! scales are tensors of their own, gate and up in turn.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fulmen_core::{DType, quant};
use fulmen_model::gguf::GgufFile;
use fulmen_model::safetensors::SafetensorsFolder;
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use serde_json::{Map, Value, json};

/// Type, shape and data of a tensor in a safetensors file.
type Tensor = (&'static str, Vec<usize>, Vec<u8>);

fn synth(recipe: &str) -> GgufFile {
    let shape = ModelShape::preset("tiny-gpt-oss").unwrap();
    Synth::new(shape, recipe.parse().unwrap(), 1).file().unwrap()
}

fn config(shape: &ModelShape) -> Value {
    let experts = shape.experts.unwrap();
    let kinds = ["sliding_attention", "full_attention"];
    json!({
        "model_type": "gpt_oss",
        "hidden_size": shape.embedding,
        "intermediate_size": experts.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_base,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "sliding_window": 40,
        "layer_types": (0..shape.layers).map(|layer| kinds[layer % 2]).collect::<Vec<_>>(),
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 256,
            "truncate": false,
        },
    })
}

/// Values of two tensors in turn, in units of some bytes.
fn in_turn(gate: &[u8], up: &[u8], unit: usize) -> Vec<u8> {
    gate.chunks(unit).zip(up.chunks(unit)).flat_map(|(gate, up)| [gate, up].concat()).collect()
}

/// Blocks and scales of GGUF blocks, in the folder's order of elements.
fn blocks_and_scales(data: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut blocks, mut scales) = (Vec::new(), Vec::new());
    for block in data.chunks_exact(17) {
        scales.push(block[0]);
        let element = |at: usize| if at < 16 { block[1 + at] & 15 } else { block[1 + at - 16] >> 4 };
        blocks.extend((0..16).map(|at| element(2 * at) | element(2 * at + 1) << 4));
    }
    (blocks, scales)
}

/// The tensors of a folder.
fn tensors(shape: &ModelShape, floats: &GgufFile, mxfp4: &GgufFile) -> BTreeMap<String, Tensor> {
    let mut all = BTreeMap::new();
    let bf16 = |name: &str| {
        let info = floats.tensor(name).unwrap();
        let data = floats.data(name).unwrap();
        let values = quant::dequantize_to_vec(info.dtype(), &data, info.elements()).unwrap();
        quant::quantize_to_vec(DType::BF16, &values).unwrap()
    };
    for info in floats.tensors().iter().filter(|info| !info.name().contains("_exps.")) {
        let name = match info.name() {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            name => name
                .replace("blk.", "model.layers.")
                .replace("post_attention_norm", "post_attention_layernorm")
                .replace("attn_norm", "input_layernorm")
                .replace("attn_sinks.weight", "self_attn.sinks")
                .replace("attn_output", "self_attn.o_proj")
                .replace("ffn_gate_inp", "mlp.router")
                .replace("attn_q", "self_attn.q_proj")
                .replace("attn_k", "self_attn.k_proj")
                .replace("attn_v", "self_attn.v_proj"),
        };
        let dims = info.dims().iter().rev().copied().collect();
        all.insert(name, ("BF16", dims, bf16(info.name())));
    }
    let experts = shape.experts.unwrap();
    for layer in 0..shape.layers {
        let (count, inner, hidden) = (experts.count, experts.feed_forward, shape.embedding);
        let theirs = |name: &str| format!("model.layers.{layer}.mlp.experts.{name}");
        let bias = |part: &str| bf16(&format!("blk.{layer}.ffn_{part}_exps.bias"));
        let weight =
            |part: &str| mxfp4.data(&format!("blk.{layer}.ffn_{part}_exps.weight")).unwrap().to_vec();
        let gate_up = in_turn(&bias("gate"), &bias("up"), 2);
        all.insert(theirs("gate_up_proj_bias"), ("BF16", vec![count, 2 * inner], gate_up));
        all.insert(theirs("down_proj_bias"), ("BF16", vec![count, hidden], bias("down")));
        let gate_up = in_turn(&weight("gate"), &weight("up"), hidden / 32 * 17);
        for (name, data, rows, width) in
            [("gate_up_proj", gate_up, 2 * inner, hidden), ("down_proj", weight("down"), hidden, inner)]
        {
            let (blocks, scales) = blocks_and_scales(&data);
            let shape = vec![count, rows, width / 32];
            all.insert(theirs(&format!("{name}_scales")), ("U8", shape.clone(), scales));
            all.insert(theirs(&format!("{name}_blocks")), ("U8", [shape, vec![16]].concat(), blocks));
        }
    }
    all
}

fn write(folder: &Path, config: &Value, tensors: &BTreeMap<String, Tensor>) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn a_folder_is_the_same_model_as_the_file() {
    let (floats, mxfp4) = (synth("bf16"), synth("mxfp4_moe"));
    let shape = ModelShape::preset("tiny-gpt-oss").unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config(&shape), &tensors(&shape, &floats, &mxfp4));
    let opened = SafetensorsFolder::open(folder.path()).unwrap();
    assert_eq!(opened.tensors().len(), floats.tensors().len());
    for info in floats.tensors() {
        let name = info.name();
        let source = if name.ends_with("_exps.weight") { &mxfp4 } else { &floats };
        let expected = source.tensor(name).unwrap();
        assert_eq!(opened.tensor(name).unwrap().to_string(), expected.to_string());
        let mut data = source.data(name).unwrap().to_vec();
        if expected.dtype() == DType::F32 {
            // They were rounded to BF16.
            let values = quant::dequantize_to_vec(DType::F32, &data, info.elements()).unwrap();
            let rounded = quant::quantize_to_vec(DType::BF16, &values).unwrap();
            let values = quant::dequantize_to_vec(DType::BF16, &rounded, info.elements()).unwrap();
            data = bytemuck::cast_slice(&values).to_vec();
        }
        assert!((*opened.data(name).unwrap()).as_ref() == data, "{name}");
    }
    for key in ["expert_count", "expert_used_count", "expert_feed_forward_length", "attention.sliding_window"]
    {
        let key = format!("gpt-oss.{key}");
        assert_eq!(opened.metadata().u32(&key), floats.metadata().u32(&key), "{key}");
    }
    let key = "gpt-oss.rope.scaling.yarn_truncate";
    assert_eq!(opened.metadata().opt_bool(key).unwrap(), Some(false));
}

#[test]
fn what_is_missing_or_different_is_refused_by_name() {
    let (floats, mxfp4) = (synth("bf16"), synth("mxfp4_moe"));
    let shape = ModelShape::preset("tiny-gpt-oss").unwrap();
    let all = tensors(&shape, &floats, &mxfp4);
    let refused = |config: &Value, tensors: &BTreeMap<String, Tensor>| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), config, tensors);
        let error = SafetensorsFolder::open(folder.path()).err().unwrap().to_string();
        error.split_once(": ").unwrap().1.to_owned()
    };
    let good = config(&shape);
    for (key, value) in [
        ("swiglu_limit", json!(6.0)),
        ("swiglu_alpha", json!(1.0)),
        ("layer_types", json!(["full_attention"])),
        ("num_local_experts", json!(null)),
    ] {
        let mut config = good.clone();
        config[key] = value;
        assert!(refused(&config, &all).starts_with(key), "{key}");
    }
    let scales = "model.layers.1.mlp.experts.down_proj_scales";
    let mut fewer = all.clone();
    let (_, dims, data) = fewer.remove(scales).unwrap();
    assert_eq!(refused(&good, &fewer), format!("has no tensor {scales:?}"));
    fewer.insert(scales.to_owned(), ("U8", vec![dims[0] * dims[1], dims[2]], data.clone()));
    assert!(refused(&good, &fewer).contains(scales));
    let mut more = all.clone();
    more.insert("model.layers.0.mlp.other".to_owned(), ("U8", vec![3], vec![0; 3]));
    let message = "tensor \"model.layers.0.mlp.other\" has type U8, which is not supported";
    assert!(refused(&good, &more).starts_with(message));
}
