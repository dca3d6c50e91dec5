//! Folders that are malformed or not supported: each is refused by name.

use super::*;

/// The error for a folder whose only file is `bytes`.
fn refused(config: &Value, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    match SafetensorsFolder::open(folder.path()) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

/// A configuration with other values.
fn with(config: &Value, values: &[(&str, Value)]) -> Value {
    let mut config = config.clone();
    for (key, value) in values {
        config[*key] = value.clone();
    }
    config
}

#[test]
fn malformed_files_are_refused() {
    let config = config(&ModelShape::preset("tiny-qwen3").unwrap());
    let said = |header: &str, data: usize| refused(&config, &with_header(header, &vec![0; data]));
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"model.norm.weight":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (message, found) in [
        ("cannot read the header: failed to fill whole buffer", refused(&config, &[])),
        ("cannot read the header: failed to fill whole buffer", refused(&config, &[1, 0, 0])),
        (
            "has an invalid header length of 18446744073709551615 bytes (file size 8",
            refused(&config, &[255; 8]),
        ),
        (
            "has an invalid header length of 9 bytes (file size 16",
            refused(&config, &[9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
        ),
        ("cannot be parsed: expected value at line 1 column 1", said("x", 0)),
        ("cannot be parsed: invalid type: sequence, expected an object of tensors", said("[]", 0)),
        ("cannot be parsed: missing field `dtype`", said(r#"{"a": {}}"#, 0)),
        (
            "has type I64, which is not supported (supported: F32, F16, BF16)",
            said(&entry("I64", "[1]", "[0,8]"), 8),
        ),
        ("has the shape []; expected 1 to 4 dimensions", said(&entry("F32", "[]", "[0,4]"), 4)),
        ("has the shape [1, 1, 1, 1, 1]; expected 1 to 4", said(&entry("F32", "[1,1,1,1,1]", "[0,4]"), 4)),
        ("has the shape [2, 0]; expected 1 to 4 dimensions", said(&entry("F32", "[2,0]", "[0,0]"), 4)),
        (
            "F32: the size of 18446744073709551615 elements overflows",
            said(&entry("F32", "[4294967296,4294967296]", "[0,4]"), 4),
        ),
        ("has the data offsets 0..5; expected 4 bytes within the 8", said(&entry("F32", "[1]", "[0,5]"), 8)),
        ("has the data offsets 4..0; expected 4 bytes within the 8", said(&entry("F32", "[1]", "[4,0]"), 8)),
        (
            "has the data offsets 8..12; expected 4 bytes within the 8",
            said(&entry("F32", "[1]", "[8,12]"), 8),
        ),
        (
            "has the data offsets 18446744073709551612..18446744073709551615",
            said(&entry("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 8),
        ),
        ("cannot be parsed: invalid value", said(&entry("F32", "[-1]", "[0,4]"), 8)),
        (
            "has the tensor \"model.nose.weight\", which no supported",
            said(&entry("F32", "[1]", "[0,4]").replace("norm", "nose"), 8),
        ),
    ] {
        assert!(found.contains(message), "{message:?} is not in {found:?}");
    }
    let one = |name: &str, from: usize| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{from},{}]}}"#, from + 8)
    };
    let twice = said(&format!("{{{},{}}}", one("model.norm.weight", 0), one("model.norm.weight", 8)), 16);
    assert!(twice.ends_with("duplicate tensor \"model.norm.weight\""), "{twice}");
    let overlap = said(&format!("{{{},{}}}", one("model.norm.weight", 4), one("lm_head.weight", 0)), 16);
    assert!(overlap.ends_with("tensors \"lm_head.weight\" and \"model.norm.weight\" overlap"), "{overlap}");
}

#[test]
fn configurations_that_are_not_supported_are_refused_by_name() {
    let (_, shape, tensors) = both("tiny-llama");
    let bytes = file(&tensors);
    let said = |key: &str, value: Value| {
        let mut config = config(&shape);
        match value {
            Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value,
        }
        refused(&config, &bytes)
    };
    for (message, found) in [
        (
            "config.json: model_type is \"gpt_neox\", which is not supported (supported: llama, mistral, \
             qwen2, qwen3, qwen3_moe, gemma3_text, ministral3, phi3, granite, smollm3, olmo2, olmo3, \
             olmoe, gpt_oss, glm4_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text, gemma4_text, and the text \
             of gemma3, gemma4, mistral3, qwen3_5 and qwen3_5_moe)",
            said("model_type", json!("gpt_neox")),
        ),
        (
            "hidden_act is \"gelu\", which is not supported (supported: silu)",
            said("hidden_act", json!("gelu")),
        ),
        (
            "rope_scaling.rope_type is \"dynamic\", which is not supported",
            said("rope_scaling", json!({ "type": "dynamic", "factor": 2.0 })),
        ),
        ("rope_scaling is without factor", said("rope_scaling", json!({ "type": "yarn" }))),
        (
            "rope_scaling is without low_freq_factor",
            said("rope_scaling", json!({ "type": "llama3", "factor": 8.0 })),
        ),
        ("partial_rotary_factor is 0.5, which is not supported", said("partial_rotary_factor", json!(0.5))),
        ("config.json: cannot be parsed: missing field `hidden_size`", said("hidden_size", Value::Null)),
        ("config.json: intermediate_size is missing", said("intermediate_size", Value::Null)),
        (
            "clip_qkv is 8, which is not supported (supported: null)",
            refused(
                &with(
                    &config(&shape),
                    &[
                        ("model_type", json!("olmoe")),
                        ("clip_qkv", json!(8.0)),
                        ("num_experts", json!(8)),
                        ("num_experts_per_tok", json!(2)),
                    ],
                ),
                &bytes,
            ),
        ),
        (
            "no_rope_layer_interval is 3, which is not supported (supported: 4)",
            refused(
                &with(
                    &config(&shape),
                    &[("model_type", json!("smollm3")), ("no_rope_layer_interval", json!(3))],
                ),
                &bytes,
            ),
        ),
        ("use_bidirectional_attention is true", said("use_bidirectional_attention", json!(true))),
        ("config.json: cannot be parsed: invalid type: string \"x\"", said("hidden_size", json!("x"))),
        ("cannot be parsed: invalid value: integer `-1`", said("num_hidden_layers", json!(-1))),
        ("q_proj.weight\" has 256 rows; 0 heads", said("num_attention_heads", json!(0))),
        ("q_proj.weight\" has 256 rows; 3 heads", said("num_attention_heads", json!(3))),
        ("q_proj.weight\" has 256 rows; 256 heads", said("num_attention_heads", json!(256))),
        ("head_dim is 0, which is not supported", said("head_dim", json!(0))),
    ] {
        assert!(found.contains(message), "{message:?} is not in {found:?}");
    }
}

#[test]
fn folders_without_weights_and_large_texts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = || SafetensorsFolder::open(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(said().contains("config.json: cannot open it: No such file"), "{}", said());
    let other = source::open(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(other.contains("is a directory, not a file, and has no config.json"), "{other}");
    let path = folder.path().join("config.json");
    fs::write(&path, config(&ModelShape::preset("tiny-qwen3").unwrap()).to_string()).unwrap();
    assert!(said().ends_with("has neither model.safetensors nor model.safetensors.index.json"), "{}", said());
    fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    assert!(said().ends_with("is too large: 67108865 bytes, limit 67108864"), "{}", said());
}
