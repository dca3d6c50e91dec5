//! Hugging Face folders: the same model as the GGUF file, and malformed files are rejected.

mod gemma4;
mod hybrid;
mod refused;

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::Path, sync::Arc};

use fulmen_core::{DType, ExpertGroups, quant};
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::arch::Config;
use fulmen_model::gguf::GgufFile;
use fulmen_model::quantize::{QuantizePlan, Recipe, quantize};
use fulmen_model::safetensors::SafetensorsFolder;
use fulmen_model::source::{self, ModelSource, TensorInfo};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::tokenizer::{Special, Tokenizer};
use serde_json::{Value, json};

/// A tensor of a safetensors file: type, shape, bytes.
type Tensor = (&'static str, Vec<usize>, Vec<u8>);

/// The bytes of a safetensors file.
fn file(tensors: &BTreeMap<String, Tensor>) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    for (name, (dtype, shape, bytes)) in tensors {
        let range = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": range }));
        data.extend(bytes);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// Reverses the conversion to GGUF: tensor names, the row order of Llama's query and key heads, and stacked
/// experts.
fn theirs(shape: &ModelShape, file: &GgufFile, tensor: &TensorInfo) -> Vec<(String, Tensor)> {
    let Some((name, (dtype, dims, data))) = named_as_theirs(shape, file, tensor) else { return Vec::new() };
    let [experts, rows, width] = dims[..] else { return vec![(name, (dtype, dims, data))] };
    let split = data.chunks(data.len() / experts).enumerate();
    let of_expert = |(expert, data): (usize, &[u8])| {
        let name = name.replace("EXPERT", &expert.to_string());
        (name, (dtype, vec![rows, width], data.to_vec()))
    };
    split.map(of_expert).collect()
}

fn named_as_theirs(shape: &ModelShape, file: &GgufFile, tensor: &TensorInfo) -> Option<(String, Tensor)> {
    let data = file.data(tensor.name()).unwrap().to_vec();
    let name = tensor.name();
    let new = match name {
        "rope_freqs.weight" => return None,
        "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
        "output_norm.weight" => "model.norm.weight".to_owned(),
        "output.weight" => "lm_head.weight".to_owned(),
        _ => {
            let (layer, part) = name.strip_prefix("blk.").unwrap().split_once('.').unwrap();
            let part = part
                .replace("attn_q.", "self_attn.q_proj.")
                .replace("attn_k.", "self_attn.k_proj.")
                .replace("attn_v.", "self_attn.v_proj.")
                .replace("attn_output.", "self_attn.o_proj.")
                .replace("attn_q_norm", "self_attn.q_norm")
                .replace("attn_k_norm", "self_attn.k_norm")
                .replace("attn_norm", "input_layernorm")
                .replace("ffn_norm", "post_attention_layernorm")
                .replace("post_attention_norm", "post_attention_layernorm")
                .replace("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")
                .replace("ffn_gate_shexp", "mlp.shared_experts.gate_proj")
                .replace("ffn_up_shexp", "mlp.shared_experts.up_proj")
                .replace("ffn_down_shexp", "mlp.shared_experts.down_proj")
                .replace("ffn_gate_inp", "mlp.gate")
                .replace("ffn_gate_exps", "mlp.experts.EXPERT.gate_proj")
                .replace("ffn_up_exps", "mlp.experts.EXPERT.up_proj")
                .replace("ffn_down_exps", "mlp.experts.EXPERT.down_proj")
                .replace("ffn_gate", "mlp.gate_proj")
                .replace("ffn_up", "mlp.up_proj")
                .replace("ffn_down", "mlp.down_proj");
            format!("model.layers.{layer}.{part}")
        }
    };
    let data = if shape.architecture == "llama" && (name.contains("attn_q.") || name.contains("attn_k.")) {
        let row = data.len() / tensor.rows();
        let mut out = vec![0; data.len()];
        for (at, bytes) in data.chunks(row).enumerate() {
            let (head, inner) = (at / shape.head_size, at % shape.head_size);
            let to = head * shape.head_size + inner % 2 * (shape.head_size / 2) + inner / 2;
            out[to * row..][..row].copy_from_slice(bytes);
        }
        out
    } else {
        data
    };
    // Vectors are BF16 in the folders, like everything else.
    let (dtype, data) = match tensor.dtype() {
        DType::F32 => {
            let values = quant::dequantize_to_vec(DType::F32, &data, tensor.elements()).unwrap();
            ("BF16", quant::quantize_to_vec(DType::BF16, &values).unwrap())
        }
        DType::BF16 => ("BF16", data),
        other => panic!("{other}"),
    };
    let dims = tensor.dims().iter().rev().copied().collect();
    Some((new, (dtype, dims, data)))
}

fn config(shape: &ModelShape) -> Value {
    let mut config = json!({
        "architectures": ["SomethingForCausalLM"],
        "model_type": shape.architecture.replace("qwen3moe", "qwen3_moe"),
        "hidden_size": shape.embedding,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_base,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "sliding_window": null,
    });
    if let Some(experts) = shape.experts {
        config["num_experts"] = json!(experts.count);
        config["num_experts_per_tok"] = json!(experts.used);
        config["moe_intermediate_size"] = json!(experts.feed_forward);
        config["norm_topk_prob"] = json!(true);
        config["decoder_sparse_step"] = json!(1);
        config["mlp_only_layers"] = json!([]);
    }
    if let Some(factor) = shape.rope_factor {
        config["rope_scaling"] = json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
    }
    config
}

/// A model as a GGUF file and as a folder.
fn both(preset: &str) -> (GgufFile, ModelShape, BTreeMap<String, Tensor>) {
    let shape = ModelShape { layers: 2, ..ModelShape::preset(preset).unwrap() };
    let recipe: Recipe = "bf16".parse().unwrap();
    let file = Synth::new(shape.clone(), recipe, 1).file().unwrap();
    let tensors = file.tensors().iter().flat_map(|tensor| theirs(&shape, &file, tensor)).collect();
    (file, shape, tensors)
}

fn write(folder: &Path, config: &Value, tensors: &BTreeMap<String, Tensor>) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("model.safetensors"), file(tensors)).unwrap();
}

