//! Divides generated text into thoughts, the answer and calls of tools.

use std::sync::Arc;

use super::call_reader::CallReader;
use super::harmony::{self, HarmonyParser};
use super::tool_format::ToolFormat;
use super::tools::{CallPiece, ToolCall, ToolSpec};
use crate::tokenizer::Tokenizer;

/// What opens and closes thoughts before an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thoughts {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// The control tokens of the tags, where they are some.
    pub(super) tokens: [&'static str; 2],
}

/// The tags of thoughts: those of Gemma 4, and those of all others.
pub(super) const THOUGHTS: [Thoughts; 2] = [
    Thoughts { open: "<|channel>thought", close: "<channel|>", tokens: ["<|channel>", "<channel|>"] },
    Thoughts { open: "<think>", close: "</think>", tokens: ["<think>", "</think>"] },
];

impl Default for Thoughts {
    fn default() -> Thoughts {
        THOUGHTS[1]
    }
}

impl Thoughts {
    /// Whether a template has them.
    pub(super) fn are_in(&self, source: &str) -> bool {
        source.contains(self.tokens[0]) || source.contains(self.close)
    }
}

/// What a piece of generated text turned out to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedText {
    /// Thoughts before the answer.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Calls of tools that are complete.
    pub calls: Vec<ToolCall>,
    /// What is new of calls, complete or not, from a parser that gives them in pieces.
    pub call_pieces: Vec<CallPiece>,
}

impl ParsedText {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        let no_calls = self.calls.is_empty() && self.call_pieces.is_empty();
        self.reasoning.is_empty() && self.content.is_empty() && no_calls
    }

    /// Adds what comes after it.
    pub fn append(&mut self, next: ParsedText) {
        self.reasoning.push_str(&next.reasoning);
        self.content.push_str(&next.content);
        self.calls.extend(next.calls);
        self.call_pieces.extend(next.call_pieces);
    }
}

/// Where the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first character that is no white space: thoughts may begin.
    Start,
    /// Before the first line of the thoughts.
    BeforeThoughts,
    Thoughts,
    /// Behind the thoughts, before the first character of the answer.
    BeforeAnswer,
    Answer,
    /// Between the tags of a call.
    Call,
    /// An answer that is a call from its first character to its end.
    WholeCall,
}

/// Divides the text that a model generates, as it arrives, into thoughts, the answer and calls of tools.
///
/// Text that may be part of a tag is held back until the next piece. The pieces may be cut anywhere.
///
/// ```
/// use fulmen_model::template::{AnswerParser, ToolFormat};
/// let mut parser = AnswerParser::new(true, false, Some(ToolFormat::Hermes));
/// let parsed = parser.push("<think>Hm.</think>Yes.<tool_call>{\"name\": \"now\"}</tool_call>");
/// assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Hm.", "Yes."));
/// assert_eq!(parsed.calls[0].name, "now");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerParser {
    reasoning: bool,
    thoughts: Thoughts,
    tools: Option<ToolFormat>,
    /// The tools, whose schemas say what the values of untyped arguments are.
    specs: Arc<[ToolSpec]>,
    place: Place,
    held: String,
    /// White space before the call that is being read: part of the answer if it is none.
    space: String,
    calls: usize,
    /// Whether calls are also given in pieces.
    pieces: bool,
    /// What reads the call in pieces.
    reader: Option<CallReader>,
    /// Calls of which pieces were given.
    begun: usize,
    /// What reads the text instead, if it has channels.
    harmony: Option<HarmonyParser>,
}

impl Default for AnswerParser {
    /// A parser for which all text is the answer.
    fn default() -> AnswerParser {
        AnswerParser::new(false, false, None)
    }
}

impl AnswerParser {
    /// A parser. `reasoning` looks for thoughts, `thinking` says that the prompt has already opened them,
    /// `tools` is the way in which calls are written, if there are tools.
    pub fn new(reasoning: bool, thinking: bool, tools: Option<ToolFormat>) -> AnswerParser {
        let place = match (reasoning, thinking) {
            (true, true) => Place::BeforeThoughts,
            (true, false) => Place::Start,
            (false, _) if tools.is_some() => Place::BeforeAnswer,
            (false, _) => Place::Answer,
        };
        AnswerParser {
            reasoning,
            thoughts: Thoughts::default(),
            tools,
            specs: Arc::default(),
            place,
            held: String::new(),
            space: String::new(),
            calls: 0,
            pieces: false,
            reader: None,
            begun: 0,
            harmony: None,
        }
    }

