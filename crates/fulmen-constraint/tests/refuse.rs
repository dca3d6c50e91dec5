//! Malformed grammars are refused with the place of the error, and those made to explode within limits.

use std::time::{Duration, Instant};

use fulmen_constraint::{Compiler, ConstraintError, Grammar};
use fulmen_core::sampling::Constraint;
use fulmen_model::gguf::GgufFile;
use fulmen_model::tokenizer::Tokenizer;

fn schema(text: &str) -> String {
    Grammar::json_schema(text).unwrap_err().to_string()
}

#[test]
fn malformed_schemas_name_the_place() {
    let error = Grammar::json_schema("{\n  \"type\": objekt\n}").unwrap_err();
    let ConstraintError::Json { line: 2, column, .. } = error else { panic!("{error}") };
    assert!(column >= 11, "{column}");
    assert!(schema("").contains("line 1, column 0"), "{}", schema(""));
    for (text, pointer) in [
        (r#"{"type": "objekt"}"#, ""),
        (
            r#"{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "strin"}}}"#,
            "/properties/b",
        ),
        (r#"{"type": "array", "items": {"anyOf": [{"type": "null"}, {"minimum": "x"}]}}"#, "/items/anyOf/1"),
        (r#"{"properties": {"a/b": {"type": 7}}}"#, "/properties/a~1b"),
        (r##"{"$ref": "#/$defs/a", "$defs": {"a": {"pattern": "("}}}"##, "/$defs/a"),
    ] {
        let error = Grammar::json_schema(text).unwrap_err();
        let ConstraintError::Schema { pointer: got, message } = &error else { panic!("{text}: {error}") };
        assert_eq!(got, pointer, "{text}: {error}");
        assert!(!message.is_empty() && !message.contains('\n'), "{text}: {message:?}");
    }
    // What is not supported is said, not ignored.
    assert!(schema(r#"{"type": "array", "uniqueItems": true}"#).contains("uniqueItems"));
    assert!(
        Grammar::json_schema(r#"{"type": "string", "title": "a", "description": "b", "default": "c"}"#)
            .is_ok()
    );
    assert!(schema(r#"{"$ref": "https://example.com/schema.json"}"#).contains("example.com"));
    assert!(Grammar::json_schema("false").is_err(), "nothing matches it");
}

#[test]
fn malformed_expressions_and_grammars_are_refused() {
    for pattern in ["(", "[a", "a{2,1}", "*", r"\", "(?<=a)b", r"(a)\1"] {
        let error = Grammar::regex(pattern).unwrap_err();
        assert!(
            matches!(error, ConstraintError::Invalid { kind: "regular expression", .. }),
            "{pattern}: {error}"
        );
        assert!(error.to_string().contains("at line 1, column "), "{error}");
    }
    for text in ["", "a: \"b\"", "start: other", "start: \"a", "start: /(/", "start: start", "x = 1"] {
        let error = Grammar::lark(text).unwrap_err();
        assert!(matches!(error, ConstraintError::Invalid { kind: "grammar", .. }), "{text:?}: {error}");
    }
    let error = Grammar::lark("start: \"a\"\n    | other").unwrap_err().to_string();
    assert_eq!(error, "the grammar is invalid: unknown name: \"other\" at line 1, column 8");
}

/// Grammars that ask for exponential automata, deep recursion or much memory end early.
#[test]
fn grammars_made_to_explode_are_bounded() {
    let deep = |open: &str, close: &str, n: usize| open.repeat(n) + close.repeat(n).as_str();
    let nested = format!("{}{{}}{}", r#"{"items":"#.repeat(5000), "}".repeat(5000));
    let nested_100 = format!("{}{{}}{}", r#"{"items":"#.repeat(100), "}".repeat(100));
    let wide =
        format!(r#"{{"enum":[{}]}}"#, (0..60_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(","));
    let refs: String = (0..60)
        .map(|i| {
            format!(r##""d{i}":{{"anyOf":[{{"$ref":"#/$defs/d{0}"}},{{"$ref":"#/$defs/d{0}"}}]}},"##, i + 1)
        })
        .collect();
    let refs = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{refs}"d60":{{"type":"null"}}}}}}"##);
    let all_of: Vec<String> =
        (0..40).map(|i| format!(r#"{{"anyOf":[{{"minimum":{i}}},{{"maxLength":{i}}}]}}"#)).collect();
    let all_of = format!(r#"{{"allOf":[{}]}}"#, all_of.join(","));
    type Make<'a> = Box<dyn Fn() -> Result<Grammar, ConstraintError> + 'a>;
    let cases: Vec<(&str, Make<'_>)> = vec![
        ("deep schema", Box::new(|| Grammar::json_schema(&nested))),
        ("nested schema", Box::new(|| Grammar::json_schema(&nested_100))),
        ("wide enum", Box::new(|| Grammar::json_schema(&wide))),
        ("doubling references", Box::new(|| Grammar::json_schema(&refs))),
        ("doubling intersections", Box::new(|| Grammar::json_schema(&all_of))),
        ("long schema", Box::new(|| Grammar::json_schema(&" ".repeat(2 << 20)))),
        ("deep expression", Box::new(|| Grammar::regex(&deep("(", ")", 50_000)))),
        ("deep rules", Box::new(|| Grammar::lark(&format!("start: {}", deep("(", ")", 50_000))))),
        ("long repetition", Box::new(|| Grammar::regex("((a|b){1000}){1000}"))),
        ("exponential automaton", Box::new(|| Grammar::regex("(a|b)*a(a|b){60}"))),
        ("huge count", Box::new(|| Grammar::regex("a{1,1000000000}"))),
        ("large items", Box::new(|| Grammar::json_schema(r#"{"type":"array","minItems":100000000}"#))),
        ("large string", Box::new(|| Grammar::json_schema(r#"{"type":"string","minLength":4000000000}"#))),
        ("ambiguous", Box::new(|| Grammar::lark("start: start start | \"a\" | \"\""))),
        ("left recursion", Box::new(|| Grammar::lark("start: start \"a\" | start \"b\""))),
    ];
    let file =
        GgufFile::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf")).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let tokens = tokenizer.vocab_size() as u32;
    let compiler = Compiler::new(&tokenizer, tokens).unwrap();
    for (name, make) in cases {
        let began = Instant::now();
        let made = make();
        let (time, mut longest) = (began.elapsed(), Duration::ZERO);
        let constraint = made.as_ref().map(|grammar| compiler.compile(grammar));
        // What was accepted is followed for some tokens; a limit that is reached on the way is an error.
        let mut outcome =
            made.as_ref().map(|_| "accepted".to_owned()).unwrap_or_else(|error| error.to_string());
        if let Ok(Ok(mut constraint)) = constraint {
            for _ in 0..40 {
                let began = Instant::now();
                let mask = constraint.mask();
                longest = longest.max(began.elapsed());
                let next = mask.map(|mask| {
                    (0..tokens).rev().find(|&token| mask.allows(token) && !tokenizer.is_end(token))
                });
                match next
                    .and_then(|next| next.map_or(Ok(false), |next| constraint.accept(next).map(|()| true)))
                {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        outcome = error;
                        break;
                    }
                }
            }
        }
        println!("{name}: {outcome}; compiled in {time:?}, longest mask {longest:?}");
        // Generous: tests run next to others.
        let limit = Duration::from_secs(10);
        assert!(time < limit && longest < limit, "{name} took {time:?} and {longest:?}");
    }
}
