//! Calls of tools in all APIs.

use fulmen_model::tokenizer::Special;
use serde_json::{Value, json};

use crate::call_streams::streamed_calls;
use crate::server::{TOKENIZER, TestModel, TestServer, scripted, start};

pub(crate) const CALL: &str = "I look.\n<tool_call>\n\
    {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n\
    <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";

fn server() -> TestServer {
    start(scripted(&[CALL, "No tools."]))
}

pub(crate) fn openai_tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([
        { "type": "function",
            "function": { "name": "weather", "description": "Now", "parameters": parameters } },
        { "type": "function", "function": { "name": "time" } },
    ])
}

#[test]
fn openai_s_clients_see_calls() {
    let server = server();
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Weather?" }], "tools": openai_tools(), "seed": 0,
    });
    let answer = server.ok("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I look.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"], json!({ "name": "weather", "arguments": "{\"city\":\"Oslo\"}" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    body["stream"] = json!(true);
    let chunks = server.post("/v1/chat/completions", &body).chunks();
    let (calls, pieces) = streamed_calls(&chunks);
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"], choice["message"]["tool_calls"][0]["function"]);
    assert_eq!(calls[1]["function"], json!({ "name": "time", "arguments": "{}" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert!(pieces[0] > 3, "the arguments come as they are written: {pieces:?}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    body["tool_choice"] = json!("none");
    body["stream"] = json!(false);
    let plain = server.ok("/v1/chat/completions", &body);
    assert!(plain["choices"][0]["message"]["content"].as_str().unwrap().contains("<tool_call>"));
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");

    body["tool_choice"] = json!({ "type": "function", "function": { "name": "time" } });
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 400);
    assert!(reply.error().contains("constrained decoding"), "{}", reply.error());
    body["tool_choice"] = json!({ "type": "function", "function": { "name": "other" } });
    assert!(server.post("/v1/chat/completions", &body).error().contains("not in tools"));
}

/// Behind the first call, the answer ends, however the model goes on.
#[test]
fn one_call_is_all_if_the_client_says_so() {
    let text = format!("{CALL} And then <tool_call>{{}}</tool_call> {}", "on ".repeat(200));
    let server = start(scripted(&[&text]));
    let mut body = json!({ "messages": [{ "role": "user", "content": "Weather?" }], "tools": openai_tools(),
        "parallel_tool_calls": false, "seed": 0 });
    let answer = server.ok("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("I look."))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")), "{answer}");
    // What the model would write behind it is not generated.
    let used = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(used < 100, "{used}");
    body["stream"] = json!(true);
    let chunks = server.post("/v1/chat/completions", &body).chunks();
    assert_eq!(streamed_calls(&chunks).0.len(), 1);
    let shown: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(shown, "I look.");

    let tools = json!([{ "type": "function", "name": "weather" }, { "type": "function", "name": "time" }]);
    let body = json!({ "input": "Weather?", "tools": tools, "parallel_tool_calls": false });
    let output = server.ok("/v1/responses", &body)["output"].clone();
    assert_eq!(output.as_array().unwrap().len(), 2, "{output}");

    let choice = json!({ "type": "auto", "disable_parallel_tool_use": true });
    let tools = json!([{ "name": "weather" }, { "name": "time" }]);
    let body = json!({ "model": "test", "max_tokens": 500, "tools": tools,
        "tool_choice": choice, "messages": [{ "role": "user", "content": "Weather?" }] });
    let answer = server.ok("/v1/messages", &body);
    assert_eq!(
        (answer["content"].as_array().unwrap().len(), &answer["stop_reason"]),
        (2, &json!("tool_use"))
    );
    server.settled("test");
}

/// A grammar begins with the first token: an answer is a call or has a format, and nothing is left out.
#[test]
fn formats_and_required_calls_exclude_each_other() {
    let server = start(TestModel { constrained: true, ..TestModel::default() });
    let messages = json!([{ "role": "user", "content": "x" }]);
    let schema = json!({ "type": "object" });
    let format = json!({ "type": "json_schema", "name": "a", "schema": schema });
    let response = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let flat = json!([{ "type": "function", "name": "time" }]);
    let anthropic = json!({ "type": "json_schema", "schema": schema });
    for choice in ["auto", "required"] {
        let any = json!({ "type": if choice == "auto" { "auto" } else { "any" } });
        let cases = [
            (
                "/v1/chat/completions",
                "response_format",
                json!({ "messages": messages, "tools": openai_tools(),
                "tool_choice": choice, "response_format": response }),
            ),
            (
                "/v1/responses",
                "text.format",
                json!({ "input": "x", "tools": flat, "tool_choice": choice,
                "text": { "format": format } }),
            ),
            (
                "/v1/messages",
                "output_config.format",
                json!({ "model": "test", "max_tokens": 9,
                "messages": messages, "tools": [{ "name": "time" }], "tool_choice": any,
                "output_config": { "format": anthropic } }),
            ),
        ];
        for (path, field, body) in cases {
            let reply = server.post(path, &body);
            if choice == "auto" {
                assert_eq!(reply.status, 200, "{path}: {}", reply.text());
                continue;
            }
            assert_eq!(reply.status, 400, "{path} {choice}: {}", reply.text());
            let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(field) && message.contains("tool"), "{path} {choice}: {message}");
        }
    }
    let pattern = json!({ "type": "regex", "pattern": "a*" });
    let body = json!({ "messages": messages, "tools": openai_tools(), "response_format": pattern });
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("response_format")));
    // Each is checked, also where the other one counts.
    let config = json!({ "effort": "huge" });
    let body = json!({ "model": "test", "max_tokens": 9, "messages": messages, "output_config": config,
        "tools": [{ "name": "time" }], "tool_choice": { "type": "any" } });
    let reply = server.post("/v1/messages", &body);
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("output_config.effort"), "{}", reply.text());
    let body = json!({ "messages": messages, "tools": openai_tools(), "tool_choice": "none",
        "response_format": response, "max_tokens": 9 });
    server.ok("/v1/chat/completions", &body);
}

