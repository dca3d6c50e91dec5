//! Whole tokenizers: invariants for any text.

use proptest::prelude::*;

use super::*;

/// All bytes, some merges, control and user-defined tokens.
fn byte_level(pre: &str) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| bytes::encode(&[byte])).collect();
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ã ©", "Ċ Ċ", "Ġ Ġ", "1 2"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![TokenType::Normal; tokens.len()];
    for (text, kind) in [
        ("<|im_start|>", TokenType::Control),
        ("<|im_end|>", TokenType::Control),
        ("<tool>", TokenType::UserDefined),
        ("<unk>", TokenType::Unknown),
    ] {
        tokens.push(text.into());
        types.push(kind);
    }
    let spec = TokenizerSpec {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens,
        types,
        merges: merges.map(String::from).to_vec(),
        bos: Some(265),
        eos: Some(266),
        ..TokenizerSpec::default()
    };
    Tokenizer::new(spec).unwrap()
}

/// Bytes, some words.
fn sentence(space_prefix: SpacePrefix) -> Tokenizer {
    let words = ["▁", "▁h", "he", "l", "ll", "▁he", "▁hello", "o", "▁hell", "é", "e", "h"];
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![TokenType::Unknown, TokenType::Control, TokenType::Control];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    tokens.extend(words.map(String::from));
    types.resize(tokens.len(), TokenType::Normal);
    let scores = (0..tokens.len()).map(|i| if i < 259 { 0.0 } else { 250.0 - i as f32 }).collect();
    let spec = TokenizerSpec {
        model: "llama".into(),
        tokens,
        types,
        scores,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        space_prefix: Some(space_prefix),
        ..TokenizerSpec::default()
    };
    Tokenizer::new(spec).unwrap()
}

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token(id).unwrap().to_owned()).collect()
}

#[test]
fn control_tokens_need_to_be_asked_for() {
    let tokenizer = byte_level("gpt-2");
    let ids = tokenizer.encode("hello<|im_end|>", Special::Parse);
    assert_eq!(texts(&tokenizer, &ids), ["hello", "<|im_end|>"]);
    let ids = tokenizer.encode("<|im_end|><unk>", Special::AsText);
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids).unwrap(), "<|im_end|><unk>");
    let ids = tokenizer.encode("a<tool>b", Special::AsText);
    assert_eq!(texts(&tokenizer, &ids), ["a", "<tool>", "b"]);
}

#[test]
fn begin_and_end_as_the_tokenizer_says() {
    let tokenizer = byte_level("gpt-2");
    assert!(!tokenizer.adds_bos());
    assert!(tokenizer.encode_prompt("", Special::AsText).is_empty());
    let tokenizer = byte_level("llama-bpe");
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode_prompt("", Special::AsText), [265]);
    assert_eq!(tokenizer.encode_prompt("<|im_start|>a", Special::Parse), [265, 97], "no second begin");
    assert!(tokenizer.encode("", Special::AsText).is_empty());
    let tokenizer = sentence(SpacePrefix::Always);
    assert_eq!(tokenizer.encode_prompt("", Special::AsText), [1]);
    assert_eq!(tokenizer.ends(), [2]);
}

#[test]
fn sentence_piece_puts_a_space_before_text() {
    let tokenizer = sentence(SpacePrefix::Always);
    assert_eq!(texts(&tokenizer, &tokenizer.encode("hello", Special::AsText)), ["▁hello"]);
    assert_eq!(texts(&tokenizer, &tokenizer.encode("▁hello", Special::AsText)), ["▁", "▁hello"]);
    let ids = tokenizer.encode("hello</s>hello", Special::Parse);
    assert_eq!(texts(&tokenizer, &ids), ["▁hello", "</s>", "▁hello"]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "hello hello");
    assert_eq!(tokenizer.decode_with_special(&ids).unwrap(), "hello</s> hello");
    let ids = tokenizer.encode_prompt("hello", Special::AsText);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "hello");
    assert_eq!(tokenizer.decode_with_special(&ids).unwrap(), "<s> hello");
    let mut answer = StreamDecoder::continuing();
    assert_eq!(answer.push(&tokenizer, ids[1]).unwrap(), " hello");
    let tokenizer = sentence(SpacePrefix::Never);
    assert_eq!(texts(&tokenizer, &tokenizer.encode("hello", Special::AsText)), ["he", "ll", "o"]);
    let ids = tokenizer.encode("</s><s><unk><0x41>", Special::AsText);
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids).unwrap(), "</s><s><unk><0x41>");
}

