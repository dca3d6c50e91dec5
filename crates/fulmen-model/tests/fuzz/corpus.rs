//! The corpus of files to mutate.

use std::{fs, path::Path};

use fulmen_core::DType;
use fulmen_model::gguf::{Array, GgufWriter, Metadata};
use fulmen_model::source::TensorInfo;
use fulmen_model::synth::{ModelShape, Synth};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The committed files with this extension, sorted by name.
pub(crate) fn files(ending: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder()).expect("the corpus is committed");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    assert!(!paths.is_empty(), "the corpus has no {ending}");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// One key of each type and tensors of several types and dimensions.
fn all_types() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("u8", 1u8);
    metadata.set("i8", -1i8);
    metadata.set("u16", 2u16);
    metadata.set("i16", -2i16);
    metadata.set("u32", 3u32);
    metadata.set("i32", -3i32);
    metadata.set("f32", 0.5f32);
    metadata.set("bool", true);
    metadata.set("string", "text");
    metadata.set("strings", Array::strings(["a", "", "ü"]));
    metadata.set("numbers", Array::numbers(&[1u16, 2, 3]));
    metadata.set("bools", Array::numbers(&[true, false]));
    metadata.set("u64", 4u64);
    metadata.set("i64", -4i64);
    metadata.set("f64", 0.25f64);
    metadata.set("general.alignment", 64u32);
    let tensor = |name: &str, dims: &[usize], dtype| TensorInfo::new(name, dims, dtype).unwrap();
    write(
        &metadata,
        &[
            tensor("a", &[3], DType::F32),
            tensor("b", &[32, 2], DType::Q8_0),
            tensor("c", &[2, 2, 2, 2], DType::F16),
            tensor("d", &[256], DType::Q4_K),
        ],
    )
}

fn write(metadata: &Metadata, tensors: &[TensorInfo]) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new(), metadata, tensors).unwrap();
    tensors.iter().for_each(|t| writer.write(t.name(), &vec![1; t.bytes()]).unwrap());
    writer.finish().unwrap()
}

fn model(preset: &str, types: &str) -> Vec<u8> {
    let shape = ModelShape {
        layers: 1,
        embedding: 32,
        heads: 2,
        kv_heads: 1,
        head_size: 16,
        feed_forward: 32,
        vocabulary: 288,
        ..ModelShape::preset(preset).unwrap()
    };
    Synth::new(shape, types.parse().unwrap(), 1).bytes().unwrap()
}

fn part() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("split.no", 0u16);
    metadata.set("split.count", 2u16);
    metadata.set("split.tensors.count", 2i32);
    write(&metadata, &[TensorInfo::new("a", &[2], DType::F32).unwrap()])
}

/// An importance matrix of two entries, one of them of three experts, as a GGUF file.
fn importance_gguf() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.type", "imatrix");
    metadata.set("imatrix.datasets", Array::strings(["text"]));
    metadata.set("imatrix.chunk_count", 3u32);
    metadata.set("imatrix.chunk_size", 512u32);
    let tensor = |name: &str, dims: &[usize]| TensorInfo::new(name, dims, DType::F32).unwrap();
    write(
        &metadata,
        &[
            tensor("a.in_sum2", &[4]),
            tensor("a.counts", &[1]),
            tensor("b.in_sum2", &[4, 3]),
            tensor("b.counts", &[1, 3]),
        ],
    )
}

/// The same in the older format.
fn importance_legacy() -> Vec<u8> {
    let mut bytes = 2i32.to_le_bytes().to_vec();
    for (name, values) in [("a", 4i32), ("b", 12)] {
        bytes.extend(1i32.to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(3i32.to_le_bytes());
        bytes.extend(values.to_le_bytes());
        (0..values).for_each(|value| bytes.extend((value as f32).to_le_bytes()));
    }
    bytes.extend(3i32.to_le_bytes());
    bytes.extend(4i32.to_le_bytes());
    bytes.extend(b"text");
    bytes
}

/// Regenerates the corpus, for when these files should change:
/// `cargo test -p fulmen-model --test fuzz -- --ignored write_the_corpus`.
#[test]
#[ignore = "it writes into the source folder"]
fn write_the_corpus() {
    let mut version_2 = all_types();
    version_2[4] = 2;
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"#,
        r#""model.norm.weight":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},"#,
        r#""model.layers.0.self_attn.q_proj.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[8,40]}}"#,
    );
    let mut safetensors = (header.len() as u64).to_le_bytes().to_vec();
    safetensors.extend(header.as_bytes());
    safetensors.extend([0; 40]);
    for (name, bytes) in [
        ("all-types.gguf.bin", all_types()),
        ("version-2.gguf.bin", version_2),
        ("llama.gguf.bin", model("tiny-llama", "q8_0")),
        ("qwen2.gguf.bin", model("tiny-qwen2", "f16")),
        ("part.gguf.bin", part()),
        ("small.safetensors.bin", safetensors),
        ("gguf.imatrix.bin", importance_gguf()),
        ("legacy.imatrix.bin", importance_legacy()),
    ] {
        fs::write(folder().join(name), bytes).unwrap();
    }
}
