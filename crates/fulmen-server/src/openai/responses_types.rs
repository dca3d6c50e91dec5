//! Wire types of `/v1/responses`. Answers are written as JSON values: they repeat the request's fields.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat_types::{Content, MAX_MESSAGES};
use crate::body::List;
use crate::generation::TokenUsage;

/// A request for a response.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct ResponsesRequest {
    pub(crate) model: Option<String>,
    pub(crate) input: ResponsesInput,
    /// A system prompt.
    pub(crate) instructions: Option<String>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<super::wire::StreamOptions>,
    pub(crate) max_output_tokens: Option<i64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) tools: Option<Vec<ResponsesTool>>,
    pub(crate) tool_choice: Option<ResponsesToolChoice>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) text: Option<TextOptions>,
    pub(crate) reasoning: Option<ReasoningOptions>,
    /// Nothing is stored: `true` is refused.
    pub(crate) store: Option<bool>,
    /// Not supported: nothing is stored.
    pub(crate) previous_response_id: Option<String>,
    /// Only `disabled`.
    pub(crate) truncation: Option<String>,
    /// Only `reasoning.encrypted_content`, which has no effect: thoughts are in the items as text.
    pub(crate) include: Option<Vec<String>>,
    /// Only `false`.
    pub(crate) background: Option<bool>,
    /// Repeated in the answer.
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Accepted; has no effect.
    pub(crate) user: Option<String>,
    /// Accepted; there is one tier.
    pub(crate) service_tier: Option<String>,
    /// Accepted; has no effect.
    pub(crate) safety_identifier: Option<String>,
    /// Accepted; prefixes are always cached.
    pub(crate) prompt_cache_key: Option<String>,
    /// Accepted; cached prefixes stay as long as there is room.
    pub(crate) prompt_cache_retention: Option<String>,
    /// Accepted; prefixes are always cached.
    pub(crate) prompt_cache_options: Option<Value>,
    /// Not supported: log-probabilities are in chat completions.
    pub(crate) top_logprobs: Option<i64>,
    /// Accepted: it limits the calls of built-in tools, of which there are none.
    pub(crate) max_tool_calls: Option<i64>,
    /// Accepted; has no effect.
    pub(crate) client_metadata: Option<Map<String, Value>>,
}

/// A text or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of items")]
pub(crate) enum ResponsesInput {
    Text(String),
    #[schema(value_type = Vec<InputItem>)]
    Items(List<InputItem, MAX_MESSAGES>),
}

/// A message, a call of a tool, its result, or thoughts.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InputItem {
    /// `message` (also without a type), `function_call`, `function_call_output` or `reasoning`.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) content: Option<Content>,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
    pub(crate) output: Option<Content>,
    /// Fields of answers that a client sends back, of other kinds, or unknown ones, which are refused.
    #[serde(flatten)]
    #[schema(ignore)]
    pub(crate) others: Map<String, Value>,
}

/// A function that the model may call, or several with a name for all.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponsesTool {
    /// `function` or `namespace`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameters: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) strict: Option<bool>,
    /// The functions of a namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(crate) tools: Option<Vec<ResponsesTool>>,
}

/// Whether tools are called.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected \"none\", \"auto\", \"required\", a function or allowed_tools")]
pub(crate) enum ResponsesToolChoice {
    Mode(String),
    Function(NamedChoice),
    Allowed(AllowedChoice),
}

/// The tools that may be called. The model is told of no others.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowedChoice {
    /// `allowed_tools`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `auto` or `required`.
    pub(crate) mode: String,
    pub(crate) tools: Vec<NamedChoice>,
}

/// A tool that must be called.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedChoice {
    /// `function`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// The form of the text.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextOptions {
    pub(crate) format: Option<TextFormat>,
    /// Not supported.
    pub(crate) verbosity: Option<String>,
}

/// What the text must be.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) schema: Option<Value>,
    pub(crate) strict: Option<bool>,
}

/// Whether the model thinks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasoningOptions {
    pub(crate) effort: Option<String>,
    /// Only `auto`, which here means none.
    pub(crate) summary: Option<String>,
    /// The older name of `summary`.
    pub(crate) generate_summary: Option<String>,
}

/// Tokens of a response.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ResponsesUsage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

/// Where the tokens of the input came from.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct InputDetails {
    cached_tokens: usize,
}

/// What the tokens of the output were.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct OutputDetails {
    reasoning_tokens: usize,
}

impl From<TokenUsage> for ResponsesUsage {
    fn from(usage: TokenUsage) -> ResponsesUsage {
        ResponsesUsage {
            input_tokens: usage.prompt,
            input_tokens_details: InputDetails { cached_tokens: usage.cached },
            output_tokens: usage.generated,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning },
            total_tokens: usage.prompt + usage.generated,
        }
    }
}
