//! The tokenizers against llama.cpp's ids, which `scripts/check-tokenizers --golden` wrote down: small
//! vocabularies of each kind with every pre-tokenizer that llama.cpp's own vectors cover.

use fulmen_model::tokenizer::{Special, TokenType, Tokenizer, TokenizerSpec};
use serde_json::Value;

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap().try_into().unwrap()).collect()
}

fn tokenizer(row: &Value, pre: &str) -> Tokenizer {
    let tokens = strings(&row["tokens"]);
    let id = |text: &str| tokens.iter().position(|token| token == text).map(|id| u32::try_from(id).unwrap());
    let (bos, eos, unknown) = (id("<s>"), id("</s>"), id("<unk>"));
    let number = |kind: &Value| TokenType::from_number(kind.as_i64().unwrap()).unwrap();
    let parts = TokenizerSpec {
        model: row["model"].as_str().unwrap().to_owned(),
        pre: Some(pre.to_owned()),
        types: row["types"].as_array().unwrap().iter().map(number).collect(),
        scores: row["scores"].as_array().into_iter().flatten().map(|x| x.as_f64().unwrap() as f32).collect(),
        merges: strings(&row["merges"]),
        tokens,
        bos,
        eos,
        unknown,
        ..TokenizerSpec::default()
    };
    Tokenizer::new(parts).unwrap()
}

#[test]
fn ids_are_those_of_llama_cpp() {
    let golden: Value = serde_json::from_str(include_str!("golden/tokenizers.json")).unwrap();
    let texts = strings(&golden["texts"]);
    let (mut compared, mut cut_down) = (0, 0);
    for row in golden["tokenizers"].as_array().unwrap() {
        let mut first: Option<Vec<Vec<u32>>> = None;
        // Only the differences from the pre-tokenizer with the full list are stored.
        let cases = row["cases"].as_object().unwrap();
        let (whole, others): (Vec<_>, Vec<_>) =
            cases.iter().partition(|(_, case)| case["as_text"].is_array());
        for (pre, case) in whole.into_iter().chain(others) {
            let tokenizer = tokenizer(row, pre);
            cut_down += usize::from(tokenizer.merges_without_token() > 50);
            let as_text: Vec<Vec<u32>> = match case["as_text"].as_array() {
                Some(lists) => lists.iter().map(ids).collect(),
                None => overlay(first.as_ref().unwrap(), &case["as_text"]),
            };
            let parsed = overlay(&as_text, &case["parsed"]);
            for (at, text) in texts.iter().enumerate() {
                let found = tokenizer.encode(text, Special::AsText);
                assert_eq!(found, as_text[at], "{pre}, as text: {text:?}");
                assert_eq!(tokenizer.encode(text, Special::Parse), parsed[at], "{pre}, parsed: {text:?}");
                // Where merges lead out of the vocabulary, llama.cpp loses text.
                if tokenizer.merges_without_token() == 0 {
                    assert_eq!(tokenizer.decode(&found).unwrap(), tokenizer_text(row, text), "{pre}");
                }
                compared += 2;
            }
            first.get_or_insert(as_text);
        }
    }
    assert!(compared > 1000, "{compared}");
    assert_eq!(cut_down, 2, "vocabularies with merges whose result is no token");
}

fn overlay(lists: &[Vec<u32>], changes: &Value) -> Vec<Vec<u32>> {
    let mut lists = lists.to_vec();
    for (at, changed) in changes.as_object().unwrap() {
        lists[at.parse::<usize>().unwrap()] = ids(changed);
    }
    lists
}

/// Only byte-level BPE distinguishes `▁` from a space.
fn tokenizer_text(row: &Value, text: &str) -> String {
    if row["model"] != "gpt2" { text.replace('▁', " ") } else { text.to_owned() }
}