/// The device writes random tokens: it calls a tool or gives an answer of the format, and nothing else.
#[test]
fn an_answer_calls_tools_or_has_its_format() {
    let server = start(TestModel { constrained: true, ..TestModel::default() });
    let schema = |name: &str| {
        json!({ "type": "object", "properties": { name: { "type": "boolean" } }, "required": [name],
            "additionalProperties": false })
    };
    let tool = json!({ "name": "weather", "parameters": schema("rain") });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema("sun") } });
    let ask = |seed: u64| {
        json!({ "messages": [{ "role": "user", "content": "x" }], "seed": seed, "max_tokens": 400,
            "tools": [{ "type": "function", "function": tool }], "parallel_tool_calls": false,
            "response_format": format })
    };
    let (mut calls, mut answers) = (0, 0);
    for seed in 0..60 {
        let choice = server.ok("/v1/chat/completions", &ask(seed))["choices"][0].clone();
        let message = &choice["message"];
        match choice["finish_reason"].as_str() {
            Some("tool_calls") => {
                let text = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
                assert!(serde_json::from_str::<Value>(text).unwrap()["rain"].is_boolean(), "{choice}");
                calls += 1;
            }
            Some("stop") => {
                let text = message["content"].as_str().unwrap();
                assert!(serde_json::from_str::<Value>(text).unwrap()["sun"].is_boolean(), "{choice}");
                answers += 1;
            }
            _ => {}
        }
    }
    assert!(calls > 0 && answers > 0, "{calls} calls and {answers} answers");
    let messages = json!([{ "role": "user", "content": "x" }]);
    let ollama = json!({ "model": "test", "messages": messages, "tools": openai_tools(), "format": "json",
        "stream": false, "options": { "num_predict": 9 } });
    server.ok("/api/chat", &ollama);
    // A wrong schema is the format's error.
    let mut wrong = ask(0);
    wrong["response_format"]["json_schema"]["schema"] = json!({ "type": "objekt" });
    let reply = server.post("/v1/chat/completions", &wrong);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("response_format")));
}

