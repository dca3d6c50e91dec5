//! `/v1/messages`.

use serde_json::{Value, json};

use crate::server::{TestModel, scripted, start};

fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": "test", "max_tokens": 100, "messages": [{ "role": "user", "content": "Hello" }],
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn an_answer_has_anthropic_s_form() {
    let server = start(scripted(&["Hello there"]));
    let answer =
        server.ok("/v1/messages", &body(json!({ "system": [{ "type": "text", "text": "Be brief." }] })));
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(answer["content"], json!([{ "type": "text", "text": "Hello there" }]));
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let count = json!({ "model": "test", "system": "Be brief.", "messages": messages });
    let counted = server.ok("/v1/messages/count_tokens", &count)["input_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["input_tokens"].as_u64().unwrap(), counted);
    let cut = server.ok("/v1/messages", &body(json!({ "max_tokens": 1 })));
    assert_eq!(cut["stop_reason"], "max_tokens");
    let stopped = server.ok("/v1/messages", &body(json!({ "stop_sequences": [" there"] })));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(" there"))
    );
}

#[test]
fn a_stream_has_named_events() {
    let server = start(scripted(&["<think>Hm.</think>Hello there"]));
    let reply = server.post("/v1/messages", &body(json!({ "stream": true })));
    let events = reply.events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let data: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    assert!(events.iter().zip(&data).all(|((name, _), data)| data["type"] == *name));
    let part =
        |key: &str| -> String { data.iter().filter_map(|event| event["delta"][key].as_str()).collect() };
    assert_eq!((part("thinking").as_str(), part("text").as_str()), ("Hm.", "Hello there"));
    let starts: Vec<&Value> = data.iter().filter(|event| event["type"] == "content_block_start").collect();
    assert_eq!((&starts[0]["content_block"]["type"], &starts[0]["index"]), (&json!("thinking"), &json!(0)));
    assert_eq!((&starts[1]["content_block"]["type"], &starts[1]["index"]), (&json!("text"), &json!(1)));
    let delta = data.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "end_turn");
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 3);
}

#[test]
fn a_failed_tool_says_so_to_the_model() {
    let server = start(scripted(&["x"]));
    let tokens = |is_error: bool| {
        let call = json!({ "type": "tool_use", "id": "t1", "name": "time", "input": {} });
        let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": "no clock",
            "is_error": is_error });
        let messages = json!([{ "role": "user", "content": "x" }, { "role": "assistant", "content": [call] },
            { "role": "user", "content": [result] }]);
        let count = json!({ "model": "test", "messages": messages });
        server.ok("/v1/messages/count_tokens", &count)["input_tokens"].as_u64().unwrap()
    };
    assert!(tokens(true) > tokens(false));
    let reply = server.post("/v1/messages", &body(json!({ "stop_sequences": [""] })));
    assert_eq!(reply.status, 400);
    let error = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(error.starts_with("stop_sequences: "), "{error}");
}

#[test]
fn an_effort_reaches_the_template() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}\
        {% if reasoning_effort == 'high' %}Think as long as you can about every single word.{% endif %}";
    let server = start(TestModel { template: Some(template), ..scripted(&["x"]) });
    let with = |effort: &str| body(json!({ "output_config": { "effort": effort } }));
    let used = |effort: &str| server.ok("/v1/messages", &with(effort))["usage"]["input_tokens"].clone();
    let tokens = |effort: &str| used(effort).as_u64().unwrap();
    assert!(tokens("max") > tokens("low") + 5);
    let mut count = with("high");
    count
        .as_object_mut()
        .unwrap()
        .retain(|key, _| key == "model" || key == "messages" || key == "output_config");
    let counted = server.ok("/v1/messages/count_tokens", &count)["input_tokens"].clone();
    assert!(counted.as_u64().unwrap() > tokens("low") + 5, "{counted}");
    assert_eq!(server.post("/v1/messages", &with("huge")).status, 400);
}

#[test]
fn errors_have_anthropic_s_form() {
    let server = start(TestModel::default());
    let cases = [
        (json!({ "max_tokens": 0 }), 400, "invalid_request_error"),
        (json!({ "max_tokens": "many" }), 400, "invalid_request_error"),
        (json!({ "unknown": 1 }), 400, "invalid_request_error"),
        (json!({ "model": "other" }), 404, "not_found_error"),
        (json!({ "thinking": { "type": "deep" } }), 400, "invalid_request_error"),
        (json!({ "messages": [{ "role": "system", "content": "x" }] }), 400, "invalid_request_error"),
        (json!({ "messages": [{ "role": "assistant", "content": "x" }] }), 400, "invalid_request_error"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
            400,
            "invalid_request_error",
        ),
    ];
    for (extra, status, kind) in cases {
        let reply = server.post("/v1/messages", &body(extra.clone()));
        let json = reply.json();
        assert_eq!((reply.status, &json["type"]), (status, &json!("error")), "{extra}: {json}");
        assert_eq!(json["error"]["type"], kind, "{extra}: {json}");
        assert!(reply.header("request-id").is_some());
    }
    let missing = server.post("/v1/messages", &json!({ "model": "test", "messages": [] }));
    assert_eq!(missing.status, 400);
    assert!(missing.json()["error"]["message"].as_str().unwrap().contains("max_tokens"));
}
