//! Wire types of Ollama's API.

use std::time::Duration;

use fulmen_model::template::ToolCall;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::body::List;
use crate::error::ApiError;
use crate::generation::{EndReason, Ending, SamplingFields};
use crate::ids;
use crate::openai::chat_types::{MAX_MESSAGES, Tool};
use crate::openai::messages::effort_variable;
use crate::openai::wire::{ChatTokenLogprob, StopParam};
use crate::registry::{LONGEST_KEEP_ALIVE, Lease};
use crate::served::Grammar;

/// A request for a chat.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaChatRequest {
    pub(crate) model: String,
    #[serde(default)]
    #[schema(value_type = Vec<OllamaMessage>)]
    pub(crate) messages: List<OllamaMessage, MAX_MESSAGES>,
    pub(crate) tools: Option<Vec<Tool>>,
    /// `json` or a JSON schema.
    pub(crate) format: Option<Value>,
    #[serde(default, deserialize_with = "options")]
    pub(crate) options: Option<OllamaOptions>,
    /// True by default.
    pub(crate) stream: Option<bool>,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) think: Option<Think>,
    pub(crate) logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<i64>,
    /// Only `false`: conversations are not cut.
    pub(crate) truncate: Option<bool>,
    /// Only `false`: answers end with the context.
    pub(crate) shift: Option<bool>,
}

/// A request for a text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaGenerateRequest {
    pub(crate) model: String,
    /// Empty: the model is loaded, or unloaded with a `keep_alive` of 0.
    pub(crate) prompt: Option<String>,
    pub(crate) system: Option<String>,
    /// Whether the prompt is used without the chat template.
    pub(crate) raw: Option<bool>,
    pub(crate) format: Option<Value>,
    #[serde(default, deserialize_with = "options")]
    pub(crate) options: Option<OllamaOptions>,
    /// True by default.
    pub(crate) stream: Option<bool>,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) think: Option<Think>,
    pub(crate) logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<i64>,
    /// Only `false`: prompts are not cut.
    pub(crate) truncate: Option<bool>,
    /// Only `false`: answers end with the context.
    pub(crate) shift: Option<bool>,
    /// Not supported.
    pub(crate) suffix: Option<String>,
    /// Not supported.
    pub(crate) template: Option<String>,
    /// Not supported.
    pub(crate) images: Option<Vec<String>>,
    /// Not supported.
    pub(crate) context: Option<Vec<i64>>,
}

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaMessage {
    pub(crate) role: String,
    pub(crate) content: Option<String>,
    pub(crate) thinking: Option<String>,
    pub(crate) tool_calls: Option<Vec<OllamaCall>>,
    pub(crate) tool_name: Option<String>,
    pub(crate) tool_call_id: Option<String>,
    /// Not supported.
    pub(crate) images: Option<Vec<String>>,
}

/// A call of a tool.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    pub(crate) function: OllamaFunction,
}

/// The function of a call.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaFunction {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
    /// The number of the call in its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    /// Of a client that sends the tool's description back.
    #[serde(skip_serializing)]
    #[allow(dead_code)]
    pub(crate) description: Option<String>,
}

impl OllamaCall {
    /// The call with this number in its answer.
    pub(super) fn new(call: ToolCall, index: usize) -> OllamaCall {
        let ToolCall { name, arguments } = call;
        let function = OllamaFunction { name, arguments, index: Some(index), description: None };
        OllamaCall { id: Some(ids::unique("call_")), kind: None, function }
    }
}

/// Refuses that a prompt is cut, or the beginning of a context dropped, to make room.
pub(super) fn refuse_cuts(truncate: Option<bool>, shift: Option<bool>) -> Result<(), ApiError> {
    match (truncate, shift) {
        (Some(true), _) => Err(ApiError::unsupported("truncate", "what is too long is refused")),
        (_, Some(true)) => Err(ApiError::unsupported("shift", "an answer ends where the context does")),
        _ => Ok(()),
    }
}

