//! `fulmen serve`, `fulmen ps` and `fulmen stop` with the built-in model.
#![cfg(all(unix, feature = "server"))]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{fulmen, output};
use fulmen_model::gguf::GgufWriter;
use fulmen_model::synth::{ModelShape, Synth};
use serde_json::{Value, json};

/// A server that ends with its test.
struct Server {
    child: Child,
    url: String,
}

fn start(args: &[&str], keys: &str) -> Server {
    start_by(fulmen(&["serve", "--port", "0", "--device", "cpu"]), args, keys)
}

/// Starts a server by a command that is `fulmen serve` or leads to it.
fn start_by(mut command: Command, args: &[&str], keys: &str) -> Server {
    if !args.contains(&"--log") {
        command.args(["--log", "off"]);
    }
    let mut child = command
        .args(args)
        .env("FULMEN_API_KEY", keys)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("listening on ").unwrap_or_default().to_owned();
    if url.is_empty() {
        let output = child.wait_with_output().unwrap();
        panic!("no address: {}", String::from_utf8_lossy(&output.stderr));
    }
    Server { child, url }
}

impl Server {
    fn request(&self, method: &str, path: &str, key: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.request("POST", path, "", &body.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Ends it with SIGTERM, and returns its exit code.
    fn end(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_built_in_model_is_served() {
    let server = start(&["--batch-invariant"], "");
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0 });
    let first = server.post("/v1/completions", &body);
    let text = first["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(", there was"), "{text}");
    assert_eq!(first["usage"]["completion_tokens"], 12);
    // Greedy decoding gives the same text alone and beside others.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(server.post("/v1/completions", &body)["choices"], first["choices"]));
        }
    });
    let streamed =
        json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true });
    let (status, text) = server.request("POST", "/v1/completions", "", &streamed.to_string());
    assert_eq!(status, 200);
    assert!(text.contains("data: [DONE]"), "{text}");
    let logprobs =
        server.post("/v1/completions", &json!({ "prompt": "Once upon", "max_tokens": 1, "logprobs": 2 }));
    let first = logprobs["choices"][0]["logprobs"]["token_logprobs"][0].as_f64().unwrap();
    assert!((-100.0..=0.0).contains(&first), "{logprobs}");
    let never = json!({ "prompt": "Once upon a time", "max_tokens": 1, "temperature": 0, "logprobs": 0 });
    let comma =
        server.post("/tokenize", &json!({ "prompt": ",", "add_special_tokens": false }))["tokens"][0].clone();
    let mut biased = never.clone();
    biased["logit_bias"] = json!({ comma.to_string(): -100 });
    assert_eq!(server.post("/v1/completions", &never)["choices"][0]["text"], ",");
    assert_ne!(server.post("/v1/completions", &biased)["choices"][0]["text"], ",");
    let age = json!({ "age": { "type": "integer" } });
    let schema = json!({ "type": "object", "properties": age, "required": ["age"],
        "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let body = json!({ "messages": [{ "role": "user", "content": "He was" }], "max_tokens": 60, "n": 2,
        "response_format": format });
    for choice in server.post("/v1/chat/completions", &body)["choices"].as_array().unwrap() {
        if choice["finish_reason"] == "stop" {
            let text = choice["message"]["content"].as_str().unwrap();
            let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(value["age"].is_i64() || value["age"].is_u64() || value["age"].is_f64(), "{text}");
        }
    }
    let format = json!({ "type": "regex", "pattern": "yes|no" });
    let body = json!({ "prompt": "Once", "response_format": format });
    let text = server.post("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(text == "yes" || text == "no", "{text}");
    let wrong = json!({ "prompt": "Once", "response_format": { "type": "regex", "pattern": "(" } });
    assert_eq!(server.request("POST", "/v1/completions", "", &wrong.to_string()).0, 400);
    let embedding = server.post("/v1/embeddings", &json!({ "input": "a bird" }));
    let vector = embedding["data"][0]["embedding"].as_array().unwrap();
    let length: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    let chat = json!({ "messages": [{ "role": "user", "content": "Once upon a time" }], "max_tokens": 3 });
    assert_eq!(server.post("/v1/chat/completions", &chat)["object"], "chat.completion");

    let (stdout, _, code) = output(&mut fulmen(&["ps", "--server", &server.url]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("builtin") && stdout.starts_with("name"), "{stdout}");
    let (_, stderr, code) = output(&mut fulmen(&["stop", "builtin", "--server", &server.url]));
    assert_eq!(code, Some(0), "{stderr}");
    let (stdout, _, _) = output(&mut fulmen(&["ps", "--json", "--server", &server.url]));
    assert_eq!(stdout.trim(), "[]");
    let (_, stderr, code) = output(&mut fulmen(&["stop", "other", "--server", &server.url]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("does not exist"), "{stderr}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn run_and_chat_use_a_running_server() {
    let server = start(&["--batch-invariant"], "first,second");
    let run = |args: &[&str]| {
        let mut command = fulmen(&["run", "--server", &server.url]);
        output(command.args(args).env("FULMEN_API_KEY", "second").env("FULMEN_DEVICE", "cpu"))
    };
    let greedy = ["--temperature", "0", "--max-tokens", "12"];
    let (text, stderr, code) = run(&[&greedy[..], &["Once upon a time"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.starts_with(", there was") && !text.ends_with('\n'), "{text:?}");
    assert!(stderr.contains("answer 12 tokens") && stderr.contains(&server.url), "{stderr}");
    let (raw, _, _) = run(&[&greedy[..], &["--raw", "--quiet", "builtin", "Once upon a time"]].concat());
    assert_eq!(raw, text);
    let (whole, _, _) = run(&[&greedy[..], &["--json", "Once upon a time"]].concat());
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!((&whole["text"], &whole["reason"]), (&json!(text), &json!("max_tokens")));
    let (text, _, _) = run(&["--regex", "yes|no", "--quiet", "Once"]);
    assert!(text == "yes" || text == "no", "{text}");
    for (args, code, words) in [
        (&["--context", "100", "Once"][..], 2, "--context is for a model in this process"),
        (&["other", "Once"], 1, "does not exist"),
        (&["--api-key", "wrong", "Once"], 1, "the API key is wrong"),
        (&["--regex", "(", "Once"], 1, "the regular expression is invalid"),
    ] {
        let (_, stderr, found) = run(args);
        assert!(found == Some(code) && stderr.contains(words), "{args:?}: {stderr}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (key, config) = (folder.path().join("key"), folder.path().join("config.toml"));
    std::fs::write(&key, "# the key\nfirst\n").unwrap();
    std::fs::write(&config, format!("server = \"{}\"\nserver-key-file = \"key\"\n", server.url)).unwrap();
    let (stdout, stderr, code) = output(fulmen(&["ps"]).env("FULMEN_CONFIG", &config));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("builtin"), "{stdout}");
    let mut chat = fulmen(&["chat", "--server", &server.url, "--temperature", "0", "--max-tokens", "5"]);
    let mut chat = chat
        .env("FULMEN_CONFIG", &config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "Once upon a time\n/stats\n/undo\n/system Be brief.\n/system\n/retry\n/quit\n";
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let chat = chat.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&chat.stdout), String::from_utf8_lossy(&chat.stderr));
    assert_eq!(chat.status.code(), Some(0), "{stderr}");
    assert!(stdout.starts_with(", there was"), "{stdout}");
    for words in ["answer 5 tokens", "(forgotten: Once upon a time)", "Be brief.", "no message to answer"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
}

#[test]
fn a_load_is_measured_over_http() {
    let server = start(&["--batch-invariant"], "");
    let load = ["bench", "serve", "--url", &server.url, "--concurrency", "1,3", "--input", "8-16"];
    let more = ["--output", "6", "--shared-prefix", "4", "--prefixes", "2", "--requests", "6", "--json"];
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chart.svg");
    let (stdout, stderr, code) = output(fulmen(&load).args(more).arg("--svg").arg(&chart));
    assert_eq!(code, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let tests = report["tests"].as_array().unwrap();
    assert_eq!((report["model"].as_str(), tests.len()), (Some("builtin"), 2));
    for test in tests {
        assert_eq!(
            (&test["requests"], &test["failed"], &test["output"]),
            (&json!(6), &json!(0), &json!(6.0))
        );
        assert!((8.0..=16.0).contains(&test["input"].as_f64().unwrap()), "{test}");
        assert!(test["steps"].as_u64().unwrap() >= 6 && test["pages"].as_u64().unwrap() > 0, "{test}");
        let first = test["time_to_first_token_ms"]["p50"].as_f64().unwrap();
        assert!(first > 0.0 && first <= test["request_ms"]["max"].as_f64().unwrap(), "{test}");
    }
    assert!(std::fs::read_to_string(chart).unwrap().contains("3 at once"));
    let mock = ["bench", "serve", "--mock", "--rate", "50", "--requests", "5", "--output", "20", "--json"];
    let (stdout, stderr, code) = output(&mut fulmen(&mock));
    assert_eq!(code, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let test = &report["tests"][0];
    assert_eq!((&test["requests"], &test["output"]), (&json!(5), &json!(20.0)));
    assert!(test["added_ms"]["p99"].as_f64().unwrap() > 0.0, "{test}");
    let (_, stderr, code) = output(&mut fulmen(&["bench", "serve", "--url", "http://127.0.0.1:1"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("cannot connect"), "{stderr}");
}

#[test]
fn keys_and_presets_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models.toml");
    let text = "[models.tale]\naliases = [\"gpt-4o\"]\ncontext = 64\nsampling = { max_tokens = 2 }\n\
        [models.missing]\npath = \"./none.gguf\"\n";
    std::fs::write(&file, text).unwrap();
    let server = start(&["--host", "localhost", "--models-file", file.to_str().unwrap()], "first,second");
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
    let body = json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "One day" }] });
    let (status, text) = server.request("POST", "/v1/chat/completions", "second", &body.to_string());
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&answer["model"], &answer["usage"]["completion_tokens"]), (&json!("tale"), &json!(2)));
    assert_eq!(server.request("POST", "/v1/chat/completions", "third", &body.to_string()).0, 401);
    let missing = json!({ "model": "missing", "messages": [{ "role": "user", "content": "x" }] });
    let (status, text) = server.request("POST", "/v1/chat/completions", "first", &missing.to_string());
    assert_eq!(status, 503);
    assert!(text.contains("none.gguf"), "{text}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn an_alias_of_the_configuration_is_served_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = (folder.path().join("tiny.gguf"), folder.path().join("c.toml"));
    let synth = ["synth", "tiny-llama", model.to_str().unwrap(), "--type", "q8_0"];
    assert_eq!(output(&mut fulmen(&synth)).2, Some(0));
    std::fs::write(&file, format!("[aliases]\nmine = '{}'\n", model.display())).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let server = start(&[config[0], config[1], "mine"], "");
    let (status, text) = server.request("GET", "/v1/models", "", "");
    let models: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &models["data"][0]["id"]), (200, &json!("mine")), "{text}");
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{text}");
    let answer = server.post(
        "/v1/completions",
        &json!({ "model": "mine", "prompt": "Once upon a time", "max_tokens": 1, "temperature": 0 }),
    );
    assert_eq!((&answer["model"], &answer["usage"]["completion_tokens"]), (&json!("mine"), &json!(1)));
    assert_eq!(server.end(), Some(0));
    // A name that is no alias, no file and no model in the cache.
    let mut wrong = fulmen(&["serve", "nine", "--port", "0", "--device", "cpu", config[0], config[1]]);
    let (_, stderr, code) = output(&mut wrong);
    assert!(code == Some(1) && stderr.contains("nine"), "{stderr}");
}

#[test]
fn wrong_usage_is_refused() {
    let cases: [(&[&str], &str); 5] = [
        (&["serve", "--host", "0.0.0.0", "--port", "0"], "API key"),
        (&["serve", "--memory", "lots"], "40GB"),
        (&["serve", "builtin", "builtin"], "two models have the name"),
        (&["serve", "--cors-origin", "example.org", "--port", "0"], "origin"),
        (&["serve", "--context", "1"], "--context"),
    ];
    for (args, words) in cases {
        let (_, stderr, code) = output(fulmen(args).env_remove("FULMEN_API_KEY"));
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    let (_, stderr, code) = output(&mut fulmen(&["serve", "/none.gguf", "--port", "0"]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("none.gguf"), "{stderr}");
    let (_, stderr, code) = output(&mut fulmen(&["ps", "--server", "http://127.0.0.1:1"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no server at"), "{stderr}");
}

#[test]
fn nodes_are_refused_before_they_meet() {
    let cases: [(&[&str], Option<i32>, &str); 5] = [
        (&["--nodes", "2"], Some(2), "--rendezvous"),
        (&["--node-rank", "1"], Some(2), "--nodes"),
        (&["--node-rank", "2", "--nodes", "2", "--rendezvous", "127.0.0.1:1"], Some(2), "node 2 of 2"),
        (&["a=builtin", "--nodes", "2", "--rendezvous", "127.0.0.1:1"], Some(2), "serves one model"),
        (&["--node-rank", "1", "--nodes", "2", "--rendezvous", "127.0.0.1:1"], Some(2), "NCCL"),
    ];
    for (args, expected, words) in cases {
        let (_, stderr, code) = output(fulmen(&["serve", "builtin", "--device", "cpu"]).args(args));
        assert_eq!(code, expected, "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    let nodes = ["--nodes", "2", "--rendezvous", "127.0.0.1:1", "--port", "0"];
    let (_, stderr, code) = output(fulmen(&["serve", "--device", "cpu"]).args(nodes));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("NVIDIA GPUs (CUDA) with NCCL, and the device is cpu"), "{stderr}");
}

/// A server under a limit of open files (soft, hard), and the limit that it has set itself.
#[cfg(target_os = "linux")]
fn under_limit(soft: u32, hard: Option<u32>, args: &[&str]) -> (Server, u32) {
    let hard = hard.map_or(String::new(), |hard| format!(" && ulimit -Hn {hard}"));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -Sn {soft}{hard} && exec \"$0\" \"$@\"")]);
    command.args([env!("CARGO_BIN_EXE_fulmen"), "serve", "--port", "0", "--device", "cpu"]);
    command.env("FULMEN_CONFIG", "").env_remove("FULMEN_DEVICE").env_remove("FULMEN_LOG");
    let server = start_by(command, args, "");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    (server, soft)
}

#[cfg(target_os = "linux")]
#[test]
fn every_connection_may_have_a_file() {
    let (server, limit) = under_limit(500, None, &["--max-connections", "600"]);
    assert!(limit >= 600, "{limit}");
    assert_eq!(server.end(), Some(0));
    // What the system does not allow is said, and not promised to clients.
    let (mut server, limit) = under_limit(300, Some(300), &["--log", "text"]);
    assert_eq!(limit, 300);
    let mut stderr = server.child.stderr.take().unwrap();
    assert_eq!(server.end(), Some(0));
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert!(text.contains("allows 150 connections at the same time, not 4096"), "{text}");
}

/// What a server with these options writes to stderr about some requests.
fn logged(args: &[&str]) -> String {
    let mut server = start(args, "");
    let chat = json!({
        "messages": [{ "role": "user", "content": "Zanzibar" }], "max_tokens": 8, "temperature": 0,
    });
    server.post("/v1/chat/completions", &chat);
    server.post("/v1/completions", &json!({ "prompt": "Zanzibar", "max_tokens": 4, "stop": ["Zanzibar"] }));
    server.post("/tokenize", &json!({ "prompt": "Zanzibar" }));
    server.post("/v1/embeddings", &json!({ "input": "Zanzibar" }));
    let wrong = json!({ "messages": [{ "role": "Zanzibar", "content": 1 }] });
    assert_eq!(server.request("POST", "/v1/chat/completions", "", &wrong.to_string()).0, 400);
    let mut stderr = server.child.stderr.take().unwrap();
    assert_eq!(server.end(), Some(0));
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    text
}

/// A small model whose file says how embeddings are pooled.
fn pooled(folder: &std::path::Path, pooling: u32) -> String {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let synth = Synth::new(shape, "f32".parse().unwrap(), 5);
    let (tensors, mut metadata) = (synth.tensors().unwrap(), synth.metadata());
    metadata.set("qwen3.pooling_type", pooling);
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
    for tensor in &tensors {
        writer.write(tensor.name(), &synth.data(tensor).unwrap()).unwrap();
    }
    let path = folder.join(format!("pooling-{pooling}.gguf"));
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Mean (1) and first token (2) by sessions, last token (3) by the engine.
#[test]
fn embeddings_are_pooled_as_the_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let text = [11, 23, 42];
    let embed = |pooling: u32| {
        let server = start(&[&pooled(folder.path(), pooling), "--kv", "f32", "--batch-invariant"], "");
        let inputs = [&text[..], &text[..1], &text[..2]];
        let answer = server.post("/v1/embeddings", &json!({ "input": inputs }));
        let vector = |at: usize| -> Vec<f64> {
            let values = answer["data"][at]["embedding"].as_array().unwrap();
            values.iter().map(|value| value.as_f64().unwrap()).collect()
        };
        [vector(0), vector(1), vector(2)]
    };
    let (mean, first, last) = (embed(1), embed(2), embed(3));
    let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    // Of one token all are the same; behind others, the first token's state does not change.
    for (one, same) in [(&mean[1], &last[1]), (&first[1], &last[1]), (&first[0], &last[1])] {
        assert!(far(one, same) < 1e-4, "{}", far(one, same));
    }
    assert!(far(&last[0], &last[1]) > 1e-2 && far(&mean[0], &last[0]) > 1e-2);
    // The mean of two tokens lies between their states, which the others give: in their plane.
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (a, b, between) = (&last[1], &last[2], &mean[2]);
    let (ab, a_mean, b_mean) = (dot(a, b), dot(a, between), dot(b, between));
    let (x, y) = ((a_mean - ab * b_mean) / (1.0 - ab * ab), (b_mean - ab * a_mean) / (1.0 - ab * ab));
    let plane: Vec<f64> = a.iter().zip(b).map(|(a, b)| x * a + y * b).collect();
    assert!(x > 0.0 && y > 0.0 && far(&plane, between) < 1e-4, "{x} {y} {}", far(&plane, between));
}

/// A line is written when its response has ended: it has the time and the tokens of a stream.
#[test]
fn streams_are_logged_with_their_tokens() {
    let mut server = start(&["--log", "json"], "");
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 9, "temperature": 0, "stream": true });
    let (status, text) = server.request("POST", "/v1/completions", "", &body.to_string());
    assert!(status == 200 && text.contains("[DONE]"), "{text}");
    let mut stderr = server.child.stderr.take().unwrap();
    assert_eq!(server.end(), Some(0));
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line = lines.iter().find(|line| line["path"] == "/v1/completions").expect(&text);
    assert_eq!((&line["model"], &line["completion_tokens"]), (&json!("builtin"), &json!(9)), "{line}");
    assert_eq!((&line["status"], &line["cut"]), (&json!(200), &json!(false)), "{line}");
    assert!(line["ms"].as_f64().unwrap() > 0.0, "{line}");
}

#[test]
fn prompts_are_logged_only_if_asked_for() {
    for format in ["text", "json"] {
        let text = logged(&["--log", format]);
        assert!(text.contains("/v1/chat/completions"), "{text}");
        assert!(!text.contains("Zanzibar"), "{text}");
    }
    assert!(!logged(&["--log", "off", "--log-prompts"]).contains("Zanzibar"));
    let text = logged(&["--log", "json", "--log-prompts"]);
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let answers: Vec<&Value> = lines.iter().filter(|line| !line["prompt"].is_null()).collect();
    assert_eq!(answers.len(), 2, "{text}");
    let (chat, end) = (answers[0], &answers[0]["end"]);
    assert!(chat["prompt"].as_str().unwrap().contains("Zanzibar"), "{chat}");
    assert!(!chat["answer"].as_str().unwrap().is_empty() && end == "length", "{chat}");
    assert!(lines.iter().any(|line| line["request"] == chat["request"] && line["status"] == 200), "{text}");
    assert!(logged(&["--log-prompts", "--log", "text"]).contains("Zanzibar"));
}
