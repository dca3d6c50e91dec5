//! Wire types that several endpoints share.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorShape};
use crate::generation::{Answer, EndReason, TokenLogprob, TokenUsage, sse_data};
use crate::served::Grammar;

/// One stop string or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum StopParam {
    One(String),
    Many(Vec<String>),
}

impl StopParam {
    pub(crate) fn strings(stop: Option<StopParam>) -> Vec<String> {
        match stop {
            None => Vec::new(),
            Some(StopParam::One(stop)) => vec![stop],
            Some(StopParam::Many(stops)) => stops,
        }
    }
}

/// Options of a stream.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk has the usage of the whole request.
    pub(crate) include_usage: Option<bool>,
    /// Accepted; nothing is obfuscated.
    #[allow(dead_code)]
    pub(crate) include_obfuscation: Option<bool>,
}

impl StreamOptions {
    /// Whether a stream ends with its usage. Without a stream, there must be no options.
    pub(crate) fn includes_usage(options: Option<&StreamOptions>, stream: bool) -> Result<bool, ApiError> {
        if options.is_some() && !stream {
            return Err(ApiError::field("stream_options", "stream_options: only with stream: true"));
        }
        Ok(options.and_then(|options| options.include_usage) == Some(true))
    }
}

/// The fields of sampling that requests for chats and completions call the same.
macro_rules! shared_sampling_fields {
    ($request:ident) => {
        SamplingFields {
            temperature: $request.temperature,
            top_p: $request.top_p,
            top_k: $request.top_k,
            min_p: $request.min_p,
            frequency_penalty: $request.frequency_penalty,
            presence_penalty: $request.presence_penalty,
            repetition_penalty: $request.repetition_penalty,
            seed: $request.seed,
            stop: StopParam::strings($request.stop.take()),
            logit_bias: $request.logit_bias.take().unwrap_or_default().into_iter().collect(),
            n: $request.n,
            ignore_eos: $request.ignore_eos == Some(true),
            grammar: ResponseFormat::grammar($request.response_format.take())?
                .map(|grammar| ("response_format", grammar)),
            ..SamplingFields::default()
        }
    };
}
pub(super) use shared_sampling_fields;

/// The last event of a stream.
pub(crate) fn sse_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// An error after a stream has begun, and the last event.
pub(crate) fn sse_error(error: &ApiError, out: &mut Vec<u8>) {
    sse_data(&error.json(ErrorShape::OpenAi), out);
    sse_done(out);
}

/// What the answer must be.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`, `regex` or `grammar`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) json_schema: Option<JsonSchemaFormat>,
    /// The regular expression of `regex`.
    pub(crate) pattern: Option<String>,
    /// The grammar of `grammar`, in Lark's syntax.
    pub(crate) grammar: Option<String>,
}

/// A JSON schema with a name.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct JsonSchemaFormat {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) schema: Option<serde_json::Value>,
    pub(crate) strict: Option<bool>,
}

impl ResponseFormat {
    /// The grammar of a format; `None` for any text.
    pub(crate) fn grammar(format: Option<ResponseFormat>) -> Result<Option<Grammar>, ApiError> {
        let Some(format) = format else { return Ok(None) };
        let missing = |what: &str| {
            let message = format!("response_format of type {:?} needs {what}", format.kind);
            ApiError::field("response_format", message)
        };
        match format.kind.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Grammar::JsonObject)),
            "json_schema" => {
                let schema = format.json_schema.as_ref().and_then(|named| named.schema.clone());
                Ok(Some(Grammar::JsonSchema(schema.ok_or_else(|| missing("json_schema.schema"))?)))
            }
            "regex" => Ok(Some(Grammar::Regex(format.pattern.clone().ok_or_else(|| missing("pattern"))?))),
            "grammar" => Ok(Some(Grammar::Lark(format.grammar.clone().ok_or_else(|| missing("grammar"))?))),
            other => {
                let known = "text, json_object, json_schema, regex or grammar";
                let message = format!("response_format: expected {known}, got {other:?}");
                Err(ApiError::field("response_format", message))
            }
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

/// Where prompt tokens came from.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Tokens from the prefix cache.
    pub(crate) cached_tokens: usize,
}

/// What generated tokens were.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionDetails {
    /// Tokens of thoughts.
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    /// Adds an answer. The `n` choices of a prompt share it: it counts once.
    pub(crate) fn add(&mut self, usage: TokenUsage, first_of_prompt: bool) {
        if first_of_prompt {
            self.prompt_tokens += usage.prompt;
            self.prompt_tokens_details.cached_tokens += usage.cached;
        }
        self.completion_tokens += usage.generated;
        self.completion_tokens_details.reasoning_tokens += usage.reasoning;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }

    /// The usage of all answers, `n` for each prompt.
    pub(crate) fn of(answers: &[Answer], n: usize) -> Usage {
        let mut usage = Usage::default();
        for (index, answer) in answers.iter().enumerate() {
            usage.add(answer.ending.usage, index.is_multiple_of(n.max(1)));
        }
        usage
    }
}

/// OpenAI's names of the reasons.
pub(crate) fn finish_reason(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Stop | EndReason::StopString(_) => "stop",
        EndReason::Length => "length",
        EndReason::ToolCalls => "tool_calls",
    }
}

/// JSON has no infinity: a token that cannot come has this value.
pub(crate) fn finite_logprob(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// Log-probabilities of a chat completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatTokenLogprob>,
    refusal: Option<String>,
}

/// A token of a chat completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatTokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    pub(crate) fn new(tokens: &[TokenLogprob]) -> ChatLogprobs {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let top = |(bytes, logprob): &(Vec<u8>, f32)| TopLogprob {
            token: text(bytes),
            logprob: finite_logprob(*logprob),
            bytes: bytes.clone(),
        };
        let content = tokens.iter().map(|token| ChatTokenLogprob {
            token: text(&token.bytes),
            logprob: finite_logprob(token.logprob.unwrap_or(f32::NEG_INFINITY)),
            bytes: token.bytes.clone(),
            top_logprobs: token.top.iter().map(top).collect(),
        });
        ChatLogprobs { content: content.collect(), refusal: None }
    }

    /// The tokens.
    pub(crate) fn into_tokens(self) -> Vec<ChatTokenLogprob> {
        self.content
    }
}
