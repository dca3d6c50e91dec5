//! `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::json_response;
use crate::error::ApiError;
use crate::served::{DecodeBound, ServedModel};

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
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
}

fn object(app: &App, id: &str, loaded: &[(String, Arc<dyn ServedModel>)]) -> ModelObject {
    let model = loaded.iter().find(|(name, _)| name == id).map(|(_, model)| model);
    ModelObject {
        id: id.to_owned(),
        object: "model",
        created: app.registry.created(),
        owned_by: "fulmen",
        loaded: model.is_some(),
        bound: model.and_then(|model| model.info().bound),
    }
}

/// The models of the server.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let loaded = app.registry.loaded();
    let data = app.registry.specs().map(|spec| object(&app, &spec.name, &loaded)).collect();
    json_response(&ModelList { object: "list", data })
}

/// A model of the server.
#[utoipa::path(get, path = "/v1/models/{name}", tag = "openai", params(("name" = String, Path)),
    responses((status = 200, body = ModelObject), (status = 404)))]
pub(crate) async fn get(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let spec = app.registry.spec(Some(&name))?;
    Ok(json_response(&object(&app, &spec.name, &app.registry.loaded())))
}
