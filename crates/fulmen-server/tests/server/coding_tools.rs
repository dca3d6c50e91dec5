//! Requests as coding tools and other programs send them today.

use serde_json::{Value, json};

use crate::server::{TEMPLATE, TestModel, TestServer, scripted, start};

/// Raises unless messages of the user and of the assistant alternate behind the system's, as templates of
/// Mistral and Gemma do.
const STRICT: &str = "\
{%- if messages[0].role == 'system' %}{{ 'system: ' ~ messages[0].content ~ '\n' }}\
{%- set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif -%}
{%- for message in rest -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}\
{% endif -%}
{{ message.role ~ ': ' ~ message.content ~ '\n' }}
{%- endfor -%}
{{ 'assistant: ' }}";

fn count(server: &TestServer, body: &Value) -> u64 {
    server.ok("/v1/messages/count_tokens", body)["input_tokens"].as_u64().unwrap()
}

/// Blocks with marks of the cache, a system message behind the user's, and thoughts that are kept.
fn claude_code() -> Value {
    let cached = json!({ "type": "ephemeral" });
    json!({
        "model": "test", "max_tokens": 32000, "stream": true,
        "system": [
            { "type": "text", "text": "You write code." },
            { "type": "text", "text": "Be brief.", "cache_control": cached },
        ],
        "messages": [
            { "role": "user", "content": [
                { "type": "text", "text": "Use these notes." },
                { "type": "text", "text": "Say hello", "cache_control": cached },
            ] },
            { "role": "system", "content": "There is no shell." },
        ],
        "metadata": { "user_id": "somebody" },
        "thinking": { "type": "adaptive" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "output_config": { "effort": "high" },
        "tools": [{ "name": "Bash", "description": "Runs a command",
            "input_schema": { "type": "object", "properties": { "command": { "type": "string" } } } }],
    })
}

#[test]
fn claude_code_s_requests_are_answered() {
    for template in [TEMPLATE, STRICT] {
        let server = start(TestModel { template: Some(template), ..scripted(&["Hello there"]) });
        let reply = server.post("/v1/messages?beta=true", &claude_code());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let events = reply.events();
        assert_eq!(events.last().unwrap().0, "message_stop");
        let mut counted = claude_code();
        for sent in ["max_tokens", "stream", "metadata"] {
            counted.as_object_mut().unwrap().remove(sent);
        }
        assert!(count(&server, &counted) > 20);
    }
}

#[test]
fn messages_that_a_template_refuses_are_moved() {
    let server = start(TestModel { template: Some(STRICT), ..scripted(&["x"]) });
    let body = |messages: Value| json!({ "model": "test", "system": "Brief.", "messages": messages });
    let given = body(json!([
        { "role": "user", "content": "One" },
        { "role": "user", "content": "Two" },
        { "role": "system", "content": "Three" },
    ]));
    let moved = body(json!([{ "role": "user", "content": "One\n\nTwo\n\nThree" }]));
    assert_eq!(count(&server, &given), count(&server, &moved));
    let developers = json!({ "messages": [
        { "role": "developer", "content": "Brief." },
        { "role": "developer", "content": "Kind." },
        { "role": "user", "content": "One" },
        { "role": "user", "content": "Two" },
    ] });
    let tokens = server.ok("/tokenize", &developers)["tokens"].clone();
    let text = server.ok("/detokenize", &json!({ "tokens": tokens }))["prompt"].clone();
    assert_eq!(text, "system: Brief.\n\nKind.\nuser: One\n\nTwo\nassistant: ");
    // What nothing helps is the template's error.
    let alone = json!({ "messages": [{ "role": "assistant", "content": "One" }] });
    let reply = server.post("/v1/chat/completions", &alone);
    assert_eq!(reply.status, 400);
    assert!(reply.error().contains("roles must alternate"), "{}", reply.error());
}

#[test]
fn thoughts_of_earlier_turns_are_cleared() {
    let template = "{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}";
    let server = start(TestModel { template: Some(template), ..scripted(&["x"]) });
    let thought = |text: &str| json!({ "type": "thinking", "thinking": text, "signature": "" });
    let call = json!({ "type": "tool_use", "id": "t", "name": "time", "input": {} });
    let result = json!([{ "type": "tool_result", "tool_use_id": "t", "content": "12" }]);
    let answer = |text: &str| json!({ "type": "text", "text": text });
    let messages = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": [thought("first thoughts of all"), answer("b")] },
        { "role": "user", "content": "c" },
        { "role": "assistant", "content": [thought("second thoughts"), call] },
        { "role": "user", "content": result },
        { "role": "assistant", "content": [thought("third thoughts"), answer("d")] },
        { "role": "user", "content": "e" },
    ]);
    let with = |edits: Value| {
        let body = json!({
            "model": "test", "messages": messages, "context_management": { "edits": edits },
        });
        count(&server, &body)
    };
    let keep = |keep: Value| with(json!([{ "type": "clear_thinking_20251015", "keep": keep }]));
    let all = with(json!([]));
    assert_eq!((keep(json!("all")), keep(json!({ "type": "all" }))), (all, all));
    let last = |value: u64| keep(json!({ "type": "thinking_turns", "value": value }));
    // The thoughts before and behind the call of a tool are of one turn.
    assert_eq!(last(2), all);
    assert!(last(1) < all);
    assert_eq!(with(json!([{ "type": "clear_thinking_20251015" }])), last(1));
    let mut shorter = messages.clone();
    shorter[1]["content"] = json!("b");
    assert_eq!(last(1), count(&server, &json!({ "model": "test", "messages": shorter })));

    for edit in [
        json!({ "type": "clear_tool_uses_20250919" }),
        json!({ "type": "clear_thinking_20251015", "keep": "some" }),
        json!({ "type": "clear_thinking_20251015", "keep": { "type": "thinking_turns", "value": 0 } }),
        json!({ "type": "clear_thinking_20251015", "trigger": 1 }),
    ] {
        let body = json!({
            "model": "test", "max_tokens": 9, "messages": messages,
            "context_management": { "edits": [edit] },
        });
        let reply = server.post("/v1/messages", &body);
        assert_eq!(reply.status, 400, "{edit}");
        assert!(reply.text().contains("context_management"), "{}", reply.text());
    }
}

