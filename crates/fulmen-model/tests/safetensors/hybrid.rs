//! Folders of hybrid models: Qwen3-Next and Qwen3.5.

use super::*;

/// Key heads, value heads of each, and their size in the tiny models.
const KEYS: usize = 2;
const GROUP: usize = 2;
const HEAD: usize = 32;

/// Value heads as folders have them, neighbors sharing a key head. `head` is the bytes of one.
fn grouped(heads: &[u8], head: usize) -> Vec<u8> {
    let at = |place: usize| &heads[(place % GROUP * KEYS + place / GROUP) * head..][..head];
    (0..KEYS * GROUP).flat_map(|place| at(place).to_vec()).collect()
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The tensors of a folder, of a GGUF file of Qwen3.5.
fn folder_tensors(file: &GgufFile) -> BTreeMap<String, Tensor> {
    let mut all = BTreeMap::new();
    for info in file.tensors() {
        let data = file.data(info.name()).unwrap().to_vec();
        let (row, one) = (data.len() / info.rows(), data.len() / info.elements());
        let mut shape: Vec<usize> = info.dims().iter().rev().copied().collect();
        let (layer, part) = match info.name().strip_prefix("blk.").and_then(|name| name.split_once('.')) {
            Some((layer, part)) => (format!("model.layers.{layer}."), part),
            None => (String::new(), info.name()),
        };
        let own = |name: &str| format!("{layer}{name}");
        let keys = 2 * KEYS * HEAD;
        let (name, data) = match part {
            "token_embd.weight" => (own("model.embed_tokens.weight"), data),
            "output_norm.weight" => (own("model.norm.weight"), minus_one(&data)),
            "output.weight" => (own("lm_head.weight"), data),
            "attn_norm.weight" => (own("input_layernorm.weight"), minus_one(&data)),
            "post_attention_norm.weight" => (own("post_attention_layernorm.weight"), minus_one(&data)),
            "attn_q_norm.weight" => (own("self_attn.q_norm.weight"), minus_one(&data)),
            "attn_k_norm.weight" => (own("self_attn.k_norm.weight"), minus_one(&data)),
            "attn_q.weight" => (own("self_attn.q_proj.weight"), data),
            "attn_k.weight" => (own("self_attn.k_proj.weight"), data),
            "attn_v.weight" => (own("self_attn.v_proj.weight"), data),
            "attn_output.weight" => (own("self_attn.o_proj.weight"), data),
            "attn_gate.weight" => (own("linear_attn.in_proj_z.weight"), grouped(&data, HEAD * row)),
            "attn_qkv.weight" => {
                let (front, heads) = data.split_at(keys * row);
                (own("linear_attn.in_proj_qkv.weight"), [front, &grouped(heads, HEAD * row)].concat())
            }
            "ssm_conv1d.weight" => {
                shape = vec![shape[0], 1, shape[1]];
                let (front, heads) = data.split_at(keys * row);
                (own("linear_attn.conv1d.weight"), [front, &grouped(heads, HEAD * row)].concat())
            }
            "ssm_beta.weight" => (own("linear_attn.in_proj_b.weight"), grouped(&data, row)),
            "ssm_alpha.weight" => (own("linear_attn.in_proj_a.weight"), grouped(&data, row)),
            "ssm_dt.bias" => (own("linear_attn.dt_bias"), grouped(&data, one)),
            "ssm_a" => {
                let log = |rate: f32| f64::from(-rate).ln() as f32;
                let logs: Vec<f32> = floats(&grouped(&data, one)).into_iter().map(log).collect();
                (own("linear_attn.A_log"), bytemuck::cast_slice(&logs).to_vec())
            }
            "ssm_norm.weight" => (own("linear_attn.norm.weight"), data),
            "ssm_out.weight" => {
                let columns = data.chunks(row).flat_map(|row| grouped(row, HEAD * one)).collect();
                (own("linear_attn.out_proj.weight"), columns)
            }
            "ffn_gate_inp_shexp.weight" => {
                shape.insert(0, 1);
                (own("mlp.shared_expert_gate.weight"), data)
            }
            "ffn_gate_inp.weight" => (own("mlp.gate.weight"), data),
            "ffn_gate_exps.weight" => {
                // Of each expert the rows of gate, then those of up.
                let up = file.data(&info.name().replace("gate", "up")).unwrap().to_vec();
                let expert = data.len() / shape[0];
                let both = data.chunks(expert).zip(up.chunks(expert));
                shape[1] *= 2;
                (own("mlp.experts.gate_up_proj"), both.flat_map(|(a, b)| [a, b].concat()).collect())
            }
            "ffn_up_exps.weight" => continue,
            "ffn_down_exps.weight" => (own("mlp.experts.down_proj"), data),
            part => {
                let theirs =
                    part.replace("_shexp", "").replace("ffn_", "").replace(".weight", "_proj.weight");
                let shared = if part.contains("shexp") { "shared_expert." } else { "" };
                (own(&format!("mlp.{shared}{theirs}")), data)
            }
        };
        all.insert(name, (if info.dtype() == DType::F32 { "F32" } else { "BF16" }, shape, data));
    }
    all
}

/// The weight of a norm as folders have it.
fn minus_one(data: &[u8]) -> Vec<u8> {
    floats(data).into_iter().flat_map(|x| (x - 1.0).to_le_bytes()).collect()
}

fn hybrid_config(shape: &ModelShape, kind: &str) -> Value {
    let mut config = config(shape);
    let kinds =
        |layer: usize| if (layer + 1).is_multiple_of(4) { "full_attention" } else { "linear_attention" };
    let more = json!({
        "model_type": kind,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": HEAD,
        "linear_value_head_dim": HEAD,
        "linear_num_key_heads": KEYS,
        "linear_num_value_heads": KEYS * GROUP,
        "layer_types": (0..shape.layers).map(kinds).collect::<Vec<_>>(),
        "rope_theta": null,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rope_base,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": true,
        },
        "shared_expert_intermediate_size": shape.experts.map(|experts| experts.feed_forward),
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn tiny(preset: &str) -> (GgufFile, ModelShape) {
    let shape = ModelShape::preset(preset).unwrap();
    (Synth::new(shape.clone(), "bf16".parse().unwrap(), 1).file().unwrap(), shape)
}

#[test]
fn a_folder_of_qwen3_5_is_the_same_model_as_the_file() {
    for (preset, kind) in [("tiny-qwen35", "qwen3_5"), ("tiny-qwen35moe", "qwen3_5_moe")] {
        let (file, shape) = tiny(preset);
        let mut tensors = folder_tensors(&file);
        let norm = tensors["model.norm.weight"].clone();
        let text = hybrid_config(&shape, &format!("{kind}_text"));
        let folder = tempfile::tempdir().unwrap();
        let compare = |config: &Value, tensors: &BTreeMap<String, Tensor>| {
            write(folder.path(), config, tensors);
            let opened = SafetensorsFolder::open(folder.path()).unwrap();
            let list = |source: &dyn ModelSource| {
                let mut list: Vec<_> = source.tensors().iter().map(|tensor| tensor.to_string()).collect();
                list.sort();
                list
            };
            assert_eq!(list(&opened), list(&file));
            for info in file.tensors() {
                let (ours, theirs) = (file.data(info.name()).unwrap(), opened.data(info.name()).unwrap());
                match info.dtype() {
                    DType::F32 => {
                        let pairs = floats(&ours).into_iter().zip(floats((*theirs).as_ref()));
                        let near = |(a, b): (f32, f32)| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
                        assert!(pairs.into_iter().all(near), "{info}");
                    }
                    _ => assert!((*theirs).as_ref() == &ours[..], "{info}"),
                }
            }
            assert_eq!(Config::read(&opened).unwrap(), Config::read(&file).unwrap());
        };
        compare(&text, &tensors);
        let key = format!("{}.rope.dimension_sections", shape.architecture);
        let mut plain = text.clone();
        plain["rope_parameters"].as_object_mut().unwrap().remove("mrope_section");
        for config in [&text, &plain] {
            write(folder.path(), config, &tensors);
            let opened = SafetensorsFolder::open(folder.path()).unwrap();
            assert_eq!(opened.metadata().opt_integers(&key).unwrap(), Some(vec![2, 1, 1, 0]));
        }
        // As the published models have it: beside images, and with layers that predict further tokens.
        tensors = tensors
            .into_iter()
            .map(|(name, tensor)| match name.strip_prefix("model.") {
                Some(inner) => (format!("model.language_model.{inner}"), tensor),
                None => (name, tensor),
            })
            .collect();
        tensors.insert("mtp.layers.0.input_layernorm.weight".to_owned(), norm.clone());
        tensors.insert("model.visual.merger.norm.weight".to_owned(), norm);
        compare(&json!({ "model_type": kind, "text_config": text }), &tensors);
    }
}

#[test]
fn a_folder_of_qwen3_next_has_the_configuration_of_the_file() {
    let (file, shape) = tiny("tiny-qwen3next");
    let folder = tempfile::tempdir().unwrap();
    let embedding = vec![0; 4 * shape.vocabulary * shape.embedding];
    let tensors = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), ("F32", vec![shape.vocabulary, shape.embedding], embedding)),
        ("lm_head.weight".to_owned(), ("F32", vec![1], vec![0; 4])),
    ]);
    let mut config = hybrid_config(&shape, "qwen3_next");
    write(folder.path(), &config, &tensors);
    let opened = SafetensorsFolder::open(folder.path()).unwrap();
    assert_eq!(Config::read(&opened).unwrap(), Config::read(&file).unwrap());
    // Older files say the interval and the rotated part elsewhere.
    for (key, value) in [
        ("layer_types", Value::Null),
        ("full_attention_interval", json!(4)),
        ("rope_parameters", Value::Null),
        ("rope_theta", json!(shape.rope_base)),
        ("partial_rotary_factor", json!(0.25)),
    ] {
        config[key] = value;
    }
    write(folder.path(), &config, &tensors);
    let opened = SafetensorsFolder::open(folder.path()).unwrap();
    assert_eq!(Config::read(&opened).unwrap(), Config::read(&file).unwrap());
}

