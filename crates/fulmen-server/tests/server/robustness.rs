//! What the server must survive: each request gets its own error, and nothing leaks.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use fulmen_server::{Limits, ServerOptions};
use serde_json::{Value, json};

use crate::client::{connect, read_reply, request, send, try_send};
use crate::server::{TestModel, TestServer, options, scripted, start, start_with};

const PATH: &str = "/v1/chat/completions";

fn short_limits() -> ServerOptions {
    let limits = Limits {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        body_bytes: 1 << 20,
        ..Limits::default()
    };
    ServerOptions { limits, ..options() }
}

#[test]
fn malformed_bodies_are_refused() {
    let server = start(scripted(&["x"]));
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"{}".to_vec(),
        b"{\"messages\": 1}".to_vec(),
        b"{\"messages\": [1]}".to_vec(),
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}".to_vec(),
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}".to_vec(),
        b"{\"messages\": [], \"messages\": []}".to_vec(),
        b"{\"messages\": [], \"temperature\": 1e999}".to_vec(),
        b"{\"messages\": [], \"n\": 99999999999999999999999}".to_vec(),
        b"{\"messages\": []}{}".to_vec(),
        vec![0; 1000],
        deep.into_bytes(),
    ];
    for path in [PATH, "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/api/chat"] {
        for body in &bodies {
            let reply = server.post_with(path, &[], body);
            let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            assert_eq!(reply.status, 400, "{path} {start}: {}", reply.text());
            assert!(!reply.json()["error"].is_null(), "{path} {start}");
        }
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bodies_are_bounded() {
    let server = start_with(short_limits(), scripted(&["x"]));
    let large = vec![b' '; 2 << 20];
    assert_eq!(server.post_with(PATH, &[], &large).status, 413);
    // 100 MB by its header alone, of which nothing is read.
    let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
        content-length: 100000000\r\n\r\n";
    let reply = send(server.address, head.as_bytes());
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (413, &json!("request_too_large")));
    // Chunks without a length.
    let mut chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
        content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec();
    for _ in 0..40 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    assert_eq!(send(server.address, &chunked).status, 413);
}

