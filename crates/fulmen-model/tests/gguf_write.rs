//! Written files are read back, and a file appears complete or not at all.

use std::{fs, sync::Arc};

use fulmen_core::DType;
use fulmen_model::gguf::{Array, GgufFile, GgufWriter, Metadata, Value};
use fulmen_model::source::TensorInfo;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let words = prop::collection::vec(".{0,8}", 0..6);
    // NaN is not equal to itself, so floats are drawn from values that are.
    let float = prop_oneof![any::<i32>().prop_map(|x| x as f32 * 0.37), Just(f32::INFINITY), Just(-0.0)];
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        float.clone().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,40}".prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        float.clone().prop_map(|x| Value::F64(x.into())),
        words.prop_map(|words| Array::strings(words).into()),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(|items| Array::numbers(&items).into()),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(|items| Array::numbers(&items).into()),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(|items| Array::numbers(&items).into()),
        prop::collection::vec(float, 0..9).prop_map(|items| Array::numbers(&items).into()),
    ]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let entries = prop::collection::vec(("[a-z._ü]{1,12}", value()), 0..12);
    (entries, prop::option::of(3u32..=12)).prop_map(|(entries, alignment)| {
        let mut metadata = Metadata::new();
        entries.into_iter().for_each(|(key, value)| metadata.set(key, value));
        if let Some(power) = alignment {
            metadata.set("general.alignment", 1u32 << power);
        }
        metadata
    })
}

fn tensors() -> impl Strategy<Value = Vec<TensorInfo>> {
    let types = DType::ALL.into_iter().filter(|dtype| dtype.ggml_type().is_some()).collect::<Vec<_>>();
    let tensor = (prop::sample::select(types), prop::collection::vec(1usize..4, 1..=4));
    prop::collection::vec(tensor, 0..6).prop_map(|tensors| {
        let make = |(at, (dtype, mut dims)): (usize, (DType, Vec<usize>))| {
            dims[0] *= dtype.block_len();
            TensorInfo::new(format!("t{at}"), &dims, dtype).unwrap()
        };
        tensors.into_iter().enumerate().map(make).collect()
    })
}

fn content(tensor: &TensorInfo) -> Vec<u8> {
    (0..tensor.bytes()).map(|i| (i * 7 + tensor.name().len() + tensor.rows()) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(metadata in metadata(), tensors in tensors(), piece in 1usize..200) {
        let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
        for tensor in &tensors {
            for piece in content(tensor).chunks(piece) {
                writer.write(tensor.name(), piece).unwrap();
            }
        }
        let file = GgufFile::from_bytes(Arc::new(writer.finish().unwrap())).unwrap();
        prop_assert_eq!(file.version(), 3);
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.tensors(), &tensors[..]);
        for tensor in &tensors {
            prop_assert_eq!(&file.data(tensor.name()).unwrap()[..], &content(tensor)[..]);
        }
    }
}

fn two() -> [TensorInfo; 2] {
    ["a", "b"].map(|name| TensorInfo::new(name, &[4], DType::F32).unwrap())
}

#[test]
fn a_file_appears_when_it_is_kept_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let files = || fs::read_dir(folder.path()).unwrap().count();
    let metadata = Metadata::new();
    let mut writer = GgufWriter::create(&path, false, &metadata, &two()).unwrap();
    writer.write("a", &[1; 16]).unwrap();
    assert!(!path.exists() && files() == 1, "only the temporary file exists");
    drop(writer);
    assert_eq!(files(), 0, "an abandoned temporary file is removed");

    let mut writer = GgufWriter::create(&path, false, &metadata, &two()).unwrap();
    writer.write("a", &[1; 16]).unwrap();
    writer.write("b", &[2; 16]).unwrap();
    writer.keep().unwrap();
    assert_eq!(files(), 1);
    assert_eq!(GgufFile::open(&path).unwrap().data("b").unwrap()[..], [2; 16]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let other = folder.path().join("other");
        fs::write(&other, b"").unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&other), "the rights of any new file");
    }
}

#[test]
fn files_are_replaced_only_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let metadata = Metadata::new();
    let early = GgufWriter::create(&path, false, &metadata, &[]).unwrap();
    fs::write(&path, b"precious").unwrap();
    let said = GgufWriter::create(&path, false, &metadata, &[]).map(|_| ()).unwrap_err().to_string();
    assert_eq!(said, format!("{} already exists", path.display()));
    let said = early.keep().unwrap_err().to_string();
    assert_eq!(said, format!("{} already exists", path.display()), "it came while the file was written");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    GgufWriter::create(&path, true, &metadata, &[]).unwrap().keep().unwrap();
    assert!(GgufFile::open(&path).is_ok());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn what_cannot_be_written_is_said() {
    let metadata = Metadata::new();
    let create =
        |path: &str| GgufWriter::create(path, true, &metadata, &[]).map(|_| ()).unwrap_err().to_string();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/model.gguf").display().to_string();
    assert_eq!(create(&missing), format!("cannot write {missing}: its folder does not exist"));
    let folder = folder.path().display().to_string();
    assert_eq!(create(&folder), format!("{folder} is a directory; only a regular file can be overwritten"));

    let new = |metadata: &Metadata, tensors: &[TensorInfo]| {
        GgufWriter::new(Vec::new(), metadata, tensors).map(|_| ()).unwrap_err().to_string()
    };
    let [a, _] = two();
    assert!(new(&metadata, &[a.clone(), a]).ends_with("duplicate tensor \"a\""));
    let indices = TensorInfo::new("i", &[4], DType::U32).unwrap();
    assert_eq!(new(&metadata, &[indices]), "cannot write tensor i [4] U32: GGUF does not have this type");
    let unnamed = TensorInfo::new("", &[4], DType::F32).unwrap();
    assert!(
        new(&metadata, &[unnamed])
            .ends_with("tensor 0 has a name of 0 bytes; names must have 1 to 65535 bytes")
    );
    let mut wrong = Metadata::new();
    wrong.set("k".repeat(65_536), 1u8);
    assert!(new(&wrong, &[]).ends_with("key 0 has a name of 65536 bytes; names must have 1 to 65535 bytes"));
    let mut wrong = Metadata::new();
    wrong.set("general.alignment", 3u32);
    assert!(new(&wrong, &[]).contains("general.alignment is 3"));
}

#[test]
fn data_come_in_order_and_complete() {
    let metadata = Metadata::new();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &two()).unwrap();
    let said = writer.write("b", &[0; 16]).unwrap_err().to_string();
    assert_eq!(said, "data of tensor \"b\" written out of order: expected \"a\"");
    writer.write("a", &[0; 10]).unwrap();
    let said = writer.write("a", &[0; 7]).unwrap_err().to_string();
    assert_eq!(said, "tensor \"a\" has 6 bytes left to write, got 7");
    writer.write("a", &[0; 6]).unwrap();
    writer.write("b", &[0; 1]).unwrap();
    let said = writer.finish().unwrap_err().to_string();
    assert_eq!(said, "15 bytes of tensor \"b\" were not written");
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &[]).unwrap();
    let said = writer.write("c", &[]).unwrap_err().to_string();
    assert_eq!(said, "data of tensor \"c\" written out of order: all tensors are complete");
}
