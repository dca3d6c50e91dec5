//! Mutated `tokenizer.json` files.

use fulmen_model::gguf::Metadata;
use fulmen_model::tokenizer::{Special, StreamDecoder, Tokenizer, TokenizerSpec};

use crate::{corpus, fuzz, json, mutate, number};

const TEXTS: [&str; 5] =
    ["", "ab abc<|end|>é\n ab1!", "  <think> aaaa\u{301}abab▁", "<0x0A>\u{0}\u{10ffff}", "<s>abcabcabc"];

/// Builds a tokenizer and, if that works, uses it. Returns whether it was accepted.
fn read(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(spec) = TokenizerSpec::from_json(text) else { return false };
    let mut metadata = Metadata::new();
    spec.describe(spec.tokens.len() + 3, &mut metadata);
    let Ok(tokenizer) = Tokenizer::new(spec) else { return false };
    use_all(&tokenizer);
    // What was described as GGUF metadata is a tokenizer again, or is refused.
    if let Ok(again) = Tokenizer::from_metadata(&metadata) {
        use_all(&again);
    }
    true
}

fn use_all(tokenizer: &Tokenizer) {
    for text in TEXTS.into_iter().chain([&*"ab".repeat(200)]) {
        for special in [Special::AsText, Special::Parse] {
            let ids = tokenizer.encode_prompt(text, special);
            assert!(ids.iter().all(|&id| tokenizer.token(id).is_some()), "an id outside the vocabulary");
            let mut stream = StreamDecoder::new();
            let mut streamed = String::new();
            for &id in &ids {
                streamed += &stream.push(tokenizer, id).unwrap();
            }
            assert_eq!(streamed + &stream.finish(), tokenizer.decode(&ids).unwrap());
        }
    }
    assert!(tokenizer.missing_bytes().len() <= 256);
}

#[test]
fn the_corpus_is_read() {
    assert!(corpus::files(".tokenizer.json").iter().all(|bytes| read(bytes)));
}

#[test]
fn mutated_files_are_refused_or_read() {
    let files = corpus::files(".tokenizer.json");
    let documents: Vec<_> = files.iter().map(|bytes| serde_json::from_slice(bytes).unwrap()).collect();
    let make = |random: &mut fastrand::Rng| match random.u8(0..4) {
        0 => mutate::mutated(&files, random),
        _ => json::mutated(&documents, random).to_string().into_bytes(),
    };
    fuzz("tokenizer", number("FULMEN_FUZZ_CASES", 10_000) / 5, make, read);
}
