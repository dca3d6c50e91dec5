//! Calls of tools in streams, and tools whose schema is kept where the model decides.

use fulmen_model::tokenizer::Special;
use serde_json::{Value, json};

use crate::server::{TOKENIZER, TestModel, TestServer, scripted, start};
use crate::tools::{CALL, openai_tools};

/// The calls of a stream, put together as clients do, and how many pieces each one had.
pub(crate) fn streamed_calls(chunks: &[Value]) -> (Vec<Value>, Vec<usize>) {
    let (mut calls, mut pieces) = (Vec::<Value>::new(), Vec::new());
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array());
    for delta in deltas.flatten() {
        let index = delta["index"].as_u64().unwrap() as usize;
        if index == calls.len() {
            assert_eq!(delta["type"], "function");
            calls.push(delta.clone());
            pieces.push(1);
            continue;
        }
        assert!(index < calls.len() && delta["id"].is_null() && delta["function"]["name"].is_null());
        let mut arguments = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
        arguments.push_str(delta["function"]["arguments"].as_str().unwrap());
        calls[index]["function"]["arguments"] = json!(arguments);
        pieces[index] += 1;
    }
    (calls, pieces)
}

/// The events of a stream: their names and data.
fn events(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let data = |line: &str| serde_json::from_str(line.strip_prefix("data: ")?).ok();
    reply.text().lines().filter_map(data).collect()
}

#[test]
fn anthropic_s_clients_get_arguments_as_they_are_written() {
    let server = start(scripted(&[CALL]));
    let tools = json!([{ "name": "weather", "input_schema": { "type": "object" } }, { "name": "time" }]);
    let body = json!({ "model": "test", "max_tokens": 200, "tools": tools, "stream": true,
        "messages": [{ "role": "user", "content": "Weather?" }] });
    let (mut blocks, mut open): (Vec<(String, Vec<String>)>, _) = (Vec::new(), None);
    for event in events(&server, "/v1/messages", &body) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(blocks.len())));
                open = Some(blocks.len());
                let block = &event["content_block"];
                blocks.push((block["name"].as_str().unwrap_or("text").to_owned(), Vec::new()));
                assert!(block["type"] != "tool_use" || block["input"] == json!({}));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let text = delta["partial_json"].as_str().or(delta["text"].as_str()).unwrap();
                blocks[open.unwrap()].1.push(text.to_owned());
            }
            "content_block_stop" => assert_eq!(event["index"], json!(open.take().unwrap())),
            "message_delta" => assert_eq!(event["delta"]["stop_reason"], "tool_use"),
            _ => {}
        }
    }
    let names: Vec<&str> = blocks.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, open), (vec!["text", "weather", "time"], None));
    assert_eq!(blocks[0].1.concat(), "I look.");
    assert_eq!((blocks[1].1.concat().as_str(), blocks[2].1.concat().as_str()), ("{\"city\":\"Oslo\"}", "{}"));
    assert!(blocks[1].1.len() > 3, "{:?}", blocks[1]);
}

#[test]
fn responses_have_arguments_as_they_are_written() {
    let server = start(scripted(&[CALL]));
    let tools = json!([{ "type": "function", "name": "weather", "parameters": { "type": "object" } }]);
    let mut body = json!({ "input": "Weather?", "tools": tools, "stream": true });
    let all = events(&server, "/v1/responses", &body);
    let of = |kind: &str| all.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let deltas = of("response.function_call_arguments.delta");
    assert!(deltas.len() > 4, "{deltas:?}");
    let done = of("response.function_call_arguments.done");
    assert_eq!((done.len(), &done[0]["arguments"]), (2, &json!("{\"city\":\"Oslo\"}")));
    let first = deltas.iter().filter(|delta| delta["item_id"] == done[0]["item_id"]);
    let text: String = first.map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(done[0]["arguments"], json!(text));
    let ended = of("response.completed")[0];
    let calls: Vec<_> = ended["response"]["output"].as_array().unwrap().iter().skip(1).collect();
    assert_eq!((&calls[0]["name"], &calls[0]["status"]), (&json!("weather"), &json!("completed")));
    assert_eq!(calls[0]["arguments"], done[0]["arguments"]);
    assert_eq!(calls[0]["call_id"], of("response.output_item.added")[1]["item"]["call_id"]);

    // Cut off within the arguments.
    let cut = CALL.find("Oslo").unwrap();
    body["max_output_tokens"] = json!(TOKENIZER.encode(&CALL[..cut], Special::AsText).len());
    let all = events(&server, "/v1/responses", &body);
    let ended = all.last().unwrap();
    assert_eq!(ended["type"], "response.incomplete");
    let call = &ended["response"]["output"][1];
    assert_eq!((&call["name"], &call["status"]), (&json!("weather"), &json!("incomplete")));
    assert!("{\"city\":\"Oslo".starts_with(call["arguments"].as_str().unwrap()), "{call}");
}