    /// As this parser, for these tools: values that a format writes without their type are converted as the
    /// schemas say.
    pub fn with_tools(self, tools: &[ToolSpec]) -> AnswerParser {
        AnswerParser { specs: tools.into(), ..self }
    }

    /// As this parser, for thoughts with these tags.
    pub(super) fn with_thoughts(self, thoughts: Thoughts) -> AnswerParser {
        AnswerParser { thoughts, ..self }
    }

    /// A parser of the harmony format of gpt-oss. `tools` says whether there are tools, `opened` that the
    /// prompt has opened the message of the answer.
    pub fn harmony(tools: bool, opened: bool) -> AnswerParser {
        let harmony = Some(HarmonyParser::new(tools, opened));
        AnswerParser { harmony, ..AnswerParser::new(true, false, tools.then_some(ToolFormat::Harmony)) }
    }

    /// As this parser, with calls also in pieces, as they are written. A call of which a piece was given
    /// cannot be taken back: if it is cut off or malformed, it remains incomplete, where it otherwise would
    /// be text of the answer.
    pub fn with_call_pieces(self) -> AnswerParser {
        let harmony = self.harmony.map(HarmonyParser::with_call_pieces);
        AnswerParser { pieces: true, harmony, ..self }
    }

    /// Whether all text is the answer.
    pub fn is_plain(&self) -> bool {
        !self.reasoning && self.tools.is_none()
    }

    /// The control tokens that are tags here: their text is needed, where that of others is left out.
    pub fn tags(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        if self.harmony.is_some() {
            return harmony::TAGS.iter().filter_map(|tag| tokenizer.special_token(tag)).collect();
        }
        let (open, close) = self.tools.map_or(("", ""), ToolFormat::tags);
        let thoughts = if self.reasoning { &self.thoughts.tokens[..] } else { &[] };
        let inner = self.tools.map_or(&[][..], ToolFormat::inner_tags);
        let tags = [open, close].into_iter().chain(thoughts.iter().copied()).chain(inner.iter().copied());
        let tags = tags.filter(|tag| !tag.is_empty());
        tags.filter_map(|tag| tokenizer.special_token(tag)).collect()
    }

    /// Complete calls so far.
    pub fn calls(&self) -> usize {
        self.harmony.as_ref().map_or(self.calls, HarmonyParser::calls)
    }

    /// Whether there are calls so far, complete or begun.
    pub fn has_calls(&self) -> bool {
        let begun = self.reader.as_ref().map_or(self.begun, CallReader::next);
        self.calls() > 0 || self.harmony.as_ref().map_or(begun, HarmonyParser::begun) > 0
    }

    /// Adds a piece of text.
    pub fn push(&mut self, piece: &str) -> ParsedText {
        if let Some(harmony) = &mut self.harmony {
            return harmony.push(piece);
        }
        let mut parsed = ParsedText::default();
        if self.is_plain() {
            parsed.content.push_str(piece);
            return parsed;
        }
        self.held.push_str(piece);
        while self.step(&mut parsed) {}
        parsed
    }

