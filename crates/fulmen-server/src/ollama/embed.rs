//! `/api/embed`, and its older form `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use fulmen_model::tokenizer::{Special, Tokenizer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::chat::keep_alive;
use super::types::{KeepAlive, OllamaOptions, options};
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::openai::completions::PromptParam;
use crate::openai::embeddings::{embed, inputs};
use crate::registry::Lease;

/// A request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaEmbedRequest {
    model: String,
    input: OllamaInput,
    /// Whether texts that are too long are cut at their end; without it, they are refused.
    truncate: Option<bool>,
    keep_alive: Option<KeepAlive>,
    /// Accepted; those of sampling have no effect.
    #[serde(default, deserialize_with = "options")]
    options: Option<OllamaOptions>,
    /// Not supported.
    dimensions: Option<u32>,
}

/// A text or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum OllamaInput {
    One(String),
    Many(Vec<String>),
}

/// Embeddings.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbedResponse {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// Embeddings of texts, of length 1.
#[utoipa::path(post, path = "/api/embed", tag = "ollama", request_body = OllamaEmbedRequest,
    responses((status = 200, body = OllamaEmbedResponse), (status = 400), (status = 404)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<OllamaEmbedRequest>,
) -> Result<Response, ApiError> {
    let started = Instant::now();
    if request.dimensions.is_some() {
        return Err(ApiError::unsupported("dimensions", "embeddings have the model's size"));
    }
    let lease = app.registry.acquire(Some(&request.model)).await?;
    keep_alive(&app, &request.model, request.keep_alive)?;
    request.options.unwrap_or_default().check_context(&lease)?;
    let load_duration = started.elapsed().as_nanos() as u64;
    let input = match request.input {
        OllamaInput::One(text) => PromptParam::Text(text),
        OllamaInput::Many(texts) => PromptParam::Texts(texts),
    };
    let mut inputs = inputs(&lease, input, app.options.limits.embeddings).await?;
    if request.truncate == Some(true) {
        cut(&lease, &mut inputs);
    }
    let prompt_eval_count = inputs.iter().map(Vec::len).sum();
    let model = lease.spec().name.clone();
    let embeddings = embed(&app, lease, &caller, inputs).await?;
    let total_duration = started.elapsed().as_nanos() as u64;
    Ok(json_response(&OllamaEmbedResponse {
        model,
        embeddings,
        total_duration,
        load_duration,
        prompt_eval_count,
    }))
}

/// Cuts texts that are too long for the context. Tokens that the tokenizer puts behind every text stay: they
/// may be those whose states are pooled.
fn cut(lease: &Lease, texts: &mut [Vec<u32>]) {
    let most = lease.context().saturating_sub(1) as usize;
    let kept = ending_tokens(lease.tokenizer()).min(most);
    for text in texts.iter_mut().filter(|text| text.len() > most) {
        text.drain(most - kept..text.len() - kept);
    }
}

/// How many tokens the tokenizer puts behind a text.
fn ending_tokens(tokenizer: &Tokenizer) -> usize {
    let [plain, whole] =
        [tokenizer.encode("a", Special::AsText), tokenizer.encode_prompt("a", Special::AsText)];
    let at = whole.windows(plain.len().max(1)).rposition(|tokens| tokens == plain);
    at.map_or(0, |at| whole.len() - at - plain.len())
}

/// A request for one embedding.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OllamaEmbeddingRequest {
    model: String,
    prompt: String,
    keep_alive: Option<KeepAlive>,
    /// Accepted; those of sampling have no effect.
    #[serde(default, deserialize_with = "options")]
    options: Option<OllamaOptions>,
}

/// One embedding.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbeddingResponse {
    embedding: Vec<f32>,
}

/// The embedding of a text, of length 1.
#[utoipa::path(post, path = "/api/embeddings", tag = "ollama", request_body = OllamaEmbeddingRequest,
    responses((status = 200, body = OllamaEmbeddingResponse), (status = 400), (status = 404)))]
pub(crate) async fn create_one(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<OllamaEmbeddingRequest>,
) -> Result<Response, ApiError> {
    let lease = app.registry.acquire(Some(&request.model)).await?;
    keep_alive(&app, &request.model, request.keep_alive)?;
    request.options.unwrap_or_default().check_context(&lease)?;
    let inputs = inputs(&lease, PromptParam::Text(request.prompt), app.options.limits.embeddings).await?;
    let embedding = embed(&app, lease, &caller, inputs).await?.pop();
    let embedding = embedding.ok_or_else(|| ApiError::internal("there is no embedding"))?;
    Ok(json_response(&OllamaEmbeddingResponse { embedding }))
}
