//! Constraints over real kinds of vocabularies: random walks along the masks give matching text only.

use fulmen_constraint::{Compiler, Grammar, GrammarConstraint};
use fulmen_core::sampling::{Constraint, TokenMask};
use fulmen_model::gguf::GgufFile;
use fulmen_model::tokenizer::{TokenType, Tokenizer, TokenizerSpec};
use serde_json::Value;

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");

/// The byte-level BPE of the story model.
fn story() -> Tokenizer {
    Tokenizer::from_metadata(GgufFile::open(STORY).unwrap().metadata()).unwrap()
}

/// A SentencePiece vocabulary: control tokens, bytes, characters and some words.
fn sentence_piece() -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|tool|>"].map(str::to_owned).to_vec();
    let mut types = vec![TokenType::Unknown, TokenType::Control, TokenType::Control, TokenType::Control];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    tokens.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string()));
    let words =
        ["▁", "▁▁", "\":", "▁\"", "{\"", "\"}", "name", "age", "▁true", "é", "12", "▁yes", "null", "],"];
    tokens.extend(words.map(str::to_owned));
    types.resize(tokens.len(), TokenType::Normal);
    types.push(TokenType::UserDefined);
    tokens.push("<tool>".to_owned());
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let (bos, eos, unknown, model) = (Some(1), Some(2), Some(0), "llama".to_owned());
    let spec = TokenizerSpec { model, tokens, types, scores, bos, eos, unknown, ..TokenizerSpec::default() };
    Tokenizer::new(spec).unwrap()
}

fn tokenizers() -> [(&'static str, Tokenizer); 2] {
    [("byte-level BPE", story()), ("SentencePiece", sentence_piece())]
}

/// More logits than tokens, and not a multiple of 32.
fn logits_of(tokenizer: &Tokenizer) -> u32 {
    tokenizer.vocab_size() as u32 + 77
}

fn allowed(mask: &TokenMask, logits: u32) -> Vec<u32> {
    assert_eq!(mask.0.len(), logits.div_ceil(32) as usize);
    let all = (0..32 * mask.0.len() as u32).filter(|&token| mask.allows(token));
    all.inspect(|&token| assert!(token < logits, "token {token} does not exist")).collect()
}

/// Draws tokens from the masks until the end, which is taken as soon as it is possible after `long` tokens.
fn walk(
    tokenizer: &Tokenizer,
    constraint: &mut GrammarConstraint,
    random: &mut fastrand::Rng,
    long: usize,
) -> String {
    let (logits, mut bytes) = (logits_of(tokenizer), Vec::new());
    for step in 0..4000 {
        let tokens = allowed(&constraint.mask().unwrap(), logits);
        assert!(!tokens.is_empty(), "stuck after {:?}", String::from_utf8_lossy(&bytes));
        let ends = tokens.iter().filter(|&&token| tokenizer.is_end(token)).count();
        // All end tokens or none, exactly where the text may end.
        assert_eq!(ends, if constraint.may_end() { tokenizer.ends().len() } else { 0 });
        let special = tokens.iter().filter(|&&token| tokenizer.is_special(token)).count();
        assert_eq!(special, ends, "control tokens are not text");
        if ends > 0 && (step >= long || random.u8(..) < 30) {
            constraint.accept(tokens[0]).ok();
            break;
        }
        let text: Vec<u32> = tokens.into_iter().filter(|&token| !tokenizer.is_end(token)).collect();
        if text.is_empty() {
            break;
        }
        // After many tokens those that close something are preferred, or a string might never end.
        let closing = |byte: u8| text.iter().find(|&&token| tokenizer.token_bytes(token).unwrap() == [byte]);
        let close = if step >= long { b"\"]}0:".iter().find_map(|&byte| closing(byte)) } else { None };
        let token = *close.unwrap_or(&text[random.usize(..text.len())]);
        bytes.extend_from_slice(tokenizer.token_bytes(token).unwrap());
        constraint.accept(token).unwrap();
    }
    String::from_utf8(bytes).expect("valid UTF-8")
}

const SCHEMA: &str = r##"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]}
    },
    "required": ["name", "age", "next"],
    "additionalProperties": false,
    "$defs": {"point": {
        "type": "object", "required": ["x"], "additionalProperties": false,
        "properties": {"x": {"type": "number", "minimum": -9, "maximum": 1e3}, "on": {"type": "boolean"}}
    }}
}"##;

fn check_schema(value: &Value) {
    let object = value.as_object().expect("an object");
    assert!(object.keys().all(|key| ["name", "age", "tags", "next"].contains(&key.as_str())));
    assert!(object["name"].as_str().unwrap().chars().count() <= 12);
    assert!((0..=150).contains(&object["age"].as_i64().unwrap()));
    if let Some(tags) = object.get("tags") {
        let tags = tags.as_array().unwrap();
        assert!(tags.len() <= 3 && tags.iter().all(|tag| ["a", "b", "é"].contains(&tag.as_str().unwrap())));
    }
    match &object["next"] {
        Value::Null => {}
        point => assert!(point["x"].is_number() && point.get("on").is_none_or(Value::is_boolean)),
    }
}

