//! From the messages of `/v1/messages` to a conversation.

use fulmen_model::template::{Message, ToolChoice, ToolSpec};
use serde_json::{Value, json};

use super::thoughts::clear_thoughts;
use super::types::{
    AnthropicTool, AnthropicToolChoice, Blocks, ContextManagement, InputBlock, InputMessage, OutputConfig,
    Thinking,
};
use crate::error::ApiError;
use crate::generation::ChatInput;
use crate::openai::messages::{checked_tool, effort_variable, no_others};
use crate::served::Grammar;

/// The parts of a request that make its prompt.
pub(super) struct Parts {
    pub(super) messages: Vec<InputMessage>,
    pub(super) system: Option<Blocks>,
    pub(super) tools: Option<Vec<AnthropicTool>>,
    pub(super) tool_choice: Option<AnthropicToolChoice>,
    pub(super) thinking: Option<Thinking>,
    pub(super) effort: Option<String>,
    pub(super) context_management: Option<ContextManagement>,
}

impl Parts {
    pub(super) fn chat_input(mut self, most_tools: usize) -> Result<ChatInput, ApiError> {
        clear_thoughts(&mut self.messages, self.context_management)?;
        let mut messages = Vec::with_capacity(self.messages.len() + 1);
        if let Some(system) = self.system {
            messages.push(Message::system(plain_text(system, "system")?));
        }
        if !self.messages.iter().any(|message| message.role != "system") {
            let message = "messages: expected at least 1 message of the user, got none";
            return Err(ApiError::field("messages", message));
        }
        if self.messages.last().is_some_and(|last| last.role == "assistant") {
            return Err(ApiError::unsupported("messages", "the last message must be the user's"));
        }
        for (index, message) in self.messages.into_iter().enumerate() {
            push_message(index, message, &mut messages)?;
        }
        let one_call = self.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
        Ok(ChatInput {
            messages,
            tools: tools(self.tools, most_tools)?,
            tool_choice: tool_choice(self.tool_choice)?,
            several_calls: one_call != Some(true),
            thinking: thinking(self.thinking)?,
            variables: effort(self.effort)?.into_iter().collect(),
            has_format: false,
        })
    }
}

/// Text of blocks, all of which must be text.
fn plain_text(blocks: Blocks, param: &str) -> Result<String, ApiError> {
    match blocks {
        Blocks::Text(text) => Ok(text),
        Blocks::Blocks(blocks) => {
            let text = |block: InputBlock| {
                known_fields(&block, param)?;
                match (block.kind.as_str(), block.text) {
                    ("text", Some(text)) => Ok(text),
                    (kind, _) => Err(unsupported_block(param, kind)),
                }
            };
            let texts: Vec<String> = blocks.into_iter().map(text).collect::<Result<_, _>>()?;
            Ok(texts.join("\n"))
        }
    }
}

/// Refuses unknown fields of the kinds of blocks that are read.
fn known_fields(block: &InputBlock, param: &str) -> Result<(), ApiError> {
    match block.kind.as_str() {
        "text" | "tool_use" | "tool_result" | "thinking" | "redacted_thinking" => {
            no_others(&block.others, &["cache_control", "citations", "signature", "data", "caller"], param)
        }
        _ => Ok(()),
    }
}

fn unsupported_block(param: &str, kind: &str) -> ApiError {
    ApiError::unsupported(param, &format!("content of type {kind:?}; only text is read"))
}

