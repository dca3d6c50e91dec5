//! Wire types of `/v1/chat/completions`.

use std::collections::BTreeMap;

use fulmen_model::template::ToolCall;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::wire::{ChatLogprobs, ResponseFormat, StopParam, StreamOptions, Usage};
use crate::body::List;

/// Messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 10_000;

/// A request for a chat completion.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct ChatRequest {
    /// The name of a model; the first one of the server without it.
    pub(crate) model: Option<String>,
    #[schema(value_type = Vec<ChatMessage>)]
    pub(crate) messages: List<ChatMessage, MAX_MESSAGES>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) n: Option<i64>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<StopParam>,
    pub(crate) max_tokens: Option<i64>,
    pub(crate) max_completion_tokens: Option<i64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    pub(crate) logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<i64>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<ToolChoiceParam>,
    pub(crate) parallel_tool_calls: Option<bool>,
    /// `none` and `minimal` switch thoughts off, others on, where the template can.
    pub(crate) reasoning_effort: Option<String>,
    /// Variables of the chat template, such as `enable_thinking`.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// Accepted; has no effect.
    pub(crate) user: Option<String>,
    /// Accepted; has no effect.
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Nothing is stored: `true` is refused.
    pub(crate) store: Option<bool>,
    /// Accepted; there is one tier.
    pub(crate) service_tier: Option<String>,
    /// Only `["text"]`.
    pub(crate) modalities: Option<Vec<String>>,
    /// Accepted; has no effect.
    pub(crate) safety_identifier: Option<String>,
    /// Accepted; prefixes are always cached.
    pub(crate) prompt_cache_key: Option<String>,
    /// Accepted; cached prefixes stay as long as there is room.
    pub(crate) prompt_cache_retention: Option<String>,
    /// Accepted; prefixes are always cached.
    pub(crate) prompt_cache_options: Option<Value>,
    /// Only `medium`: models have no such setting.
    pub(crate) verbosity: Option<String>,
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub(crate) role: String,
    pub(crate) content: Option<Content>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Vec<MessageCall>>,
    pub(crate) tool_call_id: Option<String>,
    /// Thoughts of an earlier answer.
    pub(crate) reasoning_content: Option<String>,
    /// Of an answer that a client sends back.
    pub(crate) refusal: Option<String>,
    /// Of an answer that a client sends back.
    pub(crate) annotations: Option<Vec<Value>>,
    /// Not supported.
    pub(crate) audio: Option<Value>,
    /// Not supported: `tool_calls` is.
    pub(crate) function_call: Option<Value>,
}

/// The content of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of content parts")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ContentPart {
    /// `text`; others are refused.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<String>,
    /// Fields of other kinds, of answers that a client sends back, or unknown ones, which are refused.
    #[serde(flatten)]
    #[schema(ignore)]
    pub(crate) others: Map<String, Value>,
}

/// A call in a message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct MessageCall {
    pub(crate) id: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) function: MessageFunction,
    /// Of a stream that a client has put together.
    pub(crate) index: Option<u32>,
}

/// The function of a call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct MessageFunction {
    pub(crate) name: String,
    /// A JSON object as text.
    pub(crate) arguments: String,
    /// Of an answer that a client has parsed and sends back.
    pub(crate) parsed_arguments: Option<Value>,
}

/// A tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: ToolFunction,
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct ToolFunction {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A JSON schema.
    pub(crate) parameters: Option<Value>,
    pub(crate) strict: Option<bool>,
}

/// Whether tools are called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected \"none\", \"auto\", \"required\", a function or allowed_tools")]
pub(crate) enum ToolChoiceParam {
    Mode(String),
    Function(NamedTool),
    Allowed(AllowedTools),
}

/// Some of the tools.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowedTools {
    /// `allowed_tools`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) allowed_tools: AllowedList,
}

/// The tools that may be called. The model is told of no others.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowedList {
    /// `auto` or `required`.
    pub(crate) mode: String,
    pub(crate) tools: Vec<NamedTool>,
}

/// A tool that must be called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: NamedFunction,
}

/// The name of a function.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedFunction {
    pub(crate) name: String,
}

/// A chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatResponse {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
    pub(crate) system_fingerprint: Option<String>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AnswerMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
}

/// The message of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerMessage {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    /// Thoughts before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<AnswerCall>,
}

/// A call of a tool in an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: AnswerFunction,
}

/// The function of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerFunction {
    pub(crate) name: String,
    /// A JSON object as text.
    pub(crate) arguments: String,
}

impl AnswerCall {
    pub(crate) fn new(call: ToolCall) -> AnswerCall {
        let arguments = call.arguments_json();
        let function = AnswerFunction { name: call.name, arguments };
        AnswerCall { id: crate::ids::unique("call_"), kind: "function", function }
    }
}
