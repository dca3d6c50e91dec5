//! Who may use the server: keys, hosts and origins.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fulmen_engine::RequestError;

use crate::app::{App, Caller};
use crate::error::ApiError;

/// Paths that need no key: they say nothing of anybody's work.
const OPEN: [&str; 4] = ["/", "/health", "/ready", "/favicon.ico"];

/// Refuses requests of those who may not make them, and says who made the others.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match check(&app, &request) {
        Ok(tenant) => {
            let timeout = app.options.limits.request_timeout;
            request.extensions_mut().insert(Caller { tenant, timeout, log: None, figures: Arc::default() });
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

fn check(app: &App, request: &Request) -> Result<Arc<str>, ApiError> {
    let headers = request.headers();
    check_host(app, headers, request.uri())?;
    check_origin(app, headers)?;
    if app.is_ending() && request.method() == Method::POST {
        return Err(RequestError::ShuttingDown.into());
    }
    let open =
        OPEN.contains(&request.uri().path()) && matches!(*request.method(), Method::GET | Method::HEAD);
    if app.options.api_keys.is_empty() || open {
        return Ok(Arc::default());
    }
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|text| text.split_once(' '));
    let bearer =
        bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    let key = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
    let Some(key) = key else {
        return Err(ApiError::unauthorized("no API key: send it as `Authorization: Bearer KEY`"));
    };
    // All keys are compared, so that the time says nothing about which one is near.
    let mut found = None;
    for (index, known) in app.options.api_keys.iter().enumerate() {
        if equal(known.as_bytes(), key.as_bytes()) {
            found = Some(index);
        }
    }
    // Prefixes are cached per key: nobody learns from the time of an answer what others have asked.
    let index = found.ok_or_else(|| ApiError::unauthorized("the API key is wrong"))?;
    Ok(format!("key-{index}").into())
}

/// Compares in a time that depends on the lengths only.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    std::hint::black_box(differences) == 0 && a.len() == b.len()
}

/// A page whose name was pointed to this machine (DNS rebinding) has another host.
fn check_host(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    if !app.options.address.ip().is_loopback() && app.options.allowed_hosts.is_empty() {
        return Ok(());
    }
    let host = headers.get(HOST).and_then(|value| value.to_str().ok()).or(uri.host()).unwrap_or("");
    let name = host_name(host);
    let local = name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == app.options.address.ip());
    let allowed = |known: &String| known.eq_ignore_ascii_case(name) || known == "*";
    if local || app.options.allowed_hosts.iter().any(allowed) {
        return Ok(());
    }
    let message = format!("the host {name:?} is not served; --allowed-host allows it");
    Err(ApiError::new(StatusCode::FORBIDDEN, message).code("host_not_allowed"))
}

/// A host without its port, and an IPv6 address without brackets.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Browsers send the origin of the page with each request that could do harm.
fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("");
    let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    let own = origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    let allowed = app.options.cors_origins.iter().any(|known| known == "*" || known == origin);
    if own || allowed {
        return Ok(());
    }
    let message = format!("requests from pages of {origin:?} are not allowed; --cors-origin allows them");
    Err(ApiError::new(StatusCode::FORBIDDEN, message).code("origin_not_allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_without_ports() {
        for (host, name) in [("a:80", "a"), ("a", "a"), ("[::1]:80", "::1"), ("127.0.0.1:1", "127.0.0.1")] {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn keys_are_equal_only_whole() {
        assert!(equal(b"abc", b"abc"));
        for other in ["", "ab", "abcd", "abd"] {
            assert!(!equal(b"abc", other.as_bytes()), "{other}");
        }
    }
}
