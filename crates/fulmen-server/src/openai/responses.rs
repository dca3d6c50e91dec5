//! `/v1/responses`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fulmen_model::template::ToolCall;
use serde_json::{Value, json};

use super::responses_input::{chat_input, grammar, refuse_unsupported, repeated};
use super::responses_stream::ResponsesEncoder;
use super::responses_tools::Namespaces;
use super::responses_types::{ResponsesRequest, ResponsesUsage};
use super::wire::StreamOptions;
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::{Choices, EndReason, Ending, SamplingFields, Streaming, stream};
use crate::ids;

/// Answers a conversation. Nothing is stored.
#[utoipa::path(post, path = "/v1/responses", tag = "openai", request_body = ResponsesRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 404), (status = 429)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(mut request): Json<ResponsesRequest>,
) -> Result<Response, ApiError> {
    refuse_unsupported(&request)?;
    StreamOptions::includes_usage(request.stream_options.as_ref(), request.stream == Some(true))?;
    let mut head = repeated(&request);
    let namespaces = Namespaces::of(request.tools.as_deref());
    let lease = app.registry.acquire(request.model.as_deref()).await?;
    let limits = &app.options.limits;
    let mut input = chat_input(&mut request, limits.tools)?;
    let format = grammar(request.text.take())?.map(|grammar| ("text.format", grammar));
    let fields = SamplingFields {
        temperature: request.temperature,
        top_p: request.top_p,
        max_tokens: request.max_output_tokens.map(|limit| ("max_output_tokens", limit)),
        grammar: input.constraint(&*lease, format)?,
        ..SamplingFields::default()
    };
    let params = fields.resolve(&lease.spec().defaults, &*lease, limits)?;
    let mut prompt = input.prompt(&lease, params.grammar.is_some()).await?;
    if request.stream == Some(true) {
        prompt = prompt.with_call_pieces();
    }
    head["id"] = json!(ids::unique("resp_"));
    head["created_at"] = json!(ids::now());
    head["model"] = json!(lease.spec().name);
    let mut choices = Choices::start(lease, &[prompt], &params, &caller, &app.metrics).await?;
    if request.stream == Some(true) {
        choices.first().await?;
        let encoder = ResponsesEncoder::new(head, namespaces);
        return Ok(stream(choices, encoder, Streaming::Sse { keep_alive: app.options.keep_alive }));
    }
    let Some(answer) = choices.collect().await?.pop() else {
        return Err(ApiError::internal("there is no answer"));
    };
    let mut output = Vec::new();
    if !answer.reasoning.is_empty() {
        output.push(reasoning_item(&ids::unique("rs_"), &answer.reasoning));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        output.push(message_item(&ids::unique("msg_"), &answer.content));
    }
    let item = |call: &ToolCall| {
        let item = CallItem {
            id: &ids::unique("fc_"),
            call_id: &ids::unique("call_"),
            name: &call.name,
            namespace: namespaces.get(&call.name),
        };
        item.json("completed", &call.arguments_json())
    };
    output.extend(answer.calls.iter().map(item));
    Ok(json_response(&finished(head, output, &answer.ending)))
}

/// A finished response.
pub(super) fn finished(mut head: Value, output: Vec<Value>, ending: &Ending) -> Value {
    let cut = ending.reason == EndReason::Length;
    head["status"] = json!(if cut { "incomplete" } else { "completed" });
    if cut {
        head["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    }
    head["output"] = Value::Array(output);
    head["usage"] = json!(ResponsesUsage::from(ending.usage));
    head
}

pub(super) fn reasoning_item(id: &str, text: &str) -> Value {
    let content = json!([{ "type": "reasoning_text", "text": text }]);
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": "completed" })
}

pub(super) fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

pub(super) fn message_item(id: &str, text: &str) -> Value {
    let content = [text_part(text)];
    json!({
        "id": id, "type": "message", "role": "assistant", "status": "completed", "content": content,
    })
}

/// What stays the same of a call while it is written.
pub(super) struct CallItem<'a> {
    pub(super) id: &'a str,
    pub(super) call_id: &'a str,
    pub(super) name: &'a str,
    pub(super) namespace: Option<&'a str>,
}

impl CallItem<'_> {
    /// The item, with these arguments.
    pub(super) fn json(&self, status: &str, arguments: &str) -> Value {
        let mut item = json!({
            "id": self.id, "type": "function_call", "status": status, "call_id": self.call_id,
            "name": self.name, "arguments": arguments,
        });
        if let Some(namespace) = self.namespace {
            item["namespace"] = json!(namespace);
        }
        item
    }
}
