//! Divides text in the harmony format of gpt-oss: messages with a header that names a channel and, for calls
//! of tools, a recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>…<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>…<|return|>
//! ```
//!
//! The channel `analysis` is thoughts, `final` the answer, `commentary` without a recipient text before a
//! call. The prompt ends behind `<|start|>assistant`.

use serde_json::{Map, Value};

use super::answer::{ParsedText, partial_suffix};
use super::call_reader::CallReader;
use super::tools::ToolCall;

pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const START: &str = "<|start|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const END: &str = "<|end|>";
pub(super) const CALL: &str = "<|call|>";

/// What ends a body. A model may leave out the end of a message before the next one.
const ENDS: [&str; 5] = [END, CALL, "<|return|>", START, CHANNEL];

/// What opens the message of the answer, behind a prompt.
pub(super) const FINAL: &str = "<|channel|>final<|message|>";

/// Every tag: the text of these control tokens is part of what is parsed.
pub(super) const TAGS: [&str; 7] = [MESSAGE, CHANNEL, START, CONSTRAIN, END, CALL, "<|return|>"];

/// How a header may begin, behind `<|start|>assistant`.
const HEADERS: [&str; 4] = [CHANNEL, START, MESSAGE, " to="];

/// Where the text is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first header. Text that is none is the answer.
    Begin,
    /// Before the end of a header.
    Header,
    Thoughts,
    Answer,
    /// In the arguments of a call of this tool.
    Call(String),
}

/// Parses text that arrives in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HarmonyParser {
    tools: bool,
    place: Place,
    held: String,
    calls: usize,
    /// Whether calls are also given in pieces.
    pieces: bool,
    /// What reads the call in pieces.
    reader: Option<CallReader>,
    /// Calls of which pieces were given.
    begun: usize,
    /// Whether there were thoughts, and an answer, in an earlier message.
    had: [bool; 2],
    /// Whether the current message has text.
    has_text: bool,
}

impl HarmonyParser {
    /// A parser. `opened` says that the prompt has opened the message of the answer.
    pub(super) fn new(tools: bool, opened: bool) -> HarmonyParser {
        let place = if opened { Place::Answer } else { Place::Begin };
        HarmonyParser {
            tools,
            place,
            held: String::new(),
            calls: 0,
            pieces: false,
            reader: None,
            begun: 0,
            had: [false; 2],
            has_text: false,
        }
    }

    /// As this parser, with calls also in pieces.
    pub(super) fn with_call_pieces(self) -> HarmonyParser {
        HarmonyParser { pieces: true, ..self }
    }

    /// Complete calls so far.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Calls of which pieces were given.
    pub(super) fn begun(&self) -> usize {
        self.reader.as_ref().map_or(self.begun, CallReader::next)
    }

    /// Adds a piece of text.
    pub(super) fn push(&mut self, piece: &str) -> ParsedText {
        let mut parsed = ParsedText::default();
        self.held.push_str(piece);
        while self.step(&mut parsed) {}
        parsed
    }

    /// Ends the text.
    pub(super) fn finish(&mut self) -> ParsedText {
        let mut parsed = ParsedText::default();
        let held = std::mem::take(&mut self.held);
        match self.place {
            // A header that was cut off has no text.
            Place::Header => {}
            Place::Begin => self.give(&held, &mut parsed),
            _ => self.end_body(&held, &mut parsed),
        }
        parsed
    }

    /// Goes on by one place. `false` if more text is needed.
    fn step(&mut self, parsed: &mut ParsedText) -> bool {
        match self.place {
            Place::Begin => self.begin(),
            Place::Header => self.header(),
            _ => self.body(parsed),
        }
    }

    fn begin(&mut self) -> bool {
        let held = self.held.as_str();
        if HEADERS.iter().any(|tag| tag.len() > held.len() && tag.starts_with(held)) {
            return false;
        }
        let has_header = HEADERS.iter().any(|tag| held.starts_with(tag));
        self.place = if has_header { Place::Header } else { Place::Answer };
        true
    }

