//! Tools: how a model is told of them, and how model families write calls.

use serde_json::{Map, Value, json};

use super::Message;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    name: String,
    description: Option<String>,
    parameters: Value,
}

/// Why a tool is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The name is not one.
    #[error("expected a name of letters, digits, _, - and ., got {name:?}")]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The parameters are no schema.
    #[error("parameters: expected a JSON schema, got {found}")]
    Parameters {
        /// What was given.
        found: String,
    },
}

impl ToolSpec {
    /// A tool with a name of at most 128 letters, digits, `_`, `-` and `.`, and a JSON schema of its
    /// parameters; without one, it has none.
    pub fn new(
        name: String,
        description: Option<String>,
        parameters: Option<Value>,
    ) -> Result<ToolSpec, ToolError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
            return Err(ToolError::Name { name });
        }
        let parameters = parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
        match parameters.is_object() {
            true => Ok(ToolSpec { name, description, parameters }),
            false => Err(ToolError::Parameters { found: parameters.to_string() }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The form that templates know: OpenAI's.
    pub fn json(&self) -> Value {
        let mut function = json!({ "name": self.name, "parameters": self.parameters });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        json!({ "type": "function", "function": function })
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model decides.
    #[default]
    Auto,
    /// Never.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

impl ToolChoice {
    /// The tools of which one must be called; `None` if none must. An empty list is an error of whoever made
    /// the choice: there is no such tool.
    pub fn required(&self, tools: &[ToolSpec]) -> Option<Vec<ToolSpec>> {
        match self {
            ToolChoice::Auto | ToolChoice::None => None,
            ToolChoice::Required => Some(tools.to_vec()),
            ToolChoice::Named(name) => {
                Some(tools.iter().filter(|tool| tool.name == *name).cloned().collect())
            }
        }
    }
}

/// Tells a model of tools in the system prompt, and writes earlier calls and their results as text: for
/// templates that know neither.
pub(super) fn describe(messages: &mut Vec<Message>, tools: &[ToolSpec]) {
    let (open, close) = ToolFormat::Hermes.tags();
    let tools: Vec<String> = tools.iter().map(|tool| tool.json().to_string()).collect();
    let example = r#"{"name": "NAME", "arguments": {}}"#;
    let text = format!(
        "You may call functions. JSON between <tools> and </tools> describes them:\n\
         <tools>\n{}\n</tools>\n\
         To call one, write a JSON object with its name and its arguments between {open} and {close}:\n\
         {open}\n{example}\n{close}",
        tools.join("\n")
    );
    for message in messages.iter_mut() {
        if let Some(at) = message.fields.iter().position(|(name, _)| name == "tool_calls") {
            let (_, calls) = message.fields.remove(at);
            for call in calls.as_array().into_iter().flatten() {
                let function = call.get("function").unwrap_or(call);
                message.content += &format!("\n{open}\n{function}\n{close}");
            }
        }
        if message.role == "tool" {
            let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
            *message = Message::user(result);
        }
    }
    match messages.first_mut().filter(|first| first.role == "system" || first.role == "developer") {
        Some(system) => system.content = format!("{}\n\n{text}", system.content),
        None => messages.insert(0, Message::system(text)),
    }
}

/// A call of a tool that a model has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the function.
    pub name: String,
    /// Its arguments: a JSON object.
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    /// The text of its arguments, as OpenAI's API has it.
    pub fn arguments_json(&self) -> String {
        serde_json::to_string(&self.arguments).unwrap_or_default()
    }
}

/// The way in which a family of models writes calls of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolFormat {
    /// Qwen and Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one pair of tags per call.
    /// The most common one: models whose templates know no tools are told of it.
    #[default]
    Hermes,
    /// Llama 3: an answer that is `{"name": …, "parameters": {…}}`, several separated by `;`, possibly after
    /// `<|python_tag|>`.
    Llama3,
    /// gpt-oss: a message to the tool in the channel `commentary`, whose text is the arguments.
    Harmony,
}

impl ToolFormat {
    /// The format that a template teaches its model.
    pub fn of_template(source: &str) -> Option<ToolFormat> {
        if !source.contains("tools") {
            return None;
        }
        if is_harmony(source) {
            return Some(ToolFormat::Harmony);
        }
        if source.contains("<tool_call>") {
            return Some(ToolFormat::Hermes);
        }
        let llama = source.contains("<|start_header_id|>") && source.contains("\"parameters\"");
        llama.then_some(ToolFormat::Llama3)
    }

    /// What opens and closes a call. Without a closing tag, a call is the rest of the answer. A call in the
    /// harmony format has a header between them.
    pub fn tags(self) -> (&'static str, &'static str) {
        match self {
            ToolFormat::Hermes => ("<tool_call>", "</tool_call>"),
            ToolFormat::Llama3 => ("<|python_tag|>", ""),
            ToolFormat::Harmony => ("<|channel|>", "<|call|>"),
        }
    }

    /// The grammar of at least one call, in Lark's syntax with JSON schemas, as llguidance reads it. The name
    /// comes before the arguments, as models were trained. `several`: more calls may follow. `None` for the
    /// harmony format: the name is in a header of control tokens, which grammars have none of.
    pub fn calls_grammar(self, tools: &[ToolSpec], several: bool) -> Option<String> {
        let (open, close, between) = match self {
            ToolFormat::Hermes => ("<tool_call>\\n", "\\n</tool_call>", "\\n"),
            ToolFormat::Llama3 => ("", "", "; "),
            ToolFormat::Harmony => return None,
        };
        let quoted = |text: &str| (!text.is_empty()).then(|| format!("\"{text}\""));
        let more = if several { format!(" (\"{between}\" call)*") } else { String::new() };
        let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
        let mut text = format!("start: call{more}\n");
        let parts = [quoted(open), Some(format!("({})", names.join(" | "))), quoted(close)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        text += &format!("call: {}\n", parts.join(" "));
        let key = self.arguments_key();
        for (at, ToolSpec { name, parameters, .. }) in tools.iter().enumerate() {
            text += &format!(
                "tool_{at}: \"{{\\\"name\\\": \\\"{name}\\\", \\\"{key}\\\": \" arguments_{at} \"}}\"\n"
            );
            text += &format!("arguments_{at}: %json {parameters}\n");
        }
        Some(text)
    }

    /// The key of the arguments in a call.
    fn arguments_key(self) -> &'static str {
        match self {
            ToolFormat::Hermes | ToolFormat::Harmony => "arguments",
            ToolFormat::Llama3 => "parameters",
        }
    }

    /// The calls in the text between the tags; `None` if it is no call. Text in the harmony format is none:
    /// the name is in the header.
    pub fn parse(self, text: &str) -> Option<Vec<ToolCall>> {
        match self {
            ToolFormat::Harmony => None,
            ToolFormat::Hermes => {
                let value: Value = serde_json::from_str(text.trim()).ok()?;
                match value {
                    // SmolLM2 writes a list of calls between one pair of tags.
                    Value::Array(list) if !list.is_empty() => list.iter().map(call).collect(),
                    value => Some(vec![call(&value)?]),
                }
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

/// Whether a template writes messages with channels, as gpt-oss does.
pub(super) fn is_harmony(source: &str) -> bool {
    source.contains("<|channel|>") && source.contains("<|message|>")
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
        let list = "[{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\"}]";
        assert_eq!(names(ToolFormat::Hermes, list).unwrap(), ["a", "b"]);
        assert_eq!(ToolFormat::Hermes.parse("[{\"name\": \"a\"}, 1]"), None);
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

    fn tool(name: &str, parameters: Value) -> ToolSpec {
        ToolSpec::new(name.to_owned(), None, Some(parameters)).unwrap()
    }

    #[test]
    fn required_calls_are_a_grammar() {
        let tools = [tool("weather", json!({ "type": "object" })), tool("time", json!({}))];
        let expected = r#"start: call ("\n" call)*
call: "<tool_call>\n" (tool_0 | tool_1) "\n</tool_call>"
tool_0: "{\"name\": \"weather\", \"arguments\": " arguments_0 "}"
arguments_0: %json {"type":"object"}
tool_1: "{\"name\": \"time\", \"arguments\": " arguments_1 "}"
arguments_1: %json {}
"#;
        assert_eq!(ToolFormat::Hermes.calls_grammar(&tools, true).unwrap(), expected);
        let one = ToolFormat::Llama3.calls_grammar(&tools[1..], false).unwrap();
        assert!(one.starts_with("start: call\ncall: (tool_0)\n"), "{one}");
        assert_eq!(ToolFormat::Harmony.calls_grammar(&tools, true), None);
    }

    #[test]
    fn a_choice_names_the_tools_that_must_be_called() {
        let tools = [tool("a", json!({})), tool("b", json!({}))];
        let required = |choice: ToolChoice| Some(choice.required(&tools)?.len());
        assert_eq!(required(ToolChoice::Auto), None);
        assert_eq!(required(ToolChoice::None), None);
        assert_eq!(required(ToolChoice::Required), Some(2));
        assert_eq!(required(ToolChoice::Named("b".to_owned())), Some(1));
        assert_eq!(required(ToolChoice::Named("c".to_owned())), Some(0));
    }

    #[test]
    fn tools_are_checked() {
        let refused = |name: &str, parameters| {
            let tool = ToolSpec::new(name.to_owned(), None, parameters);
            tool.unwrap_err().to_string()
        };
        assert_eq!(refused("a b", None), "expected a name of letters, digits, _, - and ., got \"a b\"");
        assert_eq!(refused("", None), "expected a name of letters, digits, _, - and ., got \"\"");
        assert_eq!(refused("a", Some(json!([1]))), "parameters: expected a JSON schema, got [1]");
    }

    #[test]
    fn formats_are_recognized_by_templates() {
        let of = ToolFormat::of_template;
        assert_eq!(of("{%- if tools %}… <tool_call>\\n{{ tool | tojson }}"), Some(ToolFormat::Hermes));
        let llama = "{{ '<|start_header_id|>' }}{% if tools %}{\"name\": x, \"parameters\": y}{% endif %}";
        assert_eq!(of(llama), Some(ToolFormat::Llama3));
        let harmony = "{% if tools %}{% endif %}<|start|>assistant<|channel|>final<|message|>";
        assert_eq!(of(harmony), Some(ToolFormat::Harmony));
        assert_eq!(of("{{ messages }}"), None);
        assert_eq!(of("{% if tools %}[TOOL_CALLS]{% endif %}"), None);
    }
}
