//! `fulmen chat`, on a pipe and on a terminal.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::terminal::Terminal;
use common::{fulmen, output, set_context};
use serde_json::Value;

/// A small model, and a folder for the state of chats.
struct Chats {
    folder: tempfile::TempDir,
    model: String,
}

impl Chats {
    fn new() -> Chats {
        Chats::with_layers("4")
    }

    fn with_layers(layers: &str) -> Chats {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tiny.gguf").display().to_string();
        let synth = ["synth", "tiny-qwen3", &model, "--type", "q8_0", "--layers", layers];
        assert_eq!(output(&mut fulmen(&synth)).2, Some(0));
        Chats { folder, model }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn state(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join("state/fulmen").join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = fulmen(&[&["chat"], args, &["--device", "cpu", "--seed", "1"]].concat());
        command.env("XDG_STATE_HOME", self.folder.path().join("state"));
        command
    }

    /// A chat on a pipe: its answers, what it told, and its exit code.
    fn piped(&self, args: &[&str], input: &[u8]) -> (Vec<u8>, String, Option<i32>) {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A chat that fails before it reads closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        (output.stdout, String::from_utf8(output.stderr).unwrap(), output.status.code())
    }

    /// What a chat with a few tokens per answer tells.
    fn told(&self, lines: &str) -> Vec<String> {
        let (_, stderr, code) = self.piped(&[&self.model, "-n", "4"], lines.as_bytes());
        assert_eq!(code, Some(0), "{stderr}");
        stderr.lines().map(str::to_owned).collect()
    }
}

fn messages(path: impl AsRef<Path>) -> Vec<(String, String)> {
    let saved: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    saved["messages"].as_array().unwrap().iter().map(|m| (text(&m["role"]), text(&m["content"]))).collect()
}

#[test]
fn a_line_that_is_not_utf_8_does_not_end_a_chat() {
    let chats = Chats::new();
    let lines = b"Hi\ncaf\xe9 \xff\n/set\nHi\n";
    let (stdout, stderr, code) = chats.piped(&[&chats.model, "-n", "3"], lines);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.starts_with("line 2 is not UTF-8 (the first bad byte is at offset 3)"), "{stderr}");
    assert!(stderr.contains("temperature"), "it went on: {stderr}");
    assert!(stdout.iter().filter(|byte| **byte == b'\n').count() >= 2);
    // On a terminal.
    let mut terminal = Terminal::start(&mut chats.command(&[&chats.model, "-n", "3"]));
    terminal.wait_for("> ");
    terminal.send(b"caf\xe9 x\r");
    terminal.wait_for("that line is not UTF-8");
    terminal.send(b"\x15/context\r");
    terminal.wait_for("of 2,048 tokens used");
    terminal.send(b"/quit\r");
    assert_eq!(terminal.finish().1, Some(0));
}