#[test]
fn thoughts_may_be_left_out() {
    let server = start(scripted(&["<think>Hm.</think>Hello there"]));
    let mut body = json!({
        "model": "test", "max_tokens": 100, "messages": [{ "role": "user", "content": "Hello" }],
        "thinking": { "type": "adaptive", "display": "omitted" },
    });
    let content = server.ok("/v1/messages", &body)["content"].clone();
    let hidden = json!({ "type": "thinking", "thinking": "", "signature": "" });
    assert_eq!(content, json!([hidden, { "type": "text", "text": "Hello there" }]));
    body["stream"] = json!(true);
    let text = server.post("/v1/messages", &body).text();
    assert!(text.contains("\"thinking\"") && !text.contains("thinking_delta"), "{text}");
    body["thinking"]["display"] = json!("loud");
    assert_eq!(server.post("/v1/messages", &body).status, 400);
}

#[test]
fn prompts_that_are_too_long_say_so_in_words_that_coding_tools_know() {
    let server = start(TestModel { context: 32, pages: 64, ..scripted(&["x"]) });
    let messages = json!([{ "role": "user", "content": "many words ".repeat(50) }]);
    let body = json!({ "model": "test", "max_tokens": 9, "messages": messages });
    let reply = server.post("/v1/messages", &body);
    assert_eq!(reply.status, 400);
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("prompt is too long: ") && message.contains(" tokens > 31 "), "{message}");
}

/// A developer message in parts, metadata, and functions in a namespace.
fn codex(tools: Value) -> Value {
    let text = |text: &str| json!([{ "type": "input_text", "text": text }]);
    json!({
        "model": "test", "stream": true, "store": false, "tool_choice": "auto",
        "parallel_tool_calls": true, "reasoning": { "summary": "auto" },
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": { "session_id": "s" },
        "input": [
            { "type": "message", "id": "msg_1", "role": "developer", "content": text("You write code.") },
            { "type": "message", "id": "msg_2", "role": "developer", "content": text("Be brief.") },
            { "type": "message", "id": "msg_3", "role": "user", "content": text("Here is a folder.") },
            { "type": "message", "id": "msg_4", "role": "user", "content": text("Weather?") },
        ],
        "tools": tools,
    })
}

fn function(name: &str) -> Value {
    json!({ "type": "function", "name": name, "strict": false, "parameters": { "type": "object" } })
}

fn namespace(name: &str, functions: Value) -> Value {
    json!({ "type": "namespace", "name": name, "description": "Of the sky.", "tools": functions })
}

#[test]
fn codex_s_requests_are_answered() {
    let server = start(scripted(&[crate::tools::CALL]));
    let tools = json!([function("time"), namespace("sky", json!([function("weather")]))]);
    let mut body = codex(tools.clone());
    let events = server.post("/v1/responses", &body).events();
    let data: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let calls = |items: Vec<&Value>| -> Vec<(Value, Value)> {
        let calls = items.into_iter().filter(|item| item["type"] == "function_call");
        calls.map(|item| (item["name"].clone(), item["namespace"].clone())).collect()
    };
    let expected = [(json!("weather"), json!("sky")), (json!("time"), Value::Null)];
    for kind in ["response.output_item.added", "response.output_item.done"] {
        let items = data.iter().filter(|event| event["type"] == kind).map(|event| &event["item"]);
        assert_eq!(calls(items.collect()), expected, "{kind}");
    }
    let response = &data.last().unwrap()["response"];
    assert_eq!(response["tools"], tools);
    body["stream"] = json!(false);
    let whole = server.ok("/v1/responses", &body);
    assert_eq!(calls(whole["output"].as_array().unwrap().iter().collect()), expected);
    // What came goes back with the next request.
    let mut input = body["input"].as_array().unwrap().clone();
    input.extend(whole["output"].as_array().unwrap().iter().cloned());
    let ids = input.iter().filter_map(|item| item["call_id"].as_str());
    let results: Vec<Value> =
        ids.map(|id| json!({ "type": "function_call_output", "call_id": id, "output": "Rain" })).collect();
    input.extend(results);
    body["input"] = json!(input);
    server.ok("/v1/responses", &body);
}

