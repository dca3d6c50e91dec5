//! Ollama's API.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use fulmen_server::{ModelSpec, RegistryOptions, SamplingDefaults};

use crate::client::Reply;
use crate::server::{
    STORY, TEMPLATE, TestLoader, TestModel, options, scripted, spec, start, start_all, start_by,
};

pub(crate) fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("application/x-ndjson")),
        "{}",
        reply.text()
    );
    reply.text().lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn chats_are_streamed_by_default() {
    let server = start(scripted(&["<think>Hm.</think>Hello there"]));
    let body = json!({
        "model": "test", "messages": [{ "role": "user", "content": "Hello" }], "options": { "seed": 0 },
    });
    let lines = lines(&server.post("/api/chat", &body));
    let part =
        |key: &str| -> String { lines.iter().filter_map(|line| line["message"][key].as_str()).collect() };
    assert_eq!((part("thinking").as_str(), part("content").as_str()), ("Hm.", "Hello there"));
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert!(last["eval_count"].as_u64().unwrap() > 3 && last["prompt_eval_count"].as_u64().unwrap() > 3);
    assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false));
    let mut whole = body;
    whole["stream"] = json!(false);
    whole["model"] = json!("test:latest");
    whole["options"]["num_predict"] = json!(-1);
    let answer = server.ok("/api/chat", &whole);
    assert_eq!(answer["message"]["content"], "Hello there");
    assert_eq!(answer["done"], true);
}

#[test]
fn texts_are_generated() {
    let server = start(TestModel { template: None, ..scripted(&[" a bird"]) });
    let body = json!({ "model": "test", "prompt": "Once", "options": { "num_predict": 2 } });
    let lines = lines(&server.post("/api/generate", &body));
    assert_eq!(lines.last().unwrap()["done_reason"], "length");
    let body = json!({ "model": "test", "prompt": "Once", "stream": false });
    assert_eq!(server.ok("/api/generate", &body)["response"], " a bird");
}

#[test]
fn an_effort_reaches_the_template() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}\
        {% if reasoning_effort == 'high' %}Think as long as you can about every single word.{% endif %}";
    let server = start(TestModel { template: Some(template), ..scripted(&["x"]) });
    let messages = json!([{ "role": "user", "content": "x" }]);
    let ask =
        |think: Value| json!({ "model": "test", "messages": messages, "stream": false, "think": think });
    let tokens = |think| server.ok("/api/chat", &ask(think))["prompt_eval_count"].as_u64().unwrap();
    assert!(tokens(json!("high")) > tokens(json!("low")) + 5);
    assert_eq!(tokens(json!("low")), tokens(json!(true)));
    let generate = json!({ "model": "test", "prompt": "x", "stream": false, "think": "high" });
    let high = server.ok("/api/generate", &generate)["prompt_eval_count"].as_u64().unwrap();
    assert_eq!(high, tokens(json!("high")));
    assert_eq!(server.post("/api/chat", &ask(json!("huge"))).status, 400);
    // Without a template, nobody would be told.
    let raw = |think: Value| {
        let body = json!({ "model": "test", "prompt": "x", "raw": true, "stream": false, "think": think });
        server.post("/api/generate", &body).status
    };
    assert_eq!((raw(json!(true)), raw(json!("huge")), raw(json!(false))), (400, 400, 200));
}

#[test]
fn no_limit_lifts_that_of_a_preset() {
    let defaults = SamplingDefaults { max_tokens: Some(2), ..SamplingDefaults::default() };
    let preset = ModelSpec { defaults, ..spec("test") };
    let models = vec![("test".to_owned(), scripted(&["one two three four five six"]))];
    let server = start_all(options(), vec![preset], models, RegistryOptions::default());
    let ask = |limit: Value| {
        let body = json!({ "model": "test", "prompt": "x", "stream": false, "options": limit });
        server.ok("/api/generate", &body)
    };
    let first = ask(json!({}));
    assert_eq!((&first["eval_count"], &first["done_reason"]), (&json!(2), &json!("length")));
    // The first request has loaded the model.
    assert!(first["load_duration"].as_u64().unwrap() > 0, "{first}");
    assert!(first["total_duration"].as_u64() >= first["load_duration"].as_u64(), "{first}");
    for limit in [-1, -2] {
        assert_eq!(ask(json!({ "num_predict": limit }))["done_reason"], "stop");
    }
    let reply =
        server.post("/api/generate", &json!({ "model": "test", "prompt": "x", "options": { "stop": [""] } }));
    assert!(reply.status == 400 && reply.text().contains("options.stop: "), "{}", reply.text());
}