#[test]
fn earlier_calls_are_part_of_the_prompt() {
    let server = server();
    let call = json!({ "id": "c1", "type": "function",
        "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } });
    let mut messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "Rain" },
    ]);
    let tokens = server.ok("/tokenize", &json!({ "messages": messages }))["tokens"].clone();
    let text = server.ok("/detokenize", &json!({ "tokens": tokens }))["prompt"].as_str().unwrap().to_owned();
    assert!(text.contains("\"city\": \"Oslo\"") && text.contains("tool: Rain\n"), "{text}");
    messages[1]["tool_calls"][0]["function"]["arguments"] = json!("not json");
    let reply = server.post("/v1/chat/completions", &json!({ "messages": messages }));
    assert_eq!(reply.status, 400);
    assert!(reply.error().contains("JSON object"), "{}", reply.error());
}

/// A model that was not trained with tools is told of them by its system prompt.
#[test]
fn templates_without_tools_get_a_description() {
    let template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}assistant: ";
    let model = TestModel { template: Some(template), constrained: true, ..TestModel::default() };
    let server = start(model);
    let call = json!({ "id": "c1", "type": "function",
        "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } });
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": "I look.", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "Rain" },
    ]);
    let body = json!({ "messages": messages, "tools": openai_tools(), "tool_choice": "required",
        "parallel_tool_calls": false, "max_tokens": 400 });
    let answer = server.ok("/v1/chat/completions", &body);
    let without = json!({ "messages": messages, "max_tokens": 1 });
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&answer) > tokens(&server.ok("/v1/chat/completions", &without)) + 50, "{answer}");
    let choice = &answer["choices"][0];
    if choice["finish_reason"] != "length" {
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let name = choice["message"]["tool_calls"][0]["function"]["name"].as_str().unwrap();
        assert!(name == "weather" || name == "time", "{name}");
    }
    let none = start(TestModel { template: None, ..TestModel::default() });
    let reply = none.post("/v1/chat/completions", &json!({ "messages": messages, "tools": openai_tools() }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")));
}

#[test]
fn anthropic_s_clients_see_tool_use() {
    let server = server();
    let tools = json!([{ "name": "weather", "input_schema": { "type": "object" } }, { "name": "time" }]);
    // The seed of this API is random: both scripts answer.
    let mut body = json!({
        "model": "test", "max_tokens": 100, "tools": tools,
        "messages": [
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": [
                { "type": "text", "text": "Hm" },
                { "type": "tool_use", "id": "t1", "name": "time", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1",
                    "content": [{ "type": "text", "text": "12:00" }] },
            ] },
        ],
    });
    let (mut with, mut without) = (false, false);
    for _ in 0..40 {
        let answer = server.ok("/v1/messages", &body);
        match answer["stop_reason"].as_str() {
            Some("tool_use") => {
                with = true;
                assert_eq!(answer["content"][0], json!({ "type": "text", "text": "I look." }));
                assert_eq!(answer["content"][1]["input"], json!({ "city": "Oslo" }));
                assert_eq!(answer["content"][2]["name"], "time");
            }
            reason => {
                without = true;
                assert_eq!(reason, Some("end_turn"));
            }
        }
    }
    assert!(with && without);
    body["tool_choice"] = json!({ "type": "any" });
    let reply = server.post("/v1/messages", &body);
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")));
}