/// A message of one role may become several: results of tools are messages of their own.
fn push_message(index: usize, message: InputMessage, list: &mut Vec<Message>) -> Result<(), ApiError> {
    let param = format!("messages[{index}]");
    if message.role == "system" {
        let text = plain_text(message.content, &format!("{param}.content"))?;
        list.push(Message::system(text));
        return Ok(());
    }
    if message.role != "user" && message.role != "assistant" {
        let error = format!("{param}.role: expected user, assistant or system, got {:?}", message.role);
        return Err(ApiError::field(format!("{param}.role"), error));
    }
    let blocks = match message.content {
        Blocks::Text(text) => {
            list.push(Message::new(message.role, text));
            return Ok(());
        }
        Blocks::Blocks(blocks) => blocks,
    };
    let missing = |what: &str| {
        let param = format!("{param}.content");
        ApiError::field(param.clone(), format!("{param}: a block without {what}"))
    };
    let (mut texts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
    for block in blocks {
        known_fields(&block, &format!("{param}.content"))?;
        match block.kind.as_str() {
            "text" => texts.push(block.text.ok_or_else(|| missing("text"))?),
            "thinking" => thoughts.push_str(&block.thinking.unwrap_or_default()),
            "redacted_thinking" => {}
            "tool_use" => {
                let name = block.name.ok_or_else(|| missing("name"))?;
                let input = block.input.filter(Value::is_object).unwrap_or_else(|| json!({}));
                let function = json!({ "name": name, "arguments": input });
                calls.push(json!({ "type": "function", "id": block.id, "function": function }));
            }
            "tool_result" => {
                let text = match block.content {
                    Some(content) => plain_text(*content, &format!("{param}.content"))?,
                    None => String::new(),
                };
                // Templates have no other place for it.
                let text = if block.is_error == Some(true) { format!("Error: {text}") } else { text };
                let id = block.tool_use_id.ok_or_else(|| missing("tool_use_id"))?;
                let fields = vec![("tool_call_id".to_owned(), json!(id))];
                list.push(Message { fields, ..Message::new("tool", text) });
            }
            kind => return Err(unsupported_block(&format!("{param}.content"), kind)),
        }
    }
    let mut fields = Vec::new();
    if !calls.is_empty() {
        fields.push(("tool_calls".to_owned(), Value::Array(calls)));
    }
    if !thoughts.is_empty() {
        fields.push(("reasoning_content".to_owned(), json!(thoughts)));
    }
    if !texts.is_empty() || !fields.is_empty() {
        list.push(Message { fields, ..Message::new(message.role, texts.join("\n")) });
    }
    Ok(())
}

fn tools(tools: Option<Vec<AnthropicTool>>, most: usize) -> Result<Vec<ToolSpec>, ApiError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > most {
        let message = format!("tools: expected at most {most}, got {}", tools.len());
        return Err(ApiError::field("tools", message));
    }
    let spec = |(index, tool): (usize, AnthropicTool)| match tool.kind.as_deref() {
        None | Some("custom") => {
            let spec = checked_tool(index, tool.name, tool.description, tool.input_schema)?;
            Ok(spec.with_strict(tool.strict == Some(true)))
        }
        Some(kind) => Err(ApiError::unsupported("tools", &format!("tools[{index}] of type {kind:?}"))),
    };
    tools.into_iter().enumerate().map(spec).collect()
}

fn tool_choice(choice: Option<AnthropicToolChoice>) -> Result<ToolChoice, ApiError> {
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    match (choice.kind.as_str(), choice.name) {
        ("auto", _) => Ok(ToolChoice::Auto),
        ("none", _) => Ok(ToolChoice::None),
        ("any", _) => Ok(ToolChoice::Required),
        ("tool", Some(name)) => Ok(ToolChoice::Named(name)),
        (kind, _) => {
            let message = format!("tool_choice: expected auto, any, none, or tool with a name, got {kind:?}");
            Err(ApiError::field("tool_choice", message))
        }
    }
}

/// The variable of templates that know efforts.
fn effort(effort: Option<String>) -> Result<Option<(String, Value)>, ApiError> {
    match effort.as_deref() {
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(effort_variable(effort.as_deref())),
        Some(other) => {
            let message =
                format!("output_config.effort: expected low, medium, high, xhigh or max, got {other:?}");
            Err(ApiError::field("output_config.effort", message))
        }
    }
}

/// The grammar of the answer.
pub(super) fn grammar(config: Option<OutputConfig>) -> Result<Option<Grammar>, ApiError> {
    let Some(config) = config else { return Ok(None) };
    match config.format {
        None => Ok(None),
        Some(format) if format.kind == "json_schema" => Ok(Some(Grammar::JsonSchema(format.schema))),
        Some(format) => {
            let message = format!("output_config.format: expected json_schema, got {:?}", format.kind);
            Err(ApiError::field("output_config.format", message))
        }
    }
}

fn thinking(thinking: Option<Thinking>) -> Result<Option<bool>, ApiError> {
    match thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
        None | Some("adaptive") => Ok(None),
        Some("enabled") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        Some(other) => {
            let message = format!("thinking.type: expected enabled, disabled or adaptive, got {other:?}");
            Err(ApiError::field("thinking.type", message))
        }
    }
}