#[test]
fn hybrid_configurations_that_are_not_supported_are_refused_by_name() {
    let (file, shape) = tiny("tiny-qwen35moe");
    let tensors = folder_tensors(&file);
    let refused = |config: &Value, tensors: &BTreeMap<String, Tensor>| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), config, tensors);
        let error = SafetensorsFolder::open(folder.path()).err().unwrap().to_string();
        error.split_once(": ").unwrap().1.to_owned()
    };
    let good = hybrid_config(&shape, "qwen3_5_moe_text");
    for (key, value, expected) in [
        ("linear_num_value_heads", json!(3), "is 3, which is not supported (supported: a multiple of"),
        ("linear_num_value_heads", json!(8), ""),
        ("linear_num_key_heads", json!(0), "is 0, which is not supported (supported: 1 to 65535)"),
        ("linear_value_head_dim", json!(64), "is 64, which is not supported"),
        ("linear_key_head_dim", json!(null), "is missing"),
        ("linear_conv_kernel_dim", json!(null), "is missing"),
        ("shared_expert_intermediate_size", json!(null), "is missing"),
        ("full_attention_interval", json!(0), "is 0"),
        ("attn_output_gate", json!(false), "is false, which is not supported (supported: true)"),
        ("layer_types", json!(["full_attention", "linear_attention"]), "is \"linear_attention\" in layer 1"),
        ("num_experts", json!(null), "is missing"),
    ] {
        let mut config = good.clone();
        config[key] = value;
        let message = refused(&config, &tensors);
        match expected {
            "" => assert!(message.contains("the value heads of a delta net need"), "{key}: {message}"),
            expected => assert!(message.starts_with(&format!("{key} {expected}")), "{key}: {message}"),
        }
    }
    let mut config = good.clone();
    config["rope_parameters"]["partial_rotary_factor"] = json!(1.5);
    assert!(refused(&config, &tensors).starts_with("partial_rotary_factor is 1.5"));
    let fused = "model.layers.0.mlp.experts.gate_up_proj";
    let (dtype, dims, data) = tensors[fused].clone();
    for (dims, expected) in [
        (vec![dims[0] * dims[1], dims[2]], "gate and up of all experts need three dimensions"),
        (vec![dims[0] * dims[2], dims[1] / dims[1], dims[1]], "need an even number of rows"),
    ] {
        let mut other = tensors.clone();
        other.insert(fused.to_owned(), (dtype, dims, data.clone()));
        let message = refused(&good, &other);
        assert!(message.contains(fused) && message.ends_with(expected), "{message}");
    }
    let mut other = tensors.clone();
    other.insert("model.visual.x".to_owned(), other["model.norm.weight"].clone());
    assert!(refused(&good, &other).contains("model.visual.x"));
}