/// Compares every tensor of the GGUF file with the folder's.
fn compare(file: &GgufFile, folder: &dyn ModelSource) {
    let sorted = |source: &dyn ModelSource| {
        let mut list: Vec<String> = source.tensors().iter().map(|tensor| tensor.to_string()).collect();
        list.sort();
        list
    };
    assert_eq!(sorted(folder), sorted(file));
    for tensor in file.tensors() {
        let (ours, theirs) = (file.data(tensor.name()).unwrap(), folder.data(tensor.name()).unwrap());
        let expected = if tensor.dtype() == DType::F32 && tensor.name() != "rope_freqs.weight" {
            // They were rounded to BF16.
            let values = quant::dequantize_to_vec(DType::F32, &ours, tensor.elements()).unwrap();
            let rounded = quant::quantize_to_vec(DType::BF16, &values).unwrap();
            let values = quant::dequantize_to_vec(DType::BF16, &rounded, tensor.elements()).unwrap();
            bytemuck::cast_slice(&values).to_vec()
        } else {
            ours.to_vec()
        };
        assert!((*theirs).as_ref() == expected, "{tensor}");
    }
}

#[test]
fn experts_that_do_not_fit_the_configuration_are_refused_by_name() {
    let (_, shape, tensors) = both("tiny-qwen3moe");
    let refused = |config: &Value, tensors: &BTreeMap<String, Tensor>| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), config, tensors);
        let error = SafetensorsFolder::open(folder.path()).err().unwrap().to_string();
        error.split_once(": ").unwrap().1.to_owned()
    };
    let config = config(&shape);
    let last = "model.layers.1.mlp.experts.7.up_proj.weight";
    let mut fewer = tensors.clone();
    let removed = fewer.remove(last).unwrap();
    let message = refused(&config, &fewer);
    assert_eq!(message, "the weight of expert 7 of 8 is missing in \"blk.1.ffn_up_exps.weight\"");
    let mut more = tensors.clone();
    more.insert("model.layers.1.mlp.experts.8.up_proj.weight".to_owned(), removed.clone());
    assert!(refused(&config, &more).ends_with("belongs to an expert that does not exist: num_experts is 8"));
    let mut other = tensors.clone();
    other.insert(
        last.to_owned(),
        (removed.0, vec![removed.1[1], removed.1[0] / 2], removed.2[..removed.2.len() / 2].to_vec()),
    );
    let message = refused(&config, &other);
    assert!(message.contains(last) && message.contains("those of the other experts are"), "{message}");
    for (key, value) in [("decoder_sparse_step", json!(2)), ("mlp_only_layers", json!([0]))] {
        let mut config = config.clone();
        config[key] = value;
        assert!(refused(&config, &tensors).starts_with(key));
    }
    let mut config = config.clone();
    config["num_experts"] = json!(null);
    assert!(refused(&config, &tensors).starts_with("num_experts is missing"));
}

