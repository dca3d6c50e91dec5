//! Conversations: from messages and tools to a prompt, and from generated text to an answer.

use std::sync::{Mutex, PoisonError};

use fulmen::model::template::{AnswerParser, Message, ParsedText, ToolChoice, ToolFormat, ToolSpec};
use fulmen::model::tokenizer::Tokenizer;
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::failure::{Failure, Kind};

/// Thoughts, text, and calls of tools: their names and their arguments as JSON text.
type Parts = (String, String, Vec<(String, String)>);

fn parts(parsed: ParsedText) -> Parts {
    let calls = parsed.calls.iter().map(|call| (call.name.clone(), call.arguments_json()));
    let calls = calls.collect();
    (parsed.reasoning, parsed.content, calls)
}

/// Divides the text of an answer into thoughts, content and calls of tools, as the server does.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct AnswerReader {
    parser: AnswerParser,
    running: Mutex<AnswerParser>,
    shown: Vec<u32>,
    grammar: Option<String>,
    /// Whether the answer may have more than one call.
    several: bool,
}

impl AnswerReader {
    /// A reader; `grammar` is that of calls which are required.
    pub(crate) fn new(
        parser: AnswerParser,
        tokenizer: &Tokenizer,
        grammar: Option<String>,
        several: bool,
    ) -> AnswerReader {
        let (running, shown) = (Mutex::new(parser.clone()), parser.tags(tokenizer));
        AnswerReader { parser, running, shown, grammar, several }
    }

    /// What finds the end of an answer that may have one call only. A grammar ends it by itself.
    pub(crate) fn first_call(&self) -> Option<AnswerParser> {
        (!self.several && self.grammar.is_none()).then(|| self.parser.clone())
    }

    /// Adds text. Where there may be one call only, nothing follows it.
    fn read(&self, parser: &mut AnswerParser, text: &str) -> ParsedText {
        if self.several {
            return parser.push(text);
        }
        let mut all = ParsedText::default();
        // A call is complete with one of these.
        for part in text.split_inclusive(['>', ']', '}']) {
            if parser.calls() > 0 {
                break;
            }
            all.append(parser.push(part));
        }
        all.calls.truncate(1);
        all
    }

    /// The end of the text.
    fn rest(&self, parser: &mut AnswerParser) -> ParsedText {
        if !self.several && parser.calls() > 0 {
            return ParsedText::default();
        }
        let mut rest = parser.finish();
        if !self.several {
            rest.calls.truncate(1);
        }
        rest
    }
}

#[pymethods]
impl AnswerReader {
    /// Adds a piece of text.
    fn push(&self, piece: &str) -> Parts {
        parts(self.read(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner), piece))
    }

    /// Ends the text.
    fn finish(&self) -> Parts {
        parts(self.rest(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// A whole text.
    fn parse(&self, text: &str) -> Parts {
        let mut parser = self.parser.clone();
        let mut all = self.read(&mut parser, text);
        all.append(self.rest(&mut parser));
        parts(all)
    }

    /// The control tokens whose text must be part of what is pushed.
    fn shown(&self) -> Vec<u32> {
        self.shown.clone()
    }

    /// The grammar that the text must match, if a call is required.
    fn grammar(&self) -> Option<String> {
        self.grammar.clone()
    }
}

fn wrong(at: usize, what: &str, expected: &str, got: impl ToString) -> Failure {
    Failure::argument(&format!("messages[{at}]"), what, expected, got.to_string())
}

/// The messages of a conversation, from a JSON array of objects in OpenAI's form. Content may be text, or a
/// list of parts of text.
pub(crate) fn messages(json: &str) -> Result<Vec<Message>, Failure> {
    let list: Vec<Value> = parsed("the messages", json)?;
    list.into_iter().enumerate().map(|(at, message)| one_message(at, message)).collect()
}

fn one_message(at: usize, message: Value) -> Result<Message, Failure> {
    let Value::Object(mut fields) = message else {
        return Err(wrong(at, "a message", "an object with role and content", kind(&message)));
    };
    let role = match fields.remove("role") {
        // Templates know the older name.
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) => role,
        other => return Err(wrong(at, "the role", "a string", kind_of(other.as_ref()))),
    };
    let content = match fields.remove("content") {
        Some(Value::String(content)) => content,
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part.get("type"), part.get("text")) {
                (Some(Value::String(kind)), Some(Value::String(text))) if kind == "text" => {
                    Some(text.clone())
                }
                _ => None,
            };
            let parts: Option<Vec<String>> = parts.iter().map(text).collect();
            let expected = "text, or a list of parts of the type \"text\"";
            parts.ok_or_else(|| wrong(at, "the content", expected, "another part"))?.concat()
        }
        // An assistant's message with calls of tools has none.
        Some(Value::Null) | None if fields.contains_key("tool_calls") => String::new(),
        other => return Err(wrong(at, "the content", "text", kind_of(other.as_ref()))),
    };
    // Arguments of earlier calls are JSON text; templates write the object.
    for call in fields.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Value::String(text) = &*arguments
        {
            let expected = "a JSON object as text";
            let object: Map<String, Value> = serde_json::from_str(if text.is_empty() { "{}" } else { text })
                .map_err(|_| wrong(at, "the arguments of a call", expected, format!("{text:?}")))?;
            *arguments = Value::Object(object);
        }
    }
    Ok(Message { role, content, fields: fields.into_iter().collect() })
}

