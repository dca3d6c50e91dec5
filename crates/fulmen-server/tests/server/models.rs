//! Models on demand.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmen_server::{DecodeBound, ModelSpec, Registry, RegistryOptions, SamplingDefaults};
use serde_json::{Value, json};

use crate::server::{TestLoader, TestModel, TestServer, options, scripted, spec, start_all, start_by};

const PATH: &str = "/v1/chat/completions";

fn ask(server: &TestServer, model: &str) -> Value {
    server.ok(PATH, &json!({ "model": model, "messages": [{ "role": "user", "content": "x" }], "seed": 0 }))
}

fn two(kept: RegistryOptions) -> TestServer {
    let models = vec![("a".to_owned(), scripted(&["I am a"])), ("b".to_owned(), scripted(&["I am b"]))];
    let first = ModelSpec { aliases: vec!["gpt-4o".to_owned()], ..spec("a") };
    start_all(options(), vec![first, spec("b"), spec("broken")], models, kept)
}

#[test]
fn models_are_loaded_at_first_use() {
    let server = two(RegistryOptions::default());
    assert_eq!(server.loader.loads.load(Ordering::Relaxed), 0);
    for (name, text) in [("b", "I am b"), ("a", "I am a"), ("gpt-4o", "I am a"), ("", "I am a")] {
        let answer = ask(&server, name);
        assert_eq!(answer["choices"][0]["message"]["content"], text);
        assert_eq!(answer["model"], if text == "I am a" { "a" } else { "b" });
    }
    assert_eq!(server.loader.loads.load(Ordering::Relaxed), 2);
    let broken = server.post(PATH, &json!({ "model": "broken", "messages": [] }));
    assert_eq!((broken.status, &broken.json()["error"]["code"]), (503, &json!("model_load_failed")));
    assert!(broken.error().contains("no such file"), "{}", broken.error());
}

#[test]
fn many_requests_load_a_model_once() {
    let server = two(RegistryOptions::default());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| ask(&server, "a"));
        }
    });
    assert_eq!(server.loader.loads.load(Ordering::Relaxed), 1);
}

