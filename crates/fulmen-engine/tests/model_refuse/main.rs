//! Invalid models are rejected with the key or tensor, the expected and the actual value; a valid one then
//! loads.

mod small_device;
#[path = "../tiny/mod.rs"]
mod tiny;

use std::sync::atomic::Ordering;

use fulmen_core::*;
use fulmen_engine::SessionOptions;
use fulmen_model::ModelError;
use fulmen_model::gguf::{Array, Value};
use tiny::{LLAMA, QWEN2, QWEN3, QWEN3_MOE, SHAPES, Tiny, TinyShape};

fn with(key: &str, value: impl Into<Value>) -> String {
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.set(key, value);
    tiny.refusal()
}

#[test]
fn keys_that_are_missing_or_of_another_type() {
    for shape in SHAPES {
        for key in [
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "context_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        ] {
            if key == "feed_forward_length" && shape.is_hybrid() && shape.experts.is_some() {
                // All layers have experts.
                continue;
            }
            let key = format!("{}.{key}", shape.arch);
            let mut tiny = Tiny::new(shape, 1);
            tiny.metadata.remove(&key);
            let message = tiny.refusal();
            assert!(message.starts_with(&format!("metadata key {key:?} is missing")), "{message}");
            tiny.metadata.set(key.clone(), "many");
            let message = tiny.refusal();
            assert!(message.starts_with(&format!("metadata key {key:?} must be")), "{message}");
            assert!(message.ends_with("is string"), "{message}");
        }
    }
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.remove("general.architecture");
    assert!(tiny.refusal().contains("key \"general.architecture\" is missing"));
}

#[test]
fn other_architectures_are_refused_by_name() {
    assert_eq!(
        with("general.architecture", "mamba"),
        "architecture \"mamba\" is not supported (supported: llama, qwen2, qwen3, qwen3moe, gemma3, gemma4, \
         mistral3, phi3, granite, smollm3, olmo2, olmoe, gpt-oss, glm4moe, qwen3next, qwen35, qwen35moe)"
    );
    let message = with("llama.expert_count", 8u32);
    assert!(message.contains("llama.expert_count") && message.contains("experts"), "{message}");
}

