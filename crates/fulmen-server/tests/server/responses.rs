//! `/v1/responses`.

use serde_json::{Value, json};

use crate::server::{TestModel, scripted, start};

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

/// Models such as gpt-oss go on with their thoughts behind the result of a tool.
#[test]
fn thoughts_between_calls_reach_the_template() {
    let template = "{% for m in messages %}{{ m.role ~ (m.reasoning_content or '') ~ m.content }}\
        {% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}";
    let server = start(TestModel { template: Some(template), ..scripted(&["x"]) });
    let thought = "The weather depends on the time of the day, so I ask for it first.";
    let input = |content: Value| {
        json!([
            { "role": "user", "content": "Weather?" },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": content, "status": "completed" },
            { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "time", "arguments": "{}",
                "status": "completed" },
            { "type": "function_call_output", "call_id": "c1", "output": "12:00" },
        ])
    };
    let tokens = |content: Value| {
        server.ok("/v1/responses", &json!({ "input": input(content) }))["usage"]["input_tokens"].clone()
    };
    let with = tokens(json!([{ "type": "reasoning_text", "text": thought }]));
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "time", "arguments": "{}" } });
    let messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "12:00" },
    ]);
    let chat = server.ok("/v1/chat/completions", &json!({ "messages": messages }));
    assert_eq!(with, chat["usage"]["prompt_tokens"]);
    assert!(with.as_u64() > tokens(json!([])).as_u64().map(|tokens| tokens + 10));
}

#[test]
fn an_answer_repeats_its_request() {
    let server = start(TestModel { constrained: true, ..TestModel::default() });
    let tools = json!([{ "type": "function", "name": "time", "parameters": { "type": "object" } }]);
    let choice = json!({ "type": "function", "name": "time" });
    let body = json!({ "input": "x", "tools": tools, "tool_choice": choice, "max_output_tokens": 5 });
    let answer = server.ok("/v1/responses", &body);
    assert_eq!((&answer["tools"], &answer["tool_choice"]), (&tools, &choice));
    let format = json!({ "type": "json_schema", "name": "a", "schema": { "type": "object" } });
    let body = json!({ "input": "x", "text": { "format": format }, "max_output_tokens": 5 });
    let answer = server.ok("/v1/responses", &body);
    assert_eq!((&answer["text"]["format"], &answer["tool_choice"]), (&format, &json!("auto")));
    let reply = server.post("/v1/responses", &json!({ "input": "x", "stream_options": {} }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("stream_options")));
}

/// In lists whose items are of several kinds, too.
#[test]
fn unknown_fields_are_named_at_any_depth() {
    let server = start(scripted(&["x"]));
    let messages = |message: Value| json!({ "messages": [message], "model": "test", "max_tokens": 5 });
    let part = json!({ "role": "user", "content": [{ "type": "text", "text": "x", "zzz": 1 }] });
    let call = |call: Value| json!({ "role": "assistant", "content": "", "tool_calls": [call] });
    let function = json!({ "name": "a", "arguments": "{}" });
    let named = json!({ "type": "function", "function": { "name": "a" }, "zzz": 1 });
    let block = json!({ "role": "user", "content": [{ "type": "text", "text": "x", "zzz": 1 }] });
    let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": "x", "zzz": true });
    let cases = [
        ("/v1/chat/completions", messages(part.clone()), "zzz"),
        ("/v1/chat/completions", messages(call(json!({ "function": function, "zzz": 1 }))), "zzz"),
        (
            "/v1/chat/completions",
            messages(call(json!({ "function": { "name": "a", "arguments": "{}", "zzz": 1 } }))),
            "zzz",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "x" }], "tool_choice": named }),
            "tool_choice",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "x" }],
                "tool_choice": { "type": "custom", "function": { "name": "a" } } }),
            "custom",
        ),
        ("/v1/responses", json!({ "input": [{ "role": "user", "content": "x", "zzz": 1 }] }), "zzz"),
        ("/v1/responses", json!({ "input": [part] }), "zzz"),
        (
            "/v1/responses",
            json!({ "input": "x", "tool_choice": { "type": "custom", "name": "a" } }),
            "custom",
        ),
        ("/v1/messages", messages(block), "zzz"),
        ("/v1/messages", messages(json!({ "role": "user", "content": [result] })), "zzz"),
        ("/api/chat", messages(call(json!({ "function": { "name": "a" }, "zzz": 1 }))), "zzz"),
        (
            "/tokenize",
            json!({ "messages": [{ "role": "user", "content": "x" }], "parse_special": true }),
            "parse_special",
        ),
    ];
    for (path, mut body, name) in cases {
        if path == "/v1/chat/completions" || path == "/api/chat" {
            body["model"] = json!("test");
        }
        if path == "/api/chat" {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.text());
        assert!(reply.text().contains(name), "{path} {body}: {}", reply.text());
    }
    // What clients send back of answers is read.
    let text = json!({ "type": "output_text", "text": "x", "annotations": [], "logprobs": [] });
    let item = json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [text] });
    server.ok("/v1/responses", &json!({ "input": [item, { "role": "user", "content": "y" }] }));
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

/// What OpenAI's own programs send with each request.
#[test]
fn what_agents_always_ask_for_is_accepted() {
    let server = start(scripted(&["x"]));
    let content = json!([{ "type": "input_text", "text": "Hello" }]);
    let schema = json!({ "type": "object" });
    let body = json!({
        "input": [{ "type": "message", "role": "user", "content": content }],
        "instructions": "Be brief.", "store": false, "parallel_tool_calls": false, "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"], "reasoning": { "effort": "high", "summary": "auto" },
        "tools": [{ "type": "function", "name": "shell", "strict": false, "parameters": schema }],
        "tool_choice": "auto",
    });
    let answer = server.ok("/v1/responses", &body);
    assert_eq!(answer["reasoning"], json!({ "effort": "high", "summary": null }));
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
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "include": ["reasoning.encrypted_content", "x"] }), "include"),
        (json!({ "reasoning": { "summary": "detailed" } }), "reasoning.summary"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools"),
        (json!({ "text": { "format": { "type": "json_object" } } }), "text.format"),
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