#[test]
fn random_walks_match_a_schema() {
    let mut random = fastrand::Rng::with_seed(5);
    for (name, tokenizer) in tokenizers() {
        let compiler = Compiler::new(&tokenizer, logits_of(&tokenizer)).unwrap();
        let grammar = Grammar::json_schema(SCHEMA).unwrap();
        for _ in 0..30 {
            let text = walk(&tokenizer, &mut compiler.compile(&grammar).unwrap(), &mut random, 60);
            let value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {text:?}: {error}"));
            check_schema(&value);
        }
        let text = walk(&tokenizer, &mut compiler.compile(&Grammar::json_object()).unwrap(), &mut random, 40);
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{name}: {text:?}");
    }
}

#[test]
fn random_walks_match_a_regular_expression_and_a_grammar() {
    let mut random = fastrand::Rng::with_seed(6);
    for (name, tokenizer) in tokenizers() {
        let compiler = Compiler::new(&tokenizer, logits_of(&tokenizer)).unwrap();
        let date = Grammar::regex("[12][0-9]{3}-(0[1-9]|1[0-2]) (ja|né)+!").unwrap();
        let nested = Grammar::lark("start: \"[\" item (\", \" item)* \"]\"\nitem: /[a-c]+/ | start").unwrap();
        for _ in 0..30 {
            let text = walk(&tokenizer, &mut compiler.compile(&date).unwrap(), &mut random, 20);
            let (year, rest) = text.split_at(4);
            assert!(year.parse::<u32>().is_ok_and(|year| (1000..3000).contains(&year)), "{name}: {text:?}");
            assert!((1..=12).contains(&rest[1..3].parse::<u32>().unwrap()), "{name}: {text:?}");
            let words = rest[4..].strip_suffix('!').unwrap().replace("ja", "").replace("né", "");
            assert_eq!(words, "", "{name}: {text:?}");
            let text = walk(&tokenizer, &mut compiler.compile(&nested).unwrap(), &mut random, 20);
            let (open, close) = (text.matches('[').count(), text.matches(']').count());
            assert!(open == close && text.starts_with('[') && text.ends_with(']'), "{name}: {text:?}");
        }
    }
}

#[test]
fn control_tokens_are_not_text_and_the_end_is_exact() {
    let tokenizer = sentence_piece();
    let compiler = Compiler::new(&tokenizer, logits_of(&tokenizer)).unwrap();
    // The texts of a control token and of a token that text may become.
    let mut constraint = compiler.compile(&Grammar::regex(r"<\|tool\|><tool>").unwrap()).unwrap();
    let user_defined = tokenizer.vocab_size() as u32 - 1;
    for (at, byte) in b"<|tool|>".iter().enumerate() {
        let tokens = allowed(&constraint.mask().unwrap(), logits_of(&tokenizer));
        assert!(!tokens.contains(&3), "the control token spells the text");
        assert!(!tokens.iter().any(|&token| tokenizer.is_end(token)), "{at}");
        let token = 4 + u32::from(*byte);
        assert!(tokens.contains(&token), "{at}: any tokenization is allowed, bytes as well");
        constraint.accept(token).unwrap();
    }
    assert!(allowed(&constraint.mask().unwrap(), logits_of(&tokenizer)).contains(&user_defined));
    constraint.accept(user_defined).unwrap();
    assert!(constraint.may_end());
    assert_eq!(allowed(&constraint.mask().unwrap(), logits_of(&tokenizer)), [2], "nothing but the end");
    // The mask of a position can be asked for again, and whoever ignores the end gets it again and again.
    assert_eq!(allowed(&constraint.mask().unwrap(), logits_of(&tokenizer)), [2]);
    for _ in 0..3 {
        constraint.accept(2).unwrap();
        assert_eq!(allowed(&constraint.mask().unwrap(), logits_of(&tokenizer)), [2]);
    }
    let mut constraint = compiler.compile(&Grammar::regex("a+").unwrap()).unwrap();
    let error = constraint.accept(4 + u32::from(b'b')).unwrap_err();
    assert!(error.starts_with("constrained decoding: "), "{error}");
    assert!(constraint.mask().is_err(), "a refused token ends the constraint");
}

#[test]
fn a_vocabulary_without_an_end_and_a_small_model_are_handled() {
    let tokens: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
    let spec = TokenizerSpec { model: "gpt2".into(), tokens, ..TokenizerSpec::default() };
    let tokenizer = Tokenizer::new(spec).unwrap();
    let error = Compiler::new(&tokenizer, 2).unwrap_err().to_string();
    assert_eq!(error, "the tokenizer has 3 tokens, but the model gives only 2 logits");
    let compiler = Compiler::new(&tokenizer, 3).unwrap();
    let mut constraint = compiler.compile(&Grammar::regex("ab?").unwrap()).unwrap();
    assert_eq!(allowed(&constraint.mask().unwrap(), 3), [0]);
    constraint.accept(0).unwrap();
    assert_eq!(allowed(&constraint.mask().unwrap(), 3), [1]);
    constraint.accept(1).unwrap();
    assert_eq!(allowed(&constraint.mask().unwrap(), 3), [0u32; 0], "there is no token to end with");
}
