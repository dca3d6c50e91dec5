//! Malformed GGUF files are rejected with a message that says what is wrong and where.

mod common;

use common::{Raw, array, key, message, open, tensor, text};

/// A file with one tensor of eight f32 values.
fn one_tensor() -> Raw {
    Raw::default().tensor("x", &[8], 0, 0).data(32)
}

#[test]
fn every_shorter_file_is_refused() {
    let whole = one_tensor().bytes();
    assert!(open(whole.clone()).is_ok());
    for length in 0..whole.len() {
        let said = message(whole[..length].to_vec());
        let expected = match length {
            0 => "memory: is empty".to_owned(),
            1..4 => format!("is truncated: the magic number at byte 0 needs 4 bytes, {length} left"),
            4..8 => format!("the version at byte 4 needs 4 bytes, {} left", length - 4),
            8..16 => format!("the number of tensors at byte 8 needs 8 bytes, {} left", length - 8),
            16..24 => format!("the number of keys at byte 16 needs 8 bytes, {} left", length - 16),
            24..38 => {
                format!("the number of keys is 1, at least 14 bytes each, but only {} bytes", length - 24)
            }
            _ => String::new(),
        };
        assert!(said.contains(&expected), "{length}: {said}");
    }
    let said = message(whole[..whole.len() - 1].to_vec());
    let (start, size) = (whole.len() - 32, whole.len() - 1);
    let expected = format!(
        "tensor \"x\": 32 bytes at offset 0 of the data section (which starts at byte {start}) \
         are outside the file of {size} bytes"
    );
    assert!(said.ends_with(&expected), "{said}");
}

