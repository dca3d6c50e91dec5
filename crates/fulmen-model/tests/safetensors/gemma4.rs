//! Folders of Gemma 4.

use super::*;

const NAMES: [(&str, &str); 23] = [
    ("attn_q_norm.", "self_attn.q_norm."),
    ("attn_k_norm.", "self_attn.k_norm."),
    ("attn_norm.", "input_layernorm."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_k.", "self_attn.k_proj."),
    ("attn_v.", "self_attn.v_proj."),
    ("attn_output.", "self_attn.o_proj."),
    ("post_attention_norm.", "post_attention_layernorm."),
    ("post_ffw_norm_1.", "post_feedforward_layernorm_1."),
    ("post_ffw_norm_2.", "post_feedforward_layernorm_2."),
    ("post_ffw_norm.", "post_feedforward_layernorm."),
    ("pre_ffw_norm_2.", "pre_feedforward_layernorm_2."),
    ("ffn_norm.", "pre_feedforward_layernorm."),
    ("ffn_gate_inp.weight", "router.proj.weight"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_down_exps.weight", "experts.down_proj"),
    ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("inp_gate.", "per_layer_input_gate."),
    ("post_norm.", "post_per_layer_input_norm."),
    ("proj.", "per_layer_projection."),
    ("ffn_", "mlp."),
];

fn folder_tensors(file: &GgufFile) -> BTreeMap<String, Tensor> {
    let named = |name: &str| match name {
        "rope_freqs.weight" => None,
        "token_embd.weight" => Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => Some("model.norm.weight".to_owned()),
        "per_layer_token_embd.weight" => Some("model.embed_tokens_per_layer.weight".to_owned()),
        "per_layer_model_proj.weight" => Some("model.per_layer_model_projection.weight".to_owned()),
        "per_layer_proj_norm.weight" => Some("model.per_layer_projection_norm.weight".to_owned()),
        _ => {
            let (layer, part) = name.strip_prefix("blk.").unwrap().split_once('.').unwrap();
            let (ours, theirs) = NAMES.iter().find(|(ours, _)| part.starts_with(ours)).unwrap();
            let rest = part.strip_prefix(ours).unwrap();
            let rest =
                if *ours == "ffn_" { rest.replace(".weight", "_proj.weight") } else { rest.to_owned() };
            Some(format!("model.layers.{layer}.{theirs}{rest}"))
        }
    };
    let tensor = |info: &TensorInfo| {
        let dtype = if info.dtype() == DType::F32 { "F32" } else { "BF16" };
        let shape = info.dims().iter().rev().copied().collect();
        Some((named(info.name())?, (dtype, shape, file.data(info.name()).unwrap().to_vec())))
    };
    file.tensors().iter().filter_map(tensor).collect()
}

fn gemma_config(shape: &ModelShape, file: &GgufFile) -> Value {
    let of = Config::read(file).unwrap();
    let kind = |layer| match of.variant.window_of(layer) {
        Some(_) => "sliding_attention",
        None => "full_attention",
    };
    let local = of.variant.local_heads.unwrap();
    let mut config = config(shape);
    let more = json!({
        "model_type": "gemma4_text",
        "head_dim": local.head_dim,
        "num_key_value_heads": local.n_kv_heads,
        "global_head_dim": of.heads.head_dim,
        "num_global_key_value_heads": of.heads.n_kv_heads,
        "attention_k_eq_v": shape.experts.is_some(),
        "hidden_act": null,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": (0..of.layers).map(kind).collect::<Vec<_>>(),
        "sliding_window": 40,
        "rope_theta": null,
        "rope_parameters": {
            "full_attention":
                { "rope_type": "proportional", "rope_theta": shape.rope_base, "partial_rotary_factor": 0.25 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
        },
        "final_logit_softcapping": 30.0,
        "num_kv_shared_layers": of.variant.shared_kv,
        "use_double_wide_mlp": of.variant.shared_kv > 0,
        "hidden_size_per_layer_input": of.variant.layer_embedding,
        "vocab_size_per_layer_input": shape.vocabulary,
        "use_bidirectional_attention": "vision",
        "enable_moe_block": shape.experts.is_some(),
        "top_k_experts": shape.experts.map(|experts| experts.used),
        "num_experts_per_tok": null,
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

/// As newer files say it of each layer.
fn by_layer(config: &Value) -> Value {
    let mut newer = config.clone();
    let layers = config["layer_types"].as_array().unwrap().iter().enumerate();
    let global = layers.filter(|(_, kind)| *kind == "full_attention").map(|(layer, _)| {
        let mut own = json!({ "head_dim": config["global_head_dim"] });
        if config["attention_k_eq_v"] == true {
            own["num_key_value_heads"] = config["num_global_key_value_heads"].clone();
        }
        (layer.to_string(), own)
    });
    newer["per_layer_config"] = Value::Object(global.collect());
    for key in ["global_head_dim", "num_global_key_value_heads"] {
        newer.as_object_mut().unwrap().remove(key);
    }
    newer
}

#[test]
fn a_folder_of_gemma4_is_the_same_model_as_the_file() {
    for preset in ["tiny-gemma4", "tiny-gemma4moe"] {
        let (file, shape) = tiny(preset);
        let tensors = folder_tensors(&file);
        let config = gemma_config(&shape, &file);
        let mut beside: BTreeMap<String, Tensor> = BTreeMap::new();
        for (name, tensor) in &tensors {
            let inner = name.strip_prefix("model.").unwrap();
            beside.insert(format!("model.language_model.{inner}"), tensor.clone());
        }
        for name in ["vision_tower.x", "audio_tower.x", "embed_vision.x", "embed_audio.x"] {
            beside.insert(format!("model.{name}"), tensors["model.norm.weight"].clone());
        }
        let outer = json!({ "model_type": "gemma4", "text_config": config });
        for (config, tensors) in [(&config, &tensors), (&by_layer(&config), &tensors), (&outer, &beside)] {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), config, tensors);
            let opened = SafetensorsFolder::open(folder.path()).unwrap();
            assert_eq!(Config::read(&opened).unwrap(), Config::read(&file).unwrap());
            let mut found = 0;
            for info in opened.tensors() {
                let data = opened.data(info.name()).unwrap();
                let data = (*data).as_ref();
                found += data.len();
                match info.name().split_once("_exps.weight") {
                    Some((part, _)) if !part.ends_with("down") => {
                        // Gate and up of each expert are in one tensor of the file.
                        let both = part.replace("ffn_gate", "ffn_gate_up").replace("ffn_up", "ffn_gate_up");
                        let both = file.data(&format!("{both}_exps.weight")).unwrap();
                        let half = both.len() / shape.experts.unwrap().count / 2;
                        let first = usize::from(part.ends_with("up"));
                        let ours: Vec<u8> =
                            both.chunks(half).skip(first).step_by(2).flatten().copied().collect();
                        assert!(data == ours, "{info}");
                    }
                    _ => assert!(data == &file.data(info.name()).unwrap()[..], "{info}"),
                }
            }
            let all: usize = file.tensors().iter().map(|info| info.bytes()).sum();
            assert_eq!(found, all);
        }
    }
}

#[test]
fn what_of_gemma4_is_not_supported_is_refused_by_name() {
    let (file, shape) = tiny("tiny-gemma4");
    let tensors = folder_tensors(&file);
    let good = gemma_config(&shape, &file);
    let refused = |config: &Value| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), config, &tensors);
        let error = SafetensorsFolder::open(folder.path()).err().unwrap().to_string();
        error.split_once(": ").unwrap().1.to_owned()
    };
    for (key, value, expected) in [
        (
            "use_bidirectional_attention",
            json!("all"),
            "is \"all\", which is not supported (supported: false)",
        ),
        ("hidden_activation", json!("silu"), ""),
        ("vocab_size_per_layer_input", json!(99), "is 99, which is not supported (supported: that of vocab"),
        ("layer_types", json!(["chunked_attention"]), "is \"chunked_attention\", which is not supported"),
        ("global_head_dim", json!(1), "is 1, which is not supported"),
        ("per_layer_config", json!({ "0": { "head_dim": 16 } }), "is head_dim"),
        ("per_layer_config", json!({ "1": { "intermediate_size": 16 } }), "is intermediate_size in layer 1"),
        ("intermediate_size", json!(null), "is missing"),
    ] {
        let mut config = good.clone();
        if key == "per_layer_config" {
            config = by_layer(&config);
            for (layer, own) in value.as_object().unwrap() {
                config[key][layer] = own.clone();
            }
        } else {
            config[key] = value;
        }
        let message = refused(&config);
        let key = if key == "hidden_activation" { "hidden_act" } else { key };
        assert!(message.starts_with(&format!("{key} {expected}")), "{key}: {message}");
    }
    let mut config = good.clone();
    config["rope_parameters"]["full_attention"]["factor"] = json!(2.0);
    assert!(refused(&config).starts_with("rope_parameters.full_attention.factor is 2"));
    let mut config = good.clone();
    config["rope_parameters"]["sliding_attention"]["rope_type"] = json!("linear");
    assert!(refused(&config).starts_with("rope_parameters.sliding_attention is \"linear\""));
    let mut config = good;
    config["enable_moe_block"] = json!(true);
    assert!(refused(&config).starts_with("num_experts is missing"));
    config["num_experts"] = json!(8);
    assert!(refused(&config).starts_with("top_k_experts is missing"));
}
