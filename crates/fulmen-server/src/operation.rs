//! Health, metrics and tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use fulmen_model::tokenizer::Special;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::{Json, List, json_response};
use crate::error::ApiError;
use crate::generation::tokenize as tokenize_text;
use crate::openai::chat_types::{ChatMessage, MAX_MESSAGES};
use crate::openai::messages::chat_input;

/// The process lives.
#[utoipa::path(get, path = "/health", tag = "operation", responses((status = 200)))]
pub(crate) async fn health() -> Response {
    json_response(&json!({ "status": "ok" }))
}

/// The server takes requests.
#[utoipa::path(get, path = "/ready", tag = "operation", responses((status = 200), (status = 503)))]
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.is_ending() {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
        return error.into_response();
    }
    let loaded: Vec<String> = app.registry.loaded().into_iter().map(|(name, _)| name).collect();
    json_response(&json!({ "status": "ready", "loaded": loaded }))
}

/// Counters in the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "operation", responses((status = 200)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.render(&app.registry);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// A text or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    /// A text.
    prompt: Option<String>,
    /// A conversation, instead of a text.
    #[schema(value_type = Option<Vec<ChatMessage>>)]
    messages: Option<List<ChatMessage, MAX_MESSAGES>>,
    /// Whether BOS and EOS are added as to a prompt; true by default.
    add_special_tokens: Option<bool>,
    /// Whether control tokens in the text are parsed; false by default.
    parse_special: Option<bool>,
    /// Whether the texts of the tokens are wanted.
    return_token_strs: Option<bool>,
}

/// The tokens of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenizeResponse {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Text to tokens.
#[utoipa::path(post, path = "/tokenize", tag = "tokens", request_body = TokenizeRequest,
    responses((status = 200, body = TokenizeResponse), (status = 400)))]
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<TokenizeRequest>,
) -> Result<Response, ApiError> {
    let lease = app.registry.acquire(request.model.as_deref()).await?;
    let tokens = match (request.prompt, request.messages) {
        (Some(text), None) => {
            let special = if request.parse_special == Some(true) { Special::Parse } else { Special::AsText };
            match request.add_special_tokens {
                Some(false) => lease.tokenizer().encode(&text, special),
                _ => tokenize_text(&lease, text, special).await?,
            }
        }
        (None, Some(_)) if request.add_special_tokens.is_some() || request.parse_special.is_some() => {
            let what = "the chat template adds the special tokens of a conversation";
            return Err(ApiError::unsupported("add_special_tokens and parse_special with messages", what));
        }
        (None, Some(List(messages))) => chat_input(messages)?.prompt(&lease, false).await?.tokens,
        _ => return Err(ApiError::field("prompt", "expected either prompt or messages")),
    };
    let show = |&id: &u32| lease.tokenizer().token(id).unwrap_or_default().to_owned();
    let wanted = request.return_token_strs == Some(true);
    let token_strs = wanted.then(|| tokens.iter().map(show).collect());
    let count = tokens.len();
    Ok(json_response(&TokenizeResponse { count, max_model_len: lease.context(), tokens, token_strs }))
}

/// Tokens.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
    /// Whether control tokens are shown; false by default.
    show_special: Option<bool>,
}

/// The text of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    prompt: String,
}

/// Tokens to text.
#[utoipa::path(post, path = "/detokenize", tag = "tokens", request_body = DetokenizeRequest,
    responses((status = 200, body = DetokenizeResponse), (status = 400)))]
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<Response, ApiError> {
    let lease = app.registry.acquire(request.model.as_deref()).await?;
    let tokenizer = lease.tokenizer();
    let text = match request.show_special {
        Some(true) => tokenizer.decode_with_special(&request.tokens),
        _ => tokenizer.decode(&request.tokens),
    };
    let prompt = text.map_err(|error| ApiError::field("tokens", error.to_string()))?;
    Ok(json_response(&DetokenizeResponse { prompt }))
}
