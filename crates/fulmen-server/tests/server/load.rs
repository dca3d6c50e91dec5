//! Mixed load above capacity: each request has the tokens that it has alone, and nothing leaks.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{connect, request};
use crate::server::{TestModel, TestServer, start};

const THREADS: usize = 8;
const ROUNDS: usize = 12;

fn crowded() -> TestModel {
    // Four sequences at a time, and pages for about three long ones.
    TestModel { sequences: 4, pages: 24, queue: 1000, context: 1024, ..TestModel::default() }
        .slow(Duration::from_micros(200))
}

fn prompt(number: usize) -> Vec<u32> {
    // Beginnings are shared by several, so that cached pages are.
    let shared = (0..300).map(|at| (5 + at % 50 + number % 3) as u32);
    shared.chain((0..20).map(|at| (60 + at + number) as u32)).collect()
}

fn body(number: usize) -> Value {
    let n = 1 + number % 2;
    json!({ "prompt": prompt(number), "max_tokens": 40, "seed": number, "ignore_eos": true, "n": n })
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

/// A client that goes away in the middle, sends nonsense, or wants too much.
fn disturb(server: &TestServer, number: usize) {
    match number % 3 {
        0 => {
            let mut streamed = body(number);
            streamed["stream"] = json!(true);
            streamed["max_tokens"] = json!(700);
            let mut connection = connect(server.address);
            let bytes = request("POST", "/v1/completions", &[], streamed.to_string().as_bytes());
            connection.write_all(&bytes).unwrap();
            let _ = connection.read(&mut [0; 300]);
        }
        1 => assert_eq!(server.post_with("/v1/completions", &[], b"{\"prompt\": ").status, 400),
        _ => assert_eq!(server.post("/v1/completions", &json!({ "prompt": vec![5; 5000] })).status, 400),
    }
}

#[test]
fn requests_do_not_disturb_each_other() {
    let alone = start(TestModel { pages: 256, ..crowded() });
    let expected: Vec<Vec<String>> =
        (0..THREADS).map(|number| texts(&alone.ok("/v1/completions", &body(number)))).collect();
    let server = start(crowded());
    server.ok("/v1/completions", &body(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let number = (thread + round) % THREADS;
                    if round % 3 == 2 {
                        disturb(server, number + round);
                    } else {
                        let answer = server.ok("/v1/completions", &body(number));
                        assert_eq!(texts(&answer), expected[number], "request {number}");
                    }
                }
            });
        }
        // The engine and the tokenizer are busy elsewhere.
        for _ in 0..10 {
            assert_eq!(server.get("/health").status, 200);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let stats = server.settled("test");
    assert!(stats.cancelled > 0, "{stats:?}");
    assert!(stats.prefix_cache.tokens_hit > 0, "{stats:?}");
    // A cold run and one with cached pages give the same tokens.
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(texts(&server.ok("/v1/completions", &body(number))), *expected);
    }
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("fulmen_http_requests_in_flight 1\n"), "{metrics}");
}

#[test]
fn tenants_do_not_share_cached_prefixes() {
    use crate::server::{options, start_with};
    use fulmen_server::ServerOptions;
    let keys = vec!["a".to_owned(), "b".to_owned()];
    let server = start_with(ServerOptions { api_keys: keys, ..options() }, TestModel::default());
    let cached = |key: &str| {
        let headers = [("authorization", key)];
        let reply = server.post_with("/v1/completions", &headers, body(0).to_string().as_bytes());
        reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("Bearer a"), 0);
    assert!(cached("Bearer a") >= 256);
    assert_eq!(cached("Bearer b"), 0);
}
