//! `/v1/models`, with the fields that OpenAI's and Anthropic's clients look for.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::json_response;
use crate::error::ApiError;
use crate::served::{DecodeBound, ServedModel};
use crate::time::rfc3339;

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The same for Anthropic's clients.
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: String,
    created_at: String,
    lifecycle: &'static str,
    /// Positions of prompt and answer together, once it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_input_tokens: Option<u32>,
    /// Whether it is loaded; others are at their first request.
    loaded: bool,
    /// What bounds its decoding, once it is loaded and if the bandwidth of its device is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<DecodeBound>,
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
    /// All models are on one page.
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

fn object(app: &App, id: &str, loaded: &[(String, Arc<dyn ServedModel>)]) -> ModelObject {
    let model = loaded.iter().find(|(name, _)| name == id).map(|(_, model)| model);
    ModelObject {
        id: id.to_owned(),
        object: "model",
        created: app.registry.created(),
        owned_by: "fulmen",
        kind: "model",
        display_name: id.to_owned(),
        created_at: rfc3339(UNIX_EPOCH + Duration::from_secs(app.registry.created())),
        lifecycle: "active",
        max_input_tokens: model.map(|model| model.context()),
        loaded: model.is_some(),
        bound: model.and_then(|model| model.info().bound),
    }
}

/// The models of the server.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let loaded = app.registry.loaded();
    let data: Vec<_> = app.registry.specs().map(|spec| object(&app, &spec.name, &loaded)).collect();
    let id = |model: Option<&ModelObject>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    json_response(&ModelList { object: "list", data, has_more: false, first_id, last_id })
}

/// A model of the server.
#[utoipa::path(get, path = "/v1/models/{name}", tag = "openai", params(("name" = String, Path)),
    responses((status = 200, body = ModelObject), (status = 404)))]
pub(crate) async fn get(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let spec = app.registry.spec(Some(&name))?;
    Ok(json_response(&object(&app, &spec.name, &app.registry.loaded())))
}