    /// Ends the text.
    pub fn finish(&mut self) -> ParsedText {
        if let Some(harmony) = &mut self.harmony {
            return harmony.finish();
        }
        let mut parsed = ParsedText::default();
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::BeforeThoughts => {}
            Place::Thoughts => parsed.reasoning = held,
            Place::Call | Place::WholeCall => self.take_call(&held, "", &mut parsed),
            _ if held.trim().is_empty() && self.calls > 0 => {}
            _ => parsed.content = held,
        }
        parsed
    }

    /// Goes on by one place. `false` if more text is needed.
    fn step(&mut self, parsed: &mut ParsedText) -> bool {
        match self.place {
            Place::Start => self.start(),
            Place::BeforeThoughts => self.before_thoughts(),
            Place::Thoughts => self.thoughts(parsed),
            Place::BeforeAnswer => self.before_answer(),
            Place::Answer => self.answer(parsed),
            Place::Call => self.call(parsed),
            Place::WholeCall => {
                self.read_call(self.held.len(), parsed);
                false
            }
        }
    }

    fn start(&mut self) -> bool {
        let text = self.held.trim_start();
        let open = self.thoughts.open;
        if let Some(rest) = text.strip_prefix(open) {
            self.held = rest.to_owned();
            self.place = Place::BeforeThoughts;
            return true;
        }
        if text.is_empty() || open.starts_with(text) {
            return false;
        }
        self.place = if self.tools.is_some() { Place::BeforeAnswer } else { Place::Answer };
        true
    }

    fn before_thoughts(&mut self) -> bool {
        self.held = self.held.trim_start_matches('\n').to_owned();
        if self.held.is_empty() {
            return false;
        }
        self.place = Place::Thoughts;
        true
    }

    fn thoughts(&mut self, parsed: &mut ParsedText) -> bool {
        let close = self.thoughts.close;
        if let Some(at) = self.held.find(close) {
            parsed.reasoning.push_str(self.held[..at].trim_end_matches('\n'));
            self.held.drain(..at + close.len());
            self.place = Place::BeforeAnswer;
            return true;
        }
        // Line breaks before the closing tag are no part of the thoughts.
        let text = self.held.len() - partial_suffix(&self.held, close);
        let settled = self.held[..text].trim_end_matches('\n').len();
        parsed.reasoning.extend(self.held.drain(..settled));
        false
    }

    fn before_answer(&mut self) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        if self.tools == Some(ToolFormat::Llama3) {
            let tag = ToolFormat::Llama3.tags().0;
            if tag.starts_with(text) && text != tag {
                return false;
            }
            if text.starts_with('{') || text.starts_with(tag) {
                self.held = text.strip_prefix(tag).unwrap_or(text).to_owned();
                self.place = Place::WholeCall;
                return true;
            }
        }
        // The line breaks behind thoughts are no part of the answer.
        if self.reasoning {
            self.held = text.to_owned();
        }
        self.place = Place::Answer;
        true
    }

    fn answer(&mut self, parsed: &mut ParsedText) -> bool {
        let Some(format) = self.tools.filter(|&format| format != ToolFormat::Llama3) else {
            parsed.content.push_str(&std::mem::take(&mut self.held));
            return false;
        };
        let (open, close) = format.tags();
        if let Some(at) = self.held.find(open) {
            let text = self.held[..at].trim_end();
            parsed.content.push_str(text);
            self.space = self.held[text.len()..at].to_owned();
            self.held.drain(..at + open.len());
            self.place = if close.is_empty() { Place::WholeCall } else { Place::Call };
            return true;
        }
        // White space before a call is no part of the answer, so it waits for what follows.
        let text = self.held.len() - partial_suffix(&self.held, open);
        let settled = self.held[..text].trim_end().len();
        parsed.content.extend(self.held.drain(..settled));
        false
    }

    fn call(&mut self, parsed: &mut ParsedText) -> bool {
        let close = self.tools.map_or("", |format| format.tags().1);
        let Some(at) = self.held.find(close) else {
            self.read_call(self.held.len() - partial_suffix(&self.held, close), parsed);
            return false;
        };
        self.read_call(at, parsed);
        let body = self.held[..at].to_owned();
        self.held.drain(..at + close.len());
        self.take_call(&body, close, parsed);
        self.place = Place::Answer;
        true
    }

    /// Gives pieces of the calls in the first bytes of the text.
    fn read_call(&mut self, bytes: usize, parsed: &mut ParsedText) {
        let Some(format) = self.tools.filter(|_| self.pieces) else { return };
        let reader = self.reader.get_or_insert_with(|| CallReader::new(format, self.begun));
        let before = parsed.calls.len();
        reader.read(&self.held[..bytes], &self.specs, parsed);
        self.calls += parsed.calls.len() - before;
    }

    /// Text behind the opening tag of a call, up to `close` or the end. What is no call is part of the
    /// answer, as it was written.
    fn take_call(&mut self, body: &str, close: &str, parsed: &mut ParsedText) {
        let Some(format) = self.tools else { return };
        let space = std::mem::take(&mut self.space);
        // Without its end, what is there of a name or a value would be taken for all of it.
        let cut = format == ToolFormat::Glm && close.is_empty();
        let calls = format.parse(body, &self.specs).filter(|_| !cut);
        if self.pieces {
            let mut reader = self.reader.take().unwrap_or_else(|| CallReader::new(format, self.begun));
            let before = parsed.calls.len();
            let has_begun = reader.finish(calls.clone(), parsed);
            self.calls += parsed.calls.len() - before;
            self.begun = reader.next();
            if has_begun {
                return;
            }
        }
        match calls {
            Some(calls) => {
                self.calls += calls.len();
                parsed.calls.extend(calls);
            }
            None => {
                let open = if format == ToolFormat::Llama3 { "" } else { format.tags().0 };
                parsed.content.push_str(&format!("{space}{open}{body}{close}"));
            }
        }
    }
}

