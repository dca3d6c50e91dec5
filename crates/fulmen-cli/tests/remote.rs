//! `fulmen run --server` and `fulmen chat --server` with servers that misbehave.
#![cfg(all(unix, feature = "server"))]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use common::{fulmen, output};
use serde_json::{Value, json};

/// How long a test waits for a command to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server sends for a request, and whether it closes the connection then. One that stays open never
/// says more.
struct Reply {
    bytes: String,
    closes: bool,
}

/// A server on loopback that gives these replies, one for each request, and tells what it was asked.
fn server(replies: Vec<Reply>) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for reply in replies {
            let (mut stream, _) = listener.accept().unwrap();
            let body = request(&stream);
            stream.write_all(reply.bytes.as_bytes()).unwrap();
            if reply.closes {
                stream.shutdown(Shutdown::Both).unwrap();
            } else {
                open.push(stream);
            }
            if send.send(body).is_err() {
                return;
            }
        }
        // The connections stay open until the test has ended.
        std::thread::sleep(10 * PATIENCE);
    });
    (url, asked)
}

/// The body of a request.
fn request(stream: &TcpStream) -> Value {
    let (mut reader, mut length) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// The head of an event stream, and these pieces of an answer.
fn stream(pieces: &[&str]) -> String {
    let event =
        |piece: &&str| format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": piece } }] }));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    head.to_owned() + &pieces.iter().map(event).collect::<String>()
}

fn whole(text: &str) -> Reply {
    let end = json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] });
    Reply { bytes: format!("{}data: {end}\n\ndata: [DONE]\n\n", stream(&[text])), closes: true }
}

fn too_long() -> Reply {
    let error = json!({ "error": { "message": "too long", "code": "context_length_exceeded" } }).to_string();
    let head =
        format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", error.len());
    Reply { bytes: head + &error, closes: true }
}

/// The command with these lines on its standard input.
fn start(args: &[&str], lines: &str) -> Child {
    let mut command = fulmen(args);
    command.env_remove("FULMEN_API_KEY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child
}

/// The exit code of a command, which must end in time.
fn end(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("the command does not end");
}

fn texts(child: Child) -> (String, String) {
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// The texts of the messages of a request.
fn messages(body: &Value) -> Vec<&str> {
    body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect()
}

/// Whether the server has not answered at all, or stalls within its answer.
#[test]
fn ctrl_c_leaves_a_server_that_does_not_answer() {
    for (bytes, shown) in [(String::new(), ""), (stream(&["One", " two"]), "One two")] {
        let (url, asked) = server(vec![Reply { bytes, closes: false }]);
        let mut child = start(&["run", "--server", &url, "some-model", "--quiet", "Hello"], "");
        let body = asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!(messages(&body), ["Hello"]);
        let mut first = vec![0; shown.len()];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(first, shown.as_bytes());
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        assert_eq!(end(&mut child), Some(130), "after {shown:?}");
        assert_eq!(texts(child), (String::new(), String::new()));
    }
}

#[test]
fn a_chat_goes_on_after_an_answer_that_broke_off() {
    let broken = Reply { bytes: stream(&["Half of"]), closes: true };
    let (url, asked) = server(vec![whole("First."), broken, whole("Second.")]);
    let mut child = start(&["chat", "--server", &url, "some-model"], "One\nTwo\n/retry\n");
    assert_eq!(end(&mut child), Some(0));
    let (stdout, stderr) = texts(child);
    assert_eq!(stdout, "First.\nHalf of\nSecond.\n", "{stderr}");
    assert!(stderr.contains("the answer broke off") && stderr.contains("/retry sends"), "{stderr}");
    let asked: Vec<Value> = asked.try_iter().collect();
    let asked: Vec<Vec<&str>> = asked.iter().map(messages).collect();
    // The half answer is no part of the conversation.
    assert_eq!(asked, [vec!["One"], vec!["One", "First.", "Two"], vec!["One", "First.", "Two"]]);
}

#[test]
fn the_oldest_turns_are_dropped_where_the_context_of_a_server_is_full() {
    let replies = || vec![whole("a"), whole("b"), too_long(), too_long(), whole("c")];
    let lines = "One\nTwo\nThree\n";
    let chat = ["chat", "some-model", "--system", "Be brief.", "--server"];
    let (url, asked) = server(replies());
    let mut child = start(&[&chat[..], &[&url]].concat(), lines);
    assert_eq!(end(&mut child), Some(0));
    let (stdout, stderr) = texts(child);
    assert_eq!(stdout, "a\nb\nc\n", "{stderr}");
    assert_eq!(stderr.matches("(context full: dropped the oldest turn)").count(), 2, "{stderr}");
    let asked: Vec<Value> = asked.try_iter().collect();
    assert_eq!(messages(&asked[2]), ["Be brief.", "One", "a", "Two", "b", "Three"]);
    assert_eq!(messages(&asked[3]), ["Be brief.", "Two", "b", "Three"]);
    assert_eq!(messages(&asked[4]), ["Be brief.", "Three"]);

    // Unless that was not chosen.
    let (url, _asked) = server(replies());
    let mut child = start(&[&chat[..], &[&url, "--overflow", "refuse"]].concat(), lines);
    assert_eq!(end(&mut child), Some(0));
    let (stdout, stderr) = texts(child);
    assert_eq!(stdout, "a\nb\n", "{stderr}");
    assert!(stderr.contains("too long") && !stderr.contains("dropped"), "{stderr}");
}

#[test]
fn a_conversation_with_a_server_goes_on_with_that_server() {
    let home = tempfile::tempdir().unwrap();
    let chat = |args: &[&str], lines: &str| {
        let file = home.path().join("lines");
        std::fs::write(&file, lines).unwrap();
        let mut command = fulmen(&[&["chat", "--continue"], args].concat());
        let stdin = std::fs::File::open(&file).unwrap();
        output(command.stdin(stdin).env("XDG_STATE_HOME", home.path()).env_remove("FULMEN_API_KEY"))
    };
    // There is a conversation to go on with.
    let state = home.path().join("fulmen");
    std::fs::create_dir(&state).unwrap();
    let empty = json!({ "format": "fulmen-conversation", "version": 1, "model": null, "messages": [] });
    std::fs::write(state.join("last-chat.json"), empty.to_string()).unwrap();
    let (url, _asked) = server(vec![whole("First.")]);
    let (stdout, stderr, code) = chat(&["--server", &url, "some-model"], "One\n");
    assert_eq!((stdout.as_str(), code), ("First.\n", Some(0)), "{stderr}");

    let (_, stderr, code) = chat(&[], "Two\n");
    assert_eq!(code, Some(1), "{stderr}");
    let expected = format!("that conversation used a model of a server; pass --server {url}, or a MODEL");
    assert!(stderr.contains(&expected), "{stderr}");
    let (url, asked) = server(vec![whole("Second.")]);
    let (stdout, stderr, code) = chat(&["--server", &url, "some-model"], "Two\n");
    assert_eq!((stdout.as_str(), code), ("Second.\n", Some(0)), "{stderr}");
    assert_eq!(messages(&asked.recv().unwrap()), ["One", "First.", "Two"]);
    // A conversation with a chat model is no story.
    let (_, stderr, code) = chat(&["builtin"], "Two\n");
    assert!(code == Some(1) && stderr.contains("this is a story"), "{stderr}");
}
