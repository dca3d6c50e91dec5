//! How model families write calls of tools: recognizing the format of a template, and reading calls.

use serde_json::{Map, Value};

use super::arguments::converted;
use super::gemma;
use super::pythonic;
use super::tools::{ToolCall, ToolSpec};

/// The way in which a family of models writes calls of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolFormat {
    /// Qwen 2.5 and 3, Hermes, SmolLM and Granite 4: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`,
    /// one pair of tags per call. The most common one: models whose templates know no tools are told of it.
    #[default]
    Hermes,
    /// Qwen3-Coder, Qwen3.5 and Nemotron 3: `<tool_call>`, then `<function=NAME>`, for every argument
    /// `<parameter=NAME>`, its value and `</parameter>`, and the closing tags.
    QwenXml,
    /// GLM-4.5 and later: `<tool_call>NAME`, for every argument `<arg_key>…</arg_key>` and
    /// `<arg_value>…</arg_value>`, and `</tool_call>`.
    Glm,
    /// Llama 3: an answer that is `{"name": …, "parameters": {…}}`, several separated by `;`, possibly after
    /// `<|python_tag|>`.
    Llama3,
    /// Mistral up to Small 3.1: `[TOOL_CALLS][{"name": …, "arguments": {…}}]` to the end of the answer.
    MistralList,
    /// Mistral since Small 3.2: `[TOOL_CALLS]NAME[ARGS]{…}` for every call, to the end of the answer.
    Mistral,
    /// Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]` to the end of the answer.
    Granite,
    /// Phi-4-mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`.
    Phi4,
    /// OLMo 3: calls in Python's syntax between `<function_calls>` and `</function_calls>`, one per line.
    Olmo3,
    /// Gemma 4: `<|tool_call>call:NAME{KEY:VALUE,…}<tool_call|>`, where strings are between `<|"|>`.
    Gemma4,
    /// gpt-oss: a message to the tool in the channel `commentary`, whose text is the arguments.
    Harmony,
}

pub(super) const ARG_KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
pub(super) const ARG_VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
pub(super) const MISTRAL: &str = "[TOOL_CALLS]";

impl ToolFormat {
    /// All formats.
    pub const ALL: [ToolFormat; 11] = [
        ToolFormat::Hermes,
        ToolFormat::QwenXml,
        ToolFormat::Glm,
        ToolFormat::Llama3,
        ToolFormat::MistralList,
        ToolFormat::Mistral,
        ToolFormat::Granite,
        ToolFormat::Phi4,
        ToolFormat::Olmo3,
        ToolFormat::Gemma4,
        ToolFormat::Harmony,
    ];

    /// The format that a template teaches its model.
    pub fn of_template(source: &str) -> Option<ToolFormat> {
        if !source.contains("tools") {
            return None;
        }
        let has = |text: &str| source.contains(text);
        let format = match () {
            () if is_harmony(source) => ToolFormat::Harmony,
            () if has("<tool_call>") && has("<arg_key>") => ToolFormat::Glm,
            () if has("<tool_call>") && has("<function=") => ToolFormat::QwenXml,
            () if has("<tool_call>") => ToolFormat::Hermes,
            () if has("<|tool_call>") && has("<tool_call|>") => ToolFormat::Gemma4,
            () if has(MISTRAL) && has(ARGS) => ToolFormat::Mistral,
            () if has(MISTRAL) => ToolFormat::MistralList,
            () if has("<|tool|>") && has("<|/tool|>") => ToolFormat::Phi4,
            () if has("<|tool_call|>") => ToolFormat::Granite,
            () if has("<function_calls>") => ToolFormat::Olmo3,
            () if has("<|start_header_id|>") && has("\"parameters\"") => ToolFormat::Llama3,
            () => return None,
        };
        Some(format)
    }

    /// What opens and closes a call. Without a closing tag, a call is the rest of the answer. A call in the
    /// harmony format has a header between them.
    pub fn tags(self) -> (&'static str, &'static str) {
        match self {
            ToolFormat::Hermes | ToolFormat::QwenXml | ToolFormat::Glm => ("<tool_call>", "</tool_call>"),
            ToolFormat::Llama3 => ("<|python_tag|>", ""),
            ToolFormat::MistralList | ToolFormat::Mistral => (MISTRAL, ""),
            ToolFormat::Granite => ("<|tool_call|>", ""),
            ToolFormat::Phi4 => ("<|tool_call|>", "<|/tool_call|>"),
            ToolFormat::Olmo3 => ("<function_calls>", "</function_calls>"),
            ToolFormat::Gemma4 => ("<|tool_call>", "<tool_call|>"),
            ToolFormat::Harmony => ("<|channel|>", "<|call|>"),
        }
    }