/// Bytes at the end of `text` that are the start of `marker`, but not all of it.
pub(super) fn partial_suffix(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&marker.as_bytes()[..len])).unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All of a text, in pieces of one character and in one piece.
    pub(in crate::template) fn parse(parser: &AnswerParser, text: &str) -> ParsedText {
        let run = |pieces: &[String]| {
            let mut parser = parser.clone();
            let mut all = ParsedText::default();
            let parts: Vec<ParsedText> = pieces.iter().map(|piece| parser.push(piece)).collect();
            parts.into_iter().chain([parser.finish()]).for_each(|part| all.append(part));
            assert_eq!(all.calls.len(), parser.calls());
            all
        };
        let whole = run(&[text.to_owned()]);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(run(&characters), whole, "{text}");
        whole
    }

    #[test]
    fn thoughts_are_apart_from_the_answer() {
        let parser = AnswerParser::new(true, false, None);
        let parsed = parse(&parser, "<think>\nWhy not?\n</think>\n\nYes <b> 1 < 2.");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Why not?", "Yes <b> 1 < 2."));
        let parsed = parse(&parser, "No thoughts.");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("", "No thoughts."));
        let parsed = parse(&AnswerParser::new(true, true, None), "Hm.\n\nStill.</think>Done");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Hm.\n\nStill.", "Done"));
        assert_eq!(parse(&parser, "<think>cut").reasoning, "cut");
    }

    #[test]
    fn thoughts_of_gemma_are_a_channel() {
        let parser = AnswerParser::new(true, false, Some(ToolFormat::Gemma4)).with_thoughts(THOUGHTS[0]);
        let call = "<|tool_call>call:a{}<tool_call|>";
        let parsed = parse(&parser, &format!("<|channel>thought\nWhy not?\n<channel|>Yes.{call}"));
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Why not?", "Yes."));
        assert_eq!(parsed.calls.len(), 1);
        let parsed = parse(&parser, "<|channel>thought\n<channel|>Yes <think> no.");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("", "Yes <think> no."));
        let opened = AnswerParser::new(true, true, None).with_thoughts(THOUGHTS[0]);
        assert_eq!(parse(&opened, "Hm.<channel|>Done").content, "Done");
    }

    #[test]
    fn hermes_calls_are_found() {
        let parser = AnswerParser::new(true, false, Some(ToolFormat::Hermes));
        let calls = [
            "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n</tool_call>",
            "<tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>",
        ];
        let text = &format!("<think>\n\n</think>\n\nI look.\n{}\n", calls.join("\n"));
        let parsed = parse(&parser, text);
        assert_eq!(parsed.content, "I look.");
        let names: Vec<&str> = parsed.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(parsed.calls[0].arguments_json(), "{\"x\":1}");
        let broken = parse(&parser, "<tool_call>{\"name\": </tool_call> and on");
        assert_eq!(broken.content, "<tool_call>{\"name\": </tool_call> and on");
        assert!(broken.calls.is_empty());
        let cut = parse(&parser, "<tool_call>{\"name\": \"a\", \"arguments\": {}}");
        assert_eq!(cut.calls.len(), 1);
    }

    #[test]
    fn llama_calls_are_whole_answers() {
        let parser = AnswerParser::new(false, false, Some(ToolFormat::Llama3));
        let call = "{\"name\": \"a\", \"parameters\": {\"x\": \"1\"}}";
        for text in [call.to_owned(), format!("<|python_tag|>{call}"), format!("\n{call}")] {
            let parsed = parse(&parser, &text);
            assert_eq!((parsed.content.as_str(), parsed.calls.len()), ("", 1), "{text}");
        }
        assert_eq!(parse(&parser, "{\"x\": 1}").content, "{\"x\": 1}");
        assert_eq!(parse(&parser, "Hello {").content, "Hello {");
    }

    #[test]
    fn plain_text_is_not_touched() {
        let parser = AnswerParser::new(false, false, None);
        let text = "  <think> <tool_call>{}</tool_call> \n";
        assert_eq!(parse(&parser, text).content, text);
    }
}