/// The tools that a model may call and whether it must, from JSON in OpenAI's form.
#[derive(Default)]
pub(crate) struct Tools {
    specs: Vec<ToolSpec>,
    choice: ToolChoice,
    several: bool,
}

impl Tools {
    pub(crate) fn new(tools: &str, choice: Option<&str>, several: bool) -> Result<Tools, Failure> {
        let list: Vec<Value> = parsed("the tools", tools)?;
        let specs = list.into_iter().enumerate().map(|(at, tool)| spec(at, tool));
        let choice = choice.map(|json| parsed("tool_choice", json)).transpose()?;
        Ok(Tools { specs: specs.collect::<Result<_, _>>()?, choice: tool_choice(choice)?, several })
    }

    /// Whether an answer may have more than one call.
    pub(crate) fn several(&self) -> bool {
        self.several
    }

    /// The tools that the model is told of.
    pub(crate) fn told(&self) -> &[ToolSpec] {
        if self.choice == ToolChoice::None { &[] } else { &self.specs }
    }

    /// The grammar of a call that is required.
    pub(crate) fn grammar(
        &self,
        format: ToolFormat,
        tokenizer: &Tokenizer,
    ) -> Result<Option<String>, Failure> {
        let Some(tools) = self.choice.required(&self.specs) else { return Ok(None) };
        let named = match &self.choice {
            ToolChoice::Named(name) => Some(name),
            _ => None,
        };
        if tools.is_empty() {
            let got = named.map_or("no tools".to_owned(), |name| format!("{name:?}"));
            return Err(Failure::argument("chat", "tool_choice", "one of the tools", got));
        }
        let several = self.several && named.is_none();
        let grammar = format.calls_grammar(&tools, several, tokenizer).ok_or_else(|| {
            let expected = "\"auto\" or \"none\" for a model that cannot write these calls under a grammar";
            Failure::argument("chat", "tool_choice", expected, "a required call")
        })?;
        Ok(Some(grammar))
    }
}

fn spec(at: usize, tool: Value) -> Result<ToolSpec, Failure> {
    let wrong = |expected: &str, got: &str| Failure::argument("chat", &format!("tools[{at}]"), expected, got);
    let function = match (tool.get("type").and_then(Value::as_str), tool.get("function")) {
        (Some("function"), Some(Value::Object(function))) => function,
        _ => return Err(wrong("an object of the type \"function\" with a function", kind(&tool))),
    };
    let name = match function.get("name") {
        Some(Value::String(name)) => name.clone(),
        other => return Err(wrong("a function with a name", kind_of(other))),
    };
    let description = function.get("description").and_then(Value::as_str).map(str::to_owned);
    ToolSpec::new(name, description, function.get("parameters").cloned())
        .map_err(|error| Failure::new(Kind::Argument, format!("chat: tools[{at}]: {error}")))
}

fn tool_choice(choice: Option<Value>) -> Result<ToolChoice, Failure> {
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    let named = choice.pointer("/function/name").and_then(Value::as_str);
    match (choice.as_str(), named) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
        _ => {
            let expected = "\"auto\", \"none\", \"required\" or a function";
            Err(Failure::argument("chat", "tool_choice", expected, choice))
        }
    }
}

/// A value of JSON text that the Python layer wrote.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> Result<T, Failure> {
    serde_json::from_str(json)
        .map_err(|error| Failure::new(Kind::Argument, format!("{what} are not valid: {error}")))
}

fn kind_of(value: Option<&Value>) -> &'static str {
    value.map_or("none", kind)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