#[test]
fn a_million_messages_are_refused_while_they_are_read() {
    let limits = Limits { body_bytes: 64 << 20, ..Limits::default() };
    let server = start_with(ServerOptions { limits, ..options() }, scripted(&["x"]));
    let messages = vec!["{\"role\":\"user\",\"content\":\"\"}"; 1_000_000].join(",");
    let started = Instant::now();
    let reply = server.post_with(PATH, &[], format!("{{\"messages\":[{messages}]}}").as_bytes());
    assert_eq!(reply.status, 400);
    assert!(reply.error().contains("at most 10000"), "{}", reply.error());
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn slow_headers_and_bodies_end() {
    let server = start_with(short_limits(), scripted(&["x"]));
    let started = Instant::now();
    // One byte of a header, and then nothing; and a connection that never says anything.
    for bytes in [&b"P"[..], b"POST / HTTP/1.1\r\nhost: x\r\n", b""] {
        let mut stream = connect(server.address);
        stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    // A body that does not come.
    let mut stream = connect(server.address);
    stream
        .write_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
            content-length: 100\r\n\r\n{",
        )
        .unwrap();
    let reply = read_reply(stream).unwrap();
    assert_eq!(reply.status, 408, "{}", reply.text());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn huge_headers_are_refused() {
    let server = start(scripted(&["x"]));
    let value = "x".repeat(100_000);
    let mut stream = connect(server.address);
    let _ =
        stream.write_all(format!("GET /health HTTP/1.1\r\nhost: localhost\r\na: {value}\r\n\r\n").as_bytes());
    let reply = read_reply(stream);
    assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status == 431));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn idle_connections_do_not_keep_others_out() {
    let limits = Limits { connections: 64, ..short_limits().limits };
    let server = start_with(ServerOptions { limits, ..options() }, scripted(&["x"]));
    let idle: Vec<_> = (0..500).map(|_| connect(server.address)).collect();
    let started = Instant::now();
    assert_eq!(server.get("/health").status, 200);
    assert!(started.elapsed() < Duration::from_secs(30));
    drop(idle);
}

#[test]
fn a_client_that_goes_away_cancels_its_request() {
    let text = "word ".repeat(400);
    let server = start(scripted(&[&text]).slow(Duration::from_millis(5)));
    for stream in [true, false] {
        let body = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0, "stream": stream });
        let mut connection = connect(server.address);
        connection.write_all(&request("POST", PATH, &[], body.to_string().as_bytes())).unwrap();
        if stream {
            connection.read_exact(&mut [0; 200]).unwrap();
        }
        while server.registry.loaded().is_empty() || server.stats("test").running == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        connection.shutdown(Shutdown::Both).unwrap();
        drop(connection);
        let stats = server.settled("test");
        assert_eq!(stats.finished, 0, "stream {stream}: {stats:?}");
    }
    assert_eq!(server.stats("test").cancelled, 2);
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("fulmen_cancelled_total 2\n"), "{metrics}");
    // The one that had no response yet is counted, too.
    let gone = format!("fulmen_http_requests_total{{route=\"{PATH}\",status=\"499\"}} 1\n");
    let started = Instant::now();
    while !server.get("/metrics").text().contains(&gone) {
        assert!(started.elapsed() < Duration::from_secs(10), "{}", server.get("/metrics").text());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_queue_says_so() {
    let text = "word ".repeat(200);
    let model = TestModel { sequences: 1, queue: 1, ..scripted(&[&text]) }.slow(Duration::from_millis(5));
    let server = start(model);
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0, "stream": true });
    let replies: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| server.post(PATH, &body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refused: Vec<_> = replies.iter().filter(|reply| reply.status == 429).collect();
    assert!(!refused.is_empty() && refused.len() < 6);
    for reply in refused {
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    }
    server.settled("test");
}

#[test]
fn prompts_beyond_the_context_are_refused() {
    let server = start(TestModel { context: 64, pages: 4, ..TestModel::default() });
    let count = |tokens: usize| json!({ "prompt": vec![5; tokens], "max_tokens": 1000, "ignore_eos": true });
    let most = server.ok("/v1/completions", &count(63));
    assert_eq!(most["usage"]["completion_tokens"], 1);
    let half = server.ok("/v1/completions", &count(32));
    assert_eq!(
        (&half["usage"]["completion_tokens"], &half["choices"][0]["finish_reason"]),
        (&json!(32), &json!("length"))
    );
    for tokens in [64, 65, 100_000] {
        let reply = server.post("/v1/completions", &count(tokens));
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.text());
    }
    // A context that needs more pages than all.
    let small = start(TestModel { context: 2048, pages: 2, ..TestModel::default() });
    let reply = small.post("/v1/completions", &json!({ "prompt": vec![5; 1000] }));
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn an_end_lets_answers_finish() {
    let text = "word ".repeat(60);
    let mut server = start(scripted(&[&text]).slow(Duration::from_millis(5)));
    let connection = begin_stream(&server);
    let reading = std::thread::spawn(move || read_reply(connection).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    server.stop();
    let chunks = reading.join().unwrap().chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert!(server.registry.loaded().is_empty());
}

fn streamed() -> Value {
    json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0, "stream": true })
}

/// A connection whose answer has begun.
fn begin_stream(server: &TestServer) -> TcpStream {
    let mut connection = connect(server.address);
    connection.write_all(&request("POST", PATH, &[], streamed().to_string().as_bytes())).unwrap();
    while server.registry.loaded().is_empty() || server.stats("test").running == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    connection
}

