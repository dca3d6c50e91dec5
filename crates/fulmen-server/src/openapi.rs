//! `/openapi.json`: what the server understands.

use axum::response::Response;
use utoipa::OpenApi;

use crate::body::json_response;
use crate::{anthropic, ollama, openai, operation};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Fulmen",
        description = "The OpenAI, Anthropic and Ollama APIs of a Fulmen server. A key is sent as \
            `Authorization: Bearer KEY` or `x-api-key: KEY`.",
        license(name = "MIT OR Apache-2.0"),
    ),
    paths(
        openai::chat::create,
        openai::completions::create,
        openai::embeddings::create,
        openai::responses::create,
        openai::models::list,
        openai::models::get,
        anthropic::messages::create,
        anthropic::messages::count_tokens,
        ollama::chat::create,
        ollama::generate::create,
        ollama::embed::create,
        ollama::embed::create_one,
        ollama::models::tags,
        ollama::models::show,
        ollama::models::running,
        ollama::models::version,
        operation::tokenize,
        operation::detokenize,
        operation::health,
        operation::ready,
        operation::metrics,
    )
)]
struct Document;

/// The description of all endpoints.
pub(crate) async fn document() -> Response {
    json_response(&Document::openapi())
}
