//! Calls of tools in every format: random walks along the masks of its grammar are calls.

use fulmen_constraint::{Compiler, Grammar};
use fulmen_core::sampling::Constraint;
use fulmen_model::gguf::GgufFile;
use fulmen_model::template::{AnswerParser, ToolFormat, ToolSpec};
use fulmen_model::tokenizer::{SpacePrefix, Special, TokenType, Tokenizer, TokenizerSpec};
use serde_json::{Value, json};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");
const TAGS: [&str; 27] = [
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
    "<think>",
    "</think>",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
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
    let space_prefix = Some(SpacePrefix::Never);
    let spec = TokenizerSpec {
        model,
        tokens,
        types,
        scores,
        bos,
        eos,
        unknown,
        space_prefix,
        ..TokenizerSpec::default()
    };
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
    walk_from("", 200, tokenizer, grammar, random)
}

/// As [`walk`], behind a text that has been generated already, and at least this many `steps` if they are
/// possible.
fn walk_from(
    begun: &str,
    steps: usize,
    tokenizer: &Tokenizer,
    grammar: &str,
    random: &mut fastrand::Rng,
) -> String {
    let logits = tokenizer.vocab_size() as u32;
    let compiler = Compiler::new(tokenizer, logits).unwrap();
    let mut constraint = compiler.compile(&Grammar::lark(grammar).unwrap()).unwrap();
    let mut bytes = Vec::new();
    for token in tokenizer.encode(begun, Special::Parse) {
        let mask = constraint.mask().unwrap();
        let so_far = || String::from_utf8_lossy(&bytes).into_owned();
        assert!(mask.allows(token), "{:?} after {:?}\n{grammar}", tokenizer.token(token), so_far());
        bytes.extend_from_slice(tokenizer.token_bytes(token).unwrap());
        constraint.accept(token).unwrap();
    }
    for step in 0..4000 {
        let mask = constraint.mask().unwrap();
        let tokens: Vec<u32> = (0..logits).filter(|&token| mask.allows(token)).collect();
        assert!(!tokens.is_empty(), "stuck after {:?}\n{grammar}", String::from_utf8_lossy(&bytes));
        let (ends, text): (Vec<u32>, Vec<u32>) = tokens.iter().partition(|&&token| tokenizer.is_end(token));
        if text.is_empty() || (!ends.is_empty() && step >= steps) {
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

fn parser(format: ToolFormat, tools: &[ToolSpec]) -> AnswerParser {
    match format {
        ToolFormat::Harmony => AnswerParser::harmony(true, false),
        _ => AnswerParser::new(true, false, Some(format)).with_tools(tools),
    }
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
    for format in ToolFormat::ALL {
        for (vocabulary, tokenizer) in &vocabularies {
            for several in [false, true] {
                let Some(grammar) = format.calls_grammar(&tools, several, tokenizer) else {
                    assert!(format == ToolFormat::Harmony && *vocabulary != "control tokens", "{format:?}");
                    continue;
                };
                let (open, _) = format.tags();
                let control = tokenizer.special_token(open).filter(|_| format != ToolFormat::Llama3);
                assert!(control.is_none_or(|id| grammar.contains(&format!("<[{id}]>"))), "{grammar}");
                for _ in 0..4 {
                    let text = walk(tokenizer, &grammar, &mut random);
                    let place = format!("{format:?}, {vocabulary}: {text:?}");
                    let mut parser = parser(format, &tools);
                    let mut parsed = parser.push(&text);
                    parsed.append(parser.finish());
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
    for format in ToolFormat::ALL {
        let grammar = format.calls_grammar(&tools[..1], false, &tokenizer).unwrap();
        let text = walk(&tokenizer, &grammar, &mut random);
        assert!(text.contains("get_weather") && !text.contains("get_weather_2"), "{format:?}: {text}");
    }
}

/// Free text, thoughts and calls in one answer; the arguments are those of the schema once a call has begun.
#[test]
fn calls_in_free_answers_keep_the_schema_of_strict_tools() {
    let story = Tokenizer::from_metadata(GgufFile::open(STORY).unwrap().metadata()).unwrap();
    let vocabularies = [
        ("no tags", story),
        ("control tokens", with_tags(TokenType::Control)),
        ("tokens of text", with_tags(TokenType::UserDefined)),
    ];
    let [weather, none] = tools();
    let tools = [weather.with_strict(true), none.with_strict(true)];
    let mut random = fastrand::Rng::with_seed(26);
    for format in ToolFormat::ALL {
        for (vocabulary, tokenizer) in &vocabularies {
            let Some(grammar) = format.answer_grammar(&tools, tokenizer) else {
                assert!(format == ToolFormat::Harmony && *vocabulary != "control tokens", "{format:?}");
                continue;
            };
            let (thoughts, begun) = match format {
                ToolFormat::Harmony => (
                    "",
                    "<|channel|>analysis<|message|>a {b}<|end|><|start|>assistant\
                    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
                        .to_owned(),
                ),
                ToolFormat::Llama3 => ("", "{\"name\": \"get_".to_owned()),
                ToolFormat::Gemma4 => {
                    ("<|channel>thought\nHm {}.<channel|>", format!("I look.{}", format.tags().0))
                }
                _ => ("<think>Hm {}.</think>", format!("I look.{}", format.tags().0)),
            };
            for begun in [begun.clone(), format!("{thoughts}{begun}")] {
                let text = walk_from(&begun, 0, tokenizer, &grammar, &mut random);
                let place = format!("{format:?}, {vocabulary}: {text:?}");
                let mut parser = parser(format, &tools).with_call_pieces();
                let mut parsed = parser.push(&text);
                parsed.append(parser.finish());
                assert!(!parsed.calls.is_empty(), "{place}");
                for call in &parsed.calls {
                    check(&call.name, &json!(call.arguments));
                }
                // What a client puts together of the pieces.
                for (number, call) in parsed.calls.iter().enumerate() {
                    let pieces = parsed.call_pieces.iter().filter(|piece| piece.call == number);
                    let json: String = pieces.map(|piece| piece.arguments.as_str()).collect();
                    assert_eq!(
                        serde_json::from_str::<Value>(&json).unwrap(),
                        json!(call.arguments),
                        "{place}"
                    );
                }
            }
            // Any text is an answer, too.
            let plain = if format == ToolFormat::Harmony { "<|channel|>final<|message|>No." } else { "No." };
            let text = walk_from(plain, 0, tokenizer, &grammar, &mut random);
            assert_eq!(text, plain, "{format:?}, {vocabulary}");
        }
    }
}

/// Tools that are not strict have any arguments beside those that are.
#[test]
fn other_tools_are_free_beside_strict_ones() {
    let [weather, none] = tools();
    let tools = [weather, none.with_strict(true)];
    let tokenizer = with_tags(TokenType::Control);
    let mut random = fastrand::Rng::with_seed(27);
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": \"many\"}}\n</tool_call>";
    let grammar = ToolFormat::Hermes.answer_grammar(&tools, &tokenizer).unwrap();
    assert_eq!(walk_from(call, 0, &tokenizer, &grammar, &mut random), call);
    let call = "<tool_call>\n<function=get_weather>\n<parameter=days>\nmany\n</parameter>\n</function>\n\
        </tool_call>";
    let grammar = ToolFormat::QwenXml.answer_grammar(&tools, &tokenizer).unwrap();
    assert_eq!(walk_from(call, 0, &tokenizer, &grammar, &mut random), call);
}