#[test]
fn commands_change_the_conversation() {
    let chats = Chats::new();
    let (one, two) = (chats.path("one.json"), chats.path("two.json"));
    let told = chats.told(&format!(
        "/system Be brief.\n/system\nHi\n\"\"\"\nSeveral\nlines\n\"\"\"\n/context\n/save {one}\n\
         /undo\n/retry\n/set temperature 0\n/set warmth 1\n/undo\n/undo\n/context\n/save {two}\n\
         /load {one}\n/context\n/retyr\n/load {}\n/usr/bin is a folder\n",
        chats.path("none.json")
    ));
    let expected = [
        "(the system prompt is set)",
        "Be brief.",
        "of 2,048 tokens used",
        &format!("(saved as {one})"),
        "(forgotten: Several…)",
        "(temperature is now 0)",
        "there is no setting \"warmth\"; the settings are temperature",
        "(forgotten: Hi)",
        "there is nothing to undo",
        "1 message",
        &format!("(saved as {two})"),
        &format!("(loaded 5 messages from {one})"),
        "5 messages",
        "unknown command /retyr; did you mean /retry?",
        "none.json: No such file",
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (line, words) in told.iter().zip(expected) {
        assert!(line.contains(words), "{words:?} is not in {line:?}");
    }
    let saved = messages(&one);
    let roles: Vec<&str> = saved.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!((saved[0].1.as_str(), saved[3].1.as_str()), ("Be brief.", "Several\nlines"));
    assert_eq!(messages(&two).len(), 1);
    assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_new_answer_replaces_the_old_one() {
    let chats = Chats::new();
    let (one, two) = (chats.path("one.json"), chats.path("two.json"));
    let input = format!("/set temperature 3\nHi\n/save {one}\n/retry\n/save {two}\n");
    let (stdout, stderr, code) = chats.piped(&[&chats.model, "-n", "12"], input.as_bytes());
    assert_eq!(code, Some(0), "{stderr}");
    let (one, two) = (messages(&one), messages(&two));
    assert_eq!((one.len(), two.len()), (2, 2));
    assert!(one[0] == two[0] && one[1] != two[1]);
    // Both answers were printed, exactly.
    assert_eq!(stdout, format!("{}\n{}\n", one[1].1, two[1].1).into_bytes());
}

#[test]
fn a_full_context_drops_the_oldest_turns_or_refuses() {
    let chats = Chats::new();
    let file = chats.path("saved.json");
    let lines = format!("{}/save {file}\n/context\n", "Tell me more about it\n".repeat(8));
    let args = [chats.model.as_str(), "--context", "96", "-n", "8", "--overflow"];
    let (_, stderr, code) = chats.piped(&[&args[..], &["drop"]].concat(), lines.as_bytes());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("(context full: dropped the oldest turn)"), "{stderr}");
    let kept = messages(&file);
    assert!((2..16).contains(&kept.len()) && kept.len().is_multiple_of(2), "{kept:?}");
    let (_, stderr, code) = chats.piped(&[&args[..], &["refuse"]].concat(), lines.as_bytes());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("does not fit into the context of 96"), "{stderr}");
    assert!(stderr.contains("--overflow drop leaves out the oldest turns"), "{stderr}");
    // A message that fits into no context is refused by both, and the chat goes on.
    let long = format!("{}\nHi\n/context\n", "word ".repeat(300));
    let (_, stderr, code) = chats.piped(&[&args[..], &["drop"]].concat(), long.as_bytes());
    assert!(code == Some(0) && stderr.contains("does not fit") && stderr.contains("2 messages"), "{stderr}");
}

#[test]
fn the_context_grows_with_a_long_message_unless_it_is_given() {
    let chats = Chats::with_layers("1");
    set_context(&chats.model, 16384);
    let lines = format!("Hi\n{}\n/context\n", "a".repeat(5000));
    let args = [chats.model.as_str(), "-n", "3"];
    let (_, stderr, code) = chats.piped(&args, lines.as_bytes());
    assert_eq!(code, Some(0), "{stderr}");
    let told: Vec<&str> = stderr.lines().collect();
    assert_eq!((told.len(), told[0]), (2, "(the context grows to 8,192 tokens)"), "{stderr}");
    assert!(told[1].contains("of 8,192 tokens used") && told[1].contains("4 messages"), "{stderr}");
    let (_, stderr, code) = chats.piped(&[&args[..], &["--context", "4096"]].concat(), lines.as_bytes());
    assert!(code == Some(0) && stderr.contains("does not fit into the context of 4096"), "{stderr}");
}

#[test]
fn a_story_forgets_its_oldest_paragraphs_and_takes_turns_back() {
    let chats = Chats::new();
    let file = chats.path("story.json");
    let lines =
        format!("{}/save {file}\n/undo\n/context\n/load {file}\n/system Hi\n", "The fox ran.\n".repeat(9));
    // No end of the story: greedy decoding of a context that is too short for one.
    let args = ["--context", "128", "--temperature", "0.3"];
    let (_, stderr, code) = chats.piped(&args, lines.as_bytes());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("(context full: dropped the oldest ") || stderr.contains("(the end"), "{stderr}");
    let told: Vec<&str> = stderr.lines().collect();
    assert!(
        told[told.len() - 2].starts_with("(loaded ")
            && told[told.len() - 1] == "a story has no system prompt"
    );
    let saved: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(saved["story"].is_string() && saved["model"].is_null(), "{saved}");
    let (_, stderr, _) = chats.piped(&[&chats.model], format!("/load {file}\n").as_bytes());
    assert!(stderr.contains("that is a story, and this is a chat"), "{stderr}");
}

#[test]
fn lines_typed_while_an_answer_is_printed_are_not_lost() {
    let chats = Chats::new();
    let mut terminal = Terminal::start(&mut chats.command(&[&chats.model, "-n", "300"]));
    terminal.wait_for("tiny.gguf (qwen3, 4 layers, ");
    terminal.wait_for("> ");
    terminal.send(b"Hi\r");
    let begun = terminal.seen().len();
    terminal.wait_until("the answer", |seen| seen.len() > begun + 20);
    terminal.send(b"/set max-tokens 3\r/set temperature 0.125\r/quit\r");
    let (seen, code) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("(max-tokens is now 3)") && seen.contains("(temperature is now 0.125)"), "{seen}");
}

