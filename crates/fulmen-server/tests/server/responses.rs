//! `/v1/responses`.

use serde_json::{Value, json};

use crate::server::{scripted, start};

const TEXT: &str = "<think>Hm.</think>Hello there";

#[test]
fn a_response_has_items() {
    let server = start(scripted(&[TEXT]));
    let answer =
        server.ok("/v1/responses", &json!({ "model": "test", "input": "Hello", "instructions": "Be." }));
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(answer["output"][0]["type"], "reasoning");
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hm.");
    assert_eq!(answer["output"][1]["content"][0]["text"], "Hello there");
    assert_eq!(answer["output"][1]["role"], "assistant");
    assert!(answer["usage"]["output_tokens"].as_u64().unwrap() > 3);
    let cut = server.ok("/v1/responses", &json!({ "input": "Hello", "max_output_tokens": 3 }));
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
}

#[test]
fn conversations_with_tools_are_read() {
    let call = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    let server = start(scripted(&[call]));
    let body = json!({
        "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": "Weather?" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [] },
            { "type": "function_call", "call_id": "c1", "name": "time", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": "12:00" },
        ],
        "tools": [{ "type": "function", "name": "weather", "parameters": { "type": "object" } }],
    });
    let answer = server.ok("/v1/responses", &body);
    assert_eq!(answer["output"][0]["type"], "function_call");
    assert_eq!(answer["output"][0]["arguments"], "{\"city\":\"Oslo\"}");
}

#[test]
fn a_stream_builds_the_same_response() {
    let server = start(scripted(&[TEXT]));
    let reply = server.post("/v1/responses", &json!({ "input": "Hello", "stream": true }));
    let events = reply.events();
    let data: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
    assert_eq!(names.last(), Some(&"response.completed"));
    for (at, event) in data.iter().enumerate() {
        assert_eq!((&event["sequence_number"], &event["type"]), (&json!(at), &json!(names[at])));
    }
    let deltas: String = data
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .filter_map(|event| event["delta"].as_str())
        .collect();
    assert_eq!(deltas, "Hello there");
    let response = &data.last().unwrap()["response"];
    assert_eq!(response["output"][1]["content"][0]["text"], "Hello there");
    let added = names.iter().filter(|name| **name == "response.output_item.added").count();
    let done = names.iter().filter(|name| **name == "response.output_item.done").count();
    assert_eq!((added, done), (2, 2));
}

#[test]
fn what_is_not_supported_is_refused() {
    let server = start(scripted(&["x"]));
    let cases = [
        (json!({ "store": true }), "store"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "background": true }), "background"),
        (json!({ "include": ["x"] }), "include"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools"),
        (json!({ "text": { "format": { "type": "json_object" } } }), "response_format"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
    ];
    for (extra, param) in cases {
        let mut body = json!({ "input": "Hello" });
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = server.post("/v1/responses", &body);
        assert_eq!(reply.status, 400, "{extra}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{extra}");
    }
}
