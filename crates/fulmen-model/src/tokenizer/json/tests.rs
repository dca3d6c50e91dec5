//! Reading tokenizer.json files, and rejecting what is not supported.

use super::super::Special;
use super::*;
use serde_json::{Value, json};

fn byte_level() -> Value {
    let vocab = json!({
        "h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "hell": 7, "Ã": 8, "©": 9, "1": 10
    });
    let pattern = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    );
    let split = json!({
        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false
    });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false });
    json!({
        "version": "1.0",
        "added_tokens": [
            { "id": 11, "content": "<|im_end|>", "special": true, "rstrip": true },
            { "id": 13, "content": "<tool>", "special": false },
        ],
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, bytes] },
        "post_processor": { "type": "ByteLevel" },
        "model": { "type": "BPE", "unk_token": null, "vocab": vocab, "merges": ["h e", ["l", "l"], "he ll"] },
    })
}

fn sentence() -> Value {
    let mut vocab = json!({
        "<unk>": 0, "<s>": 1, "▁": 258, "a": 259, "b": 260, "▁a": 261, "ab": 262, "▁ab": 263, "bb": 264
    });
    for byte in 0..256 {
        vocab[format!("<0x{byte:02X}>")] = json!(byte + 2);
    }
    json!({
        "added_tokens": [{ "id": 1, "content": "<s>", "special": true }],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] },
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "<s>", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
            ],
            "pair": [],
            "special_tokens": {},
        },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
            "vocab": vocab, "merges": ["▁ a", "a b", "▁a b", "▁ ab"],
        },
    })
}

fn make(file: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::new(TokenizerSpec::from_json(&file.to_string())?)
}

#[test]
fn byte_level_bpe() {
    let tokenizer = make(&byte_level()).unwrap();
    assert_eq!(tokenizer.encode("hello hello11", Special::AsText), [7, 3, 4, 7, 3, 10, 10]);
    assert_eq!(tokenizer.encode("e\u{301}", Special::AsText), [8, 9], "normalized to NFC");
    assert_eq!(tokenizer.encode("o<|im_end|> \no<tool>", Special::Parse), [3, 11, 3, 13]);
    assert_eq!(tokenizer.ends(), [11]);
    assert_eq!(tokenizer.token(12), Some(""), "a hole");
    assert_eq!(tokenizer.encode_prompt("o", Special::AsText), [3]);
}

#[test]
fn merges_over_characters() {
    let mut file = sentence();
    file["normalizer"] = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let pattern = json!({ "String": " " });
    file["pre_tokenizer"] = json!({ "type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious" });
    // The last merge is of another rank than the token that it results in has as the result of "▁a b".
    file["model"]["merges"] = json!(["a b", ["b", "b"], "▁a b", "▁ ab"]);
    let tokenizer = make(&file).unwrap();
    assert_eq!(tokenizer.encode_prompt(" ab abb", Special::AsText), [1, 263, 263, 260], "no prefix");
    assert_eq!(tokenizer.encode("bb é", Special::AsText), [264, 258, 0xC3 + 2, 0xA9 + 2]);
    assert_eq!(tokenizer.decode(&[263, 258, 0xC3 + 2, 0xA9 + 2]).unwrap(), " ab é");
}

#[test]
fn sentence_piece() {
    let tokenizer = make(&sentence()).unwrap();
    assert_eq!(tokenizer.encode_prompt("ab", Special::AsText), [1, 263]);
    assert_eq!(tokenizer.encode_prompt("ab ab", Special::AsText), [1, 263, 263]);
    assert_eq!(tokenizer.encode("bab!", Special::AsText), [258, 260, 262, 0x21 + 2]);
    assert_eq!(tokenizer.encode("bb", Special::AsText), [258, 260, 260], "no merge makes bb");
    let mut file = sentence();
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first" });
    let tokenizer = make(&file).unwrap();
    assert_eq!(tokenizer.encode("ab<s>ab", Special::Parse), [263, 1, 262]);
}

/// Special tokens from the files next to it are added: BOS and more end tokens.
#[test]
fn the_files_beside_it_are_heard() {
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.bos_token_id", 13u32);
    metadata.set("tokenizer.ggml.eos_token_id", 3u32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
    metadata.set("tokenizer.ggml.eos_token_ids", crate::gguf::Array::numbers(&[3u32, 10]));
    let mut spec = TokenizerSpec::from_json(&byte_level().to_string()).unwrap();
    spec.overlay(&metadata).unwrap();
    let tokenizer = Tokenizer::new(spec).unwrap();
    assert_eq!(tokenizer.encode_prompt("he", Special::AsText), [13, 5]);
    assert_eq!(tokenizer.ends(), [3, 10, 11]);
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let message = |path: &[&str], value: Value| {
        let mut file = byte_level();
        let mut at = &mut file;
        for key in path {
            at = &mut at[key];
        }
        *at = value;
        make(&file).unwrap_err().to_string()
    };
    let prefix = "tokenizer.json: ";
    let cases: [(&[&str], Value, &str); 9] = [
        (&["model", "type"], json!("Unigram"), r#"a model of type "Unigram" is not supported"#),
        (&["model", "end_of_word_suffix"], json!("</w>"), "a model with end_of_word_suffix is not supported"),
        (&["normalizer"], json!({ "type": "Lowercase" }), r#"the normalizer "Lowercase" is not supported"#),
        (
            &["pre_tokenizer"],
            json!({ "type": "Whitespace" }),
            r#"the pre-tokenizer "Whitespace" with these settings is not supported"#,
        ),
        (
            &["pre_tokenizer"],
            json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": "x" }, "behavior": "Isolated" },
                { "type": "ByteLevel", "use_regex": false },
            ] }),
            r#"the pattern "x" is not supported"#,
        ),
        (&["pre_tokenizer"], Value::Null, "the pre-tokenizer [] is not supported"),
        (
            &["added_tokens"],
            json!([{ "id": 11, "content": "x", "single_word": true }]),
            r#"the added token "x" with single_word is not supported"#,
        ),
        (
            &["added_tokens"],
            json!([{ "id": 4_000_000_000u32, "content": "x" }]),
            "has 12 tokens, but much larger ids",
        ),
        (&["added_tokens"], json!([{ "id": 0, "content": "x" }]), r#"token 0 is both "h" and "x""#),
    ];
    for (path, value, expected) in cases {
        assert_eq!(message(path, value), format!("{prefix}{expected}"));
    }
    assert_eq!(
        message(&["model", "merges"], json!(["h  "])),
        r#"merge 0 ("h  ") needs the token " ", which is not in the vocabulary"#
    );
    assert!(message(&["model"], json!({})).starts_with("tokenizer.json: missing field `vocab`"));
    for text in ["", "{", "[]", "null", "{\"model\": 1}"] {
        assert!(TokenizerSpec::from_json(text).unwrap_err().to_string().starts_with(prefix));
    }
    let deep = "[".repeat(100_000);
    assert!(TokenizerSpec::from_json(&deep).is_err(), "nesting is limited");
}
