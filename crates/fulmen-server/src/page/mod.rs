//! The chat page: one response that needs no other request.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

const INDEX: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
    "<title>Fulmen</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n",
    include_str!("style.css"),
    "</style>\n</head>\n<body>\n",
    include_str!("page.html"),
    "<script>\n",
    include_str!("markdown.js"),
    include_str!("chat.js"),
    "</script>\n</body>\n</html>\n",
);

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