#[test]
fn idle_models_are_unloaded() {
    let kept = RegistryOptions { keep_alive: Some(Duration::from_millis(50)), memory: None };
    let server = two(kept);
    ask(&server, "a");
    for _ in 0..500 {
        if server.registry.loaded().is_empty() {
            ask(&server, "a");
            assert_eq!(server.loader.loads.load(Ordering::Relaxed), 2);
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it is still loaded");
}

#[test]
fn a_preset_may_keep_a_model_for_any_time() {
    let kept = RegistryOptions { keep_alive: Some(Duration::from_secs(u64::MAX)), memory: None };
    let server = two(kept);
    ask(&server, "a");
    let running = server.get("/api/ps");
    assert_eq!(running.status, 200, "{}", running.text());
}

#[test]
fn the_memory_budget_unloads_the_longest_unused() {
    let server = two(RegistryOptions { memory: Some(1500), ..RegistryOptions::default() });
    let loaded = || server.registry.loaded().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    ask(&server, "a");
    assert_eq!(loaded(), ["a"]);
    ask(&server, "b");
    assert_eq!(loaded(), ["b"]);
    let small = two(RegistryOptions { memory: Some(500), ..RegistryOptions::default() });
    let reply = small.post(PATH, &json!({ "model": "a", "messages": [{ "role": "user", "content": "x" }] }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("memory_budget")));
}

/// Only the load itself tells what fits: KV pages come on top of the files.
#[test]
fn a_load_without_memory_unloads_the_longest_unused() {
    let names = ["a", "b", "c"];
    let slow = scripted(&["one two three four five six seven"]).slow(Duration::from_millis(30));
    let models = names.map(|name| (name.to_owned(), slow.clone())).to_vec();
    let loader = TestLoader { models, room: 2, ..TestLoader::default() };
    let specs = names.map(spec).to_vec();
    let server = start_by(options(), specs, loader, RegistryOptions::default());
    let loaded = || server.registry.loaded().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    for name in ["a", "b", "a", "c"] {
        ask(&server, name);
    }
    assert_eq!(loaded(), ["a", "c"]);
    // A model in use keeps its memory; without an idle one, the load fails.
    std::thread::scope(|scope| {
        let asked = ["a", "c"].map(|name| scope.spawn(|| ask(&server, name)));
        while server.registry.status().iter().any(|status| status.active == 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let reply =
            server.post(PATH, &json!({ "model": "b", "messages": [{ "role": "user", "content": "x" }] }));
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("model_load_failed")));
        for answer in asked {
            answer.join().unwrap();
        }
    });
    assert_eq!(loaded(), ["a", "c"]);
    ask(&server, "b");
}

#[test]
fn a_model_whose_device_was_lost_is_loaded_anew() {
    let lost = TestModel { lost_at: Some(3), ..TestModel::default() };
    let server =
        start_all(options(), vec![spec("a")], vec![("a".to_owned(), lost)], RegistryOptions::default());
    let body = json!({ "model": "a", "prompt": "x", "max_tokens": 20, "seed": 0 });
    for load in 1..=3 {
        let reply = server.post("/v1/completions", &body);
        assert_eq!(reply.status, 500, "{}", reply.text());
        assert!(reply.error().contains("device"), "{}", reply.error());
        assert_eq!(server.loader.loads.load(Ordering::Relaxed), load);
    }
}

#[test]
fn a_model_in_use_is_not_unloaded() {
    let slow =
        scripted(&["one two three four five six seven eight nine ten"]).slow(Duration::from_millis(30));
    let models = vec![("a".to_owned(), slow), ("b".to_owned(), scripted(&["x"]))];
    let kept = RegistryOptions { memory: Some(1500), ..RegistryOptions::default() };
    let server = start_all(options(), vec![spec("a"), spec("b")], models, kept);
    std::thread::scope(|scope| {
        let long = scope.spawn(|| ask(&server, "a"));
        while server.registry.status().iter().all(|status| status.active == 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let reply =
            server.post(PATH, &json!({ "model": "b", "messages": [{ "role": "user", "content": "x" }] }));
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{}", reply.text());
        let stopped = server.ok("/api/generate", &json!({ "model": "a", "keep_alive": 0 }));
        assert_eq!(stopped["done_reason"], "unload");
        let answer = long.join().unwrap();
        assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().ends_with("ten"));
    });
    // It goes when its last request has ended.
    for _ in 0..500 {
        if server.registry.loaded().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it is still loaded");
}

#[test]
fn presets_fill_in_what_requests_leave_open() {
    let defaults = SamplingDefaults { max_tokens: Some(2), ..SamplingDefaults::default() };
    let preset = ModelSpec { defaults, system: Some("Be brief.".to_owned()), ..spec("a") };
    let models = vec![("a".to_owned(), TestModel::default())];
    let server = start_all(options(), vec![preset], models, RegistryOptions::default());
    let answer = ask(&server, "a");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 2);
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }] });
    let with = server.ok("/tokenize", &body)["count"].as_u64().unwrap();
    body["messages"] = json!([{ "role": "system", "content": "" }, { "role": "user", "content": "x" }]);
    assert!(server.ok("/tokenize", &body)["count"].as_u64().unwrap() < with);
}

#[test]
fn names_are_unique() {
    let loader = || Arc::new(TestLoader::default());
    let twice = vec![spec("a"), ModelSpec { aliases: vec!["a".to_owned()], ..spec("b") }];
    assert!(Registry::new(twice, loader(), RegistryOptions::default()).is_err());
}

/// What a share of the memory-bandwidth bound is computed from: of loaded models, where it is known.
#[test]
fn loaded_models_tell_their_bound() {
    let bound = DecodeBound { bytes_per_second: 4_000_000, bytes_per_token: 1000, bytes_per_position: 10 };
    let known = TestModel { bound: Some(bound), ..scripted(&["I am a"]) };
    let models = vec![("a".to_owned(), known), ("b".to_owned(), scripted(&["I am b"]))];
    let server = start_all(options(), vec![spec("a"), spec("b")], models, RegistryOptions::default());
    let told = |at: usize| server.get("/v1/models").json()["data"][at]["bound"].clone();
    assert_eq!((told(0), told(1)), (Value::Null, Value::Null));
    ask(&server, "a");
    ask(&server, "b");
    assert_eq!(
        told(0),
        json!({
            "bytes_per_second": 4_000_000, "bytes_per_token": 1000, "bytes_per_position": 10,
        })
    );
    assert_eq!(server.get("/v1/models/a").json()["bound"], told(0));
    assert_eq!(told(1), Value::Null);
}