    /// The tags within a call, which may be control tokens as those around it.
    pub(super) fn inner_tags(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Glm => &[ARG_KEY.0, ARG_KEY.1, ARG_VALUE.0, ARG_VALUE.1],
            ToolFormat::Mistral => &[ARGS, CALL_ID],
            ToolFormat::Gemma4 => &[gemma::QUOTE],
            _ => &[],
        }
    }

    /// The calls in the text between the tags; `None` if it is no call. Values of formats that have no types
    /// are converted as the schemas of the tools say. Text in the harmony format is none: the name is in the
    /// header.
    pub fn parse(self, text: &str, tools: &[ToolSpec]) -> Option<Vec<ToolCall>> {
        match self {
            ToolFormat::Harmony => None,
            ToolFormat::Hermes | ToolFormat::Granite | ToolFormat::Phi4 => json_calls(text),
            ToolFormat::QwenXml => Some(vec![qwen_call(text, tools)?]),
            ToolFormat::Glm => Some(vec![glm_call(text, tools)?]),
            ToolFormat::Llama3 => llama_calls(text),
            ToolFormat::MistralList | ToolFormat::Mistral => json_calls(text).or_else(|| mistral_calls(text)),
            ToolFormat::Olmo3 => pythonic::calls(text),
            ToolFormat::Gemma4 => Some(vec![gemma::call(text)?]),
        }
    }
}

/// Whether a template writes messages with channels, as gpt-oss does.
pub(super) fn is_harmony(source: &str) -> bool {
    source.contains("<|channel|>") && source.contains("<|message|>")
}

/// A call as JSON, or a list of them: SmolLM2 writes a list between one pair of tags.
fn json_calls(text: &str) -> Option<Vec<ToolCall>> {
    match serde_json::from_str(text.trim()).ok()? {
        Value::Array(list) if !list.is_empty() => list.iter().map(call).collect(),
        value => Some(vec![call(&value)?]),
    }
}

fn llama_calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (value, after) = json_prefix(rest)?;
        calls.push(call(&value)?);
        rest = match after.strip_prefix(';') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    (!calls.is_empty()).then_some(calls)
}

/// `NAME[ARGS]{…}`, with `[CALL_ID]…` or without, several separated by the opening tag.
fn mistral_calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    loop {
        let (name, after) = rest.split_at(rest.find(['[', '{'])?);
        let arguments = match after.strip_prefix(CALL_ID) {
            Some(id) => &id[id.find(['[', '{'])?..],
            None => after,
        };
        let (value, after) = json_prefix(arguments.strip_prefix(ARGS).unwrap_or(arguments))?;
        let (name, arguments) = (name.trim().to_owned(), value.as_object()?.clone());
        if !is_name(&name) {
            return None;
        }
        calls.push(ToolCall { name, arguments });
        match after.strip_prefix(MISTRAL) {
            Some(next) => rest = next.trim_start(),
            None => return after.is_empty().then_some(calls),
        }
    }
}

fn qwen_call(text: &str, tools: &[ToolSpec]) -> Option<ToolCall> {
    let (name, mut rest) = text.trim().strip_prefix("<function=")?.split_once('>')?;
    let name = name.trim().to_owned();
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("</function>") {
            return (after.trim().is_empty() && is_name(&name)).then_some(ToolCall { name, arguments });
        }
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        // The line breaks around it belong to the tags.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.trim().to_owned(), converted(tools, &name, key.trim(), value));
        rest = after;
    }
}

fn glm_call(text: &str, tools: &[ToolSpec]) -> Option<ToolCall> {
    let text = text.trim();
    let (name, mut rest) = text.split_at(text.find(ARG_KEY.0).unwrap_or(text.len()));
    let name = name.trim().to_owned();
    if !is_name(&name) {
        return None;
    }
    let mut arguments = Map::new();
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix(ARG_KEY.0)?.split_once(ARG_KEY.1)?;
        let (value, after) = after.trim_start().strip_prefix(ARG_VALUE.0)?.split_once(ARG_VALUE.1)?;
        arguments.insert(key.trim().to_owned(), converted(tools, &name, key.trim(), value));
        rest = after.trim_start();
    }
    Some(ToolCall { name, arguments })
}

/// A call with its arguments under any of the usual keys, as an object or as its text.
fn call(value: &Value) -> Option<ToolCall> {
    let object = value.as_object()?;
    let name = object.get("name")?.as_str()?.to_owned();
    let arguments = match object.get("arguments").or_else(|| object.get("parameters")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => serde_json::from_str::<Value>(text).ok()?.as_object()?.clone(),
        Some(_) => return None,
    };
    Some(ToolCall { name, arguments })
}

/// Whether a text can be the name of a tool.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !text.is_empty() && text.chars().all(plain)
}

/// A JSON value at the start of a text, and what follows behind white space.
fn json_prefix(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, text[values.byte_offset()..].trim_start()))
}
