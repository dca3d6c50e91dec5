//! `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::json_response;
use crate::error::ApiError;

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Whether it is loaded; others are at their first request.
    loaded: bool,
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
}

fn object(app: &App, id: &str, loaded: &[String]) -> ModelObject {
    let created = app.registry.created();
    ModelObject {
        id: id.to_owned(),
        object: "model",
        created,
        owned_by: "fulmen",
        loaded: loaded.iter().any(|name| name == id),
    }
}

fn loaded(app: &App) -> Vec<String> {
    app.registry.loaded().into_iter().map(|(name, _)| name).collect()
}

/// The models of the server.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let loaded = loaded(&app);
    let data = app.registry.specs().map(|spec| object(&app, &spec.name, &loaded)).collect();
    json_response(&ModelList { object: "list", data })
}

/// A model of the server.
#[utoipa::path(get, path = "/v1/models/{name}", tag = "openai", params(("name" = String, Path)),
    responses((status = 200, body = ModelObject), (status = 404)))]
pub(crate) async fn get(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let spec = app.registry.spec(Some(&name))?;
    Ok(json_response(&object(&app, &spec.name, &loaded(&app))))
}