#[test]
fn keys_and_tensors_of_single_architectures() {
    let of = |arch| Tiny::new(TinyShape { arch, factors: false, ..LLAMA }, 1);
    let with = |arch, keys: &[(&str, Value)]| {
        let mut tiny = of(arch);
        for (key, value) in keys {
            tiny.metadata.set(format!("{arch}.{key}"), value.clone());
        }
        tiny.refusal()
    };
    let window = ("attention.sliding_window", Value::from(0u32));
    for arch in ["gemma3", "phi3", "olmo2"] {
        let expected = "must be from 1 to 268435456, is 0";
        let message = with(arch, std::slice::from_ref(&window));
        assert_eq!(message, format!("metadata key \"{arch}.attention.sliding_window\" {expected}"));
    }
    for (arch, key, value, expected) in [
        ("gemma3", "rope.freq_base_swa", Value::from(0.0f32), "must be a positive finite number, is 0"),
        ("gemma3", "final_logit_softcapping", Value::from(-1.0f32), "must be a positive finite number"),
        ("granite", "logit_scale", Value::from(0.0f32), "must be a finite number other than 0, is 0"),
        ("granite", "residual_scale", Value::from(f32::NAN), "must be a finite number other than 0"),
        ("mistral3", "rope.scaling.type", Value::from("dynamic"), "must be none, linear, yarn or longrope"),
        ("mistral3", "rope.scaling.attn_factor", Value::from(-1.0f32), "must be a positive finite number"),
    ] {
        let message = with(arch, &[(key, value)]);
        let start = format!("metadata key \"{arch}.{key}\" {expected}");
        assert!(message.starts_with(&start), "{message}");
    }
    let message = with("mistral3", &[("attention.temperature_scale", Value::from(0.1f32))]);
    let missing = "metadata key \"mistral3.rope.scaling.original_context_length\" is missing";
    assert!(message.starts_with(missing), "{message}");
    let message = with("phi3", &[("rope.scaling.type", Value::from("longrope"))]);
    assert!(message.contains("rope_factors_long.weight"), "{message}");
    // Tensors that the architecture has and a plain transformer does not, and the other way round.
    for (arch, tensor) in [
        ("gemma3", "blk.0.attn_q_norm.weight"),
        ("olmo2", "blk.0.attn_q_norm.weight"),
        ("phi3", "blk.0.ffn_up.weight"),
    ] {
        let message = of(arch).refusal();
        assert!(message.contains(tensor), "{arch}: {message}");
    }
    let olmoe = TinyShape { arch: "olmoe", experts: Some((7, 3)), factors: false, ..LLAMA };
    let mut tiny = Tiny::new(olmoe, 1);
    let message = tiny.refusal();
    assert!(message.starts_with("tensor \"blk.0.attn_q_norm.weight\" is missing ("), "{message}");
    // Files may say the width of an expert as that of the feed-forward layer.
    tiny.metadata.remove("olmoe.expert_feed_forward_length");
    assert_eq!(tiny.refusal(), message);
    tiny.metadata.set("olmoe.feed_forward_length", 48u32);
    let expected = "tensor \"blk.0.ffn_gate_exps.weight\" must have the shape [64, 48, 7], has [64, 96, 7]";
    for layer in 0..2 {
        for norm in ["attn_q_norm", "attn_k_norm"] {
            let width = if norm == "attn_q_norm" { 64 } else { 32 };
            let name = format!("blk.{layer}.{norm}.weight");
            tiny.put(&name, &[width], DType::F32, &vec![1.0; width]);
        }
    }
    assert_eq!(tiny.refusal(), expected);
    let mut tiny = of("smollm3");
    tiny.put("blk.1.attn_q_norm.weight", &[16], DType::F32, &[1.0; 16]);
    assert!(tiny.refusal().contains("blk.1.attn_q_norm.weight"));
}

#[test]
fn numbers_outside_their_range() {
    for (key, value, expected) in [
        ("llama.block_count", 0u32, "must be from 1 to 1024, is 0"),
        ("llama.block_count", 1_000_000, "must be from 1 to 1024, is 1000000"),
        ("llama.embedding_length", 0, "must be from 1 to 1048576, is 0"),
        ("llama.feed_forward_length", u32::MAX, "must be from 1 to 1048576, is 4294967295"),
        ("llama.context_length", 0, "must be from 1 to 268435456, is 0"),
        ("llama.attention.head_count", 0, "must be from 1 to 4096, is 0"),
        ("llama.attention.head_count_kv", 0, "must be from 1 to 4, is 0"),
        ("llama.attention.head_count_kv", 3, "must be a divisor of the 4 query heads, is 3"),
        ("llama.attention.head_count_kv", 8, "must be from 1 to 4, is 8"),
        ("llama.attention.key_length", 0, "must be from 1 to 16384, is 0"),
        ("llama.attention.key_length", 15, "must be even, is 15"),
        ("llama.attention.value_length", 32, "must be the key length 16, is 32"),
        ("llama.rope.dimension_count", 0, "must be even and from 2 to the head size 16, is 0"),
        ("llama.rope.dimension_count", 7, "must be even and from 2 to the head size 16, is 7"),
        ("llama.rope.dimension_count", 18, "must be even and from 2 to the head size 16, is 18"),
        ("llama.vocab_size", 100, "must be the 101 rows of token_embd.weight, is 100"),
    ] {
        assert_eq!(with(key, value), format!("metadata key {key:?} {expected}"));
    }
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.remove("llama.attention.key_length");
    tiny.metadata.set("llama.attention.head_count", 6u32);
    let message = tiny.refusal();
    assert!(message.contains("must be a divisor of the embedding length 64, is 6"), "{message}");
}

