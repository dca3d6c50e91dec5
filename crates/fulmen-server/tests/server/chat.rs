//! `/v1/chat/completions`.

use serde_json::{Value, json};

use crate::server::{TestModel, scripted, start};

fn body(extra: Value) -> Value {
    let mut body =
        json!({ "model": "test", "messages": [{ "role": "user", "content": "Hello" }], "seed": 0 });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

const PATH: &str = "/v1/chat/completions";

#[test]
fn an_answer_has_openai_s_form() {
    let server = start(scripted(&["Hello, little bird!"]));
    let answer = server.ok(PATH, &body(json!({})));
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["model"], "test");
    let choice = &answer["choices"][0];
    assert_eq!(
        choice["message"],
        json!({
            "role": "assistant", "content": "Hello, little bird!", "refusal": null,
        })
    );
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("stop"), &json!(0)));
    let usage = &answer["usage"];
    let total = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], total);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn a_stream_has_the_same_text() {
    let server = start(scripted(&["Hello, little bird! Où es-tu? 🌍"]));
    let whole = server.ok(PATH, &body(json!({})));
    let reply =
        server.post(PATH, &body(json!({ "stream": true, "stream_options": { "include_usage": true } })));
    let chunks = reply.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    let last = &chunks[chunks.len() - 2];
    assert_eq!((&last["choices"][0]["finish_reason"], &last["usage"]), (&json!("stop"), &Value::Null));
    assert!(last.as_object().unwrap().contains_key("usage"));
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    let plain = server.post(PATH, &body(json!({ "stream": true }))).chunks();
    assert!(plain.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn limits_and_stops_end_an_answer() {
    let server = start(scripted(&["one two three four five six seven"]));
    for limit in ["max_tokens", "max_completion_tokens"] {
        let answer = server.ok(PATH, &body(json!({ limit: 2 })));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
    for stop in [json!(" three"), json!(["seven", "three"])] {
        let answer = server.ok(PATH, &body(json!({ "stop": stop })));
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text.trim_end(), "one two", "{stop}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let chunks = server.post(PATH, &body(json!({ "stop": stop, "stream": true }))).chunks();
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(streamed, text);
    }
    server.settled("test");
}

#[test]
fn choices_have_seeds_of_their_own() {
    let server = start(scripted(&["zero", "one", "two"]));
    let answer = server.ok(PATH, &body(json!({ "n": 3 })));
    let texts: Vec<&str> =
        (0..3).map(|i| answer["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["zero", "one", "two"]);
    let chunks = server.post(PATH, &body(json!({ "n": 3, "stream": true, "seed": 1 }))).chunks();
    let mut streamed = vec![String::new(); 3];
    for chunk in &chunks {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        streamed[index] += choice["delta"]["content"].as_str().unwrap_or("");
    }
    assert_eq!(streamed, ["one", "two", "zero"]);
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let server = start(TestModel::default());
    let text = |seed: i64| {
        let answer = server.ok(PATH, &body(json!({ "seed": seed, "max_tokens": 20 })));
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
    assert_eq!(text(-1), text(-1));
}

#[test]
fn logprobs_cover_the_text() {
    let server = start(scripted(&["Hello, bird!"]));
    let asked = body(json!({ "logprobs": true, "top_logprobs": 2 }));
    let answer = server.ok(PATH, &asked);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text.trim_start(), "Hello, bird!");
    assert!(content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    assert_eq!(content[0]["logprob"], -0.5);
    assert!(server.ok(PATH, &body(json!({})))["choices"][0]["logprobs"].is_null());
    // What a stop string cuts off has none.
    let cut = server.ok(PATH, &body(json!({ "logprobs": true, "stop": " bird" })));
    let content = cut["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(content.iter().all(|token| !token["token"].as_str().unwrap().contains("bird")), "{content:?}");
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let chunks = server.post(PATH, &streamed).chunks();
    let tokens: usize = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().map(Vec::len))
        .sum();
    assert_eq!(tokens, answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len());
}

#[test]
fn thoughts_are_apart_from_the_answer() {
    let server = start(scripted(&["<think>\nA bird?\n</think>\n\nYes.", "A cat?</think>No."]));
    let message = |extra: Value| server.ok(PATH, &body(extra))["choices"][0]["message"].clone();
    let thought = message(json!({ "messages": [{ "role": "user", "content": "<think>" }] }));
    assert_eq!((&thought["reasoning_content"], &thought["content"]), (&json!("A bird?"), &json!("Yes.")));
    // The template opens the thoughts.
    let opened = message(json!({ "seed": 1, "reasoning_effort": "high" }));
    assert_eq!((&opened["reasoning_content"], &opened["content"]), (&json!("A cat?"), &json!("No.")));
    let kwargs = json!({ "seed": 1, "chat_template_kwargs": { "enable_thinking": true } });
    assert_eq!(message(kwargs)["reasoning_content"], "A cat?");
    let chunks = server.post(PATH, &body(json!({ "stream": true }))).chunks();
    let part = |name: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!((part("reasoning_content").as_str(), part("content").as_str()), ("A bird?", "Yes."));
}

#[test]
fn messages_become_the_prompt() {
    let server = start(scripted(&["x"]));
    let cached = json!({ "type": "ephemeral" });
    let parts = json!([
        { "type": "text", "text": "One ", "cache_control": cached },
        { "type": "text", "text": "two" },
    ]);
    let messages = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": parts },
        { "role": "assistant", "content": "Three", "refusal": null, "annotations": [], "audio": null },
    ]);
    let tokens = server.ok("/tokenize", &json!({ "messages": messages }))["tokens"].clone();
    let text = server.ok("/detokenize", &json!({ "tokens": tokens }))["prompt"].clone();
    assert_eq!(text.as_str().unwrap(), "system: Be brief.\nuser: One two\nassistant: Three\nassistant: ");
    let usage = server.ok(PATH, &body(json!({ "messages": messages })))["usage"].clone();
    assert_eq!(usage["prompt_tokens"], tokens.as_array().unwrap().len());
}

#[test]
fn what_is_wrong_is_named() {
    let server = start(TestModel { logprobs: false, ..scripted(&["x"]) });
    let image = json!([{ "type": "image_url", "image_url": {} }]);
    let cases = [
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "top_p": 1.5 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "min_p": 2 }), "min_p"),
        (json!({ "frequency_penalty": 3 }), "frequency_penalty"),
        (json!({ "presence_penalty": -3 }), "presence_penalty"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 1000 }), "n"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_completion_tokens": -1 }), "max_completion_tokens"),
        (json!({ "stop": [""] }), "stop"),
        (json!({ "stop": vec!["x"; 17] }), "stop"),
        (json!({ "stop": "x".repeat(300) }), "stop"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (json!({ "logit_bias": { "999999": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "king", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": 1 }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": image }] }), "messages[0].content"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "response_format": { "type": "xml" } }), "response_format"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }), "tools"),
        (json!({ "tools": [{ "type": "web_search", "function": { "name": "a" } }] }), "tools"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "store": true }), "store"),
        (json!({ "modalities": ["audio"] }), "modalities"),
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs"),
        (json!({ "tempurature": 1 }), "tempurature"),
    ];
    for (extra, param) in cases {
        let reply = server.post(PATH, &body(extra.clone()));
        assert_eq!(reply.status, 400, "{extra}: {}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{extra}");
        assert_eq!(error["param"], param, "{extra}: {error}");
        assert!(error["message"].as_str().unwrap().contains(param), "{error}");
    }
    let reply = server.post(PATH, &body(json!({ "model": "other" })));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    server.ok(PATH, &body(json!({})));
}

#[test]
fn a_model_without_a_template_continues_the_text() {
    let server = start(TestModel { template: None, ..scripted(&[" and so on"]) });
    let answer = server.ok(PATH, &body(json!({})));
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap().trim(), "and so on");
    let tools = json!([{ "type": "function", "function": { "name": "a" } }]);
    assert_eq!(server.post(PATH, &body(json!({ "tools": tools }))).status, 400);
}
