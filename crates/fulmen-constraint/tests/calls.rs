//! Required calls of tools in every format: random walks along the masks of its grammar are calls.

use fulmen_constraint::{Compiler, Grammar};
use fulmen_core::sampling::Constraint;
use fulmen_model::gguf::GgufFile;
use fulmen_model::template::{AnswerParser, ToolFormat, ToolSpec};
use fulmen_model::tokenizer::{TokenType, Tokenizer, TokenizerSpec};
use serde_json::{Value, json};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");
const TAGS: [&str; 13] = [
    "<tool_call>",
    "</tool_call>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function_calls>",
    "</function_calls>",
    "<|python_tag|>",
];

/// A vocabulary of bytes and characters whose tags are of this type.
fn with_tags(kind: TokenType) -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut types = vec![TokenType::Unknown, TokenType::Control, TokenType::Control];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    tokens.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string()));
    tokens.push("▁".to_owned());
    types.resize(tokens.len(), TokenType::Normal);
    tokens.extend(TAGS.map(str::to_owned));
    types.resize(tokens.len(), kind);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let (bos, eos, unknown, model) = (Some(1), Some(2), Some(0), "llama".to_owned());
    let spec = TokenizerSpec { model, tokens, types, scores, bos, eos, unknown, ..TokenizerSpec::default() };
    Tokenizer::new(spec).unwrap()
}

fn tools() -> [ToolSpec; 2] {
    let weather = json!({
        "type": "object", "additionalProperties": false, "required": ["city", "days"],
        "$defs": { "days": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "properties": {
            "city": { "type": "string", "minLength": 1, "maxLength": 6, "pattern": "^[a-z]{1,6}$" },
            "days": { "$ref": "#/$defs/days" }, "unit": { "enum": ["celsius", "5"] },
            "hourly": { "type": "boolean" },
        },
    });
    let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = |name: &str, schema| ToolSpec::new(name.to_owned(), None, Some(schema)).unwrap();
    [tool("get_weather", weather), tool("get_weather_2.now", none)]
}

fn check(name: &str, arguments: &Value) {
    let keys: Vec<&str> = arguments.as_object().unwrap().keys().map(String::as_str).collect();
    if name == "get_weather_2.now" {
        assert!(keys.is_empty());
        return;
    }
    assert_eq!(name, "get_weather");
    assert!((1..=6).contains(&arguments["city"].as_str().unwrap().chars().count()), "{arguments}");
    assert!((0..=99).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
    assert!(arguments.get("unit").is_none_or(|unit| unit == "celsius" || unit == "5"), "{arguments}");
    assert!(arguments.get("hourly").is_none_or(Value::is_boolean), "{arguments}");
    assert!(keys.iter().all(|key| ["city", "days", "unit", "hourly"].contains(key)), "{arguments}");
}

/// Draws tokens from the masks until the end, which is taken as soon as it is possible after some tokens.
fn walk(tokenizer: &Tokenizer, grammar: &str, random: &mut fastrand::Rng) -> String {
    let logits = tokenizer.vocab_size() as u32;
    let compiler = Compiler::new(tokenizer, logits).unwrap();
    let mut constraint = compiler.compile(&Grammar::lark(grammar).unwrap()).unwrap();
    let mut bytes = Vec::new();
    for step in 0..4000 {
        let mask = constraint.mask().unwrap();
        let tokens: Vec<u32> = (0..logits).filter(|&token| mask.allows(token)).collect();
        assert!(!tokens.is_empty(), "stuck after {:?}\n{grammar}", String::from_utf8_lossy(&bytes));
        let (ends, text): (Vec<u32>, Vec<u32>) = tokens.iter().partition(|&&token| tokenizer.is_end(token));
        if text.is_empty() || (!ends.is_empty() && step >= 200) {
            break;
        }
        // Control tokens where they are tags, and plain letters where text is free.
        let plain = |&&token: &&u32| tokenizer.token_bytes(token).unwrap().iter().all(u8::is_ascii_graphic);
        let plain: Vec<u32> = text.iter().filter(plain).copied().collect();
        let from = if plain.is_empty() || random.u8(..) < 20 { &text } else { &plain };
        let token = from[random.usize(..from.len())];
        bytes.extend_from_slice(tokenizer.token_bytes(token).unwrap());
        constraint.accept(token).unwrap();
    }
    assert!(constraint.may_end(), "{}", String::from_utf8_lossy(&bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn required_calls_are_calls_in_every_format() {
    let story = Tokenizer::from_metadata(GgufFile::open(STORY).unwrap().metadata()).unwrap();
    let vocabularies = [
        ("no tags", story),
        ("control tokens", with_tags(TokenType::Control)),
        ("tokens of text", with_tags(TokenType::UserDefined)),
    ];
    let tools = tools();
    let mut random = fastrand::Rng::with_seed(24);
    for format in ToolFormat::ALL.into_iter().filter(|&format| format != ToolFormat::Harmony) {
        for (vocabulary, tokenizer) in &vocabularies {
            for several in [false, true] {
                let grammar = format.calls_grammar(&tools, several, tokenizer).unwrap();
                let (open, _) = format.tags();
                let control = tokenizer.special_token(open).filter(|_| format != ToolFormat::Llama3);
                assert!(control.is_none_or(|id| grammar.contains(&format!("<[{id}]>"))), "{grammar}");
                for _ in 0..4 {
                    let text = walk(tokenizer, &grammar, &mut random);
                    let place = format!("{format:?}, {vocabulary}: {text:?}");
                    let mut parser = AnswerParser::new(false, false, Some(format)).with_tools(&tools);
                    let mut parsed = parser.push(&text);
                    let end = parser.finish();
                    parsed.content += &end.content;
                    parsed.calls.extend(end.calls);
                    assert!(parsed.content.trim().is_empty() && !parsed.calls.is_empty(), "{place}");
                    assert!(several || parsed.calls.len() == 1, "{place}");
                    for call in &parsed.calls {
                        check(&call.name, &json!(call.arguments));
                    }
                }
            }
        }
    }
}

#[test]
fn a_named_tool_is_the_only_one() {
    let tokenizer = with_tags(TokenType::Control);
    let tools = tools();
    let mut random = fastrand::Rng::with_seed(25);
    for format in ToolFormat::ALL.into_iter().filter(|&format| format != ToolFormat::Harmony) {
        let grammar = format.calls_grammar(&tools[..1], false, &tokenizer).unwrap();
        let text = walk(&tokenizer, &grammar, &mut random);
        assert!(text.contains("get_weather") && !text.contains("get_weather_2"), "{format:?}: {text}");
    }
}