/// While answers finish, balancers and clients are told to go elsewhere.
#[test]
fn an_end_refuses_new_work() {
    let text = "word ".repeat(300);
    let options = ServerOptions { grace: Duration::from_secs(60), ..options() };
    let mut server = start_with(options, scripted(&[&text]).slow(Duration::from_millis(5)));
    let connection = begin_stream(&server);
    let reading = std::thread::spawn(move || read_reply(connection).unwrap());
    server.begin_stop();
    let started = Instant::now();
    // A connection that was accepted right before the end may be closed without an answer.
    let ready = || try_send(server.address, &request("GET", "/ready", &[], b""));
    while !ready().is_ok_and(|reply| reply.status == 503) {
        assert!(started.elapsed() < Duration::from_secs(30));
    }
    let refused = server.post(PATH, &streamed());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "shutting_down");
    assert_eq!(server.get("/health").status, 200);
    let chunks = reading.join().unwrap().chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    server.stop();
}

#[test]
fn an_end_does_not_wait_for_ever() {
    let text = "word ".repeat(1500);
    let options = ServerOptions { grace: Duration::from_millis(200), ..options() };
    let mut server = start_with(options, scripted(&[&text]).slow(Duration::from_millis(20)));
    let _connection = begin_stream(&server);
    let started = Instant::now();
    server.stop();
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn silence_is_filled_with_comments() {
    let quick = ServerOptions { keep_alive: Duration::from_millis(20), ..options() };
    let server = start_with(quick, scripted(&["one two"]).slow(Duration::from_millis(150)));
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0, "stream": true });
    let reply = server.post(PATH, &body);
    assert!(reply.text().contains(": keep-alive\n\n"), "{}", reply.text());
    assert!(reply.chunks().len() > 2);
}

#[test]
fn a_request_that_takes_too_long_ends() {
    let limits = Limits { request_timeout: Duration::from_millis(100), ..Limits::default() };
    let text = "word ".repeat(400);
    let model = scripted(&[&text]).slow(Duration::from_millis(10));
    let server = start_with(ServerOptions { limits, ..options() }, model);
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0 });
    let reply = server.post(PATH, &body);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (504, &json!("timeout")));
    // In a stream, the error is its last event.
    body["stream"] = json!(true);
    let chunks = server.post(PATH, &body).chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "timeout");
    server.settled("test");
}

/// The value of a counter or gauge without labels.
fn metric(server: &TestServer, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Waits until no request and no connection is left but that which asks.
fn idle(server: &TestServer) {
    let started = Instant::now();
    let left =
        || ["fulmen_http_requests_in_flight", "fulmen_http_connections"].map(|name| metric(server, name));
    while left().iter().any(|&count| count > 1) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "requests and connections are left: {:?}",
            left()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn two_thousand_idle_connections_cost_nobody_anything() {
    let server = start(scripted(&["a bird"]));
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0 });
    // Half of them say nothing, half have been answered and stay open.
    let alive = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut connections = Vec::new();
    for at in 0..2000 {
        let mut stream = connect(server.address);
        if at % 2 == 0 {
            stream.write_all(alive).unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 200");
        }
        connections.push(stream);
    }
    // The last ones may not have been accepted yet.
    let started = Instant::now();
    while metric(&server, "fulmen_http_connections") <= 2000 {
        assert!(started.elapsed() < Duration::from_secs(5), "not all of them are open");
        std::thread::sleep(Duration::from_millis(5));
    }
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(server.ok(PATH, &body)["choices"][0]["message"]["content"], "a bird");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    server.settled("test");
    // Those that say nothing are closed by the server in time.
    let silent = &mut connections[1];
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "it is still open");
    drop(connections);
    idle(&server);
    assert_eq!(server.get("/health").status, 200);
}

