//! Embeddings run as other requests do: in the queue, within a time, until their client goes away.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use fulmen_server::{Limits, ServerOptions};
use serde_json::{Value, json};

use crate::client::{connect, request};
use crate::server::{TestModel, TestServer, options, scripted, start, start_with};

const PATH: &str = "/v1/embeddings";

/// A model whose embeddings are hidden states of the engine.
fn model(step: Duration) -> TestModel {
    TestModel { hidden: true, ..scripted(&[&"word ".repeat(300)]) }.slow(step)
}

/// Texts of 2, 3, 4 … tokens.
fn texts(count: usize) -> Value {
    (0..count).map(|at| vec![5; at + 2]).collect::<Vec<_>>().into()
}

fn wait_for(server: &TestServer, running: usize) {
    while server.registry.loaded().is_empty() || server.stats("test").running < running {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn texts_run_together() {
    let server = start(model(Duration::ZERO));
    let answer = server.ok(PATH, &json!({ "input": texts(100) }));
    for (at, object) in answer["data"].as_array().unwrap().iter().enumerate() {
        // The device's state is (tokens, 1), of length 1 here.
        let length = (at + 2) as f64;
        let first = object["embedding"][0].as_f64().unwrap();
        assert!((first - length / length.hypot(1.0)).abs() < 1e-5, "{at}: {object}");
    }
    let stats = server.settled("test");
    assert_eq!((stats.finished, stats.cancelled), (100, 0), "{stats:?}");
    assert!(stats.steps < 60, "{stats:?}");
    assert_eq!(stats.prefix_cache.hits, 0, "{stats:?}");
    let ollama = server.ok("/api/embed", &json!({ "model": "test", "input": ["a", "b"] }));
    assert_eq!(ollama["embeddings"].as_array().unwrap().len(), 2);
}

#[test]
fn a_full_queue_refuses_embeddings() {
    let server = start(TestModel { sequences: 1, queue: 1, ..model(Duration::from_millis(5)) });
    let body = json!({ "prompt": "x", "max_tokens": 300, "seed": 0 });
    let waiting = |count| {
        while server.registry.loaded().is_empty() || server.stats("test").waiting < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| server.ok("/v1/completions", &body));
        wait_for(&server, 1);
        scope.spawn(|| server.ok("/v1/completions", &body));
        waiting(1);
        for (path, body) in
            [(PATH, json!({ "input": "x" })), ("/api/embed", json!({ "model": "test", "input": "x" }))]
        {
            let reply = server.post(path, &body);
            assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")), "{}", reply.text());
        }
    });
    server.settled("test");
}

#[test]
fn a_client_that_goes_away_cancels_its_texts() {
    let server = start(TestModel { sequences: 1, ..model(Duration::from_millis(5)) });
    let body = json!({ "input": texts(200) }).to_string();
    let mut connection = connect(server.address);
    connection.write_all(&request("POST", PATH, &[], body.as_bytes())).unwrap();
    wait_for(&server, 1);
    connection.shutdown(Shutdown::Both).unwrap();
    drop(connection);
    let stats = server.settled("test");
    assert!(stats.cancelled > 0 && stats.finished + stats.cancelled < 200, "{stats:?}");
}

#[test]
fn embeddings_end_in_time() {
    let limits = Limits { request_timeout: Duration::from_millis(100), ..Limits::default() };
    for hidden in [true, false] {
        let model = TestModel { hidden, sequences: 1, ..model(Duration::from_millis(20)) };
        let server = start_with(ServerOptions { limits: limits.clone(), ..options() }, model);
        let reply = server.post(PATH, &json!({ "input": texts(11) }));
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (504, &json!("timeout")),
            "{}",
            reply.text()
        );
        server.settled("test");
    }
}

/// A function has memory of its own for a text: clients together do not have many of them.
#[test]
fn functions_run_one_after_the_other() {
    let server = start(scripted(&["x"]).slow(Duration::from_millis(20)));
    server.ok(PATH, &json!({ "input": "x" }));
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| server.ok(PATH, &json!({ "input": "x" })));
        }
    });
    assert!(started.elapsed() >= Duration::from_millis(160), "{:?}", started.elapsed());
}