    fn header(&mut self) -> bool {
        let Some(at) = self.held.find(MESSAGE) else { return false };
        let header = self.held[..at].to_owned();
        self.held.drain(..at + MESSAGE.len());
        let word = |behind: &str| {
            let text = header.split_once(behind)?.1.trim_start();
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            Some(text[..end].to_owned()).filter(|word| !word.is_empty())
        };
        self.has_text = false;
        self.place = match (word("to="), word(CHANNEL).as_deref()) {
            // An answer in between is meant for the user, not for a tool.
            (Some(tool), _) if tool != "user" => Place::Call(tool),
            (_, Some("analysis")) => Place::Thoughts,
            _ => Place::Answer,
        };
        true
    }

    fn body(&mut self, parsed: &mut ParsedText) -> bool {
        let end = ENDS.iter().filter_map(|tag| Some((self.held.find(tag)?, *tag))).min();
        if let Some((at, tag)) = end {
            let body = self.held[..at].to_owned();
            if let Place::Call(tool) = &self.place {
                let name = function_name(tool).to_owned();
                self.read_call(&name, at, parsed);
            }
            // The beginning of the next header is read again.
            self.held.drain(..if matches!(tag, START | CHANNEL) { at } else { at + tag.len() });
            self.end_body(&body, parsed);
            self.place = Place::Header;
            return true;
        }
        let kept = ENDS.iter().map(|tag| partial_suffix(&self.held, tag)).max().unwrap_or(0);
        if let Place::Call(tool) = &self.place {
            let (name, end) = (function_name(tool).to_owned(), self.held.len() - kept);
            self.read_call(&name, end, parsed);
        } else {
            let rest = self.held.split_off(self.held.len() - kept);
            let text = std::mem::replace(&mut self.held, rest);
            self.give(&text, parsed);
        }
        false
    }

    /// The last text of a message.
    fn end_body(&mut self, body: &str, parsed: &mut ParsedText) {
        let Place::Call(tool) = self.place.clone() else {
            self.give(body, parsed);
            let thoughts = self.place == Place::Thoughts;
            self.had[usize::from(!thoughts)] |= self.has_text;
            return;
        };
        let name = function_name(&tool).to_owned();
        let arguments = if body.trim().is_empty() { "{}" } else { body };
        let arguments = serde_json::from_str::<Map<String, Value>>(arguments).ok().filter(|_| self.tools);
        let call = arguments.map(|arguments| ToolCall { name, arguments });
        if self.pieces {
            let new = || CallReader::of_arguments(function_name(&tool), self.begun);
            let mut reader = self.reader.take().unwrap_or_else(new);
            let before = parsed.calls.len();
            let has_begun = reader.finish(call.clone().map(|call| vec![call]), parsed);
            self.calls += parsed.calls.len() - before;
            self.begun = reader.next();
            if has_begun {
                return;
            }
        }
        match call {
            Some(call) => {
                self.calls += 1;
                parsed.calls.push(call);
            }
            // What is no call is part of the answer, as it was written.
            None => {
                self.place = Place::Answer;
                self.give(body, parsed);
                self.had[1] |= self.has_text;
            }
        }
    }

    /// Gives pieces of the call in the first bytes of the text.
    fn read_call(&mut self, name: &str, bytes: usize, parsed: &mut ParsedText) {
        if !self.pieces || !self.tools {
            return;
        }
        let reader = self.reader.get_or_insert_with(|| CallReader::of_arguments(name, self.begun));
        let before = parsed.calls.len();
        reader.read(&self.held[..bytes], &[], parsed);
        self.calls += parsed.calls.len() - before;
    }