/// GLM-4.5: other names, and a layer that predicts further tokens, which folders are read without.
#[test]
fn a_folder_of_glm4_moe_is_the_same_model_as_the_file() {
    let (file, shape, tensors) = both("tiny-glm4moe");
    let mut config = config(&shape);
    config["model_type"] = json!("glm4_moe");
    config["n_routed_experts"] = config["num_experts"].take();
    config["partial_rotary_factor"] = json!(0.5);
    config["routed_scaling_factor"] = json!(1.5);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config, &tensors);
    let opened = SafetensorsFolder::open(folder.path()).unwrap();
    let names = |source: &dyn ModelSource| {
        let mut names: Vec<String> = source.tensors().iter().map(|tensor| tensor.to_string()).collect();
        names.retain(|name| !name.contains("blk.2."));
        names.sort();
        names
    };
    assert_eq!(names(&opened), names(&file));
    for tensor in opened.tensors().iter().filter(|tensor| tensor.dims().len() > 1) {
        let (ours, theirs) = (file.data(tensor.name()).unwrap(), opened.data(tensor.name()).unwrap());
        if tensor.dtype() == DType::BF16 {
            assert!((*theirs).as_ref() == &ours[..], "{tensor}");
        }
    }
    let (ours, theirs) = (Config::read(&file).unwrap(), Config::read(&opened).unwrap());
    assert_eq!((theirs.experts, &theirs.rope, theirs.heads), (ours.experts, &ours.rope, ours.heads));
    assert_eq!((theirs.layers, theirs.draft_layers), (ours.layers, 0));
    // The groups of its experts.
    let mut read = |groups: [u32; 2]| {
        (config["n_group"], config["topk_group"]) = (json!(groups[0]), json!(groups[1]));
        write(folder.path(), &config, &tensors);
        Config::read(&SafetensorsFolder::open(folder.path()).unwrap())
    };
    let mut groups = |groups| read(groups).unwrap().experts.unwrap().route.groups;
    assert_eq!(groups([1, 1]), None);
    assert_eq!(groups([4, 2]), Some(ExpertGroups { count: 4, used: 2 }));
    let error = read([3, 1]).unwrap_err().to_string();
    assert!(error.contains("expert_group_count") && error.ends_with("is 3"), "{error}");
}

/// Of models that also take images, the text part is read.
#[test]
fn the_text_of_a_model_with_images_is_the_same_model() {
    let (file, shape, tensors) = both("tiny-llama-untied");
    for prefix in ["language_model.model.", "model.language_model."] {
        let mut text = config(&shape);
        text["model_type"] = json!("mistral");
        let outer = json!({ "model_type": "mistral3", "text_config": text, "eos_token_id": 7 });
        let mut named: BTreeMap<String, Tensor> = BTreeMap::new();
        for (name, tensor) in &tensors {
            let name = match name.strip_prefix("model.") {
                Some(name) => format!("{prefix}{name}"),
                None => name.clone(),
            };
            named.insert(name, tensor.clone());
        }
        let norm = tensors["model.norm.weight"].clone();
        named.insert("vision_tower.patch_conv.weight".to_owned(), norm.clone());
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &outer, &named);
        let opened = SafetensorsFolder::open(folder.path()).unwrap();
        compare(&file, &opened);
        assert_eq!(opened.metadata().u32("tokenizer.ggml.eos_token_id"), Ok(7));
        // Without a text part it is an unknown type, and other tensors are not ignored.
        let refused = |config: &Value, tensors: &BTreeMap<String, Tensor>| {
            write(folder.path(), config, tensors);
            SafetensorsFolder::open(folder.path()).err().unwrap().to_string()
        };
        let mut plain = config(&shape);
        plain["model_type"] = json!("mistral3");
        assert!(refused(&plain, &named).contains("model_type is \"mistral3\""));
        named.insert("audio_tower.weight".to_owned(), norm);
        assert!(refused(&outer, &named).contains("audio_tower.weight"));
    }
}