#[test]
fn an_empty_prompt_loads_and_unloads() {
    let server = start(scripted(&["x"]));
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    let loaded = server.ok("/api/generate", &json!({ "model": "test" }));
    assert_eq!(loaded["done_reason"], "load");
    let running = server.get("/api/ps").json();
    assert_eq!(running["models"][0]["name"], "test");
    assert_eq!(running["models"][0]["context_length"], 2048);
    let unloaded = server.ok("/api/generate", &json!({ "model": "test", "keep_alive": 0 }));
    assert_eq!(unloaded["done_reason"], "unload");
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
}

/// The time of the end is beyond what a clock can show.
#[test]
fn a_model_may_stay_for_any_time() {
    let server = start(scripted(&["x"]));
    for time in [json!(1e19), json!(1e9), json!("5000000h"), json!(1.8e19), json!(-1)] {
        server.ok("/api/generate", &json!({ "model": "test", "keep_alive": time }));
        let running = server.get("/api/ps");
        assert_eq!(running.status, 200, "{time}: {}", running.text());
        let expires = running.json()["models"][0]["expires_at"].as_str().unwrap().to_owned();
        assert!(expires.as_str() > "2050" && expires.as_str() < "2400", "{time}: {expires}");
    }
}

#[test]
fn models_are_listed_and_shown() {
    let server = start(scripted(&["x"]));
    let listed = server.get("/api/tags").json()["models"][0].clone();
    assert_eq!((&listed["name"], listed["digest"].as_str().unwrap().len()), (&json!("test"), 64));
    let shown = server.ok("/api/show", &json!({ "model": "test" }));
    assert_eq!(shown["details"]["parameter_size"], "6.8M");
    assert_eq!(shown["model_info"]["test.context_length"], 2048);
    assert_eq!(shown["model_info"]["test.block_count"], 7);
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(shown["template"], TEMPLATE);
    assert_eq!(shown["parameters"], format!("{:<30} 2048", "num_ctx"));
    assert!(shown["modelfile"].as_str().unwrap().contains("PARAMETER num_ctx 2048\n"), "{shown}");
    // Clients ask for Ollama 0.6.4 and later, and take a lower version for one that is too old.
    let version = server.get("/api/version").json()["version"].as_str().unwrap().to_owned();
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![0, 6, 4], "{version}");
    let embedded = server.ok("/api/embed", &json!({ "model": "test", "input": ["a", "b"] }));
    assert_eq!(embedded["embeddings"].as_array().unwrap().len(), 2);
    let one = server.ok("/api/embeddings", &json!({ "model": "test", "prompt": "a" }));
    assert_eq!(one["embedding"], embedded["embeddings"][0]);
}

/// Clients that list models ask for the figures of each, which must not load them all.
#[test]
fn models_are_shown_without_loading_them() {
    let loader = TestLoader { described_by: Some(STORY), ..TestLoader::default() };
    let specs = vec![spec("a"), ModelSpec { context: Some(100), ..spec("b") }];
    let server = start_by(options(), specs, loader, RegistryOptions::default());
    for (name, context) in [("a", 512), ("b", 100)] {
        let shown = server.ok("/api/show", &json!({ "model": name }));
        assert_eq!(shown["details"]["parameter_size"], "6.8M");
        assert_eq!(
            (&shown["details"]["family"], &shown["details"]["quantization_level"]),
            (&json!("qwen3"), &json!("Q4_K"))
        );
        let info = &shown["model_info"];
        assert_eq!((&info["qwen3.context_length"], &info["qwen3.block_count"]), (&json!(context), &json!(8)));
        assert_eq!(info["tokenizer.ggml.tokens"], Value::Null);
    }
    assert_eq!(server.get("/api/tags").json()["models"][1]["size"], 1000);
    assert_eq!(server.loader.loads.load(Ordering::Relaxed), 0);
    assert_eq!(server.post("/api/show", &json!({ "model": "c" })).status, 404);
}