#[test]
fn ids_out_of_range_are_refused() {
    let tokenizer = byte_level("gpt-2");
    let size = tokenizer.vocab_size();
    for id in [u32::try_from(size).unwrap(), u32::MAX] {
        let error = tokenizer.decode(&[0, id]).unwrap_err();
        assert_eq!(error.to_string(), format!("token {id} does not exist; the vocabulary has {size} tokens"));
        assert!(StreamDecoder::new().push(&tokenizer, id).is_err());
        assert_eq!((tokenizer.token(id), tokenizer.token_type(id)), (None, None));
        assert!(!tokenizer.is_end(id) && !tokenizer.is_special(id));
    }
}

#[test]
fn a_character_is_not_split() {
    let tokenizer = byte_level("gpt-2");
    let ids: Vec<u32> = "🦀é".bytes().map(u32::from).map(|byte| id_of(&tokenizer, byte)).collect();
    let mut decoder = StreamDecoder::new();
    let pieces: Vec<String> = ids.iter().map(|&id| decoder.push(&tokenizer, id).unwrap()).collect();
    assert_eq!(pieces, ["", "", "", "🦀", "", "é"]);
    assert_eq!(decoder.finish(), "");
}

/// The token of one byte.
fn id_of(tokenizer: &Tokenizer, byte: u32) -> u32 {
    let text = bytes::encode(&[u8::try_from(byte).unwrap()]);
    (0..256).find(|&id| tokenizer.token(id) == Some(&text)).unwrap()
}

/// Quadratic time would be a hundred thousand times slower.
#[test]
fn long_texts_do_not_take_quadratic_time() {
    let tokenizers =
        [byte_level("gpt-2"), byte_level("qwen2"), byte_level("default"), sentence(SpacePrefix::Always)];
    for (i, tokenizer) in tokenizers.iter().enumerate() {
        // Unoptimized builds are slow, so only one tokenizer gets a long text.
        let n = if i == 0 { 200_000 } else { 50_000 };
        for part in ["a", " ", "hello ", "\n", "é", "1"] {
            let text = part.repeat(n / part.len());
            let ids = tokenizer.encode(&text, Special::Parse);
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
        let ids = tokenizer.encode(&"<|im_end".repeat(n / 8), Special::Parse);
        assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
    }
}

/// Specifications as a broken file may contain them.
fn any_spec() -> impl Strategy<Value = TokenizerSpec> {
    use proptest::collection::vec;
    let token = "[ab<>Ġ▁é ]{0,3}|<0x[0-9a-zA-Z]{2}>|<\\|im_end\\|>";
    let kind = (0i64..8).prop_map(|number| TokenType::from_number(number).unwrap_or(TokenType::Normal));
    let id = || proptest::option::of(0u32..12);
    let score = prop_oneof![Just(f32::NAN), Just(f32::INFINITY), -3f32..3.0];
    let lists = (vec(token, 0..10), vec(kind, 0..10), vec(score, 0..10), vec("[ab<>Ġ ]{0,4}", 0..6));
    let ids = (id(), id(), id(), vec(0u32..12, 0..3), vec((0u32..12, any::<bool>(), any::<bool>()), 0..3));
    let flags =
        (any::<Option<bool>>(), any::<Option<bool>>(), any::<Option<bool>>(), 0..3usize, any::<bool>());
    let names = ("gpt2|llama|x", "gpt-2|llama-bpe|default|y");
    (names, lists, ids, flags, any::<bool>()).prop_map(|(names, lists, ids, flags, fit)| {
        let (tokens, mut types, mut scores, merges) = lists;
        // Lists of the right length get past the first checks.
        if fit {
            types.resize(tokens.len(), TokenType::Normal);
            scores.resize(tokens.len(), 0.0);
        }
        TokenizerSpec {
            model: names.0,
            pre: Some(names.1),
            tokens,
            scores,
            types,
            merges,
            ignore_merges: flags.0,
            bos: ids.0,
            eos: ids.1,
            unknown: ids.2,
            add_bos: flags.1,
            add_eos: flags.2,
            space_prefix: [Some(SpacePrefix::Never), Some(SpacePrefix::First), None][flags.3],
            nfc: flags.4,
            ends: ids.3,
            strips: ids.4.into_iter().map(|(id, left, right)| (id, Strip { left, right })).collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Invalid specifications are rejected, and accepted ones work: ids exist, and no text becomes a control
    /// token.
    #[test]
    fn any_spec_works_or_is_rejected(spec in any_spec(), text in "[ab<>|é▁ ]{0,10}|<\\|im_end\\|>") {
        if let Ok(tokenizer) = Tokenizer::new(spec) {
            let ids = tokenizer.encode(&text, Special::AsText);
            let unknown = |id: u32| tokenizer.token_type(id) == Some(TokenType::Unknown);
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id) || unknown(id)));
            tokenizer.decode(&ids).unwrap();
            let ids = tokenizer.encode_prompt(&text, Special::Parse);
            tokenizer.decode_with_special(&ids).unwrap();
        }
    }
}

const PRES: [&str; 6] = ["gpt-2", "llama-bpe", "qwen2", "smollm", "default", "tekken"];

/// Text of all sorts: any characters, and what the patterns and merges look at.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,30}",
        proptest::collection::vec(any::<char>(), 0..20).prop_map(String::from_iter),
        "(hello| w|'ll|12|\r|\n|\t| |é|🦀|<\\|im_end\\|>|<tool>|▁|<unk>){0,12}",
    ]
}