#[test]
fn ollama_s_clients_see_calls() {
    let server = server();
    let mut body = json!({
        "model": "test", "messages": [{ "role": "user", "content": "Weather?" }], "tools": openai_tools(),
        "options": { "seed": 0 }, "stream": false,
    });
    let answer = server.ok("/api/chat", &body);
    let calls = &answer["message"]["tool_calls"];
    let weather = json!({ "name": "weather", "arguments": { "city": "Oslo" }, "index": 0 });
    assert_eq!(calls[0]["function"], weather);
    assert_eq!(calls[1]["function"]["index"], 1);
    assert!(calls[0]["id"].is_string() && calls[0]["id"] != calls[1]["id"]);

    body["stream"] = json!(true);
    let lines = crate::ollama::lines(&server.post("/api/chat", &body));
    let streamed: Vec<&Value> =
        lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    let functions: Vec<&Value> = streamed.iter().map(|call| &call["function"]).collect();
    assert_eq!(functions, [&calls[0]["function"], &calls[1]["function"]]);
    // What clients send back, with the content that some leave out.
    body["messages"] = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": calls },
        { "role": "tool", "content": "Rain", "tool_call_id": calls[0]["id"] },
    ]);
    body["stream"] = json!(false);
    server.ok("/api/chat", &body);
}

/// The device writes random tokens, so what is valid is so by the grammar alone.
#[test]
fn required_calls_and_schemas_are_kept() {
    let server = start(TestModel { constrained: true, ..TestModel::default() });
    let schema = json!({
        "type": "object", "properties": { "rain": { "type": "boolean" } }, "required": ["rain"],
        "additionalProperties": false,
    });
    let function = json!({ "name": "weather", "parameters": schema });
    let other = json!({ "name": "time", "parameters": schema });
    let tools =
        json!([{ "type": "function", "function": function }, { "type": "function", "function": other }]);
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for seed in 0..8 {
        for choice in [json!("required"), named.clone()] {
            let body = json!({
                "messages": [{ "role": "user", "content": "Rain?" }], "tools": tools, "seed": seed,
                "tool_choice": choice, "parallel_tool_calls": false,
            });
            let answer = server.ok("/v1/chat/completions", &body);
            let answered = &answer["choices"][0];
            assert_eq!(answered["finish_reason"], "tool_calls", "{answer}");
            let calls = answered["message"]["tool_calls"].as_array().unwrap();
            let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap()["rain"].is_boolean(), "{arguments}");
            assert!(choice == json!("required") || calls[0]["function"]["name"] == "weather");
        }
        let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
        let messages = json!([{ "role": "user", "content": "Rain?" }]);
        let body = json!({ "messages": messages, "seed": seed, "response_format": format });
        let answer = server.ok("/v1/chat/completions", &body);
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(text).unwrap()["rain"].is_boolean(), "{text}");
    }
    let tools = json!([{ "name": "weather", "input_schema": schema }]);
    let body = json!({
        "model": "test", "max_tokens": 500, "messages": [{ "role": "user", "content": "Rain?" }],
        "tools": tools, "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
    });
    let answer = server.ok("/v1/messages", &body);
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert!(answer["content"][0]["input"]["rain"].is_boolean(), "{answer}");
    let wrong = json!({ "type": "json_schema", "json_schema": { "schema": { "type": "objekt" } } });
    let messages = json!([{ "role": "user", "content": "Rain?" }]);
    let reply =
        server.post("/v1/chat/completions", &json!({ "messages": messages, "response_format": wrong }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("response_format")));
    assert!(reply.error().contains("objekt"), "{}", reply.error());
}

/// What a template of each family has of its format, and an answer with a call in it.
const FAMILIES: [(&str, &str); 9] = [
    ("<tool_call>", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"12\"}}\n</tool_call>"),
    (
        "<tool_call><function=",
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "<tool_call><arg_key>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
    ),
    ("[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"12\"}}]"),
    ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]weather[ARGS]{\"city\": \"12\"}"),
    ("<|tool_call|>", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"12\"}}]"),
    (
        "<|tool|><|/tool|>",
        "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"12\"}}]<|/tool_call|>",
    ),
    ("<|tool_call><tool_call|>", "<|tool_call>call:weather{city:<|\"|>12<|\"|>}<tool_call|>"),
    ("<function_calls>", "<function_calls>\nweather(city=\"12\")\n</function_calls>"),
];