#[test]
fn what_the_text_of_gemma3_leaves_out_has_its_default() {
    let text = json!({ "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": { "factor": 8.0, "rope_type": "linear" } });
    let folder = tempfile::tempdir().unwrap();
    let outer = json!({ "model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106] });
    write(folder.path(), &outer, &BTreeMap::new());
    let opened = SafetensorsFolder::open(folder.path()).unwrap();
    let metadata = opened.metadata();
    for (key, value) in
        [("attention.head_count", 8), ("attention.head_count_kv", 4), ("attention.key_length", 256)]
    {
        assert_eq!(metadata.u32(&format!("gemma3.{key}")), Ok(value), "{key}");
    }
    assert_eq!(metadata.f32("gemma3.rope.freq_base"), Ok(1e6));
    assert_eq!(metadata.f32("gemma3.rope.freq_base_swa"), Ok(1e4));
    assert_eq!(metadata.u32("tokenizer.ggml.eot_token_id"), Ok(106));
}

#[test]
fn a_folder_is_the_same_model_as_the_file() {
    for preset in
        ["tiny-llama", "tiny-llama-untied", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3moe", "tiny-olmoe"]
    {
        let (file, shape, tensors) = both(preset);
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config(&shape), &tensors);
        let opened = SafetensorsFolder::open(folder.path()).unwrap();
        compare(&file, &opened);
        let (ours, theirs) = (file.metadata(), opened.metadata());
        for key in ["block_count", "context_length", "embedding_length", "feed_forward_length"]
            .into_iter()
            .chain(["attention.head_count", "attention.head_count_kv"])
        {
            let key = format!("{}.{key}", shape.architecture);
            assert_eq!(ours.u32(&key), theirs.u32(&key));
        }
        for key in ["rope.freq_base", "attention.layer_norm_rms_epsilon"] {
            let key = format!("{}.{key}", shape.architecture);
            assert_eq!(ours.f32(&key), theirs.f32(&key));
        }
        assert_eq!(theirs.u32("tokenizer.ggml.eos_token_id"), Ok(2));
        assert_eq!(theirs.u32("tokenizer.ggml.eot_token_id"), Ok(3));
        assert_eq!(opened.tokenizer_json(), None);
    }
}

/// The folder's norms were rounded to BF16, so the logits are only close; heads in the wrong row order would
/// be far off.
#[test]
fn a_folder_runs_as_the_file_does() {
    for preset in ["tiny-llama", "tiny-qwen2", "tiny-qwen3"] {
        let (file, shape, tensors) = both(preset);
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config(&shape), &tensors);
        let cpu = || Box::new(fulmen_cpu::CpuDispatcher::with_threads(1));
        let options = || LoadOptions {
            session: SessionOptions { context: 64, ..SessionOptions::default() },
            ..LoadOptions::default()
        };
        let ours = Model::from_source(Arc::new(file), cpu(), options()).unwrap();
        let theirs = Model::load_with(folder.path(), cpu(), options()).unwrap();
        let tokens: Vec<u32> = (0..20).map(|i| i * 37 % 1000).collect();
        let logits = |model: &Model| model.session().unwrap().logits(0, &tokens).unwrap();
        let (ours, theirs) = (logits(&ours), logits(&theirs));
        let square = |values: &[f32]| values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        let differences: Vec<f32> = ours.iter().zip(&theirs).map(|(a, b)| a - b).collect();
        let error = square(&differences) / square(&ours);
        assert!(error < 1e-3, "{preset}: {error:e}");
    }
}

/// A file of a folder that is cut or written to while it is loaded, or between steps.
#[test]
fn a_folder_that_changes_while_it_is_in_use_is_an_error_that_names_the_file() {
    let (_, shape, tensors) = both("tiny-llama");
    let cpu = || Box::new(fulmen_cpu::CpuDispatcher::with_threads(2));
    let new_folder = || {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config(&shape), &tensors);
        let path = folder.path().join("model.safetensors");
        // A change of now is seen at any resolution of the file system's clock.
        let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        fs::File::options().write(true).open(&path).unwrap().set_modified(hour_ago).unwrap();
        (folder, path)
    };
    let changes: [fn(&Path); 3] = [
        |path| fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap(),
        |path| fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap(),
        |path| fs::write(path, fs::read(path).unwrap()).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let names = |said: String, path: &Path| {
            let named = said.starts_with(&format!("{}: ", path.display()));
            assert!(named && said.contains("while it was open"), "change {number}: {said}");
        };
        let ((folder, path), mut changed) = (new_folder(), false);
        let mut progress = |_| {
            if !std::mem::replace(&mut changed, true) {
                change(&path);
            }
            ControlFlow::Continue(())
        };
        let options = LoadOptions { progress: Some(&mut progress), ..LoadOptions::default() };
        let loaded = Model::load_with(folder.path(), cpu(), options);
        names(loaded.map(drop).unwrap_err().to_string(), &path);

        let (folder, path) = new_folder();
        let model = Model::load(folder.path(), cpu()).unwrap();
        let mut session = model.session().unwrap();
        session.feed(0, &[1, 2, 3]).unwrap();
        change(&path);
        names(session.decode(&[0], 4).unwrap_err().to_string(), &path);
    }
}