/// How many of the most likely tokens are wanted, if log-probabilities are.
pub(super) fn wanted_logprobs(logprobs: Option<bool>, top: Option<i64>) -> Result<Option<i64>, ApiError> {
    match (logprobs, top) {
        (Some(true), top) => Ok(Some(top.unwrap_or(0))),
        (_, None | Some(0)) => Ok(None),
        _ => Err(ApiError::field("top_logprobs", "top_logprobs: only with logprobs: true")),
    }
}

/// Options as clients write them: some write `null` for each one that they do not set.
pub(super) fn options<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OllamaOptions>, D::Error> {
    let Some(mut fields) = Option::<Map<String, Value>>::deserialize(deserializer)? else { return Ok(None) };
    fields.retain(|_, value| !value.is_null());
    let options = serde_path_to_error::deserialize(Value::Object(fields));
    options.map(Some).map_err(|error| D::Error::custom(format_args!("{}: {}", error.path(), error.inner())))
}

/// Options of generation.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaOptions {
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    stop: Option<StopParam>,
    /// −1 for no limit.
    num_predict: Option<i64>,
    repeat_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    /// At most the context that the model was loaded with.
    num_ctx: Option<i64>,
}

/// How long a model stays loaded: seconds, or a text such as `5m`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected seconds or a text such as \"5m\"")]
pub(crate) enum KeepAlive {
    Seconds(f64),
    Text(String),
}

/// Whether the model thinks: a flag or an effort.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected true, false, or an effort such as \"high\"")]
pub(crate) enum Think {
    Flag(bool),
    Effort(String),
}

/// A variable of a chat template.
type Variable = (String, Value);

impl Think {
    /// Whether the model thinks, and the variable of its template that says how much.
    pub(crate) fn read(think: Option<&Think>) -> Result<(Option<bool>, Option<Variable>), ApiError> {
        match think {
            None => Ok((None, None)),
            Some(Think::Flag(flag)) => Ok((Some(*flag), None)),
            Some(Think::Effort(effort)) if ["low", "medium", "high"].contains(&effort.as_str()) => {
                Ok((Some(true), effort_variable(Some(effort))))
            }
            Some(Think::Effort(effort)) => {
                let message = format!("think: expected true, false, low, medium or high, got {effort:?}");
                Err(ApiError::field("think", message))
            }
        }
    }
}

impl KeepAlive {
    /// The time; `None` for ever.
    pub(crate) fn time(&self) -> Result<Option<Duration>, ApiError> {
        let wrong = |got: &dyn std::fmt::Debug| {
            let message = format!("keep_alive: expected seconds or a text such as 5m, got {got:?}");
            ApiError::field("keep_alive", message)
        };
        let seconds = match self {
            KeepAlive::Seconds(seconds) => *seconds,
            KeepAlive::Text(text) => {
                let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let unit = match &text[digits.len()..] {
                    "ms" => 0.001,
                    "" | "s" => 1.0,
                    "m" => 60.0,
                    "h" => 3600.0,
                    _ => return Err(wrong(text)),
                };
                digits.parse::<f64>().map_err(|_| wrong(text))? * unit
            }
        };
        if seconds < 0.0 {
            return Ok(None);
        }
        let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong(&seconds))?;
        Ok(Some(time.min(LONGEST_KEEP_ALIVE)))
    }
}

impl OllamaOptions {
    /// The context is that of the loaded model; requests may ask for less, which changes nothing.
    pub(crate) fn check_context(&self, lease: &Lease) -> Result<(), ApiError> {
        let context = i64::from(lease.context());
        match self.num_ctx.filter(|asked| !(1..=context).contains(asked)) {
            None => Ok(()),
            Some(asked) => {
                let message = format!("num_ctx: expected 1 to {context}, the loaded context, got {asked}");
                Err(ApiError::field("options.num_ctx", message))
            }
        }
    }