#[test]
fn experts_that_do_not_fit_the_tensors_or_each_other() {
    let with = |key: &str, value: u32| {
        let mut tiny = Tiny::new(QWEN3_MOE, 1);
        tiny.metadata.set(format!("qwen3moe.{key}"), value);
        tiny.refusal()
    };
    for (key, value, expected) in [
        ("expert_count", 0, "must be from 1 to 1024, is 0"),
        ("expert_used_count", 0, "must be from 1 to 7, is 0"),
        ("expert_used_count", 8, "must be from 1 to 7, is 8"),
        ("expert_feed_forward_length", 0, "must be from 1 to 1048576, is 0"),
        ("expert_group_count", 2, "must be a divisor of the 7 experts, at least two in each group, is 2"),
        ("expert_gating_func", 9, "must be 1 (softmax), 2 (sigmoid) or 3 (softmax of the selected), is 9"),
    ] {
        assert_eq!(with(key, value), format!("metadata key \"qwen3moe.{key}\" {expected}"));
    }
    // Another number of experts than the tensors have.
    let router = "tensor \"blk.0.ffn_gate_inp.weight\" must have the shape";
    assert_eq!(with("expert_count", 6), format!("{router} [64, 6], has [64, 7]"));
    let gate = "tensor \"blk.0.ffn_gate_exps.weight\" must have the shape";
    assert_eq!(with("expert_feed_forward_length", 32), format!("{gate} [64, 32, 7], has [64, 96, 7]"));
    for key in ["expert_count", "expert_used_count"] {
        let mut tiny = Tiny::new(QWEN3_MOE, 1);
        tiny.metadata.remove(&format!("qwen3moe.{key}"));
        assert!(tiny.refusal().starts_with(&format!("metadata key \"qwen3moe.{key}\" is missing")));
    }
    for name in ["blk.1.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"] {
        let mut tiny = Tiny::new(QWEN3_MOE, 1);
        tiny.remove(name);
        assert!(tiny.refusal().starts_with(&format!("tensor {name:?} is missing (")), "{name}");
    }
    // Experts one by one, as old files have them, and those of another architecture.
    for name in ["blk.0.ffn_gate.0.weight", "blk.0.ffn_gate.weight", "blk.1.ffn_gate_shexp.weight"] {
        let mut tiny = Tiny::new(QWEN3_MOE, 1);
        tiny.put(name, &[64, 2], DType::F32, &[0.0; 128]);
        assert_eq!(tiny.refusal(), format!("1 tensor does not belong to a qwen3moe model: {name:?}"));
    }
}

#[test]
fn a_router_that_is_not_finite_ends_its_sequence_with_an_error() {
    let mut tiny = Tiny::new(QWEN3_MOE, 1);
    let (hidden, experts) = (QWEN3_MOE.hidden, 7);
    // Finite weights, whose products with a row are not.
    tiny.put("blk.1.ffn_gate_inp.weight", &[hidden, experts], DType::F32, &vec![3e38; hidden * experts]);
    let mut session = tiny.load(SessionOptions::default()).unwrap().session().unwrap();
    let error = session.draw(0, &[1, 2, 3]).unwrap_err();
    assert!(matches!(error, ModelError::LogitsNotFinite { .. }), "{error}");
}

#[test]
fn floats_that_are_zero_negative_or_not_finite() {
    for key in ["llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.rope.scaling.factor"]
    {
        for value in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
            let message = with(key, value);
            let expected = format!("metadata key {key:?} must be a positive finite number, is {value}");
            assert_eq!(message, expected);
        }
    }
    let message = with("llama.rope.scaling.type", "dynamic");
    assert!(message.ends_with("must be none, linear, yarn or longrope, is \"dynamic\""), "{message}");
    let message = with("llama.rope.scaling.type", "longrope");
    assert_eq!(message, "tensor \"rope_factors_long.weight\" is missing (expected [8])");
    let message = with("llama.rope.scaling.type", "yarn");
    assert!(message.contains("rope.scaling.factor"), "{message}");
}

