//! `/v1/embeddings`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fulmen_model::tokenizer::Special;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::completions::PromptParam;
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::{self, Prompt, tokenize};
use crate::registry::Lease;

/// A request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct EmbeddingRequest {
    model: Option<String>,
    input: PromptParam,
    /// `float` or `base64` (little-endian f32).
    encoding_format: Option<String>,
    /// Not supported.
    dimensions: Option<u32>,
    /// Accepted; has no effect.
    user: Option<String>,
}

/// Embeddings.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingResponse {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: EmbeddingUsage,
}

/// An embedding.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingObject {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// The numbers of an embedding.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

/// Tokens of a request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Embeddings of texts, of length 1.
#[utoipa::path(post, path = "/v1/embeddings", tag = "openai", request_body = EmbeddingRequest,
    responses((status = 200, body = EmbeddingResponse), (status = 400), (status = 404)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(request): Json<EmbeddingRequest>,
) -> Result<Response, ApiError> {
    if request.dimensions.is_some() {
        return Err(ApiError::unsupported("dimensions", "embeddings have the model's size"));
    }
    let base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format: expected float or base64, got {other:?}");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let lease = app.registry.acquire(request.model.as_deref()).await?;
    let inputs = inputs(&lease, request.input, app.options.limits.embeddings).await?;
    let prompt_tokens = inputs.iter().map(Vec::len).sum();
    let model = lease.spec().name.clone();
    let vectors = embed(&app, lease, &caller, inputs).await?.into_iter().enumerate();
    let data = vectors.map(|(index, vector)| EmbeddingObject {
        object: "embedding",
        index,
        embedding: if base64 { Vector::Base64(encode_base64(&vector)) } else { Vector::Floats(vector) },
    });
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(json_response(&EmbeddingResponse { object: "list", data: data.collect(), model, usage }))
}

/// The tokens of each text.
pub(crate) async fn inputs(
    lease: &Lease,
    input: PromptParam,
    most: usize,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let wrong = |message: String| Err(ApiError::field("input", message));
    let (texts, mut lists) = match input {
        PromptParam::Text(text) => (vec![text], Vec::new()),
        PromptParam::Texts(texts) => (texts, Vec::new()),
        PromptParam::Tokens(tokens) => (Vec::new(), vec![tokens]),
        PromptParam::TokenLists(lists) => (Vec::new(), lists),
    };
    let count = texts.len() + lists.len();
    if count == 0 || count > most {
        return wrong(format!("input: expected 1 to {most} texts, got {count}"));
    }
    let vocabulary = lease.tokenizer().vocab_size();
    if let Some(token) = lists.iter().flatten().find(|&&token| token as usize >= vocabulary) {
        return wrong(format!("input: expected tokens below {vocabulary}, got {token}"));
    }
    for text in texts {
        lists.push(tokenize(lease, text, Special::AsText).await?);
    }
    if lists.iter().any(Vec::is_empty) {
        return wrong("input: expected texts that are not empty".to_owned());
    }
    Ok(lists)
}

/// The embeddings of texts, of length 1.
pub(crate) async fn embed(
    app: &App,
    lease: Lease,
    caller: &Caller,
    inputs: Vec<Vec<u32>>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let texts = inputs.into_iter().map(Prompt::tokens).collect();
    let vectors = generation::embed(app, lease, caller, texts).await?;
    Ok(vectors.into_iter().map(normalized).collect())
}

fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

/// Little-endian f32 in base64, as OpenAI's clients ask for.
fn encode_base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let used = digit <= chunk.len();
            text.push(if used { DIGITS[(bits >> (18 - 6 * digit)) as usize & 63].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_written_in_base64() {
        assert_eq!(encode_base64(&[1.0]), "AACAPw==");
        assert_eq!(encode_base64(&[1.0, -2.0, 0.5]), "AACAPwAAAMAAAAA/");
        assert_eq!(encode_base64(&[]), "");
    }

    #[test]
    fn vectors_get_length_one() {
        assert_eq!(normalized(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normalized(vec![0.0]), [0.0]);
    }
}
