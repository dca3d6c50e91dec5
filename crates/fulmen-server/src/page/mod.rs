//! The chat page: one file without any other request.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

const INDEX: &str = include_str!("index.html");

/// No script or style from elsewhere, and no connection to anybody else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(crate) async fn index() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, INDEX).into_response()
}

/// Browsers ask for it; the page has its own.
pub(crate) async fn favicon() -> StatusCode {
    StatusCode::NO_CONTENT
}
