//! Models with random weights: well-formed, deterministic, with the specified dimensions.

use fulmen_core::{DType, ExpertGroups, SharedBytes, quant};
use fulmen_model::arch::Config;
use fulmen_model::gguf::{Array, GgufFile, Metadata, Value};
use fulmen_model::quantize::Recipe;
use fulmen_model::source::{ModelSource, SourceError, TensorInfo};
use fulmen_model::summary::Summary;
use fulmen_model::synth::{ModelShape, Synth};

fn synth(preset: &str, recipe: &str, seed: u64) -> Synth {
    Synth::new(ModelShape::preset(preset).unwrap(), recipe.parse().unwrap(), seed)
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for (preset, recipe) in [("tiny-llama", "q4_k_m"), ("tiny-qwen2", "q8_0"), ("tiny-qwen3-untied", "bf16")]
    {
        let synth = synth(preset, recipe, 1);
        let bytes = synth.bytes().unwrap();
        assert_eq!(bytes, synth.bytes().unwrap(), "{preset} {recipe}");
        assert_ne!(bytes, Synth { seed: 2, ..synth }.bytes().unwrap());
    }
}

#[test]
fn the_weights_do_not_change_from_version_to_version() {
    let file = synth("tiny-qwen3", "f32", 1).file().unwrap();
    let values =
        quant::dequantize_to_vec(DType::F32, &file.data("blk.0.attn_q.weight").unwrap(), 256 * 512).unwrap();
    assert_eq!(values[..3], [0.023301665, 0.08333002, -0.062454302]);
}

#[test]
fn fewer_layers_are_the_same_layers() {
    let whole = synth("tiny-llama", "q8_0", 5);
    let fewer = Synth { shape: ModelShape { layers: 2, ..whole.shape.clone() }, ..whole.clone() };
    let (whole, fewer) = (whole.file().unwrap(), fewer.file().unwrap());
    assert!(fewer.tensor("blk.2.attn_q.weight").is_none());
    for tensor in fewer.tensors() {
        assert_eq!(
            fewer.data(tensor.name()).unwrap()[..],
            whole.data(tensor.name()).unwrap()[..],
            "{tensor}"
        );
    }
}

#[test]
fn every_weight_is_finite_and_the_types_are_the_recipes() {
    for recipe in Recipe::all() {
        let shape = ModelShape { layers: 1, vocabulary: 512, ..ModelShape::preset("tiny-qwen2").unwrap() };
        let file = Synth::new(shape, recipe, 3).file().unwrap();
        for tensor in file.tensors() {
            let data = file.data(tensor.name()).unwrap();
            let values = quant::dequantize_to_vec(tensor.dtype(), &data, tensor.elements()).unwrap();
            assert!(values.iter().all(|x| x.is_finite()), "{tensor}");
            assert!(values.iter().any(|&x| x != values[0]), "{tensor}");
        }
        let types: Vec<DType> = file.tensors().iter().map(|tensor| tensor.dtype()).collect();
        assert!(types.contains(&recipe.base()) && types.contains(&DType::F32), "{recipe}: {types:?}");
        assert_eq!(file.metadata().u32("general.file_type"), Ok(recipe.file_type()));
    }
}

/// The parameters and bytes of the real models' files.
#[test]
fn full_shapes_have_the_sizes_of_the_real_models() {
    for (preset, recipe, parameters, bytes) in [
        ("qwen3-0.6b", "q8_0", 596_049_920, 633_495_552),
        ("qwen3-4b", "q4_k_m", 4_022_468_096, 2_491_323_904),
        ("qwen3-8b", "q4_k_m", 8_190_735_360, 5_021_827_072),
        ("llama3.2-1b", "q4_k_m", 1_235_814_432, 799_862_912),
        ("qwen3-30b-a3b", "q4_k_m", 30_532_122_624, 18_550_716_416),
        ("olmoe-1b-7b", "f16", 6_919_161_856, 13_842_784_256),
        ("gpt-oss-20b", "mxfp4_moe", 20_914_757_184, 12_096_558_336),
    ] {
        let tensors = synth(preset, recipe, 1).tensors().unwrap();
        let all: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        let size: usize = tensors.iter().map(|tensor| tensor.bytes()).sum();
        assert_eq!((all, size), (parameters, bytes), "{preset}");
    }
}

/// A model with another value of a key.
struct Changed {
    file: GgufFile,
    metadata: Metadata,
}

impl ModelSource for Changed {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.file.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.file.tensor(name)
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        ModelSource::data(&self.file, name)
    }
}

#[test]
fn layers_that_predict_further_tokens_are_not_run() {
    let file = || synth("tiny-glm4moe", "f32", 1).file().unwrap();
    let config = Config::read(&file()).unwrap();
    assert_eq!((config.layers, config.draft_layers), (3, 1));
    let experts = config.experts.unwrap();
    assert_eq!((experts.leading_dense, experts.shared, experts.route.scale), (1, 1, 1.5));
    assert_eq!(Summary::of(&file()).unwrap().layers, Some(3));
    let with = |key: &str, value: u32| {
        let file = file();
        let mut metadata = file.metadata().clone();
        metadata.set(format!("glm4moe.{key}"), value);
        Config::read(&Changed { file, metadata }).map(drop).unwrap_err().to_string()
    };
    for (key, value, expected) in [
        ("nextn_predict_layers", 4, "must be less than the 4 layers, is 4"),
        ("leading_dense_block_count", 4, "must be at most the 3 layers, is 4"),
        ("expert_shared_count", 1 << 20, "must be a common width of at most 1048576, is 1048576"),
    ] {
        assert_eq!(with(key, value), format!("metadata key \"glm4moe.{key}\" {expected}"));
    }
}