    /// Passes on text of the current message; an empty line is between two messages.
    fn give(&mut self, text: &str, parsed: &mut ParsedText) {
        if text.is_empty() {
            return;
        }
        let thoughts = self.place == Place::Thoughts;
        let to = if thoughts { &mut parsed.reasoning } else { &mut parsed.content };
        if !self.has_text && self.had[usize::from(!thoughts)] {
            to.push_str("\n\n");
        }
        self.has_text = true;
        to.push_str(text);
    }
}

/// The name of a function in a header.
fn function_name(recipient: &str) -> &str {
    recipient.strip_prefix("functions.").unwrap_or(recipient)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::answer::tests::parse;
    use crate::template::AnswerParser;

    /// What gpt-oss writes behind `<|start|>assistant`; the token that ends generation is not part of it.
    /// Thoughts, answer, and calls.
    #[test]
    fn recorded_answers_are_divided() {
        type Row = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);
        let rows: [Row; 8] = [
            (
                "<|channel|>analysis<|message|>The user greets. Answer briefly.<|end|>\
                 <|start|>assistant<|channel|>final<|message|>Hello! How can I help?",
                "The user greets. Answer briefly.",
                "Hello! How can I help?",
                &[],
            ),
            ("<|channel|>final<|message|>1 < 2 and a <b> tag.<|return|>", "", "1 < 2 and a <b> tag.", &[]),
            (
                "<|channel|>analysis<|message|>Need to use function get_current_weather.<|end|>\
                 <|start|>assistant<|channel|>commentary to=functions.get_current_weather \
                 <|constrain|>json<|message|>{\"location\":\"San Francisco\", \"days\": 2}",
                "Need to use function get_current_weather.",
                "",
                &[("get_current_weather", r#"{"location":"San Francisco","days":2}"#)],
            ),
            // The recipient before the channel, as earlier messages have it in the prompt.
            (
                " to=functions.search<|channel|>commentary json<|message|>\
                 {\"q\": \"a \\\"b\\\" <|x|>\"}<|call|>",
                "",
                "",
                &[("search", r#"{"q":"a \"b\" <|x|>"}"#)],
            ),
            (
                "<|channel|>commentary<|message|>I look that up first.<|end|>\
                 <|start|>assistant<|channel|>commentary to=functions.now<|message|><|call|>",
                "",
                "I look that up first.",
                &[("now", "{}")],
            ),
            (
                "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>\
                 Two.<|end|><|start|>assistant<|channel|>final<|message|>Done.",
                "One.\n\nTwo.",
                "Done.",
                &[],
            ),
            // A message without its end.
            (
                "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Yes",
                "Hm.",
                "Yes",
                &[],
            ),
            ("<|channel|>analysis<|message|>cut off", "cut off", "", &[]),
        ];
        for (text, reasoning, content, calls) in rows {
            let parsed = parse(&AnswerParser::harmony(true, false), text);
            assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), (reasoning, content), "{text}");
            let found: Vec<(String, Value)> =
                parsed.calls.into_iter().map(|call| (call.name, Value::Object(call.arguments))).collect();
            let calls =
                calls.iter().map(|&(name, json)| (name.to_owned(), serde_json::from_str(json).unwrap()));
            assert_eq!(found, calls.collect::<Vec<(String, Value)>>(), "{text}");
        }
    }

    #[test]
    fn what_is_no_call_and_text_without_a_header_are_the_answer() {
        let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": <|call|>";
        assert_eq!(parse(&AnswerParser::harmony(true, false), call).content, "{\"x\": ");
        let call = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
        let parsed = parse(&AnswerParser::harmony(false, false), call);
        assert_eq!((parsed.content.as_str(), parsed.calls.len()), ("{}", 0), "no tools were given");
        assert_eq!(parse(&AnswerParser::harmony(true, false), "<b>plain</b>").content, "<b>plain</b>");
        assert_eq!(parse(&AnswerParser::harmony(true, true), "{\"a\": 1}").content, "{\"a\": 1}");
        assert!(parse(&AnswerParser::harmony(true, false), "<|channel|>final").is_empty());
    }
}
