//! `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::time::rfc3339;
use crate::app::App;
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::registry::LONGEST_KEEP_ALIVE;
use crate::served::{ModelInfo, ServedModel};

/// A model.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowRequest {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Accepted; all figures are always given.
    #[allow(dead_code)]
    verbose: Option<bool>,
}

fn details(info: Option<&ModelInfo>) -> Value {
    let family = info.map_or("", |info| info.architecture.as_str());
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": info.and_then(|info| info.parameters).map_or(String::new(), short_count),
        "quantization_level": info.map_or("", |info| info.quantization.as_str()),
    })
}

/// A number of parameters, such as `8.2B`.
fn short_count(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.1}B", count as f64 / 1e9),
        1_000_000.. => format!("{:.1}M", count as f64 / 1e6),
        _ => count.to_string(),
    }
}

/// The models of the server.
#[utoipa::path(get, path = "/api/tags", tag = "ollama", responses((status = 200)))]
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let loaded = app.registry.loaded();
    let modified = rfc3339(UNIX_EPOCH + Duration::from_secs(app.registry.created()));
    let models: Vec<Value> = app
        .registry
        .specs()
        .map(|spec| {
            let info = loaded.iter().find(|(name, _)| *name == spec.name).map(|(_, model)| model.info());
            json!({
                "name": spec.name, "model": spec.name, "modified_at": modified, "digest": "",
                "size": info.map_or(0, |info| info.bytes), "details": details(info),
            })
        })
        .collect();
    json_response(&json!({ "models": models }))
}

/// The loaded models.
#[utoipa::path(get, path = "/api/ps", tag = "ollama", responses((status = 200)))]
pub(crate) async fn running(State(app): State<Arc<App>>) -> Response {
    let loaded = app.registry.loaded();
    let status = app.registry.status();
    let models: Vec<Value> = status
        .into_iter()
        .map(|status| {
            let info = loaded.iter().find(|(name, _)| *name == status.name).map(|(_, model)| model.info());
            // Far away, for a model that stays.
            let left = status.expires_in.map_or(LONGEST_KEEP_ALIVE, |left| left.min(LONGEST_KEEP_ALIVE));
            json!({
                "name": status.name, "model": status.name, "digest": "", "details": details(info),
                "size": status.bytes, "size_vram": status.bytes, "context_length": status.context,
                "expires_at": rfc3339(SystemTime::now() + left),
                "device": status.device, "active_requests": status.active,
                "expires_in": status.expires_in.map(|time| time.as_secs_f64()),
            })
        })
        .collect();
    json_response(&json!({ "models": models }))
}

/// The figures of a model, which is loaded for it.
#[utoipa::path(post, path = "/api/show", tag = "ollama", request_body = ShowRequest,
    responses((status = 200), (status = 404)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Json(request): Json<ShowRequest>,
) -> Result<Response, ApiError> {
    let Some(name) = request.model.or(request.name) else {
        return Err(ApiError::field("model", "model: missing"));
    };
    let lease = app.registry.acquire(Some(&name)).await?;
    let info = lease.info();
    let family = &info.architecture;
    let mut model_info = json!({
        "general.architecture": family,
        "general.parameter_count": info.parameters,
    });
    model_info[format!("{family}.context_length")] = json!(lease.context());
    model_info[format!("{family}.embedding_length")] = json!(info.embedding);
    Ok(json_response(&json!({
        "modelfile": "", "parameters": "", "template": "", "license": "",
        "details": details(Some(info)),
        "model_info": model_info,
        "capabilities": capabilities(&*lease),
    })))
}

fn capabilities(model: &dyn ServedModel) -> Vec<&'static str> {
    let template = model.chat_template();
    let tools = template.is_some_and(|template| template.tool_format().is_some());
    let thinking = template.is_some_and(|template| template.has_reasoning());
    let all = [("completion", true), ("tools", tools), ("thinking", thinking)];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// The version of the server.
#[utoipa::path(get, path = "/api/version", tag = "ollama", responses((status = 200)))]
pub(crate) async fn version() -> Response {
    json_response(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}
