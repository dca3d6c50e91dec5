//! Divides generated text into thoughts, the answer and calls of tools.

use fulmen_model::template::ToolFormat;
use serde_json::Value;

use super::stop::partial_suffix;

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// A JSON object as text.
    pub(crate) arguments: String,
}

/// What a piece of text turned out to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
}

impl Parsed {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
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

/// Parses text that arrives in pieces.
#[derive(Clone, Debug)]
pub(crate) struct OutputParser {
    reasoning: bool,
    tools: Option<ToolFormat>,
    place: Place,
    held: String,
    calls: usize,
}

impl OutputParser {
    /// A parser. `thinking` says that the prompt has already opened the thoughts.
    pub(crate) fn new(reasoning: bool, thinking: bool, tools: Option<ToolFormat>) -> OutputParser {
        let place = match (reasoning, thinking) {
            (true, true) => Place::BeforeThoughts,
            (true, false) => Place::Start,
            (false, _) if tools.is_some() => Place::BeforeAnswer,
            (false, _) => Place::Answer,
        };
        OutputParser { reasoning, tools, place, held: String::new(), calls: 0 }
    }

    /// Whether all text is the answer.
    pub(crate) fn is_plain(&self) -> bool {
        !self.reasoning && self.tools.is_none()
    }

    /// The tags that the text may have: control tokens of these texts are part of it.
    pub(crate) fn is_tag(&self, text: &str) -> bool {
        let tool = self.tools.is_some_and(|format| {
            let (open, close) = format.tags();
            text == open || (!close.is_empty() && text == close)
        });
        tool || (self.reasoning && (text == THINK || text == END_THINK))
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Adds a piece of text.
    pub(crate) fn push(&mut self, piece: &str) -> Parsed {
        let mut parsed = Parsed::default();
        if self.is_plain() {
            parsed.content.push_str(piece);
            return parsed;
        }
        self.held.push_str(piece);
        while self.step(&mut parsed) {}
        parsed
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self) -> Parsed {
        let mut parsed = Parsed::default();
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::BeforeThoughts => {}
            Place::Thoughts => parsed.reasoning = held,
            Place::Call | Place::WholeCall => self.take_call(&held, &mut parsed),
            _ if held.trim().is_empty() && self.calls > 0 => {}
            _ => parsed.content = held,
        }
        parsed
    }

    /// Goes on by one place. `false` if more text is needed.
    fn step(&mut self, parsed: &mut Parsed) -> bool {
        match self.place {
            Place::Start => self.start(),
            Place::BeforeThoughts => self.before_thoughts(),
            Place::Thoughts => self.thoughts(parsed),
            Place::BeforeAnswer => self.before_answer(),
            Place::Answer => self.answer(parsed),
            Place::Call => self.call(parsed),
            Place::WholeCall => false,
        }
    }

    fn start(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.place = Place::BeforeThoughts;
            return true;
        }
        if text.is_empty() || THINK.starts_with(text) {
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

    fn thoughts(&mut self, parsed: &mut Parsed) -> bool {
        if let Some(at) = self.held.find(END_THINK) {
            parsed.reasoning.push_str(self.held[..at].trim_end_matches('\n'));
            self.held.drain(..at + END_THINK.len());
            self.place = Place::BeforeAnswer;
            return true;
        }
        // Line breaks before the closing tag are no part of the thoughts.
        let text = self.held.len() - partial_suffix(&self.held, END_THINK);
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
                return false;
            }
        }
        // The line breaks behind thoughts are no part of the answer.
        if self.reasoning {
            self.held = text.to_owned();
        }
        self.place = Place::Answer;
        true
    }