/// A tokenizer.json with fewer tokens than the model has embedding rows.
fn tokenizer_json(rows: u32) -> Value {
    let split = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    );
    json!({
        "added_tokens": [{ "id": rows, "content": "<|im_end|>", "special": true, "rstrip": true }],
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": split }, "behavior": "Isolated" },
            { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false },
        ] },
        "model": {
            "type": "BPE",
            "vocab": { "h": 0, "i": 1, "Ġ": 2, "hi": 3, "Ã": 4, "©": 5 },
            "merges": ["h i"],
        },
    })
}

/// A tokenizer.json next to a model is used, and is written into a GGUF file converted from it.
#[test]
fn the_tokenizer_beside_a_model_is_its_own() {
    let (_, shape, tensors) = both("tiny-qwen2");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config(&shape), &tensors);
    fs::write(folder.path().join("tokenizer.json"), tokenizer_json(6).to_string()).unwrap();
    let opened = source::open(folder.path()).unwrap();
    let tokenizer = Tokenizer::from_source(opened.as_ref()).unwrap().unwrap();
    let out = folder.path().join("model.gguf");
    let plan = QuantizePlan::of(opened.as_ref(), "q8_0".parse().unwrap()).unwrap();
    quantize(opened.as_ref(), &plan, &out, false, 1, |_| std::ops::ControlFlow::Continue(())).unwrap();
    let file = GgufFile::open(&out).unwrap();
    let again = Tokenizer::from_source(&file).unwrap().unwrap();
    for tokenizer in [&tokenizer, &again] {
        assert_eq!(tokenizer.encode("hi e\u{301}<|im_end|> hi", Special::Parse), [3, 2, 4, 5, 6, 3]);
        assert_eq!(tokenizer.vocab_size(), shape.vocabulary, "as many as the model has rows");
        assert_eq!(tokenizer.ends(), [2, 3, 6], "of config.json and by its text");
        assert!(tokenizer.decode(&[(shape.vocabulary - 1) as u32]).is_ok());
    }
    assert!(
        Model::load_with(&out, Box::new(fulmen_cpu::CpuDispatcher::with_threads(1)), LoadOptions::default())
            .is_ok()
    );

    let large = tokenizer_json(u32::try_from(shape.vocabulary).unwrap());
    fs::write(folder.path().join("tokenizer.json"), large.to_string()).unwrap();
    let error = Tokenizer::from_source(opened.as_ref()).unwrap_err().to_string();
    let (rows, tokens) = (shape.vocabulary, shape.vocabulary + 1);
    assert_eq!(
        error,
        format!("the tokenizer has {tokens} tokens, but the model has only {rows} embedding rows")
    );
    fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    assert!(QuantizePlan::of(opened.as_ref(), "q8_0".parse().unwrap()).is_err());
}

