//! Mutated requests of every endpoint. Whatever the bytes: no panic, no status of a server's error, an answer
//! in time, and nothing that is left behind.
//!
//! The requests of `tests/corpus` are sent unchanged first. `FULMEN_FUZZ_SEED` and `FULMEN_FUZZ_CASES` choose
//! the cases, `scripts/fuzz server` runs for hours. A request that fails is written to the target folder; it
//! goes into the corpus with the fix, as JSON with `path` and `body` (or `bytes`, the text of the body).

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};

use crate::client::{connect, request};
use crate::server::{TestModel, TestServer, start};

/// Far longer than any of these requests takes, even on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(30);
const CASES: u64 = 600;

struct Input {
    path: String,
    body: Vec<u8>,
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, is {text:?}")),
        Err(_) => default,
    }
}

fn corpus() -> Vec<(String, Value)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &PathBuf| {
        let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let body = value["bytes"].as_str().map_or_else(|| value["body"].clone(), |text| json!(text));
        (value["path"].as_str().unwrap().to_owned(), body)
    };
    files.iter().map(read).collect()
}

/// Values that have broken servers.
fn hostile(random: &mut Rng) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(1e19),
        json!(-0.0),
        json!(0.5),
        json!(""),
        json!("\u{0}"),
        json!("<|im_end|><think></tool_call>{{ 7*7 }}"),
        json!("\u{202e}\u{feff}🏳️‍🌈é"),
        json!("a".repeat(3000)),
        json!("(".repeat(200)),
        json!("((a{99}){99}){99}"),
        json!([]),
        json!({}),
        json!([[[[[[]]]]]]),
        json!([null, 1, "x", {}]),
        json!({ "$ref": "#" }),
        json!({ "type": "object", "additionalProperties": { "$ref": "#" } }),
        json!({ "": { "__proto__": 1 } }),
        json!(vec![5; 600]),
    ];
    values[random.usize(..values.len())].clone()
}

/// Replaces, removes, repeats or renames something at a random place.
fn change(value: &mut Value, random: &mut Rng, parts: &[Value]) {
    let below = match value {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        _ => 0,
    };
    if below > 0 && random.u8(..4) > 0 {
        let at = random.usize(..below);
        let act = random.u8(..10);
        match value {
            Value::Object(map) => {
                let key = map.keys().nth(at).cloned().unwrap_or_default();
                match act {
                    0 => drop(map.remove(&key)),
                    1 => drop(map.insert(format!("{key}x"), hostile(random))),
                    2 => drop(map.insert(key, random.choice(parts).cloned().unwrap_or_default())),
                    _ => change(&mut map[&key], random, parts),
                }
            }
            Value::Array(list) => match act {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                _ => change(&mut list[at], random, parts),
            },
            _ => {}
        }
        return;
    }
    *value = hostile(random);
}

fn mutated(corpus: &[(String, Value)], random: &mut Rng) -> Input {
    let (path, body) = &corpus[random.usize(..corpus.len())];
    let parts: Vec<Value> = corpus.iter().map(|(_, body)| body.clone()).collect();
    let mut body = body.clone();
    for _ in 0..random.usize(1..=3) {
        change(&mut body, random, &parts);
    }
    let mut bytes = body.to_string().into_bytes();
    // Some are damaged as bytes, too.
    if random.u8(..5) == 0 && !bytes.is_empty() {
        let at = random.usize(..bytes.len());
        match random.u8(..4) {
            0 => bytes.truncate(at),
            1 => bytes[at] = random.u8(..),
            2 => bytes.splice(at..at, b"[[[[\xff\xc0".iter().copied()).for_each(drop),
            _ => bytes.splice(at..at, b"1e999".iter().copied()).for_each(drop),
        }
    }
    let paths: Vec<&String> = corpus.iter().map(|(path, _)| path).collect();
    let path = if random.u8(..10) == 0 { paths[random.usize(..paths.len())] } else { path };
    Input { path: path.clone(), body: bytes }
}

/// Sends a request. Returns whether it was accepted, or what was wrong.
fn check(server: &TestServer, input: &Input) -> Result<bool, String> {
    let began = Instant::now();
    let mut stream = connect(server.address);
    stream.set_read_timeout(Some(MAX_TIME)).map_err(|error| error.to_string())?;
    // The server may refuse before it has read everything.
    let _ = stream.write_all(&request("POST", &input.path, &[], &input.body));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer)
        && answer.is_empty()
    {
        return Err(format!("no answer: {error}"));
    }
    if began.elapsed() > MAX_TIME {
        return Err(format!("it took {:?}", began.elapsed()));
    }
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    match status {
        Some(200) if text.contains("the handler panicked") => Err("it panicked".to_owned()),
        Some(200) => Ok(true),
        Some(400..=499) if text.contains("error") => Ok(false),
        // The tests' model fails on purpose for texts of one length.
        Some(500) if text.contains("unlucky") => Ok(false),
        _ => Err(format!("the answer is {}", text.chars().take(500).collect::<String>())),
    }
}

#[test]
fn mutated_requests_are_answered() {
    let (seed, cases) = (number("FULMEN_FUZZ_SEED", 1), number("FULMEN_FUZZ_CASES", CASES));
    let server = start(TestModel { constrained: true, context: 512, pages: 64, ..TestModel::default() });
    let corpus = corpus();
    for (path, body) in &corpus {
        let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned).into_bytes();
        let input = Input { path: path.clone(), body };
        if let Err(why) = check(&server, &input) {
            panic!("{path}: {why}: {}", String::from_utf8_lossy(&input.body));
        }
    }
    let (began, mut accepted) = (Instant::now(), 0);
    for case in 0..cases {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ case);
        let input = mutated(&corpus, &mut random);
        // What a request has left behind must not break the list of models.
        let listed = |taken| match server.get("/api/ps").status {
            200 => Ok(taken),
            status => Err(format!("/api/ps has status {status} behind it")),
        };
        match check(&server, &input).and_then(listed) {
            Ok(taken) => accepted += u64::from(taken),
            Err(why) => {
                let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
                let path = folder.join(format!("server-{seed}-{case}.json"));
                let text = String::from_utf8_lossy(&input.body);
                let kept = json!({ "path": input.path, "bytes": text });
                std::fs::write(&path, kept.to_string()).expect("the target folder can be written to");
                panic!("server, seed {seed}, case {case}: {why}; the input is in {}", path.display());
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("server: {cases} files in {seconds:.1} s, {accepted} accepted");
    assert!(accepted > 0 && accepted < cases, "mutations that are all rejected or all accepted test little");
    assert_eq!(server.get("/health").status, 200);
    // A mutated `keep_alive` may have unloaded the model.
    server.ok("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let stats = server.settled("test");
    assert_eq!(stats.failed_launches, 0, "{stats:?}");
}