/// A malformed call is text in a whole answer. In a stream its beginning is there already.
#[test]
fn malformed_calls_stay_incomplete_in_streams() {
    let text = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": Oslo}}</tool_call>";
    let server = start(scripted(&[text]));
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "x" }], "tools": openai_tools(), "seed": 0 });
    let choice = server.ok("/v1/chat/completions", &body)["choices"][0].clone();
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("stop"), &json!(text)));
    body["stream"] = json!(true);
    let chunks = server.post("/v1/chat/completions", &body).chunks();
    let (calls, _) = streamed_calls(&chunks);
    assert_eq!(calls[0]["function"], json!({ "name": "weather", "arguments": "{\"city\":" }));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// The device writes its texts whatever the masks say: what the grammar of strict tools does not allow fails.
#[test]
fn strict_tools_keep_their_schema_where_the_model_decides() {
    let call = |arguments: &str| {
        format!("I look.\n<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let (valid, invalid) = (call("{\"city\": \"Oslo\"}"), call("{\"town\": \"Oslo\"}"));
    let texts = ["<think>Hm.</think>No.", &valid, &invalid];
    let server = start(TestModel { constrained: true, ..scripted(&texts) });
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } },
        "required": ["city"], "additionalProperties": false });
    let function = |strict: bool| json!({ "name": "weather", "parameters": schema, "strict": strict });
    let body = |seed: u32, strict: bool| {
        json!({ "messages": [{ "role": "user", "content": "Weather?" }], "seed": seed,
            "tools": [{ "type": "function", "function": function(strict) }] })
    };
    let path = "/v1/chat/completions";
    let plain = server.ok(path, &body(0, true))["choices"][0]["message"].clone();
    assert_eq!((&plain["reasoning_content"], &plain["content"]), (&json!("Hm."), &json!("No.")));
    let called = server.ok(path, &body(1, true))["choices"][0].clone();
    assert_eq!(called["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Oslo\"}");
    let refused = server.post(path, &body(2, true));
    assert!(refused.status >= 400 && refused.error().contains("constrain"), "{}", refused.text());
    let free = server.ok(path, &body(2, false))["choices"][0].clone();
    assert_eq!(free["message"]["tool_calls"][0]["function"]["arguments"], "{\"town\":\"Oslo\"}");
    // Other APIs, whose clients cannot choose the seed of the device: none of them gets the invalid call.
    let flat = json!([{ "type": "function", "name": "weather", "parameters": schema, "strict": true }]);
    let claude = json!([{ "name": "weather", "input_schema": schema, "strict": true }]);
    let messages = json!([{ "role": "user", "content": "Weather?" }]);
    let cases = [
        ("/v1/responses", json!({ "input": "Weather?", "tools": flat })),
        (
            "/v1/messages",
            json!({ "model": "test", "max_tokens": 200, "messages": messages, "tools": claude }),
        ),
    ];
    for (path, body) in cases {
        let replies: Vec<_> = (0..30).map(|_| server.post(path, &body)).collect();
        assert!(replies.iter().any(|reply| reply.status == 200), "{path}");
        assert!(replies.iter().all(|reply| !reply.text().contains("\"town")), "{path}");
    }
    // A schema that cannot be kept is the tools' error.
    let mut wrong = body(0, true);
    wrong["tools"][0]["function"]["parameters"] = json!({ "type": "objekt" });
    let reply = server.post(path, &wrong);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")), "{}", reply.text());
    let free = start(scripted(&texts));
    let reply = free.post(path, &body(0, true));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")), "{}", reply.text());
}
