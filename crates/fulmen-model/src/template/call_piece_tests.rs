//! Calls in pieces: what clients get of a call before it is complete.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::answer::tests::parse;
use super::tool_tests::{ROWS, parser, tools};
use super::{AnswerParser, ParsedText, ToolFormat};

/// A call put together from its pieces.
#[derive(Debug, PartialEq, Eq)]
struct Joined {
    name: String,
    arguments: String,
    complete: bool,
}

/// What a client makes of pieces.
fn joined(parsed: &ParsedText) -> Vec<Joined> {
    let mut calls: Vec<Joined> = Vec::new();
    for piece in &parsed.call_pieces {
        if let Some(name) = &piece.name {
            assert_eq!(piece.call, calls.len(), "calls come one after the other");
            calls.push(Joined { name: name.clone(), arguments: String::new(), complete: false });
        }
        let call = calls.last_mut().unwrap();
        assert!(!call.complete, "nothing follows the last piece");
        call.arguments.push_str(&piece.arguments);
        call.complete = piece.last;
    }
    calls
}

fn pieces_of(parser: &AnswerParser, texts: impl IntoIterator<Item = String>) -> ParsedText {
    let mut parser = parser.clone().with_call_pieces();
    let mut all = ParsedText::default();
    texts.into_iter().for_each(|text| all.append(parser.push(&text)));
    all.append(parser.finish());
    assert_eq!(parser.calls(), all.calls.len());
    assert_eq!(parser.has_calls(), !all.call_pieces.is_empty());
    all
}

/// The harmony format beside the others: its parser is another one.
fn texts() -> Vec<(AnswerParser, &'static str)> {
    let call = concat!(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "{\"city\": \"Paris\", \"days\": [1, 2]}<|call|>",
    );
    let two = concat!(
        "<|channel|>commentary to=functions.a<|message|>{}<|call|><|start|>assistant",
        "<|channel|>commentary to=functions.b<|message|>{\"x\": 1}",
    );
    let malformed = "<|channel|>commentary to=functions.a<|message|>{\"x\": y}<|call|>";
    let mut all: Vec<_> = ROWS.iter().map(|row| (parser(row), row.text)).collect();
    all.extend([call, two, malformed].map(|text| (AnswerParser::harmony(true, false), text)));
    all
}

/// However a text is cut, the pieces of a call are its arguments.
#[test]
fn pieces_of_calls_are_the_calls() {
    for (parser, text) in texts() {
        let whole = parse(&parser, text);
        let once = pieces_of(&parser, [text.to_owned()]);
        let characters = pieces_of(&parser, text.chars().map(String::from));
        assert_eq!(joined(&characters), joined(&once), "{text}");
        for all in [&once, &characters] {
            assert_eq!((&all.calls, &all.reasoning), (&whole.calls, &whole.reasoning), "{text}");
            let calls = joined(all);
            for (call, parsed) in calls.iter().filter(|call| call.complete).zip(&whole.calls) {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                assert_eq!((&call.name, arguments), (&parsed.name, json!(parsed.arguments)), "{text}");
            }
            if calls.iter().all(|call| call.complete) {
                assert_eq!(calls.len(), whole.calls.len(), "{text}");
                assert_eq!(all.content, whole.content, "{text}");
            } else {
                // A client has seen a part of the call, and does not see it a second time as text.
                assert!(whole.content.starts_with(&all.content) && whole.calls.is_empty(), "{text}");
            }
        }
    }
}

/// Whatever of a text has come: each piece continues what will be the arguments.
#[test]
fn pieces_of_unfinished_calls_are_beginnings() {
    for (parser, text) in texts() {
        let whole = joined(&pieces_of(&parser, [text.to_owned()]));
        for at in (0..text.len()).filter(|&at| text.is_char_boundary(at)) {
            let calls = joined(&pieces_of(&parser, [text[..at].to_owned()]));
            assert!(calls.len() <= whole.len(), "{text} at {at}");
            for (call, whole) in calls.iter().zip(&whole) {
                assert_eq!(call.name, whole.name);
                // Without arguments, a call of gpt-oss is one that needs none.
                if text.contains("<|message|>") && call.arguments == "{}" {
                    continue;
                }
                assert!(whole.arguments.starts_with(&call.arguments), "{text} at {at}: {call:?}");
            }
        }
    }
}