#[test]
fn a_vocabulary_of_another_size_than_the_embedding() {
    let words: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
    let message = with("tokenizer.ggml.tokens", Array::strings(&words));
    assert_eq!(
        message,
        "metadata key \"tokenizer.ggml.tokens\" must be the 101 rows of token_embd.weight, is 100"
    );
}

#[test]
fn tensors_that_are_missing() {
    for (shape, names) in [
        (LLAMA, &["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"][..]),
        (QWEN2, &["blk.0.attn_q.bias", "blk.1.attn_v.bias", "blk.0.attn_norm.weight"]),
        (QWEN3, &["blk.0.attn_q_norm.weight", "blk.1.attn_k_norm.weight", "blk.1.attn_output.weight"]),
    ] {
        for name in names {
            let mut tiny = Tiny::new(shape, 1);
            tiny.remove(name);
            let message = tiny.refusal();
            assert!(message.starts_with(&format!("tensor {name:?} is missing (")), "{message}");
        }
    }
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.set("llama.block_count", 3u32);
    assert_eq!(tiny.refusal(), "tensor \"blk.2.attn_norm.weight\" is missing (expected [64])");
}

#[test]
fn tensors_that_do_not_belong() {
    for (shape, name) in [
        (LLAMA, "blk.0.attn_q_norm.weight"),
        (QWEN3, "blk.1.attn_q.bias"),
        (QWEN2, "blk.0.attn_output.bias"),
        (LLAMA, "blk.2.attn_norm.weight"),
        (LLAMA, "vision.weight"),
    ] {
        let mut tiny = Tiny::new(shape, 1);
        tiny.put(name, &[16], DType::F32, &[1.0; 16]);
        let arch = shape.arch;
        let expected = format!("1 tensor does not belong to a {arch} model: {name:?}");
        assert_eq!(tiny.refusal(), expected);
    }
    // Redundant tensors of old files are ignored.
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.0.attn_rot_embd.weight", &[8], DType::F32, &[1.0; 8]);
    tiny.load(SessionOptions::default()).unwrap();
}

#[test]
fn tensors_of_another_shape_or_type() {
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.0.ffn_up.weight", &[96, 64], DType::F32, &[0.5; 96 * 64]);
    assert_eq!(
        tiny.refusal(),
        "tensor \"blk.0.ffn_up.weight\" must have the shape [64, 96], has [96, 64] (it is transposed)"
    );
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.0.ffn_up.weight", &[64, 95], DType::F32, &[0.5; 95 * 64]);
    assert_eq!(tiny.refusal(), "tensor \"blk.0.ffn_up.weight\" must have the shape [64, 96], has [64, 95]");
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.1.attn_norm.weight", &[64], DType::Q8_0, &[0.5; 64]);
    assert_eq!(tiny.refusal(), "tensor \"blk.1.attn_norm.weight\" must have type F32, F16 or BF16, has Q8_0");
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("rope_freqs.weight", &[7], DType::F32, &[1.0; 7]);
    assert_eq!(tiny.refusal(), "tensor \"rope_freqs.weight\" must have the shape [8], has [7]");
}

#[test]
fn weights_and_scales_that_are_not_finite() {
    let nan = f32::NAN.to_le_bytes();
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.spoil("blk.1.attn_norm.weight", 4 * 17, &nan);
    let expected =
        "tensor \"blk.1.attn_norm.weight\": the value or block scale at element 17 is NaN or infinite";
    assert_eq!(tiny.refusal(), expected);
    let mut tiny = Tiny::new(TinyShape { dtype: DType::Q8_0, ..LLAMA }, 1);
    // The scale of the third block.
    tiny.spoil("blk.0.attn_q.weight", 2 * 34, &[0x00, 0xfc]);
    let expected =
        "tensor \"blk.0.attn_q.weight\": the value or block scale at element 64 is NaN or infinite";
    assert_eq!(tiny.refusal(), expected);
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.spoil("rope_freqs.weight", 0, &0f32.to_le_bytes());
    assert!(tiny.refusal().starts_with("tensor \"rope_freqs.weight\""));
}