#[test]
fn groups_of_experts_that_do_not_fit_the_experts_are_refused() {
    let read = |changes: &[(&str, u32)]| {
        let file = synth("tiny-glm4moe-groups", "f32", 1).file().unwrap();
        let mut metadata = file.metadata().clone();
        for &(key, value) in changes {
            metadata.set(format!("glm4moe.{key}"), value);
        }
        Config::read(&Changed { file, metadata })
    };
    const COUNT: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    let groups = |changes| read(changes).unwrap().experts.unwrap().route.groups;
    assert_eq!(groups(&[]), Some(ExpertGroups { count: 4, used: 2 }));
    // Where a row uses all groups, there are none.
    assert_eq!(groups(&[(COUNT, 1)]), None);
    assert_eq!(groups(&[(COUNT, 0), (USED, 9)]), None);
    assert_eq!(groups(&[(USED, 4)]), None);
    let divisor = "must be a divisor of the 16 experts, at least two in each group, is";
    for (changes, wrong, expected) in [
        (&[(COUNT, 3)][..], COUNT, format!("{divisor} 3")),
        (&[(COUNT, 16)], COUNT, format!("{divisor} 16")),
        (&[(COUNT, 33)], COUNT, "must be from 1 to 32, is 33".into()),
        (&[(USED, 0)], USED, "must be from 1 to 4, is 0".into()),
        (&[(USED, 5)], USED, "must be from 1 to 4, is 5".into()),
        (
            &[(USED, 1), ("expert_used_count", 5)],
            "expert_used_count",
            "must be at most the 4 experts of the groups that a row uses, is 5".into(),
        ),
    ] {
        let error = read(changes).unwrap_err().to_string();
        assert_eq!(error, format!("metadata key \"glm4moe.{wrong}\" {expected}"));
    }
    // A file that does not say how many.
    let file = synth("tiny-glm4moe", "f32", 1).file().unwrap();
    let mut metadata = file.metadata().clone();
    metadata.set("glm4moe.expert_group_count", 2u32);
    let error = Config::read(&Changed { file, metadata }).unwrap_err().to_string();
    assert!(error.contains("glm4moe.expert_group_used_count"), "{error}");
}

#[test]
fn keys_of_gemma4_that_do_not_fit_each_other_are_refused() {
    let refusal = |key: &str, value: Value| {
        let file = synth("tiny-gemma4", "f32", 1).file().unwrap();
        let mut metadata = file.metadata().clone();
        metadata.set(format!("gemma4.{key}"), value);
        Config::read(&Changed { file, metadata }).unwrap_err().to_string()
    };
    let pattern = |locals: &[bool]| Value::from(Array::numbers(locals));
    let counts = |numbers: &[u32]| Value::from(Array::numbers(numbers));
    const PATTERN: &str = "attention.sliding_window_pattern";
    const KV: &str = "attention.head_count_kv";
    for (key, value, expected) in [
        ("attention.sliding_window", Value::from(0u32), "must be from 1 to 268435456, is 0"),
        (PATTERN, pattern(&[true; 8]), "must be one for each of the 9 layers, is 8"),
        (
            PATTERN,
            pattern(&[true, false, true, false, true, false, true, true, false]),
            "must be false in layer 7",
        ),
        ("attention.key_length_swa", Value::from(31u32), "must be even, is 31"),
        ("attention.value_length_swa", Value::from(64u32), "must be the key length 32, is 64"),
        (
            "rope.dimension_count_swa",
            Value::from(34u32),
            "must be even and from 2 to the head size 32, is 34",
        ),
        ("rope.freq_base_swa", Value::from(-1.0f32), "must be a positive finite number, is -1"),
        ("attention.shared_kv_layers", Value::from(7u32), "must be fewer (layer 2 needs an earlier one"),
        (KV, counts(&[2; 8]), "must be one number for each of the 9 layers, is 8"),
        (KV, counts(&[2, 2, 2, 1, 2, 2, 2, 2, 2]), "must be a divisor of the 4 query heads, 2 in layer 3"),
        (KV, counts(&[2, 2, 2, 0, 2, 2, 2, 2, 2]), "must be from 1 to 4 in each layer, is 0"),
        ("feed_forward_length", counts(&[192]), "must be one number for each of the 9 layers, is 1"),
        ("embedding_length_per_layer_input", Value::from(u32::MAX), "must be at most 1048576"),
    ] {
        let (message, start) = (refusal(key, value), format!("metadata key \"gemma4.{key}\" {expected}"));
        assert!(message.starts_with(&start), "{message}");
    }
}