/// What has been written of the arguments is there before they are complete.
#[test]
fn arguments_come_as_they_are_written() {
    let rows = [
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"path\": \"a.t"),
        (ToolFormat::Llama3, "{\"name\": \"write_file\", \"parameters\": {\"path\": \"a.t"),
        (ToolFormat::MistralList, "[TOOL_CALLS] [{\"name\": \"write_file\", \"arguments\": {\"path\": \"a.t"),
        (ToolFormat::Mistral, "[TOOL_CALLS]write_file[CALL_ID]a1B2c3D4e[ARGS]{\"path\": \"a.t"),
        (ToolFormat::Granite, "<|tool_call|>[{\"name\": \"write_file\", \"arguments\": {\"path\": \"a.t"),
        (ToolFormat::Phi4, "<|tool_call|>[{\"name\": \"write_file\", \"arguments\": {\"path\": \"a.t"),
        (ToolFormat::Gemma4, "<|tool_call>call:write_file{path:<|\"|>a.t"),
        (ToolFormat::QwenXml, "<tool_call>\n<function=write_file>\n<parameter=path>\na.t"),
        (ToolFormat::Glm, "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a.t"),
        (ToolFormat::Olmo3, "<function_calls>\nwrite_file(path=\"a.t"),
    ];
    let so_far =
        Joined { name: "write_file".to_owned(), arguments: "{\"path\":\"a.t".to_owned(), complete: false };
    for (format, text) in rows {
        let mut parser =
            AnswerParser::new(false, false, Some(format)).with_tools(&tools()).with_call_pieces();
        assert_eq!(joined(&parser.push(text)), std::slice::from_ref(&so_far), "{format:?}");
        assert!(parser.has_calls() && parser.calls() == 0, "{format:?}");
    }
    let mut parser = AnswerParser::harmony(true, false).with_call_pieces();
    let text = "<|channel|>commentary to=functions.write_file<|message|>{\"path\": \"a.t";
    assert_eq!(joined(&parser.push(text)), [so_far]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Damaged texts: no panic, the same pieces however the text is cut, and arguments that are complete are
    /// JSON.
    #[test]
    fn damaged_calls_give_the_same_pieces_however_they_are_cut(
        row in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 3),
        cuts in prop::collection::vec(1..9usize, 1..6),
    ) {
        let texts = texts();
        let (parser, text) = &texts[row.index(texts.len())];
        let other = texts[other.index(texts.len())].1;
        let characters: Vec<char> = text.chars().collect();
        let inserted: Vec<char> = other.chars().collect();
        let at = |place: usize, length: usize| places[place].index(length + 1);
        // A part of another answer in place of one character or more.
        let (from, to) = (at(0, characters.len()), at(1, inserted.len()));
        let skipped = from + at(2, (characters.len() - from).min(9));
        let part = &inserted[to..(to + 7).min(inserted.len())];
        let damaged: Vec<char> = [&characters[..from], part, &characters[skipped..]].concat();

        let once = pieces_of(parser, [damaged.iter().collect::<String>()]);
        let mut rest = damaged.as_slice();
        let mut pieces = Vec::new();
        for length in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*length).min(rest.len()));
            pieces.push(piece.iter().collect::<String>());
            rest = after;
        }
        let cut = pieces_of(parser, pieces);
        prop_assert_eq!(joined(&cut), joined(&once));
        prop_assert_eq!((&cut.content, &cut.reasoning), (&once.content, &once.reasoning));
        prop_assert_eq!(&cut.calls, &once.calls);
        for (call, parsed) in joined(&once).iter().filter(|call| call.complete).zip(&once.calls) {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            prop_assert_eq!((&call.name, arguments), (&parsed.name, json!(parsed.arguments)));
        }
    }
}
