//! Routes, and what surrounds them.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::error::{ApiError, ErrorShape};
use crate::log::{PromptLog, RequestName};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::record::{Figures, Record};
use crate::registry::Registry;
use crate::{anthropic, guard, ids, ollama, openai, openapi, operation, page};

/// What all requests share.
pub(crate) struct App {
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) options: ServerOptions,
    pub(crate) ending: AtomicBool,
    /// Of embeddings by functions, one runs at a time.
    pub(crate) embedding: Arc<Semaphore>,
}

/// Who makes a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Cached prefixes are shared inside a tenant.
    pub(crate) tenant: Arc<str>,
    /// Time for the whole answer.
    pub(crate) timeout: Duration,
    /// Where prompts and answers are logged, if they are.
    pub(crate) log: Option<PromptLog>,
    /// What the log says of its answers.
    pub(crate) figures: Arc<Figures>,
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Caller, Infallible> {
        let timeout = app.options.limits.request_timeout;
        let nobody = || Caller { tenant: Arc::default(), timeout, log: None, figures: Arc::default() };
        let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_else(nobody);
        let name = parts.extensions.get::<RequestName>().filter(|_| app.options.log_prompts);
        let log = name.map(|name| PromptLog::new(app.options.log, Arc::clone(&name.0)));
        let figures = parts.extensions.get::<Arc<Figures>>().cloned().unwrap_or_default();
        Ok(Caller { log, figures, ..caller })
    }
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let routes = Router::new()
        .route("/", get(page::index))
        .route("/favicon.ico", get(page::favicon))
        .route("/health", get(operation::health))
        .route("/ready", get(operation::ready))
        .route("/metrics", get(operation::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/tokenize", post(operation::tokenize))
        .route("/detokenize", post(operation::detokenize))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*name}", get(openai::models::get))
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
        .route("/api/chat", post(ollama::chat::create))
        .route("/api/generate", post(ollama::generate::create))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/show", post(ollama::models::show))
        .route("/api/ps", get(ollama::models::running))
        .route("/api/embed", post(ollama::embed::create))
        .route("/api/embeddings", post(ollama::embed::create_one))
        .route("/api/version", get(ollama::models::version))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method);
    let guarded = routes.layer(from_fn_with_state(Arc::clone(&app), guard::guard));
    let shared = match cors(&app.options) {
        Some(cors) => guarded.layer(cors),
        None => guarded,
    };
    shared.layer(from_fn_with_state(Arc::clone(&app), observe)).with_state(app)
}

async fn no_route(request: Request) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no {}", request.uri().path())).code("no_route")
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Answers the questions of browsers for the allowed origins. Without any, no page of another origin can use
/// the server.
fn cors(options: &ServerOptions) -> Option<CorsLayer> {
    if options.cors_origins.is_empty() {
        return None;
    }
    let origins = match options.cors_origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::from(Any),
        false => AllowOrigin::list(options.cors_origins.iter().filter_map(|origin| origin.parse().ok())),
    };
    let layer = CorsLayer::new().allow_origin(origins).allow_methods([Method::GET, Method::POST]);
    let layer = layer.expose_headers([header::RETRY_AFTER, REQUEST_ID, ANTHROPIC_REQUEST_ID]);
    Some(layer.allow_headers(AllowHeaders::mirror_request()).max_age(Duration::from_secs(600)))
}

/// Names, counts and logs requests, survives panics, and writes errors in the shape of the path.
async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let name = request.headers().get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let fits = |name: &&str| !name.is_empty() && name.len() <= 128;
    let name = name.filter(fits).map_or_else(|| ids::unique("req_"), str::to_owned);
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    // Unknown paths would make a counter each.
    let route = request.extensions().get::<MatchedPath>().map_or("other", |path| path.as_str()).to_owned();

    request.extensions_mut().insert(RequestName(name.as_str().into()));
    let record = Record::new(Arc::clone(&app), name, method, path.clone(), route);
    request.extensions_mut().insert(record.figures());
    let counted = app.metrics.in_flight();
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    drop(counted);
    let mut response =
        answered.unwrap_or_else(|_| ApiError::internal("the handler panicked").into_response());

    let shape = ErrorShape::of_path(&path);
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        error.write_into(&mut response, shape);
    }
    if let Ok(value) = HeaderValue::from_str(record.request()) {
        response.headers_mut().insert(REQUEST_ID, value.clone());
        if shape == ErrorShape::Anthropic {
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, value);
        }
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    record.answered(response)
}

impl App {
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}