#[test]
fn other_files_are_told_by_their_first_bytes() {
    let said = message(b"PK\x03\x04 and so on".to_vec());
    assert_eq!(said, r#"memory: is not a GGUF file: it starts with "PK\x03\x04", not "GGUF""#);
    let said = message(b"ggml".to_vec());
    assert!(said.contains("it starts with \"ggml\""), "{said}");
}

#[test]
fn versions_are_named() {
    for (version, expected) in [
        (0, "has GGUF version 0 (which does not exist); versions 2 and 3 are supported"),
        (1, "has GGUF version 1 (too old; convert it with a current tool); versions 2 and 3 are supported"),
        (4, "has GGUF version 4 (newer than this reader); versions 2 and 3 are supported"),
        (u32::MAX, "has GGUF version 4294967295 (newer than this reader)"),
        (3u32.swap_bytes(), "is big-endian (version 3 byte-swapped); only little-endian"),
        (2u32.swap_bytes(), "is big-endian (version 2 "),
    ] {
        let said = Raw { version, ..one_tensor() }.message();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn counts_are_compared_with_what_is_left() {
    for count in [u64::MAX, 1 << 63, u64::MAX / 14, u64::MAX / 33, 1 << 32, 4] {
        let said = Raw { tensor_count: Some(count), ..Raw::default() }.message();
        let expected = format!("the number of tensors is {count}, at least 33 bytes each, but only ");
        assert!(said.contains(&expected), "{said}");
        let said = Raw { key_count: Some(count), ..Raw::default() }.message();
        let expected = format!("the number of keys is {count}, at least 14 bytes each, but only ");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn names_are_checked() {
    let with_key = |bytes: Vec<u8>| Raw { keys: vec![bytes], ..Raw::default() };
    let said = with_key(key("", 0, &[0; 9])).message();
    assert!(said.ends_with("key 0 has a name of 0 bytes; names must have 1 to 65535 bytes"), "{said}");
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend([0; 32]);
    let said = with_key(huge.clone()).message();
    assert!(
        said.ends_with("key 0 has a name of 18446744073709551615 bytes; names must have 1 to 65535 bytes"),
        "{said}"
    );
    let long = "k".repeat(65_536);
    let said = with_key(key(&long, 0, &[0])).message();
    assert!(said.ends_with("key 0 has a name of 65536 bytes; names must have 1 to 65535 bytes"), "{said}");
    assert!(with_key(key(&long[1..], 0, &[0])).open().is_ok());
    let mut not_text = 2u64.to_le_bytes().to_vec();
    not_text.extend([0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0]);
    let said = with_key(not_text).message();
    assert!(said.ends_with("key 0 at byte 32 is not UTF-8"), "{said}");

    let with_tensor = |bytes: Vec<u8>| Raw { tensors: vec![bytes], ..Raw::default() }.data(64);
    let said = with_tensor(tensor("", &[1], 0, 0)).message();
    assert!(said.ends_with("tensor 0 has a name of 0 bytes; names must have 1 to 65535 bytes"), "{said}");
    let said = with_tensor(huge).message();
    assert!(said.contains("tensor 0 has a name of 18446744073709551615 bytes"), "{said}");
}

#[test]
fn nothing_is_there_twice() {
    let said = one_tensor().key("a", 0, &[0]).key("b", 0, &[0]).key("a", 4, &[0; 4]).message();
    assert!(said.ends_with("duplicate key \"a\""), "{said}");
    let said = one_tensor().tensor("x", &[8], 0, 32).data(64).message();
    assert!(said.ends_with("duplicate tensor \"x\""), "{said}");
}

#[test]
fn values_are_checked() {
    let said = |kind, value: &[u8]| Raw::default().key("k", kind, value).message();
    for kind in [13, 255, u32::MAX] {
        let said = said(kind, &[0; 8]);
        assert!(
            said.ends_with(&format!("key \"k\" has the unknown value type {kind}; expected 0 to 12")),
            "{said}"
        );
    }
    assert!(said(7, &[2]).ends_with("key \"k\" is a bool with the value 2; expected 0 or 1"));
    assert!(said(12, &[0; 7]).contains("the value of key \"k\" at byte "));
    let mut long = (1u64 << 40).to_le_bytes().to_vec();
    long.push(b'x');
    let said_long = said(8, &long);
    assert!(said_long.contains("needs 1099511627776 bytes, 1 left"), "{said_long}");
    let said_wrap = said(8, &u64::MAX.to_le_bytes());
    assert!(said_wrap.contains("needs 18446744073709551615 bytes, 0 left"), "{said_wrap}");
    let mut bad = 1u64.to_le_bytes().to_vec();
    bad.push(0x80);
    assert!(said(8, &bad).ends_with("is not UTF-8"));
}

#[test]
fn arrays_are_checked() {
    let said = |value: &[u8]| Raw::default().key("k", 9, value).message();
    let nested = said(&array(9, 1, &array(4, 0, &[])));
    assert!(nested.ends_with("key \"k\" is an array of arrays, which is not supported"), "{nested}");
    let unknown = said(&array(13, 0, &[]));
    assert!(
        unknown.ends_with("the array of key \"k\" has the unknown value type 13; expected 0 to 12"),
        "{unknown}"
    );
    for count in [u64::MAX, 1 << 62, (1 << 61) + 1, 3] {
        let said = said(&array(10, count, &[0; 16]));
        let expected =
            format!("the length of the array of key \"k\" is {count}, at least 8 bytes each, but only 16");
        assert!(said.contains(&expected), "{said}");
    }
    let bools = said(&array(7, 3, &[0, 1, 7]));
    assert!(bools.ends_with("item 2 of key \"k\" is a bool with the value 7; expected 0 or 1"), "{bools}");
    let mut texts = text("fine");
    texts.extend(1u64.to_le_bytes());
    texts.push(0xff);
    let utf8 = said(&array(8, 2, &texts));
    assert!(utf8.contains("item 1 of key \"k\" at byte ") && utf8.ends_with("is not UTF-8"), "{utf8}");
    let mut cut = text("fine");
    cut.extend(100u64.to_le_bytes());
    let cut = said(&array(8, 2, &cut));
    assert!(
        cut.contains("item 1 of key \"k\" at byte ") && cut.ends_with("needs 100 bytes, 0 left"),
        "{cut}"
    );
}

#[test]
fn alignments_are_checked() {
    for alignment in [0u32, 1, 2, 3, 4, 24, 33, 1 << 21, 1 << 31, u32::MAX] {
        let said = one_tensor().key("general.alignment", 4, &alignment.to_le_bytes()).message();
        let expected = format!("general.alignment is {alignment}; expected a power of two from 8 to 1048576");
        assert!(said.ends_with(&expected), "{said}");
    }
    let said = one_tensor().key("general.alignment", 10, &32u64.to_le_bytes()).message();
    assert!(said.ends_with("metadata key \"general.alignment\" must be u32, is u64"), "{said}");
    let said = one_tensor().key("general.alignment", 8, &text("32")).message();
    assert!(said.ends_with("metadata key \"general.alignment\" must be u32, is string"), "{said}");
}

#[test]
fn sizes_are_checked() {
    let said = |dims: &[u64], kind| Raw::default().tensor("x", dims, kind, 0).data(64).message();
    assert!(said(&[], 0).ends_with("tensor \"x\" has 0 dimensions; expected 1 to 4"));
    assert!(said(&[1; 5], 0).ends_with("tensor \"x\" has 5 dimensions; expected 1 to 4"));
    let mut many = text("x");
    many.extend(u32::MAX.to_le_bytes());
    many.extend([0; 40]);
    let many = Raw { tensors: vec![many], ..Raw::default() }.message();
    assert!(many.ends_with("tensor \"x\" has 4294967295 dimensions; expected 1 to 4"), "{many}");
    assert!(said(&[0], 0).ends_with("tensor \"x\": dimension 0 is 0"));
    assert!(said(&[4, 0, 4], 0).ends_with("tensor \"x\": dimension 1 is 0"));
    for dims in [&[1 << 32, 1 << 32][..], &[u64::MAX, 2], &[1 << 16, 1 << 16, 1 << 16, 1 << 16]] {
        let said = said(dims, 0);
        assert!(
            said.ends_with(&format!("tensor \"x\": the number of elements of shape {dims:?} overflows")),
            "{said}"
        );
    }
    // The elements can be counted, the bytes cannot.
    let bytes = said(&[1 << 63], 0);
    assert!(
        bytes.ends_with("tensor \"x\": F32: the size of 9223372036854775808 elements overflows"),
        "{bytes}"
    );
    let bytes = said(&[1 << 32, (1 << 32) - 1], 1);
    assert!(bytes.contains("tensor \"x\": F16: the size of ") && bytes.ends_with("overflows"), "{bytes}");
    let row = said(&[48, 2], 8);
    assert!(row.ends_with("tensor \"x\": Q8_0: 48 elements are not a multiple of the block of 32"), "{row}");
    let row = said(&[128, 2], 12);
    assert!(
        row.ends_with("tensor \"x\": Q4_K: 128 elements are not a multiple of the block of 256"),
        "{row}"
    );
}

#[test]
fn types_are_named() {
    let said = |kind| Raw::default().tensor("x", &[256], kind, 0).data(4096).message();
    assert!(said(19).ends_with("tensor \"x\" has the type IQ1_S, which is not supported"));
    assert!(said(40).ends_with("tensor \"x\" has the type NVFP4, which is not supported"));
    for kind in [4, 5, 1000, u32::MAX] {
        let said = said(kind);
        assert!(
            said.contains(&format!("tensor \"x\": unknown GGML type {kind}; known are 0 (F32)")),
            "{said}"
        );
    }
}

#[test]
fn places_are_checked() {
    let at = |offset| Raw::default().tensor("x", &[8], 0, offset).data(64);
    assert!(at(32).open().is_ok());
    for offset in [1, 4, 31, 33] {
        let said = at(offset).message();
        let expected = format!("tensor \"x\": offset {offset} is not a multiple of the alignment 32");
        assert!(said.ends_with(&expected), "{said}");
    }
    for offset in [64, 1 << 40, u64::MAX - 31, 1 << 63, u64::MAX - 63] {
        let said = at(offset).message();
        let expected =
            format!("tensor \"x\": 32 bytes at offset {offset} of the data section (which starts at byte ");
        assert!(said.contains(&expected) && said.contains("are outside the file of "), "{said}");
    }
    // No data at all: the start of the data section is past the end of the file.
    let none = Raw::default().tensor("x", &[8], 0, 0).message();
    assert!(none.contains("tensor \"x\": 32 bytes at offset 0 of the data"), "{none}");
}

#[test]
fn tensors_do_not_overlap() {
    let two =
        |first, second| Raw::default().tensor("x", &[16], 0, first).tensor("y", &[16], 0, second).data(192);
    assert!(two(0, 64).open().is_ok());
    assert!(two(128, 0).open().is_ok());
    for (first, second, said) in
        [(0, 32, "\"x\" and \"y\""), (0, 0, "\"x\" and \"y\""), (64, 32, "\"y\" and \"x\"")]
    {
        assert!(two(first, second).message().ends_with(&format!("tensors {said} overlap")));
    }
}

#[test]
fn a_part_alone_in_memory_is_refused() {
    let said = one_tensor().key("split.count", 2, &[3, 0]).key("split.no", 2, &[1, 0]).message();
    assert_eq!(said, "memory: is shard 2 of 3; a split model must be opened by its path");
    let said = one_tensor().key("split.count", 8, &text("3")).message();
    assert!(said.ends_with("metadata key \"split.count\" must be u64, is string"), "{said}");
    assert!(one_tensor().key("split.count", 2, &[1, 0]).open().is_ok());
}
