//! Health, metrics, tokens, the page and the description of the API.

use serde_json::{Value, json};

use crate::server::{scripted, start};

#[test]
fn health_and_metrics_are_there() {
    let server = start(scripted(&["Hello there"]));
    assert_eq!(server.get("/health").json()["status"], "ok");
    assert_eq!(server.get("/ready").json(), json!({ "status": "ready", "loaded": [] }));
    let body = json!({ "messages": [{ "role": "user", "content": "Hello" }] });
    server.ok("/v1/chat/completions", &body);
    server.post("/v1/chat/completions", &json!({}));
    server.get("/no/such/path/1");
    server.get("/no/such/path/2");
    let reply = server.get("/metrics");
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let text = reply.text();
    let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    has("fulmen_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1");
    has("fulmen_http_requests_total{route=\"/v1/chat/completions\",status=\"400\"} 1");
    has("fulmen_http_requests_total{route=\"other\",status=\"404\"} 2");
    has("fulmen_first_token_seconds_count 1");
    has("fulmen_engine_running{model=\"test\"} 0");
    // Each line is a comment, or a name with labels and a number.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("fulmen_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn texts_become_tokens_and_back() {
    let server = start(scripted(&["x"]));
    let body = json!({ "prompt": "Once upon a time", "return_token_strs": true });
    let answer = server.ok("/tokenize", &body);
    assert_eq!(answer["count"], answer["tokens"].as_array().unwrap().len());
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), answer["tokens"].as_array().unwrap().len());
    assert_eq!(answer["max_model_len"], 2048);
    let text = server.ok("/detokenize", &json!({ "tokens": answer["tokens"] }));
    assert_eq!(text["prompt"], "Once upon a time");
    assert_eq!(server.post("/tokenize", &json!({})).status, 400);
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [99_999_999] })).status, 400);
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [-1] })).status, 400);
}

#[test]
fn models_are_listed() {
    let server = start(scripted(&["x"]));
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("test")));
    assert_eq!(list["data"][0]["loaded"], false);
    assert_eq!(server.get("/v1/models/test").json()["object"], "model");
    let missing = server.get("/v1/models/org/other");
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn the_description_has_every_route() {
    let server = start(scripted(&["x"]));
    let document = server.get("/openapi.json").json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/api/tags",
        "/api/show",
        "/api/ps",
        "/api/embed",
        "/api/embeddings",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/metrics",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    // Every reference leads somewhere.
    fn check(value: &Value, document: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let pointer = reference.trim_start_matches('#');
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                map.values().for_each(|value| check(value, document));
            }
            Value::Array(list) => list.iter().for_each(|value| check(value, document)),
            _ => {}
        }
    }
    check(&document, &document);
}

#[test]
fn the_page_needs_nobody_else() {
    let server = start(scripted(&["x"]));
    let reply = server.get("/");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = reply.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"));
    let text = reply.text();
    for other in ["http://", "https://", "src=\"//", "@import"] {
        assert!(!text.contains(other), "{other}");
    }
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
}

#[test]
fn requests_have_names() {
    let server = start(scripted(&["x"]));
    assert!(server.get("/health").header("x-request-id").unwrap().starts_with("req_"));
    let reply = server.post_with("/tokenize", &[("x-request-id", "mine-1")], b"{}");
    assert_eq!(reply.header("x-request-id"), Some("mine-1"));
}