#[test]
fn the_last_conversation_and_the_lines_are_kept() {
    let chats = Chats::new();
    assert!(chats.piped(&["-c"], b"").1.contains("there is no conversation to continue"));
    let mut terminal = Terminal::start(&mut chats.command(&[&chats.model, "-n", "5"]));
    terminal.wait_for("> ");
    // Tab completes, a backslash goes on.
    terminal.send(b"/con\t\r");
    terminal.wait_for("no messages yet");
    terminal.send(b"Hello\\\rthere\r");
    terminal.wait_until("the next prompt", |seen| seen.matches("> \r").count() >= 3);
    terminal.send(b"\x04");
    assert_eq!(terminal.finish().1, Some(0));
    for file in ["last-chat.json", "chat-history"] {
        assert_eq!(fs::metadata(chats.state(file)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(messages(chats.state("last-chat.json"))[0].1, "Hello\nthere");
    let history = fs::read_to_string(chats.state("chat-history")).unwrap();
    assert_eq!(history, "\"/context \"\n\"Hello\\\\\\nthere\"\n");
    // The model, the messages and the lines are there again.
    let (_, stderr, code) = chats.piped(&["--continue", "-n", "3"], b"/context\nAnd now?\n");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.starts_with("going on with the last conversation (2 messages)\n"), "{stderr}");
    assert_eq!(messages(chats.state("last-chat.json")).len(), 4);
    // Also if the configuration names another model.
    let mut command = chats.command(&["--continue"]);
    let (_, stderr, code) = output(command.env("FULMEN_MODEL", "/no/model.gguf").stdin(Stdio::null()));
    assert_eq!(code, Some(0), "{stderr}");
    let mut terminal = Terminal::start(&mut chats.command(&["-c", "--system", "Be brief."]));
    terminal.wait_for("4 messages");
    terminal.wait_for("> ");
    // Up: the message of two lines, its first line, the line before it.
    terminal.send(b"\x1b[A\x1b[A\x1b[A\r");
    terminal.wait_for("5 messages");
    terminal.send(b"/quit\r");
    assert_eq!(terminal.finish().1, Some(0));
}

#[test]
fn nothing_is_kept_if_asked() {
    let chats = Chats::new();
    let mut terminal = Terminal::start(&mut chats.command(&[&chats.model, "-n", "2", "--no-history"]));
    terminal.wait_for("> ");
    terminal.send(b"Hello\r/quit\r");
    assert_eq!(terminal.finish().1, Some(0));
    // Nor by a pipe.
    assert_eq!(chats.piped(&[&chats.model, "-n", "2"], b"Hello\n").2, Some(0));
    assert!(!chats.folder.path().join("state").exists());
}

#[test]
fn answers_are_wrapped_at_words_on_a_terminal() {
    let chats = Chats::new();
    let mut terminal = Terminal::with_columns(&mut chats.command(&["--no-history"]), 40);
    terminal.wait_for("> ");
    terminal.send(b"Once upon a time\r");
    terminal.wait_until("the answer", |seen| seen.matches("> \r").count() >= 2);
    terminal.send(b"/quit\r");
    let (seen, code) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
    let answer = &seen[seen.rfind("Once upon a time").unwrap()..];
    let answer = &answer[..answer.find("\r\n\r\n").unwrap()];
    let lines: Vec<&str> = answer.split("\r\n").collect();
    assert!(lines.len() >= 2, "{answer:?}");
    assert!(lines.iter().all(|line| line.len() <= 40 && *line == line.trim()), "{lines:?}");
}

#[test]
fn a_signal_at_the_prompt_leaves_the_terminal_as_it_was() {
    let chats = Chats::new();
    for (signal, expected) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut terminal = Terminal::start(&mut chats.command(&[&chats.model, "--no-history"]));
        assert!(terminal.echoes());
        terminal.wait_until("the prompt", |seen| seen.contains("> \r"));
        assert!(!terminal.echoes());
        terminal.signal(signal);
        terminal.wait_end();
        assert!(terminal.echoes());
        assert_eq!(terminal.finish().1, Some(expected), "{signal}");
    }
}