#[test]
fn options_of_a_session_that_make_no_sense() {
    let tiny = Tiny::new(LLAMA, 1);
    let refused = |options: SessionOptions| tiny.load(options).map(drop).unwrap_err().to_string();
    let good = SessionOptions::default();
    assert_eq!(
        refused(SessionOptions { context: 257, ..good }),
        "a context of 257 tokens exceeds the model's limit of 256"
    );
    assert!(refused(SessionOptions { sequences: 0, ..good }).contains("at least 1, is 0"));
    assert!(refused(SessionOptions { cache: DType::Q4_0, ..good }).contains("F16, Q8_0 or F32, is Q4_0"));
    // Heads of 16 are half a block.
    assert!(refused(SessionOptions { cache: DType::Q8_0, ..good }).contains("Q8_0 with a head size of 16"));
}

#[test]
fn prompts_that_do_not_fit() {
    let model =
        Tiny::new(LLAMA, 1).load(SessionOptions { context: 32, ..SessionOptions::default() }).unwrap();
    let mut session = model.session().unwrap();
    assert!(matches!(session.draw(0, &[]), Err(ModelError::EmptyPrompt)));
    assert!(matches!(session.logits(0, &[]), Err(ModelError::EmptyPrompt)));
    assert!(matches!(session.decode(&[0], 1), Err(ModelError::EmptyPrompt)));
    let error = session.feed(0, &[1; 33]).unwrap_err().to_string();
    assert_eq!(error, "the prompt of 33 tokens does not fit into the context of 32 (0 positions in use)");
    assert!(session.feed(0, &vec![1; 1_000_000]).is_err());
    let error = session.feed(0, &[5, 101]).unwrap_err().to_string();
    assert_eq!(error, "token 101 at index 1 is outside the vocabulary of 101 tokens");
    assert!(session.tokens(0).unwrap().is_empty(), "what fails leaves nothing behind");
    // Exactly the context: logits, but no room for another token.
    assert_eq!(session.logits(0, &[1; 32]).unwrap().len(), 101);
    assert!(matches!(
        session.draw(0, &[]),
        Err(ModelError::PromptTooLong { tokens: 1, context: 32, used: 32 })
    ));
    assert!(matches!(session.decode(&[0], 1), Err(ModelError::PromptTooLong { .. })));
    session.truncate(0, 30).unwrap();
    assert_eq!(session.decode(&[0], 2).unwrap()[0].len(), 2);
    assert!(matches!(session.decode(&[0], 1), Err(ModelError::PromptTooLong { .. })));
    let error = session.feed(1, &[1]).unwrap_err().to_string();
    assert_eq!(error, "sequence 1 does not exist (sequences in this session: 1)");
    session.truncate(0, 5).unwrap();
    let error = session.decode(&[0, 0], 1).unwrap_err().to_string();
    assert_eq!(error, "sequence 0 was passed twice (sequences in this session: 1)");
}

#[test]
fn cancelling_stops_between_chunks_and_the_session_goes_on() {
    let options = SessionOptions { chunk: 4, ..SessionOptions::default() };
    let model = Tiny::new(LLAMA, 1).load(options).unwrap();
    let mut session = model.session().unwrap();
    let expected = session.draw(0, &[1, 2, 3]).unwrap();
    session.truncate(0, 0).unwrap();
    let flag = session.cancel_flag();
    flag.store(true, Ordering::Relaxed);
    assert!(matches!(session.draw(0, &[1, 2, 3]), Err(ModelError::Cancelled)));
    assert!(session.tokens(0).unwrap().is_empty());
    flag.store(false, Ordering::Relaxed);
    assert_eq!(session.draw(0, &[1, 2, 3]).unwrap(), expected);
}
