//! Quantized models: the types of the recipe, the exact bits of the encoder, on any number of threads.

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::Path, sync::Arc};

use fulmen_core::{DType, quant};
use fulmen_model::gguf::{GgufFile, GgufWriter, Metadata};
use fulmen_model::quantize::{QuantizeError, QuantizePlan, Recipe, quantize};
use fulmen_model::source::TensorInfo;
use fulmen_model::synth::{ModelShape, Synth};

fn recipe(name: &str) -> Recipe {
    name.parse().unwrap()
}

fn model(types: &str) -> GgufFile {
    let shape = ModelShape { layers: 2, vocabulary: 700, ..ModelShape::preset("tiny-llama").unwrap() };
    Synth::new(shape, recipe(types), 1).file().unwrap()
}

fn run(source: &GgufFile, types: &str, out: &Path, threads: usize) -> (QuantizePlan, GgufFile) {
    let plan = QuantizePlan::of(source, recipe(types)).unwrap();
    let mut done = 0;
    quantize(source, &plan, out, false, threads, |elements| {
        done += elements;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(done, plan.work);
    (plan, GgufFile::open(out).unwrap())
}

#[test]
fn tensors_have_the_encoders_bits_and_the_metadata_stay() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in
        [("f32", "q4_k_m"), ("f16", "q8_0"), ("bf16", "q5_1"), ("q8_0", "q3_k"), ("q4_k_m", "f32")]
    {
        let source = model(from);
        let (plan, file) = run(&source, to, &folder.path().join(format!("{from}-{to}.gguf")), 2);
        assert_eq!(file.tensors(), plan.tensors());
        for (before, after) in source.tensors().iter().zip(file.tensors()) {
            assert_eq!((before.name(), before.dims()), (after.name(), after.dims()));
            let data = source.data(before.name()).unwrap();
            let expected = if before.dtype() == after.dtype() {
                data.to_vec()
            } else {
                let values = quant::dequantize_to_vec(before.dtype(), &data, before.elements()).unwrap();
                quant::quantize_to_vec(after.dtype(), &values).unwrap()
            };
            assert!(file.data(after.name()).unwrap()[..] == expected, "{before} as {after}");
        }
        let mut metadata = source.metadata().clone();
        metadata.set("general.file_type", recipe(to).file_type());
        assert_eq!(file.metadata(), &metadata);
        let bytes = |file: &GgufFile| file.tensors().iter().map(|tensor| tensor.bytes() as u64).sum::<u64>();
        assert_eq!((plan.before, plan.after), (bytes(&source), bytes(&file)));
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // One tensor that is converted in several tasks, the last of them short.
    let tensors = [TensorInfo::new("blk.0.ffn_up.weight", &[256, 4096 * 3 + 7], DType::F32).unwrap()];
    let values: Vec<f32> = (0..tensors[0].elements()).map(|i| ((i * 37) % 1001) as f32 - 500.0).collect();
    let mut writer = GgufWriter::new(Vec::new(), &Metadata::new(), &tensors).unwrap();
    writer.write(tensors[0].name(), bytemuck::cast_slice(&values)).unwrap();
    let source = GgufFile::from_bytes(Arc::new(writer.finish().unwrap())).unwrap();
    let whole = quant::quantize_to_vec(DType::Q8_0, &values).unwrap();
    for threads in [0, 1, 2, 5] {
        let (_, file) = run(&source, "q8_0", &folder.path().join(format!("{threads}.gguf")), threads);
        assert!(file.data(tensors[0].name()).unwrap()[..] == whole, "{threads}");
    }
}

#[test]
fn the_plan_says_what_is_lost_and_what_does_not_fit() {
    let shape = ModelShape { embedding: 96, layers: 8, ..ModelShape::preset("tiny-llama").unwrap() };
    let source = Synth::new(shape, recipe("f32"), 1).file().unwrap();
    let plan = QuantizePlan::of(&source, recipe("q4_k_m")).unwrap();
    assert!(plan.requantized.is_empty());
    // Rows of 96: the embedding, and q, k, gate and up of 8 layers, and v of all; the others have rows of 256
    // and 512.
    let others: usize = plan.other_types.values().sum();
    assert_eq!(others, 1 + 8 * 5);
    let v_in_more_bits = 4;
    let expected = BTreeMap::from([
        ((DType::Q4_K, DType::Q5_0), 8 * 5 - v_in_more_bits),
        ((DType::Q6_K, DType::Q8_0), 1 + v_in_more_bits),
    ]);
    assert_eq!(plan.other_types, expected);

    let plan = QuantizePlan::of(&model("q8_0"), recipe("q4_0")).unwrap();
    assert_eq!(plan.requantized.get(&DType::Q8_0), Some(&15));
    let plan = QuantizePlan::of(&model("q8_0"), recipe("q8_0")).unwrap();
    assert_eq!((plan.work, plan.requantized.len()), (0, 0), "what has its type is copied");
}

#[test]
fn values_that_are_not_finite_are_found_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [TensorInfo::new("x.weight", &[32, 40_000], DType::F32).unwrap()];
    let mut values = vec![1f32; tensors[0].elements()];
    values[1_200_003] = f32::NAN;
    let mut writer = GgufWriter::new(Vec::new(), &Metadata::new(), &tensors).unwrap();
    writer.write("x.weight", bytemuck::cast_slice(&values)).unwrap();
    let source = GgufFile::from_bytes(Arc::new(writer.finish().unwrap())).unwrap();
    let plan = QuantizePlan::of(&source, recipe("q4_0")).unwrap();
    let error =
        quantize(&source, &plan, &folder.path().join("out.gguf"), false, 2, |_| ControlFlow::Continue(()))
            .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor x.weight [32, 40000] F32: quantize: the value at index 1200003 is not finite and cannot be \
         stored as Q4_0"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn parts_become_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let info = |name: &str| TensorInfo::new(name, &[4], DType::F32).unwrap();
    for part in 0..2u16 {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("split.no", part);
        metadata.set("split.count", 2u16);
        metadata.set("split.tensors.count", 2i32);
        let tensors = [info(&format!("t{part}"))];
        let path = folder.path().join(format!("m-{:05}-of-00002.gguf", part + 1));
        let mut writer = GgufWriter::create(path, false, &metadata, &tensors).unwrap();
        writer.write(tensors[0].name(), &[part as u8; 16]).unwrap();
        writer.keep().unwrap();
    }
    let source = GgufFile::open(folder.path().join("m-00001-of-00002.gguf")).unwrap();
    let (_, file) = run(&source, "f32", &folder.path().join("one.gguf"), 1);
    assert_eq!((file.shards().len(), file.tensors().len()), (1, 2));
    assert_eq!(file.data("t1").unwrap()[..], [1; 16]);
    assert!(file.metadata().get("split.count").is_none());
}

#[test]
fn a_model_that_is_stopped_leaves_nothing_behind() {
    let source =
        Synth::new(ModelShape::preset("tiny-llama").unwrap(), "f16".parse().unwrap(), 3).file().unwrap();
    let plan = QuantizePlan::of(&source, "q8_0".parse().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let mut calls = 0;
    let stopped = quantize(&source, &plan, &out, false, 2, |_| {
        calls += 1;
        if calls == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(QuantizeError::Stopped)), "{stopped:?}");
    assert_eq!((calls, std::fs::read_dir(folder.path()).unwrap().count()), (5, 0));
}
