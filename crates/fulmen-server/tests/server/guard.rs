//! Keys, hosts and origins.

use std::sync::Arc;

use fulmen_server::{Registry, RegistryOptions, Server, ServerError, ServerOptions};
use serde_json::json;

use crate::client::{request, send};
use crate::server::{TestLoader, options, scripted, start, start_with};

const BODY: &[u8] = b"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
const PATH: &str = "/v1/chat/completions";

#[test]
fn a_key_is_needed_if_there_is_one() {
    let keys = vec!["first".to_owned(), "second".to_owned()];
    let server = start_with(ServerOptions { api_keys: keys, ..options() }, scripted(&["x"]));
    for key in ["Bearer first", "bearer second", "Bearer  first"] {
        assert_eq!(server.post_with(PATH, &[("authorization", key)], BODY).status, 200, "{key}");
    }
    assert_eq!(server.post_with(PATH, &[("x-api-key", "second")], BODY).status, 200);
    let none = server.post_with(PATH, &[], BODY);
    assert_eq!((none.status, &none.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(none.header("www-authenticate"), Some("Bearer"));
    for key in ["Bearer firs", "Bearer first1", "Basic first", "Bearer", "first", "Bearer third", "Bearer "] {
        assert_eq!(server.post_with(PATH, &[("authorization", key)], BODY).status, 401, "{key}");
    }
    for path in ["/health", "/ready", "/"] {
        assert_eq!(server.get(path).status, 200, "{path}");
        let head = send(server.address, &request("HEAD", path, &[], b""));
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
    }
    for path in ["/metrics", "/v1/models", "/api/tags", "/openapi.json", "/v1/none"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let anthropic = server.post_with("/v1/messages", &[("x-api-key", "no")], b"{}");
    assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[test]
fn pages_of_other_origins_are_refused() {
    let server = start(scripted(&["x"]));
    let own = format!("127.0.0.1:{}", server.address.port());
    let origin = format!("http://{own}");
    assert_eq!(server.post_with(PATH, &[("host", &own), ("origin", &origin)], BODY).status, 200);
    for origin in ["https://example.org", "null", "http://localhost:1"] {
        let reply = server.post_with(PATH, &[("host", &own), ("origin", origin)], BODY);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (403, &json!("origin_not_allowed")),
            "{origin}"
        );
        assert!(reply.header("access-control-allow-origin").is_none());
    }
    // A name that leads to this machine is not its name.
    for host in ["evil.example", "evil.example:80", "localhost.evil.example"] {
        let reply = server.post_with(PATH, &[("host", host)], BODY);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (403, &json!("host_not_allowed")),
            "{host}"
        );
    }
    for host in ["localhost", "localhost:80", "127.0.0.1", "[::1]:80", "a.localhost"] {
        assert_eq!(server.post_with(PATH, &[("host", host)], BODY).status, 200, "{host}");
    }
}

#[test]
fn allowed_origins_are_answered() {
    let allowed = "https://example.org";
    let cors = ServerOptions {
        cors_origins: vec![allowed.to_owned()],
        allowed_hosts: vec!["gpu.example".to_owned()],
        api_keys: vec!["key".to_owned()],
        ..options()
    };
    let server = start_with(cors, scripted(&["x"]));
    let preflight = [("origin", allowed), ("access-control-request-method", "POST")];
    let reply = send(server.address, &request("OPTIONS", PATH, &preflight, b""));
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(allowed)));
    let headers = [("origin", allowed), ("authorization", "Bearer key"), ("host", "gpu.example")];
    let reply = server.post_with(PATH, &headers, BODY);
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(allowed)));
    let other = [("origin", "https://other.org"), ("authorization", "Bearer key")];
    assert_eq!(server.post_with(PATH, &other, BODY).status, 403);
}

/// A browser keeps an answer without the header from its page, which then knows of no error.
#[test]
fn pages_of_allowed_origins_can_read_errors() {
    let allowed = "https://example.org";
    let cors = ServerOptions {
        cors_origins: vec![allowed.to_owned()],
        api_keys: vec!["key".to_owned()],
        ..options()
    };
    let server = start_with(cors, scripted(&["x"]));
    let model = json!({ "model": "other", "messages": [{ "role": "user", "content": "x" }] }).to_string();
    for (path, key, body, status) in [
        (PATH, "Bearer key", &b"{}"[..], 400),
        (PATH, "Bearer no", BODY, 401),
        (PATH, "Bearer key", model.as_bytes(), 404),
        ("/v1/messages", "Bearer key", b"{}", 400),
        ("/api/chat", "Bearer key", b"{}", 400),
    ] {
        let reply = server.post_with(path, &[("origin", allowed), ("authorization", key)], body);
        assert_eq!(reply.status, status, "{path} {key}: {}", reply.text());
        assert_eq!(reply.header("access-control-allow-origin"), Some(allowed), "{path} {key}");
        let exposed = reply.header("access-control-expose-headers").unwrap_or_default().to_ascii_lowercase();
        assert!(exposed.contains("retry-after") && exposed.contains("x-request-id"), "{exposed:?}");
        assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert!(!reply.json()["error"].is_null(), "{}", reply.text());
    }
}

#[test]
fn other_machines_need_a_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bind = |change: &dyn Fn(&mut ServerOptions)| {
        let mut options = ServerOptions { address: "0.0.0.0:0".parse().unwrap(), ..options() };
        change(&mut options);
        let loader = TestLoader::default();
        let registry = Registry::new(Vec::new(), Arc::new(loader), RegistryOptions::default()).unwrap();
        runtime.block_on(Server::bind(options, Arc::new(registry))).map(drop)
    };
    assert!(matches!(bind(&|_| {}), Err(ServerError::Insecure { .. })));
    assert!(bind(&|options| options.insecure = true).is_ok());
    assert!(bind(&|options| options.api_keys = vec!["key".to_owned()]).is_ok());
    let origin = bind(&|options| {
        options.insecure = true;
        options.cors_origins = vec!["example.org".to_owned()];
    });
    assert!(matches!(origin, Err(ServerError::Origin(_))));
}

#[test]
fn wrong_paths_methods_and_types_have_their_status() {
    let server = start(scripted(&["x"]));
    assert_eq!(server.get("/v2/none").status, 404);
    let wrong = server.get(PATH);
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    let body = request("POST", PATH, &[], BODY);
    let text = String::from_utf8(body).unwrap();
    let plain = send(server.address, text.replace("application/json", "text/plain").as_bytes());
    assert_eq!(plain.status, 415);
    let form = text.replace("application/json", "application/x-www-form-urlencoded");
    assert_eq!(send(server.address, form.as_bytes()).status, 200);
    let compressed = send(server.address, &request("POST", PATH, &[("content-encoding", "gzip")], BODY));
    assert_eq!(compressed.status, 415);
    assert!(compressed.error().contains("content-encoding"), "{}", compressed.error());
    let identity = request("POST", PATH, &[("content-encoding", "identity")], BODY);
    assert_eq!(send(server.address, &identity).status, 200);
}
