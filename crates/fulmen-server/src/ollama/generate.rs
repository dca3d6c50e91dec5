//! `/api/generate`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use axum::response::Response;
use fulmen_model::template::Message;
use fulmen_model::tokenizer::Special;
use serde_json::json;

use super::chat::{answer, keep_alive};
use super::stream::{Form, LineEncoder};
use super::types::{
    KeepAlive, OllamaGenerateRequest, OllamaOptions, OllamaTextLine, Think, refuse_cuts, wanted_logprobs,
};
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::{ChatInput, Prompt, tokenize};
use crate::time::rfc3339;

/// Answers a prompt, loads a model, or unloads it.
#[utoipa::path(post, path = "/api/generate", tag = "ollama", request_body = OllamaGenerateRequest,
    responses((status = 200, body = OllamaTextLine), (status = 400), (status = 404)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<OllamaGenerateRequest>,
) -> Result<Response, ApiError> {
    refuse_unsupported(&request)?;
    refuse_cuts(request.truncate, request.shift)?;
    let logprobs = wanted_logprobs(request.logprobs, request.top_logprobs)?;
    let text = request.prompt.unwrap_or_default();
    if text.is_empty() {
        return loaded_or_unloaded(&app, &request.model, request.keep_alive, Form::Text).await;
    }
    let started = Instant::now();
    let lease = app.registry.acquire(Some(&request.model)).await?;
    let load = started.elapsed();
    keep_alive(&app, &request.model, request.keep_alive)?;
    let mut fields = OllamaOptions::fields(request.options, request.format, &lease)?;
    fields.logprobs = logprobs;
    let params = fields.resolve(&lease.spec().defaults, &*lease, &app.options.limits)?;
    let plain = request.raw == Some(true) || lease.chat_template().is_none();
    let (thinking, effort) = Think::read(request.think.as_ref())?;
    if plain && thinking == Some(true) {
        return Err(ApiError::unsupported("think", "there is no chat template that asks for thoughts"));
    }
    let prompt = match plain {
        true if request.system.is_some() => {
            return Err(ApiError::unsupported("system", "there is no chat template to put it into"));
        }
        true => Prompt::tokens(tokenize(&lease, text, Special::AsText).await?),
        false => {
            let system = request.system.map(Message::system);
            let messages = system.into_iter().chain([Message::user(text)]).collect();
            let variables = effort.into_iter().collect();
            ChatInput { messages, thinking, variables, ..ChatInput::default() }
                .prompt(&lease, params.grammar.is_some())
                .await?
        }
    };
    let encoder = LineEncoder::new(&lease.spec().name, Form::Text, load, logprobs.is_some());
    answer(&app, lease, prompt, &params, &caller, request.stream, encoder).await
}

fn refuse_unsupported(request: &OllamaGenerateRequest) -> Result<(), ApiError> {
    let refused = [
        ("suffix", request.suffix.as_ref().is_some_and(|text| !text.is_empty()), "text is only continued"),
        ("template", request.template.as_ref().is_some_and(|text| !text.is_empty()), "the model has its own"),
        ("images", request.images.as_ref().is_some_and(|list| !list.is_empty()), "only text is read"),
        ("context", request.context.as_ref().is_some_and(|list| !list.is_empty()), "use /api/chat"),
    ];
    match refused.into_iter().find(|(_, refused, _)| *refused) {
        Some((param, _, what)) => Err(ApiError::unsupported(param, what)),
        None => Ok(()),
    }
}

/// A request without a prompt loads a model; with a time of 0 it unloads it.
pub(super) async fn loaded_or_unloaded(
    app: &App,
    model: &str,
    time: Option<KeepAlive>,
    form: Form,
) -> Result<Response, ApiError> {
    let time = time.map(|time| time.time()).transpose()?;
    let reason = if time == Some(Some(Duration::ZERO)) {
        app.registry.stop(Some(model)).await?;
        "unload"
    } else {
        app.registry.preload(Some(model)).await?;
        if let Some(time) = time {
            app.registry.set_keep_alive(Some(model), time)?;
        }
        "load"
    };
    let mut line = json!({
        "model": model, "created_at": rfc3339(SystemTime::now()), "done": true, "done_reason": reason,
    });
    match form {
        Form::Chat => line["message"] = json!({ "role": "assistant", "content": "" }),
        Form::Text => line["response"] = json!(""),
    }
    Ok(json_response(&line))
}