    fn answer(&mut self, parsed: &mut Parsed) -> bool {
        let Some(ToolFormat::Hermes) = self.tools else {
            parsed.content.push_str(&std::mem::take(&mut self.held));
            return false;
        };
        let open = ToolFormat::Hermes.tags().0;
        if let Some(at) = self.held.find(open) {
            parsed.content.push_str(self.held[..at].trim_end());
            self.held.drain(..at + open.len());
            self.place = Place::Call;
            return true;
        }
        // White space before a call is no part of the answer, so it waits for what follows.
        let text = self.held.len() - partial_suffix(&self.held, open);
        let settled = self.held[..text].trim_end().len();
        parsed.content.extend(self.held.drain(..settled));
        false
    }

    fn call(&mut self, parsed: &mut Parsed) -> bool {
        let close = ToolFormat::Hermes.tags().1;
        let Some(at) = self.held.find(close) else { return false };
        let body = self.held[..at].to_owned();
        self.held.drain(..at + close.len());
        self.take_call(&body, parsed);
        self.place = Place::Answer;
        true
    }

    /// Text between the tags of a call. What is no call is part of the answer, as it was written.
    fn take_call(&mut self, body: &str, parsed: &mut Parsed) {
        let Some(format) = self.tools else { return };
        match format.parse(body) {
            Some(calls) => {
                self.calls += calls.len();
                parsed.calls.extend(calls.into_iter().map(|call| Call {
                    name: call.name,
                    arguments: Value::Object(call.arguments).to_string(),
                }));
            }
            None if format == ToolFormat::Hermes => {
                let (open, close) = format.tags();
                parsed.content.push_str(&format!("{open}{body}{close}"));
            }
            None => parsed.content.push_str(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of a text, in pieces of one character and in one piece.
    fn parse(parser: &OutputParser, text: &str) -> Parsed {
        let run = |pieces: &[String]| {
            let mut parser = parser.clone();
            let mut all = Parsed::default();
            let parts: Vec<Parsed> = pieces.iter().map(|piece| parser.push(piece)).collect();
            for part in parts.into_iter().chain([parser.finish()]) {
                all.reasoning += &part.reasoning;
                all.content += &part.content;
                all.calls.extend(part.calls);
            }
            all
        };
        let whole = run(&[text.to_owned()]);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(run(&characters), whole, "{text}");
        whole
    }

    #[test]
    fn thoughts_are_apart_from_the_answer() {
        let parser = OutputParser::new(true, false, None);
        let parsed = parse(&parser, "<think>\nWhy not?\n</think>\n\nYes <b> 1 < 2.");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Why not?", "Yes <b> 1 < 2."));
        let parsed = parse(&parser, "No thoughts.");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("", "No thoughts."));
        let parsed = parse(&OutputParser::new(true, true, None), "Hm.\n\nStill.</think>Done");
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Hm.\n\nStill.", "Done"));
        assert_eq!(parse(&parser, "<think>cut").reasoning, "cut");
    }

    #[test]
    fn hermes_calls_are_found() {
        let parser = OutputParser::new(true, false, Some(ToolFormat::Hermes));
        let calls = [
            "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n</tool_call>",
            "<tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>",
        ];
        let text = &format!("<think>\n\n</think>\n\nI look.\n{}\n", calls.join("\n"));
        let parsed = parse(&parser, text);
        assert_eq!(parsed.content, "I look.");
        let names: Vec<&str> = parsed.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(parsed.calls[0].arguments, "{\"x\":1}");
        let broken = parse(&parser, "<tool_call>{\"name\": </tool_call> and on");
        assert_eq!(broken.content, "<tool_call>{\"name\": </tool_call> and on");
        assert!(broken.calls.is_empty());
        let cut = parse(&parser, "<tool_call>{\"name\": \"a\", \"arguments\": {}}");
        assert_eq!(cut.calls.len(), 1);
    }

    #[test]
    fn llama_calls_are_whole_answers() {
        let parser = OutputParser::new(false, false, Some(ToolFormat::Llama3));
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
        let parser = OutputParser::new(false, false, None);
        let text = "  <think> <tool_call>{}</tool_call> \n";
        assert_eq!(parse(&parser, text).content, text);
    }
}