#[test]
fn several_files_with_an_index_are_one_model() {
    let (file_, shape, tensors) = both("tiny-qwen3");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config(&shape), &tensors);
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let mut map = serde_json::Map::new();
    for part in 0..3 {
        let name = format!("model-{part:05}-of-00003.safetensors");
        let here: BTreeMap<String, Tensor> = tensors
            .iter()
            .skip(part)
            .step_by(3)
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect();
        here.keys().for_each(|tensor| drop(map.insert(tensor.clone(), json!(name))));
        fs::write(folder.path().join(&name), file(&here)).unwrap();
    }
    let index_path = folder.path().join("model.safetensors.index.json");
    fs::write(&index_path, json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    fs::write(
        folder.path().join("tokenizer_config.json"),
        r#"{"chat_template": "{{ x }}", "add_bos_token": true}"#,
    )
    .unwrap();
    let opened = source::open(folder.path()).unwrap();
    compare(&file_, &*opened);
    assert_eq!(opened.files().len(), 3);
    assert_eq!(opened.tokenizer_json(), Some(folder.path().join("tokenizer.json")));
    assert_eq!(opened.metadata().string("tokenizer.chat_template"), Ok("{{ x }}"));
    assert_eq!(opened.metadata().bool("tokenizer.ggml.add_bos_token"), Ok(true));
    fs::write(folder.path().join("chat_template.jinja"), "{{ y }}").unwrap();
    let again = source::open(folder.path()).unwrap();
    assert_eq!(again.metadata().string("tokenizer.chat_template"), Ok("{{ y }}"));

    let refused = |map: Value| {
        fs::write(&index_path, json!({ "weight_map": map }).to_string()).unwrap();
        SafetensorsFolder::open(folder.path()).map(|_| ()).unwrap_err().to_string()
    };
    for name in ["../secret.safetensors", "/etc/passwd", "..", "a\\b", ""] {
        let said = refused(json!({ "lm_head.weight": name }));
        assert!(
            said.ends_with(&format!("refers to the file {name:?}; expected a plain file name")),
            "{said}"
        );
    }
    let said = refused(json!({ "lm_head.weight": "model-00000-of-00003.safetensors" }));
    let expected =
        "lists tensor \"lm_head.weight\" in \"model-00000-of-00003.safetensors\", which does not contain it";
    assert!(said.ends_with(expected), "{said}");
    let said = refused(json!({ "lm_head.weight": "missing.safetensors" }));
    assert!(said.contains("missing.safetensors: cannot open it: No such file"), "{said}");
}

#[test]
fn a_window_shortens_the_context_and_linear_scaling_has_keys() {
    let (_, shape, tensors) = both("tiny-llama-untied");
    let open = |change: &dyn Fn(&mut Value)| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&shape);
        change(&mut config);
        write(folder.path(), &config, &tensors);
        SafetensorsFolder::open(folder.path()).unwrap().metadata().clone()
    };
    let metadata = open(&|config| {
        config["model_type"] = json!("mistral");
        config["sliding_window"] = json!(100);
    });
    assert_eq!(metadata.u32("llama.context_length"), Ok(100));
    let metadata = open(&|config| {
        config["sliding_window"] = json!(100);
        config["use_sliding_window"] = json!(false);
    });
    assert_eq!(metadata.u32("llama.context_length"), Ok(2048));
    let metadata = open(&|config| {
        config["sliding_window"] = json!(100);
        config["use_sliding_window"] = json!(true);
    });
    assert_eq!(metadata.u32("llama.context_length"), Ok(100));
    let metadata = open(&|config| config["rope_scaling"] = json!({ "type": "linear", "factor": 4.0 }));
    assert_eq!(metadata.string("llama.rope.scaling.type"), Ok("linear"));
    assert_eq!(metadata.f32("llama.rope.scaling.factor"), Ok(4.0));
    let metadata = open(&|config| {
        config.as_object_mut().unwrap().remove("rope_theta");
        config["rope_parameters"] = json!({ "rope_theta": 70000.0, "rope_type": "default" });
    });
    assert_eq!(metadata.f32("llama.rope.freq_base"), Ok(70000.0));
}
