//! Reading well-formed GGUF files.

mod common;

use std::{io::Write, sync::Arc};

use common::{Raw, array, text};
use fulmen_core::{DType, DeviceMemory};
use fulmen_model::gguf::{GgufFile, Value, ValueType};
use fulmen_model::source::ModelSource;

/// One key of each type, an array of each type, and three tensors in a different order than their data.
fn sample() -> Raw {
    let words: Vec<u8> = ["a", "", "ü"].into_iter().flat_map(text).collect();
    Raw::default()
        .key("u8", 0, &[200])
        .key("i8", 1, &[0xff])
        .key("u16", 2, &65535u16.to_le_bytes())
        .key("i16", 3, &(-2i16).to_le_bytes())
        .key("u32", 4, &7u32.to_le_bytes())
        .key("i32", 5, &(-7i32).to_le_bytes())
        .key("f32", 6, &1.5f32.to_le_bytes())
        .key("bool", 7, &[1])
        .key("empty", 8, &text(""))
        .key("u64", 10, &u64::MAX.to_le_bytes())
        .key("i64", 11, &i64::MIN.to_le_bytes())
        .key("f64", 12, &0.1f64.to_le_bytes())
        .key("words", 9, &array(8, 3, &words))
        .key("scores", 9, &array(6, 2, &[1.0f32, -2.0].map(f32::to_le_bytes).concat()))
        .key("ids", 9, &array(5, 2, &[-1i32, 9].map(i32::to_le_bytes).concat()))
        .key("none", 9, &array(8, 0, &[]))
        .tensor("b", &[64, 2], 8, 160)
        .tensor("a", &[3], 0, 0)
        .tensor("c", &[2, 1, 2, 3], 1, 64)
        .data(160 + 136)
}

fn check(file: &GgufFile) {
    let metadata = file.metadata();
    assert_eq!(metadata.get("u8"), Some(&Value::U8(200)));
    assert_eq!(metadata.get("i8"), Some(&Value::I8(-1)));
    assert_eq!(metadata.get("u16"), Some(&Value::U16(65535)));
    assert_eq!(metadata.get("i16"), Some(&Value::I16(-2)));
    assert_eq!(metadata.u32("u32"), Ok(7));
    assert_eq!(metadata.get("i32"), Some(&Value::I32(-7)));
    assert_eq!(metadata.f32("f32"), Ok(1.5));
    assert_eq!(metadata.bool("bool"), Ok(true));
    assert_eq!(metadata.string("empty"), Ok(""));
    assert_eq!(metadata.u64("u64"), Ok(u64::MAX));
    assert_eq!(metadata.i64("i64"), Ok(i64::MIN));
    assert_eq!(metadata.get("f64"), Some(&Value::F64(0.1)));
    assert_eq!(metadata.strings("words").unwrap().collect::<Vec<_>>(), ["a", "", "ü"]);
    assert_eq!(metadata.strings("none").unwrap().len(), 0);
    assert_eq!(metadata.numbers::<f32>("scores").unwrap().collect::<Vec<_>>(), [1.0, -2.0]);
    assert_eq!(metadata.integers("ids"), Ok(vec![-1, 9]));
    assert_eq!(metadata.array("ids").unwrap().item_type(), ValueType::I32);
    let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["general.architecture", "u8", "i8"]);
    assert_eq!(keys.len(), 17);

    let shown: Vec<String> = file.tensors().iter().map(|tensor| tensor.to_string()).collect();
    assert_eq!(shown, ["b [64, 2] Q8_0", "a [3] F32", "c [2, 1, 2, 3] F16"]);
    let b = file.tensor("b").unwrap();
    assert_eq!((b.width(), b.rows(), b.elements(), b.bytes()), (64, 2, 128, 136));
    assert_eq!(b.dtype(), DType::Q8_0);
    assert_eq!(file.tensor("c").unwrap().rows(), 6);
    assert!(file.tensor("d").is_none());
    let expected = |range: std::ops::Range<usize>| range.map(|i| (i % 251) as u8).collect::<Vec<_>>();
    assert_eq!(file.data("a").unwrap()[..], expected(0..12));
    assert_eq!(file.data("b").unwrap()[..], expected(160..296));
    assert_eq!(file.data("c").unwrap()[..], expected(64..88));
    let message = file.data("d").unwrap_err().to_string();
    assert!(message.ends_with(": has no tensor \"d\""), "{message}");
}

#[test]
fn everything_in_a_file_comes_out() {
    for version in [2, 3] {
        let raw = Raw { version, ..sample() };
        let file = raw.open().unwrap();
        assert_eq!((file.version(), file.alignment()), (version, 32));
        check(&file);

        let mut on_disk = tempfile::NamedTempFile::new().unwrap();
        on_disk.write_all(&raw.bytes()).unwrap();
        let file = GgufFile::open(on_disk.path()).unwrap();
        assert_eq!(file.path(), on_disk.path());
        assert_eq!(file.shards().map(|(_, bytes)| bytes).sum::<u64>(), raw.bytes().len() as u64);
        check(&file);
    }
}

#[test]
fn other_alignments_are_followed() {
    for alignment in [8, 16, 64, 4096] {
        let mut raw = Raw { alignment: alignment as usize, ..Raw::default() };
        raw = raw.key("general.alignment", 4, &u32::to_le_bytes(alignment));
        let file =
            raw.tensor("x", &[2], 0, u64::from(alignment)).data(alignment as usize + 8).open().unwrap();
        assert_eq!(file.alignment(), u64::from(alignment));
        let at = alignment as usize;
        assert_eq!(file.data("x").unwrap()[..], (at..at + 8).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    }
}

#[test]
fn a_file_without_tensors_needs_no_padding() {
    let file = Raw::default().open().unwrap();
    assert_eq!((file.tensors().len(), file.metadata().len()), (0, 1));
    let none = Raw { keys: Vec::new(), ..Raw::default() };
    assert_eq!(none.bytes().len(), 24);
    assert!(none.open().unwrap().metadata().is_empty());
}

#[test]
fn data_stay_alive_after_the_file_was_closed_and_deleted() {
    let mut on_disk = tempfile::NamedTempFile::new().unwrap();
    on_disk.write_all(&sample().bytes()).unwrap();
    let file = GgufFile::open(on_disk.path()).unwrap();
    let data = ModelSource::data(&file, "a").unwrap();
    let again = file.data("a").unwrap();
    drop((file, on_disk));
    assert_eq!((*data).as_ref(), &again[..]);

    let mut cpu = fulmen_cpu::CpuMemory::new();
    let ptr = cpu.import(data).unwrap();
    assert_eq!(ptr, again.as_ptr() as u64, "a mapped tensor is imported where it lies");
    let mut out = [0; 12];
    cpu.read(ptr, &mut out).unwrap();
    assert_eq!(out, again[..]);
}

#[test]
fn memory_is_not_copied() {
    let bytes: Arc<Vec<u8>> = Arc::new(sample().bytes());
    let file = GgufFile::from_bytes(bytes.clone()).unwrap();
    let data = file.data("b").unwrap();
    assert!(bytes.as_ptr_range().contains(&data.as_ptr()));
}
