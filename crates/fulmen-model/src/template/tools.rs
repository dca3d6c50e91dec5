//! Tools: how a model is told of them, and how model families write calls.

use serde_json::{Map, Value, json};

use super::Message;
use super::tool_format::ToolFormat;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSpec {
    name: String,
    description: Option<String>,
    parameters: Value,
    strict: bool,
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
            true => Ok(ToolSpec { name, description, parameters, strict: false }),
            false => Err(ToolError::Parameters { found: parameters.to_string() }),
        }
    }

    /// As this tool. `strict`: whether the arguments of a call must be what the schema says, also where the
    /// model decides whether it calls the tool.
    pub fn with_strict(self, strict: bool) -> ToolSpec {
        ToolSpec { strict, ..self }
    }

    /// Whether the arguments must be what the schema says.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// As this tool, whose arguments are any.
    pub(super) fn open(&self) -> ToolSpec {
        ToolSpec { parameters: json!({ "type": "object" }), ..self.clone() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The JSON schema of its parameters.
    pub fn parameters(&self) -> &Value {
        &self.parameters
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
    write_calls(messages, open, close);
    for message in messages.iter_mut().filter(|message| message.role == "tool") {
        let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
        *message = Message::user(result);
    }
    match messages.first_mut().filter(|first| first.role == "system" || first.role == "developer") {
        Some(system) => system.content = format!("{}\n\n{text}", system.content),
        None => messages.insert(0, Message::system(text)),
    }
}

/// Writes earlier calls as text: for templates that do not look at them.
pub(super) fn write_calls(messages: &mut [Message], open: &str, close: &str) {
    for message in messages.iter_mut() {
        let Some(at) = message.fields.iter().position(|(name, _)| name == "tool_calls") else { continue };
        let (_, calls) = message.fields.remove(at);
        for call in calls.as_array().into_iter().flatten() {
            let function = call.get("function").unwrap_or(call);
            message.content += &format!("\n{open}\n{function}\n{close}");
        }
    }
}

/// Gives calls and their results ids of 9 letters and digits, which Mistral's templates insist on. Equal ids
/// stay equal.
pub(super) fn shorten_ids(messages: &mut [Message]) {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let short = |id: &mut Value| {
        let Value::String(text) = id else { return };
        if text.len() == 9 && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return;
        }
        // FNV-1a.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        *text = (0..9)
            .map(|_| {
                let letter = LETTERS[(hash % 36) as usize];
                hash /= 36;
                char::from(letter)
            })
            .collect();
    };
    for (name, value) in messages.iter_mut().flat_map(|message| &mut message.fields) {
        match (name.as_str(), value) {
            ("tool_call_id", id) => short(id),
            ("tool_calls", Value::Array(calls)) => {
                calls.iter_mut().filter_map(|call| call.get_mut("id")).for_each(short);
            }
            _ => {}
        }
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

/// A part of a call, as a model writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPiece {
    /// The number of the call in the answer.
    pub call: usize,
    /// The name of the function, in the first piece of a call.
    pub name: Option<String>,
    /// The next part of the text of its arguments. At any time, what there is of it is the beginning of a
    /// JSON object.
    pub arguments: String,
    /// Whether the arguments are complete. An answer may end, or turn out to be malformed, before they are.
    pub last: bool,
}

impl ToolCall {
    /// The text of its arguments, as OpenAI's API has it.
    pub fn arguments_json(&self) -> String {
        serde_json::to_string(&self.arguments).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, parameters: Value) -> ToolSpec {
        ToolSpec::new(name.to_owned(), None, Some(parameters)).unwrap()
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
}