fn template_with(marks: &str) -> &'static str {
    let loops = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}assistant: ";
    Box::leak(
        format!("{{% if tools %}}{marks} {{{{ tools | tojson }}}}{{% endif %}}{loops}").into_boxed_str(),
    )
}

#[test]
fn every_family_s_calls_reach_the_client() {
    for (marks, text) in FAMILIES {
        let answer = format!("I look.\n{text}");
        let server = start(TestModel { template: Some(template_with(marks)), ..scripted(&[&answer]) });
        let mut body = json!({
            "messages": [{ "role": "user", "content": "Weather?" }], "tools": openai_tools(), "seed": 0,
        });
        let whole = server.ok("/v1/chat/completions", &body);
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{marks}: {whole}");
        assert_eq!(choice["message"]["content"], "I look.", "{marks}");
        let function = json!({ "name": "weather", "arguments": "{\"city\":\"12\"}" });
        assert_eq!(choice["message"]["tool_calls"][0]["function"], function, "{marks}");

        body["stream"] = json!(true);
        let chunks = server.post("/v1/chat/completions", &body).chunks();
        let delta = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
        assert_eq!(chunks.iter().filter_map(delta).collect::<String>(), "I look.", "{marks}");
        let (calls, pieces) = streamed_calls(&chunks);
        assert_eq!(calls.len(), 1, "{marks}");
        assert_eq!(calls[0]["function"], function, "{marks}");
        assert!(pieces[0] > 2, "{marks}: {pieces:?}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls", "{marks}");

        // Cut by its length within the call: text, and no call.
        body["stream"] = json!(false);
        body["max_tokens"] = json!(TOKENIZER.encode(&answer, Special::AsText).len() / 2);
        let cut = server.ok("/v1/chat/completions", &body);
        let choice = &cut["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{marks}: {cut}");
        assert_eq!(choice["message"]["tool_calls"], Value::Null, "{marks}");
        assert!(answer.starts_with(choice["message"]["content"].as_str().unwrap()), "{marks}: {cut}");
    }
}

/// The device writes random tokens, so what is valid is so by the grammar of the family alone.
#[test]
fn required_calls_are_kept_in_every_family() {
    for (marks, _) in FAMILIES {
        let template = Some(template_with(marks));
        let server = start(TestModel { template, constrained: true, ..TestModel::default() });
        let schema = json!({
            "type": "object", "properties": { "rain": { "type": "boolean" }, "unit": { "enum": ["c", "f"] } },
            "required": ["rain", "unit"], "additionalProperties": false,
        });
        let tool =
            |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": schema } });
        for choice in [json!("required"), json!({ "type": "function", "function": { "name": "weather" } })] {
            let body = json!({
                "messages": [{ "role": "user", "content": "Rain?" }], "seed": 1, "tool_choice": choice,
                "tools": [tool("weather"), tool("time")], "parallel_tool_calls": false,
            });
            let answer = server.ok("/v1/chat/completions", &body);
            let answered = &answer["choices"][0];
            assert_eq!(answered["finish_reason"], "tool_calls", "{marks}: {answer}");
            let function = &answered["message"]["tool_calls"][0]["function"];
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["rain"].is_boolean(), "{marks}: {arguments}");
            assert!(arguments["unit"] == "c" || arguments["unit"] == "f", "{marks}: {arguments}");
            assert!(choice == json!("required") || function["name"] == "weather", "{marks}");
        }
        // Where the model decides, an answer is a call or has the format.
        let body = json!({
            "messages": [{ "role": "user", "content": "Rain?" }], "seed": 1, "max_tokens": 400,
            "tools": [tool("weather")], "parallel_tool_calls": false,
            "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": schema } },
        });
        let answered = server.ok("/v1/chat/completions", &body)["choices"][0].clone();
        let message = &answered["message"];
        let text = match answered["finish_reason"].as_str() {
            Some("tool_calls") => &message["tool_calls"][0]["function"]["arguments"],
            _ => &message["content"],
        };
        let json: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert!(json["rain"].is_boolean() && json["unit"].is_string(), "{marks}: {answered}");
    }
}