    /// The parameters of sampling, with Ollama's defaults.
    pub(crate) fn fields(
        options: Option<OllamaOptions>,
        format: Option<Value>,
        lease: &Lease,
    ) -> Result<SamplingFields, ApiError> {
        let options = options.unwrap_or_default();
        options.check_context(lease)?;
        let defaults = &lease.spec().defaults;
        // No limit also lifts that of a preset: the context is what is left.
        let max_tokens =
            options.num_predict.map(|limit| if matches!(limit, -1 | -2) { i64::MAX } else { limit });
        Ok(SamplingFields {
            temperature: options.temperature.or(defaults.temperature).or(Some(0.8)),
            top_k: options.top_k.or(defaults.top_k).or(Some(40)),
            top_p: options.top_p.or(defaults.top_p).or(Some(0.9)),
            min_p: options.min_p,
            seed: options.seed,
            stop_name: Some("options.stop"),
            stop: StopParam::strings(options.stop),
            max_tokens: max_tokens.map(|limit| ("options.num_predict", limit)),
            repetition_penalty: options.repeat_penalty,
            repeat_window: options.repeat_last_n.or(Some(64)),
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            grammar: grammar(format)?.map(|grammar| ("format", grammar)),
            ..SamplingFields::default()
        })
    }
}

fn grammar(format: Option<Value>) -> Result<Option<Grammar>, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Grammar::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema))),
        Some(other) => {
            let message = format!("format: expected \"json\" or a JSON schema, got {other}");
            Err(ApiError::field("format", message))
        }
    }
}

/// Counts and times of the last line, in nanoseconds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEnd {
    done_reason: &'static str,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

impl OllamaEnd {
    /// The end of an answer whose model took `load` to be there.
    pub(crate) fn new(ending: &Ending, load: Duration) -> OllamaEnd {
        let nanos = |time: Duration| time.as_nanos() as u64;
        OllamaEnd {
            done_reason: match ending.reason {
                EndReason::Length => "length",
                _ => "stop",
            },
            total_duration: nanos(load + ending.prefill + ending.decode),
            load_duration: nanos(load),
            prompt_eval_count: ending.usage.prompt,
            prompt_eval_duration: nanos(ending.prefill),
            eval_count: ending.usage.generated,
            eval_duration: nanos(ending.decode),
        }
    }
}

/// A line of a chat.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaChatLine {
    pub(crate) model: String,
    pub(crate) created_at: String,
    pub(crate) message: OllamaAnswer,
    /// The tokens of this line, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<Vec<ChatTokenLogprob>>,
    pub(crate) done: bool,
    #[serde(flatten)]
    pub(crate) end: Option<OllamaEnd>,
}

/// The message of an answer.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct OllamaAnswer {
    pub(crate) role: &'static str,
    pub(crate) content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<OllamaCall>,
}

/// A line of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaTextLine {
    pub(crate) model: String,
    pub(crate) created_at: String,
    pub(crate) response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) thinking: String,
    /// The tokens of this line, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<Vec<ChatTokenLogprob>>,
    pub(crate) done: bool,
    #[serde(flatten)]
    pub(crate) end: Option<OllamaEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_ollama_writes_them() {
        let time = |text: &str| KeepAlive::Text(text.to_owned()).time();
        assert_eq!(time("5m").unwrap(), Some(Duration::from_secs(300)));
        assert_eq!(time("1.5h").unwrap(), Some(Duration::from_secs(5400)));
        assert_eq!(time("250ms").unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(time("-1").unwrap(), None);
        assert_eq!(KeepAlive::Seconds(1e19).time().unwrap(), Some(LONGEST_KEEP_ALIVE));
        assert_eq!(KeepAlive::Seconds(0.0).time().unwrap(), Some(Duration::ZERO));
        assert!(time("soon").is_err() && time("").is_err() && KeepAlive::Seconds(1e300).time().is_err());
    }
}
