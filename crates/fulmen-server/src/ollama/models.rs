//! `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use fulmen_model::template::ChatTemplate;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::SamplingDefaults;
use crate::registry::{Described, LONGEST_KEEP_ALIVE};
use crate::served::ModelInfo;
use crate::time::rfc3339;

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

/// What tells models apart: 64 digits, as clients expect. It is of the name, not of what is in the file.
fn digest(name: &str) -> String {
    // FNV-1a with four first bytes.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = |first: u8| [first].into_iter().chain(name.bytes()).fold(0xcbf2_9ce4_8422_2325, mix);
    (0..4).map(|start| format!("{:016x}", hash(start))).collect()
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
            let size = info.map(|info| info.bytes).or_else(|| app.registry.bytes(spec));
            json!({
                "name": spec.name, "model": spec.name, "modified_at": modified, "digest": digest(&spec.name),
                "size": size.unwrap_or(0), "details": details(info),
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
                "name": status.name, "model": status.name, "digest": digest(&status.name),
                "details": details(info),
                "size": status.bytes, "size_vram": status.bytes, "context_length": status.context,
                "expires_at": rfc3339(SystemTime::now() + left),
                "device": status.device, "active_requests": status.active,
                "expires_in": status.expires_in.map(|time| time.as_secs_f64()),
            })
        })
        .collect();
    json_response(&json!({ "models": models }))
}

/// The figures of a model.
#[utoipa::path(post, path = "/api/show", tag = "ollama", request_body = ShowRequest,
    responses((status = 200), (status = 404)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Json(request): Json<ShowRequest>,
) -> Result<Response, ApiError> {
    let Some(name) = request.model.or(request.name) else {
        return Err(ApiError::field("model", "model: missing"));
    };
    let spec = app.registry.spec(Some(&name))?;
    let model = app.registry.describe(Some(&name)).await?;
    let info = model.info();
    let parameters = parameters(&spec.defaults, model.context());
    let template = model.template().map_or("", ChatTemplate::source);
    let mut modelfile = format!("FROM {}\nTEMPLATE \"\"\"{template}\"\"\"\n", spec.name);
    if let Some(system) = &spec.system {
        modelfile += &format!("SYSTEM \"\"\"{system}\"\"\"\n");
    }
    modelfile.extend(parameters.iter().map(|(name, value)| format!("PARAMETER {name} {value}\n")));
    let parameters: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name:<30} {value}")).collect();
    let mut shown = json!({
        "modelfile": modelfile,
        "parameters": parameters.join("\n"),
        "template": template,
        "license": info.metadata.get("general.license").and_then(Value::as_str).unwrap_or(""),
        "details": details(Some(info)),
        "model_info": model_info(&model),
        "capabilities": capabilities(&model),
        "modified_at": rfc3339(UNIX_EPOCH + Duration::from_secs(app.registry.created())),
    });
    if let Some(system) = &spec.system {
        shown["system"] = json!(system);
    }
    Ok(json_response(&shown))
}

/// The keys of the model's file and those that clients look for. The context is the one that requests have.
fn model_info(model: &Described) -> Map<String, Value> {
    let info = model.info();
    let mut keys = info.metadata.clone();
    // It is the template of the answer.
    keys.remove("tokenizer.chat_template");
    let family = info.architecture.as_str();
    keys.insert("general.architecture".to_owned(), json!(family));
    if let Some(parameters) = info.parameters {
        keys.insert("general.parameter_count".to_owned(), json!(parameters));
    }
    keys.insert(format!("{family}.context_length"), json!(model.context()));
    keys.insert(format!("{family}.embedding_length"), json!(info.embedding));
    keys
}

/// What requests leave open, in Ollama's names.
fn parameters(defaults: &SamplingDefaults, context: u32) -> Vec<(&'static str, String)> {
    let text = |number: f64| number.to_string();
    let all = [
        ("num_ctx", Some(context.to_string())),
        ("num_predict", defaults.max_tokens.map(|limit| limit.to_string())),
        ("temperature", defaults.temperature.map(text)),
        ("top_k", defaults.top_k.map(|count| count.to_string())),
        ("top_p", defaults.top_p.map(text)),
        ("min_p", defaults.min_p.map(text)),
        ("repeat_penalty", defaults.repetition_penalty.map(text)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A model whose file says how embeddings are pooled was trained for them, and for no text.
fn capabilities(model: &Described) -> Vec<&'static str> {
    let info = model.info();
    if info.metadata.contains_key(&format!("{}.pooling_type", info.architecture)) {
        return vec!["embedding"];
    }
    let template = model.template();
    let tools = template.is_some_and(|template| template.tool_format().is_some());
    let thinking = template.is_some_and(ChatTemplate::has_reasoning);
    let all = [("completion", true), ("tools", tools), ("thinking", thinking)];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// The version of Ollama whose API this is: clients refuse servers that seem too old for them.
const OLLAMA_VERSION: &str = "0.14.2";

/// The version of Ollama's API, and that of this server.
#[utoipa::path(get, path = "/api/version", tag = "ollama", responses((status = 200)))]
pub(crate) async fn version() -> Response {
    json_response(&json!({ "version": OLLAMA_VERSION, "fulmen": env!("CARGO_PKG_VERSION") }))
}