proptest! {
    #[test]
    fn text_comes_back(text in any_text(), pre in 0..PRES.len()) {
        let tokenizer = byte_level(PRES[pre]);
        let ids = tokenizer.encode(&text, Special::AsText);
        prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_str());
        let ids = tokenizer.encode(&text, Special::Parse);
        prop_assert_eq!(tokenizer.decode_with_special(&ids).unwrap(), text);
    }

    /// SentencePiece does not distinguish `▁` from a space.
    #[test]
    fn text_comes_back_from_sentence_piece(text in any_text(), prefix in 0..3usize) {
        let tokenizer = sentence([SpacePrefix::Never, SpacePrefix::First, SpacePrefix::Always][prefix]);
        let ids = tokenizer.encode(&text, Special::AsText);
        prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.replace('▁', " "));
    }

    /// Any tokens, even if not valid UTF-8: streaming equals decoding at once, and no piece ends inside a
    /// character.
    #[test]
    fn a_stream_equals_decode(ids in proptest::collection::vec(0u32..269, 0..40), spm: bool, show: bool) {
        let tokenizer = if spm { sentence(SpacePrefix::Always) } else { byte_level("gpt-2") };
        let mut decoder = if show { StreamDecoder::new().show_special() } else { StreamDecoder::new() };
        let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(&tokenizer, id).unwrap()).collect();
        pieces.push(decoder.finish());
        let whole = if show { tokenizer.decode_with_special(&ids) } else { tokenizer.decode(&ids) }.unwrap();
        prop_assert_eq!(pieces.concat(), whole.as_str());
        let shown = ids.iter().flat_map(|&id| tokenizer.shown(id, show).unwrap());
        let mut bytes: Vec<u8> = shown.copied().collect();
        let starts_special = ids.iter().find(|&&id| !tokenizer.shown(id, show).unwrap().is_empty())
            .is_some_and(|&id| tokenizer.is_special(id));
        if spm && !starts_special && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        prop_assert_eq!(whole, String::from_utf8_lossy(&bytes).into_owned());
    }
}
