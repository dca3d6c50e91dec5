//! Models with random weights: well-formed, deterministic, with the specified dimensions.

use fulmen_core::{DType, quant};
use fulmen_model::quantize::Recipe;
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
    ] {
        let tensors = synth(preset, recipe, 1).tensors().unwrap();
        let all: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        let size: usize = tensors.iter().map(|tensor| tensor.bytes()).sum();
        assert_eq!((all, size), (parameters, bytes), "{preset}");
    }
}