#[test]
fn tools_of_namespaces_are_checked() {
    let server = start(scripted(&["x"]));
    let cases = [
        json!([function("a"), namespace("n", json!([function("a")]))]),
        json!([namespace("n", json!([function("a")])), namespace("m", json!([function("a")]))]),
        json!([namespace("n", json!([{ "type": "web_search" }]))]),
        json!([namespace("n", json!([namespace("m", json!([]))]))]),
        json!([{ "type": "namespace", "tools": [function("a")] }]),
        json!([{ "type": "function", "name": "a", "tools": [] }]),
        json!([namespace("n", (0..129).map(|at| function(&format!("f{at}"))).collect())]),
    ];
    for tools in cases {
        let mut body = codex(tools.clone());
        body["stream"] = json!(false);
        let reply = server.post("/v1/responses", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")), "{tools}");
    }
}

#[test]
fn only_allowed_tools_are_called() {
    let server = start(TestModel { constrained: true, ..TestModel::default() });
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = |name: &str| json!({ "name": name, "parameters": schema });
    let wrapped = |name: &str| json!({ "type": "function", "function": tool(name) });
    let named = json!({ "type": "function", "function": { "name": "time" } });
    let allowed = |mode: &str, tools: Value| {
        let list = json!({ "mode": mode, "tools": tools });
        json!({ "type": "allowed_tools", "allowed_tools": list })
    };
    let ask = |choice: Value, seed: u64| {
        json!({
            "messages": [{ "role": "user", "content": "x" }], "tools": [wrapped("weather"), wrapped("time")],
            "tool_choice": choice, "seed": seed, "parallel_tool_calls": false, "max_tokens": 200,
        })
    };
    for seed in 0..5 {
        let answer = server.ok("/v1/chat/completions", &ask(allowed("required", json!([named])), seed));
        let calls = answer["choices"][0]["message"]["tool_calls"].clone();
        assert_eq!(calls[0]["function"]["name"], "time", "{answer}");
    }
    // The model is told of no others.
    let tokens = |choice: Value| {
        server.ok("/v1/chat/completions", &ask(choice, 0))["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(tokens(allowed("auto", json!([named]))) < tokens(json!("auto")));
    for choice in [
        allowed("auto", json!([{ "type": "function", "function": { "name": "other" } }])),
        allowed("none", json!([named])),
        allowed("auto", json!([{ "type": "custom", "function": { "name": "time" } }])),
    ] {
        let reply = server.post("/v1/chat/completions", &ask(choice.clone(), 0));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tool_choice")), "{choice}");
    }
    let flat = |name: &str| json!({ "type": "function", "name": name, "parameters": schema });
    let one = json!([{ "type": "function", "name": "time" }]);
    let body = json!({
        "input": "x", "tools": [flat("weather"), flat("time")], "max_output_tokens": 200,
        "tool_choice": { "type": "allowed_tools", "mode": "required", "tools": one },
        "parallel_tool_calls": false,
    });
    let answer = server.ok("/v1/responses", &body);
    assert_eq!(answer["output"][0]["name"], "time", "{answer}");
    assert_eq!(answer["tool_choice"]["mode"], "required");
}

#[test]
fn models_are_listed_for_both_apis() {
    let server = start(scripted(&["x"]));
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("test"), &json!("test")));
    let model = server.get("/v1/models/test").json();
    assert_eq!((&model["object"], &model["type"]), (&json!("model"), &json!("model")));
    assert_eq!(model["display_name"], "test");
    assert!(model["created_at"].as_str().unwrap().ends_with('Z'), "{model}");
}

#[test]
fn a_response_that_fails_in_mid_stream_says_so() {
    let model = TestModel { lost_at: Some(8), ..TestModel::default() };
    let server = start(model.slow(std::time::Duration::from_millis(200)));
    let reply = server.post("/v1/responses", &json!({ "input": "Hello", "stream": true }));
    let events = reply.events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[names.len() - 2..], ["error", "response.failed"], "{names:?}");
    let last: Value = serde_json::from_str(&events.last().unwrap().1).unwrap();
    assert_eq!(last["response"]["status"], "failed");
    assert!(last["response"]["error"]["message"].is_string(), "{last}");
}
