//! Wire types of `/v1/messages`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::body::List;
use crate::error::ApiError;
use crate::generation::{EndReason, TokenUsage};
use crate::openai::chat_types::MAX_MESSAGES;

/// A request for a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct MessagesRequest {
    pub(crate) model: String,
    pub(crate) max_tokens: i64,
    #[schema(value_type = Vec<InputMessage>)]
    pub(crate) messages: List<InputMessage, MAX_MESSAGES>,
    pub(crate) system: Option<Blocks>,
    pub(crate) stop_sequences: Option<Vec<String>>,
    pub(crate) stream: Option<bool>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) tools: Option<Vec<AnthropicTool>>,
    pub(crate) tool_choice: Option<AnthropicToolChoice>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) output_config: Option<OutputConfig>,
    pub(crate) context_management: Option<ContextManagement>,
    /// Accepted; prefixes are always cached.
    pub(crate) cache_control: Option<Value>,
    /// Accepted; has no effect.
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Accepted; there is one tier.
    pub(crate) service_tier: Option<String>,
}

/// What the answer must be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`, for templates that know efforts.
    pub(crate) effort: Option<String>,
    pub(crate) format: Option<OutputFormat>,
}

/// A JSON schema of the answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) schema: Value,
}

/// What becomes of earlier parts of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContextManagement {
    pub(crate) edits: Option<Vec<ContextEdit>>,
}

/// A change of earlier messages.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ContextEdit {
    /// `clear_thinking_20251015`: others are refused.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Whose thoughts stay: those of the last turn by default.
    pub(crate) keep: Option<KeptThoughts>,
    /// Fields of other kinds, or unknown ones, which are refused.
    #[serde(flatten)]
    #[schema(ignore)]
    pub(crate) others: Map<String, Value>,
}

/// The turns of the assistant that keep their thoughts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected \"all\" or an object with a type")]
pub(crate) enum KeptThoughts {
    Word(String),
    Turns(KeptTurns),
}

/// All turns, or the last ones.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptTurns {
    /// `all` or `thinking_turns`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// How many of the last turns, with `thinking_turns`; at least 1.
    pub(crate) value: Option<u64>,
}

/// A conversation whose tokens are counted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct CountRequest {
    pub(crate) model: String,
    #[schema(value_type = Vec<InputMessage>)]
    pub(crate) messages: List<InputMessage, MAX_MESSAGES>,
    pub(crate) system: Option<Blocks>,
    pub(crate) tools: Option<Vec<AnthropicTool>>,
    pub(crate) tool_choice: Option<AnthropicToolChoice>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) output_config: Option<OutputConfig>,
    pub(crate) context_management: Option<ContextManagement>,
    /// Accepted; prefixes are always cached.
    pub(crate) cache_control: Option<Value>,
}

/// Tokens of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CountResponse {
    pub(crate) input_tokens: usize,
}

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputMessage {
    /// `user`, `assistant` or `system`.
    pub(crate) role: String,
    pub(crate) content: Blocks,
}

/// A text, or blocks of content.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of content blocks")]
pub(crate) enum Blocks {
    Text(String),
    Blocks(Vec<InputBlock>),
}

/// A block of content.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InputBlock {
    /// `text`, `tool_use`, `tool_result`, `thinking` or `redacted_thinking`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) input: Option<Value>,
    pub(crate) tool_use_id: Option<String>,
    /// The result of a tool: a text, or text blocks.
    #[schema(value_type = Option<Object>)]
    pub(crate) content: Option<Box<Blocks>>,
    pub(crate) thinking: Option<String>,
    /// Whether the result of a tool says that it failed.
    pub(crate) is_error: Option<bool>,
    /// Fields of answers that a client sends back, of other kinds, or unknown ones, which are refused.
    #[serde(flatten)]
    #[schema(ignore)]
    pub(crate) others: Map<String, Value>,
}

/// A tool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct AnthropicTool {
    /// `custom`, also without a type.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) input_schema: Option<Value>,
    /// Whether the arguments must be what the schema says.
    pub(crate) strict: Option<bool>,
    /// Accepted: arguments are always streamed as they are written.
    pub(crate) eager_input_streaming: Option<bool>,
    /// Accepted; prefixes are always cached.
    pub(crate) cache_control: Option<Value>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnthropicToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

/// Whether the model thinks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct Thinking {
    /// `enabled`, `disabled` or `adaptive`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Accepted: thoughts count as tokens of the answer, and `max_tokens` limits both.
    pub(crate) budget_tokens: Option<i64>,
    /// `summarized` shows thoughts as they are; `omitted` leaves their text out.
    pub(crate) display: Option<String>,
}

impl Thinking {
    /// Whether the text of thoughts is left out of the answer.
    pub(crate) fn hidden(thinking: Option<&Thinking>) -> Result<bool, ApiError> {
        match thinking.and_then(|thinking| thinking.display.as_deref()) {
            None | Some("summarized") => Ok(false),
            Some("omitted") => Ok(true),
            Some(other) => {
                let message = format!("thinking.display: expected summarized or omitted, got {other:?}");
                Err(ApiError::field("thinking.display", message))
            }
        }
    }
}

/// A message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageResponse {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) role: &'static str,
    pub(crate) model: String,
    pub(crate) content: Vec<OutputBlock>,
    pub(crate) stop_reason: Option<&'static str>,
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: MessageUsage,
}

/// A block of an answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputBlock {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Value },
}

/// Tokens of a message.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct MessageUsage {
    /// Without those from the cache.
    pub(crate) input_tokens: usize,
    pub(crate) cache_creation_input_tokens: usize,
    pub(crate) cache_read_input_tokens: usize,
    pub(crate) output_tokens: usize,
}

impl From<TokenUsage> for MessageUsage {
    fn from(usage: TokenUsage) -> MessageUsage {
        MessageUsage {
            input_tokens: usage.prompt - usage.cached.min(usage.prompt),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached,
            output_tokens: usage.generated,
        }
    }
}

/// Anthropic's names of the reasons, and the stop string.
pub(crate) fn stop_reason(reason: &EndReason) -> (&'static str, Option<String>) {
    match reason {
        EndReason::Stop => ("end_turn", None),
        EndReason::StopString(stop) => ("stop_sequence", Some(stop.clone())),
        EndReason::Length => ("max_tokens", None),
        EndReason::ToolCalls => ("tool_use", None),
    }
}
