//! How model families write calls of tools.

use serde_json::{Map, Value};

/// A call of a tool that a model has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the function.
    pub name: String,
    /// Its arguments: a JSON object.
    pub arguments: Map<String, Value>,
}

/// The way in which a family of models writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// Qwen and Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one pair of tags per call.
    Hermes,
    /// Llama 3: an answer that is `{"name": …, "parameters": {…}}`, several separated by `;`, possibly after
    /// `<|python_tag|>`.
    Llama3,
}

impl ToolFormat {
    /// The format that a template teaches its model.
    pub fn of_template(source: &str) -> Option<ToolFormat> {
        if !source.contains("tools") {
            return None;
        }
        if source.contains("<tool_call>") {
            return Some(ToolFormat::Hermes);
        }
        let llama = source.contains("<|start_header_id|>") && source.contains("\"parameters\"");
        llama.then_some(ToolFormat::Llama3)
    }

    /// What opens and closes a call. Without a closing tag, a call is the rest of the answer.
    pub fn tags(self) -> (&'static str, &'static str) {
        match self {
            ToolFormat::Hermes => ("<tool_call>", "</tool_call>"),
            ToolFormat::Llama3 => ("<|python_tag|>", ""),
        }
    }

    /// The key of the arguments in a call.
    pub fn arguments_key(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "arguments",
            ToolFormat::Llama3 => "parameters",
        }
    }

    /// The calls in the text between the tags; `None` if it is no call.
    pub fn parse(self, text: &str) -> Option<Vec<ToolCall>> {
        match self {
            ToolFormat::Hermes => {
                let value: Value = serde_json::from_str(text.trim()).ok()?;
                Some(vec![call(&value)?])
            }
            ToolFormat::Llama3 => {
                let mut calls = Vec::new();
                let mut rest = text.trim();
                while !rest.is_empty() {
                    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
                    let value = values.next()?.ok()?;
                    calls.push(call(&value)?);
                    let after = rest[values.byte_offset()..].trim_start();
                    rest = match after.strip_prefix(';') {
                        Some(next) => next.trim_start(),
                        None if after.is_empty() => after,
                        None => return None,
                    };
                }
                (!calls.is_empty()).then_some(calls)
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(format: ToolFormat, text: &str) -> Option<Vec<String>> {
        Some(format.parse(text)?.into_iter().map(|call| call.name).collect())
    }

    #[test]
    fn calls_are_read_as_families_write_them() {
        let hermes = "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n";
        let calls = ToolFormat::Hermes.parse(hermes).unwrap();
        assert_eq!(calls[0].name, "weather");
        assert_eq!(calls[0].arguments["city"], "Oslo");
        let text = "{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {\"x\": 1}}";
        assert_eq!(names(ToolFormat::Llama3, text).unwrap(), ["a", "b"]);
        let quoted = "{\"name\": \"a\", \"arguments\": \"{\\\"x\\\": 1}\"}";
        assert_eq!(ToolFormat::Hermes.parse(quoted).unwrap()[0].arguments["x"], 1);
    }

    #[test]
    fn what_is_no_call_is_no_call() {
        for text in ["", "{", "[]", "{\"name\": 1}", "{\"name\": \"a\", \"arguments\": [1]}", "hello"] {
            assert_eq!(ToolFormat::Hermes.parse(text), None, "{text}");
            assert_eq!(ToolFormat::Llama3.parse(text), None, "{text}");
        }
        assert_eq!(ToolFormat::Llama3.parse("{\"name\": \"a\"} and more"), None);
    }

    #[test]
    fn formats_are_recognized_by_templates() {
        let of = ToolFormat::of_template;
        assert_eq!(of("{%- if tools %}… <tool_call>\\n{{ tool | tojson }}"), Some(ToolFormat::Hermes));
        let llama = "{{ '<|start_header_id|>' }}{% if tools %}{\"name\": x, \"parameters\": y}{% endif %}";
        assert_eq!(of(llama), Some(ToolFormat::Llama3));
        assert_eq!(of("{{ messages }}"), None);
        assert_eq!(of("{% if tools %}[TOOL_CALLS]{% endif %}"), None);
    }
}