/// Some clients write `null` for each option that they do not set, known here or not.
#[test]
fn options_may_be_null() {
    let server = start(scripted(&["x"]));
    let unset = json!({ "mirostat": null, "num_gpu": null, "temperature": null, "num_ctx": 100 });
    let message = json!([{ "role": "user", "content": "x" }]);
    server
        .ok("/api/chat", &json!({ "model": "test", "messages": message, "options": unset, "stream": false }));
    server.ok("/api/embed", &json!({ "model": "test", "input": "x", "options": unset }));
    server.ok("/api/embeddings", &json!({ "model": "test", "prompt": "x", "options": unset }));
    for (options, what) in [
        (json!({ "mirostat": 1 }), "unknown field `mirostat`"),
        (json!({ "temperature": "hot" }), "temperature: invalid type"),
        (json!({ "num_ctx": 1_000_000 }), "num_ctx"),
        (json!([]), "invalid type"),
    ] {
        let reply = server.post("/api/embed", &json!({ "model": "test", "input": "x", "options": options }));
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(reply.status == 400 && error.contains(what), "{error}");
    }
}

#[test]
fn presets_are_shown() {
    let defaults =
        SamplingDefaults { temperature: Some(0.5), top_k: Some(20), ..SamplingDefaults::default() };
    let preset = ModelSpec { defaults, system: Some("Be brief.".to_owned()), ..spec("test") };
    let models = vec![("test".to_owned(), scripted(&["x"]))];
    let server = start_all(options(), vec![preset], models, RegistryOptions::default());
    let shown = server.ok("/api/show", &json!({ "model": "test" }));
    let lines: Vec<Vec<&str>> =
        shown["parameters"].as_str().unwrap().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [["num_ctx", "2048"], ["temperature", "0.5"], ["top_k", "20"]]);
    assert_eq!(shown["system"], "Be brief.");
    assert!(shown["modelfile"].as_str().unwrap().contains("SYSTEM \"\"\"Be brief.\"\"\"\n"), "{shown}");
}

#[test]
fn errors_have_ollama_s_form() {
    let server = start(scripted(&["x"]));
    let message = json!([{ "role": "user", "content": "x" }]);
    let cases = [
        ("/api/chat", json!({ "model": "other", "messages": message }), 404),
        ("/api/chat", json!({ "model": "test", "messages": message, "options": { "num_gpu": 1 } }), 400),
        (
            "/api/chat",
            json!({ "model": "test", "messages": message, "options": { "num_ctx": 100_000 } }),
            400,
        ),
        ("/api/chat", json!({ "model": "test", "messages": message, "format": "xml" }), 400),
        ("/api/chat", json!({ "model": "test", "messages": message, "format": "json" }), 400),
        ("/api/chat", json!({ "model": "test", "messages": message, "keep_alive": "soon" }), 400),
        ("/api/generate", json!({ "model": "test", "prompt": "x", "suffix": "y" }), 400),
        ("/api/generate", json!({ "model": "test", "prompt": "x", "images": ["y"] }), 400),
        ("/api/show", json!({}), 400),
        ("/api/none", json!({}), 404),
    ];
    for (path, body, status) in cases {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
        assert!(reply.json()["error"].is_string(), "{}", reply.text());
    }
}

#[test]
fn tokens_have_log_probabilities() {
    let server = start(TestModel { template: None, ..scripted(&[" a bird"]) });
    let mut body = json!({
        "model": "test", "prompt": "Once", "stream": false, "logprobs": true, "top_logprobs": 2,
        "truncate": false, "shift": false,
    });
    let answer = server.ok("/api/generate", &body);
    let tokens = answer["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
    assert_eq!(text, answer["response"].as_str().unwrap());
    assert!(tokens.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0));
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));

    body["stream"] = json!(true);
    let lines = lines(&server.post("/api/generate", &body));
    let streamed: Vec<&Value> =
        lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten().collect();
    assert_eq!(streamed.len(), tokens.len());

    let messages = json!([{ "role": "user", "content": "Once" }]);
    let chat = json!({ "model": "test", "messages": messages, "stream": false, "logprobs": true });
    assert!(!server.ok("/api/chat", &chat)["logprobs"].as_array().unwrap().is_empty());
    for wrong in [json!({ "logprobs": false }), json!({ "truncate": true }), json!({ "shift": true })] {
        let mut body = body.clone();
        for (key, value) in wrong.as_object().unwrap() {
            body[key] = value.clone();
        }
        assert_eq!(server.post("/api/generate", &body).status, 400, "{wrong}");
    }
}

#[test]
fn texts_for_embeddings_are_cut_if_the_client_says_so() {
    let server = start(TestModel { context: 64, ..scripted(&["x"]) });
    let mut body = json!({ "model": "test", "input": "many words ".repeat(100) });
    assert_eq!(server.post("/api/embed", &body).status, 400);
    body["truncate"] = json!(true);
    assert_eq!(server.ok("/api/embed", &body)["prompt_eval_count"], 63);
}