/// Grammars whose automata explode are refused in time, and nothing of them stays.
#[test]
fn exploding_grammars_are_refused() {
    let server = start(TestModel { constrained: true, ..TestModel::default() });
    let messages = json!([{ "role": "user", "content": "x" }]);
    let schema = |schema| json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let mut nested = json!({ "type": "string", "maxLength": 1_000_000 });
    for _ in 0..12 {
        nested = json!({ "type": "array", "minItems": 1000, "maxItems": 100_000, "items": nested });
    }
    let lark = |text: String| json!({ "type": "grammar", "grammar": text });
    let rules: String = (0..30).map(|at| format!("r{at}: r{} r{}\n", at + 1, at + 1)).collect();
    let formats = [
        json!({ "type": "regex", "pattern": "((a{1,1000}){1,1000}){1,1000}" }),
        json!({ "type": "regex", "pattern": "(.*a){200}.{5000}" }),
        json!({ "type": "regex", "pattern": "(".repeat(10_000) }),
        json!({ "type": "regex", "pattern": "(a|b)*c(a|b){4000}" }),
        schema(nested),
        lark(format!("start: r0\n{rules}r30: \"a\"\n")),
        lark("start: start start start | \"\"".to_owned()),
        lark(format!("start: /{}/", "(a*)*".repeat(2000))),
    ];
    for format in formats {
        let started = Instant::now();
        let body = json!({ "messages": messages, "response_format": format, "max_tokens": 20, "seed": 1 });
        let reply = server.post(PATH, &body);
        let text = format.to_string();
        let start: String = text.chars().take(80).collect();
        // Some are large and still compile: then the answer is bounded by its length.
        assert!(reply.status == 400 || reply.status == 200, "{start}: {}", reply.text());
        if reply.status == 400 {
            let error = &reply.json()["error"];
            let named = error["param"] == "response_format" || error["code"] == "constraint_failed";
            assert!(named, "{start}: {}", reply.text());
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{start}: {:?}", started.elapsed());
        assert_eq!(server.get("/health").status, 200);
    }
    let reply = server.post(PATH, &json!({ "messages": messages, "max_tokens": 3, "seed": 1 }));
    assert_eq!(reply.status, 200);
    server.settled("test");
    idle(&server);
}

/// Hundreds of clients that go away at any moment of their request, while others are answered rightly.
#[test]
fn a_storm_of_cancels_leaves_nothing() {
    let text = "word ".repeat(300);
    let model = TestModel { sequences: 8, queue: 1000, ..scripted(&[&text]) };
    let server = start(model.slow(Duration::from_millis(1)));
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0, "stream": true });
    let bytes = request("POST", PATH, &[], body.to_string().as_bytes());
    let short = json!({ "messages": [{ "role": "user", "content": "x" }], "seed": 0, "max_tokens": 5 });
    let expected = server.ok(PATH, &short)["choices"].clone();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (server, bytes) = (&server, &bytes);
            scope.spawn(move || {
                for round in 0..50u64 {
                    let mut stream = connect(server.address);
                    // Within the request, before the answer, and within the answer.
                    let sent = if round % 5 == 0 { bytes.len() / 2 } else { bytes.len() };
                    stream.write_all(&bytes[..sent]).unwrap();
                    if round % 5 > 2 {
                        let _ = stream.read(&mut [0; 300]);
                    }
                    std::thread::sleep(Duration::from_micros(thread * 300 + round * 40));
                    let _ = stream.shutdown(Shutdown::Both);
                }
            });
        }
        for _ in 0..10 {
            assert_eq!(server.ok(PATH, &short)["choices"], expected);
        }
    });
    let stats = server.settled("test");
    assert_eq!((stats.running, stats.waiting), (0, 0));
    assert!(stats.cancelled > 50, "{stats:?}");
    idle(&server);
    assert_eq!(server.ok(PATH, &short)["choices"], expected);
}

/// A client whose connection finds no place in the queue of the listener tries again after a second.
#[cfg(target_os = "linux")]
#[test]
fn a_burst_of_connections_is_queued() {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let limits = Limits { connections: 1, ..Limits::default() };
    let server = start_with(ServerOptions { limits, ..options() }, scripted(&["x"]));
    let quickly = Duration::from_millis(700);
    let open = |_| TcpStream::connect_timeout(&server.address, quickly).unwrap();
    let connections: Vec<TcpStream> = (0..most.min(1000)).map(open).collect();
    drop(connections);
    assert_eq!(server.get("/health").status, 200);
}
