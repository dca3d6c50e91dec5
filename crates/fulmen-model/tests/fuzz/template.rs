//! Mutated chat templates.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use fulmen_model::template::{ChatOptions, ChatTemplate, Message};
use serde_json::json;

use crate::{corpus, fuzz, mutate, number};

/// Renders a conversation if the template is accepted. Returns whether it was.
fn read(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(template) = ChatTemplate::new(text) else { return false };
    let messages = [
        Message::system("Be brief."),
        Message::user("Hello <|im_end|> {{ x }}"),
        Message::assistant("  Hi\n"),
        Message::user("é"),
    ];
    let now = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let tools = ("tools".to_owned(), json!([{"name": "f", "arguments": {"x": [1, 2.5, null, "y"]}}]));
    for (thinking, variables) in [(None, Vec::new()), (Some(false), vec![tools])] {
        let options = ChatOptions { thinking, now, variables, ..ChatOptions::default() };
        match template.render(&messages, &options) {
            Ok(text) => assert!(text.len() < 64 << 20),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    // Without messages most templates fail, with an error.
    let _ = template.render(&[], &ChatOptions::default());
    true
}

/// Pieces of the language.
const WORDS: [&str; 64] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    "for",
    "in",
    "if",
    "else",
    "elif",
    "endif",
    "endfor",
    "set",
    "endset",
    "macro",
    "endmacro",
    "filter",
    "endfilter",
    "raw",
    "endraw",
    "recursive",
    "loop",
    "loop.index0",
    "loop(item)",
    "messages",
    "message",
    "namespace()",
    "ns.x",
    "range(1000000)",
    "range(0, 10, 0)",
    "'",
    "\"",
    "(",
    ")",
    "[",
    "]",
    "[::-1]",
    "[0]",
    "{'a': 1}",
    ".",
    ",",
    "|",
    "| length",
    "| tojson",
    "| join(',')",
    "| list",
    "| int",
    "| default('x')",
    "* 100000",
    "** 9999",
    "// 0",
    "% 0",
    "-",
    "~",
    "==",
    "is defined",
    "is string",
    "not",
    "and",
    "9223372036854775807",
    "1e308",
];

fn mutated(files: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    if random.u8(0..5) == 0 {
        return mutate::mutated(files, random);
    }
    let text = random.choice(files).cloned().unwrap_or_default();
    let text = String::from_utf8(text).unwrap_or_default();
    // Cut where words of the language meet, so that most results parse.
    let mut words: Vec<String> = Vec::new();
    for c in text.chars() {
        match words.last_mut() {
            Some(last) if c.is_alphanumeric() && last.ends_with(char::is_alphanumeric) => last.push(c),
            _ => words.push(c.to_string()),
        }
    }
    for _ in 0..random.usize(1..=3) {
        let at = random.usize(0..words.len().max(1)).min(words.len().saturating_sub(1));
        match random.u8(0..5) {
            0 if !words.is_empty() => _ = words.remove(at),
            1 if !words.is_empty() => words[at] = random.choice(WORDS).unwrap_or("").to_owned(),
            2 => words.insert(at, format!(" {} ", random.choice(WORDS).unwrap_or(""))),
            3 if !words.is_empty() => {
                let end = (at + random.usize(1..12)).min(words.len());
                let again = words[at..end].to_vec();
                let to = random.usize(0..=words.len());
                words.splice(to..to, again);
            }
            _ if words.len() > 1 => {
                let other = random.usize(0..words.len());
                words.swap(at, other);
            }
            _ => {}
        }
    }
    words.concat().into_bytes()
}

#[test]
fn the_corpus_is_read() {
    for bytes in corpus::files(".template.jinja") {
        let text = std::str::from_utf8(&bytes).unwrap();
        let template = ChatTemplate::new(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let messages = [Message::user("Hello"), Message::assistant("Hi")];
        template.render(&messages, &ChatOptions::default()).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(read(&bytes));
    }
}

/// A list that does not fit the budget is refused before it is made, and the ends of ranges are right.
#[test]
fn ranges_are_paid_for_before_they_are_made() {
    let render = |text: &str| ChatTemplate::new(text).unwrap().render(&[], &ChatOptions::default());
    for numbers in ["3, 9223372036854775807, 2", "9223372036854775807, -9223372036854775807, -1", "10000000"]
    {
        let text = format!("{{{{ range({numbers}) | list | sum }}}}");
        let (result, peak) = crate::allocations::peak(|| render(&text));
        assert!(result.is_err() && peak < 1 << 20, "{numbers}: {peak} bytes");
    }
    for (numbers, expected) in [
        ("3, 9, 2", "[3, 5, 7]"),
        ("3, 10, 2", "[3, 5, 7, 9]"),
        ("0", "[]"),
        ("5, 5", "[]"),
        ("5, 1", "[]"),
        ("5, 1, -2", "[5, 3]"),
        ("5, 0, -2", "[5, 3, 1]"),
        ("1, 5, -1", "[]"),
        ("9223372036854775805, 9223372036854775807, 5", "[9223372036854775805]"),
    ] {
        assert_eq!(render(&format!("{{{{ range({numbers}) | list }}}}")).unwrap(), expected, "{numbers}");
    }
}

#[test]
fn mutated_templates_are_refused_or_rendered() {
    let files = corpus::files(".template.jinja");
    let cases = number("FULMEN_FUZZ_CASES", 10_000) / 5;
    fuzz("template", cases, |random| mutated(&files, random), read);
}
