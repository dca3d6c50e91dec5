//! `/api/chat`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use fulmen_model::template::Message;
use serde_json::{Value, json};

use super::generate::loaded_or_unloaded;
use super::stream::{Form, LineEncoder};
use super::types::{
    KeepAlive, OllamaCall, OllamaChatLine, OllamaChatRequest, OllamaMessage, OllamaOptions, Think,
    refuse_cuts, wanted_logprobs,
};
use crate::app::{App, Caller};
use crate::body::Json;
use crate::error::ApiError;
use crate::generation::{ChatInput, Choices, GenerationParams, Prompt, Streaming, stream};
use crate::openai::messages::tool_specs;
use crate::registry::Lease;

/// Answers a conversation.
#[utoipa::path(post, path = "/api/chat", tag = "ollama", request_body = OllamaChatRequest,
    responses((status = 200, body = OllamaChatLine), (status = 400), (status = 404)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<OllamaChatRequest>,
) -> Result<Response, ApiError> {
    if request.messages.0.is_empty() {
        return loaded_or_unloaded(&app, &request.model, request.keep_alive, Form::Chat).await;
    }
    refuse_cuts(request.truncate, request.shift)?;
    let logprobs = wanted_logprobs(request.logprobs, request.top_logprobs)?;
    let started = Instant::now();
    let lease = app.registry.acquire(Some(&request.model)).await?;
    let load = started.elapsed();
    keep_alive(&app, &request.model, request.keep_alive)?;
    let limits = &app.options.limits;
    let messages = request.messages.0.into_iter().enumerate();
    let (thinking, effort) = Think::read(request.think.as_ref())?;
    let mut input = ChatInput {
        messages: messages
            .map(|(index, message)| template_message(index, message))
            .collect::<Result<_, _>>()?,
        tools: tool_specs(request.tools, limits.tools)?,
        several_calls: true,
        thinking,
        variables: effort.into_iter().collect(),
        ..ChatInput::default()
    };
    let mut fields = OllamaOptions::fields(request.options, request.format, &lease)?;
    fields.grammar = input.constraint(&*lease, fields.grammar.take())?;
    fields.logprobs = logprobs;
    let params = fields.resolve(&lease.spec().defaults, &*lease, limits)?;
    let prompt = input.prompt(&lease, params.grammar.is_some()).await?;
    let encoder = LineEncoder::new(&lease.spec().name, Form::Chat, load, logprobs.is_some());
    answer(&app, lease, prompt, &params, &caller, request.stream, encoder).await
}

/// Sets how long the model stays loaded, if the request says so.
pub(super) fn keep_alive(app: &App, model: &str, time: Option<KeepAlive>) -> Result<(), ApiError> {
    match time {
        Some(time) => app.registry.set_keep_alive(Some(model), time.time()?),
        None => Ok(()),
    }
}

/// Generates and answers, as lines or as one.
pub(super) async fn answer(
    app: &App,
    lease: Lease,
    prompt: Prompt,
    params: &GenerationParams,
    caller: &Caller,
    streamed: Option<bool>,
    encoder: LineEncoder,
) -> Result<Response, ApiError> {
    let mut choices = Choices::start(lease, &[prompt], params, caller, &app.metrics).await?;
    if streamed != Some(false) {
        choices.first().await?;
        return Ok(stream(choices, encoder, Streaming::JsonLines));
    }
    let answer = choices.collect().await?.pop();
    let answer = answer.ok_or_else(|| ApiError::internal("there is no answer"))?;
    Ok(json_bytes(encoder.whole(answer)))
}

/// JSON that is written already.
pub(super) fn json_bytes(bytes: Vec<u8>) -> Response {
    let mut response = Response::new(bytes.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn template_message(index: usize, message: OllamaMessage) -> Result<Message, ApiError> {
    let param = format!("messages[{index}]");
    if !["system", "user", "assistant", "tool"].contains(&message.role.as_str()) {
        let error = format!("{param}.role: expected system, user, assistant or tool, got {:?}", message.role);
        return Err(ApiError::field(format!("{param}.role"), error));
    }
    if message.images.is_some_and(|images| !images.is_empty()) {
        return Err(ApiError::unsupported(&format!("{param}.images"), "only text is read"));
    }
    let mut fields = Vec::new();
    if let Some(calls) = message.tool_calls.filter(|calls| !calls.is_empty()) {
        let calls = calls.into_iter().map(|OllamaCall { id, function, .. }| match id {
            Some(id) => json!({ "type": "function", "id": id, "function": function }),
            None => json!({ "type": "function", "function": function }),
        });
        fields.push(("tool_calls".to_owned(), Value::Array(calls.collect())));
    }
    let texts = [
        ("reasoning_content", message.thinking),
        ("name", message.tool_name),
        ("tool_call_id", message.tool_call_id),
    ];
    fields.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text?)))));
    Ok(Message { role: message.role, content: message.content.unwrap_or_default(), fields })
}
