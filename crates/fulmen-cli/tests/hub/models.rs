//! `fulmen list`, `fulmen rm` and `fulmen show`, names with hosts, aliases, and what a wrong name says.

use std::fs;

use serde_json::Value;

#[cfg(unix)]
use crate::common::terminal::Terminal;
use crate::common::{fulmen, output};
use crate::server::{Faults, Server, sha256};
use crate::{Home, noise, tiny};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn models_are_listed_shown_and_removed() {
    let (model, other) = (tiny(), noise(40, 5000));
    let server = Server::new(&[("m-Q8_0.gguf", &model), ("m-Q4_K_M.gguf", &other)]);
    let home = Home::new();
    let (stdout, _, code) = home.run(&server, &["list"]);
    assert_eq!((stdout.as_str(), code), ("no models yet; `fulmen pull ORG/NAME` downloads one\n", Some(0)));
    home.pulled(&server, &["pull", "org/name:Q8_0"]);
    home.pulled(&server, &["pull", "org/name:Q4_K_M"]);
    let (stdout, ..) = home.run(&server, &["list"]);
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("name") && lines[0].ends_with("modified"), "{stdout}");
    assert!(lines[1].starts_with("org/name:Q4_K_M") && lines[1].contains("4.9 KiB"), "{stdout}");
    assert!(lines[2].starts_with("org/name:Q8_0") && lines[2].ends_with("just now"), "{stdout}");
    let listed = json(&home.run(&server, &["list", "--json"]).0);
    assert_eq!(listed["models"][0]["name"], "org/name:Q4_K_M");
    assert_eq!(listed["models"][1]["bytes"], model.len());
    assert_eq!(listed["models"][1]["quantization"], "Q8_0");
    assert_eq!(listed["interrupted"], Value::Array(Vec::new()));

    let (stdout, ..) = home.run(&server, &["show", "org/name:Q8_0"]);
    for words in ["architecture", "llama", "Q8_0", "license", "unknown", "chat template"] {
        assert!(stdout.contains(words), "{stdout}");
    }
    let shown = json(&home.run(&server, &["show", "org/name:Q8_0", "--json"]).0);
    assert_eq!((&shown["architecture"], &shown["quantization"]), (&"llama".into(), &"Q8_0".into()));

    // Nothing is removed by a wrong or ambiguous name, or if nobody can be asked.
    let usage = |args: &[&str], words: &str| {
        let (stdout, stderr, code) = home.run(&server, args);
        assert_eq!((stdout.as_str(), code), ("", Some(2)), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    };
    usage(
        &["rm", "--yes", "org/name"],
        "org/name matches several models: org/name:Q4_K_M, org/name:Q8_0; give",
    );
    usage(&["rm", "org/name:Q8_0"], "standard input is not a terminal; pass --yes");
    usage(&["rm", "--yes", "/"], "/ is a file or folder");
    let words = ["no downloaded model is called org/nmae:Q8_0; did you mean org/name:Q8_0"];
    home.refused(&server, &["rm", "--yes", "org/name:Q8_0", "org/nmae:Q8_0"], &words);
    assert!(home.blob(&sha256(&model)).exists());

    let (stdout, ..) = home.run(&server, &["rm", "--yes", "--json", "org/name:Q8_0"]);
    let removed = json(&stdout);
    assert_eq!(
        (&removed["removed"][0], &removed["freed_bytes"]),
        (&"org/name:Q8_0".into(), &model.len().into())
    );
    assert!(!home.blob(&sha256(&model)).exists() && home.blob(&sha256(&other)).exists());
    let (stdout, ..) = home.run(&server, &["rm", "--yes", "org/name"]);
    assert_eq!(stdout, "removed org/name:Q4_K_M; 4.9 KiB freed\n");
    assert!(!home.repo().exists());
}

#[test]
fn interrupted_downloads_are_listed_and_removed() {
    let bytes = noise(41, 3000);
    let server =
        Server::new(&[("a.gguf", &bytes)]).with(Faults { cut: Some((100, 99)), ..Faults::default() });
    let home = Home::new();
    home.refused(&server, &["pull", "org/name"], &["to resume"]);
    let (stdout, ..) = home.run(&server, &["list"]);
    assert!(stdout.contains("interrupted download") && stdout.contains("org/name  "), "{stdout}");
    let (stdout, ..) = home.run(&server, &["rm", "--yes", "org/name"]);
    assert!(stdout.starts_with("removed org/name; "), "{stdout}");
    assert!(!home.repo().exists());
}

/// On a terminal the question comes first, and anything but yes keeps the model.
#[cfg(unix)]
#[test]
fn rm_asks_on_a_terminal() {
    let server = Server::new(&[("a.gguf", &noise(42, 3000))]);
    let home = Home::new();
    home.pulled(&server, &["pull", "org/name"]);
    let answer = |answer: &str| {
        let mut command = home.command(&server.address, &["rm", "org/name"]);
        let mut terminal = Terminal::start(&mut command);
        terminal.wait_for("remove org/name:a.gguf (2.9 KiB)? [y/N]");
        terminal.send(format!("{answer}\n").as_bytes());
        terminal.finish()
    };
    let (seen, code) = answer("n");
    assert!(seen.contains("nothing was removed") && code == Some(1), "{seen}");
    assert!(home.repo().exists());
    assert!(answer("y").0.contains("removed org/name:a.gguf"));
    assert!(!home.repo().exists());
}

#[test]
fn hosts_and_urls_name_the_same_model() {
    let bytes = noise(43, 3000);
    let server = Server::new(&[("a-Q8_0.gguf", &bytes)]);
    let home = Home::new();
    let (path, _) = home.pulled(&server, &["pull", "hf.co/org/name:Q8_0"]);
    let names = [
        "huggingface.co/org/name",
        "https://huggingface.co/org/name",
        "https://hf.co/org/name/blob/main/a-Q8_0.gguf",
        "https://huggingface.co/org/name/resolve/main/a-Q8_0.gguf?download=true",
    ];
    for name in names {
        let (again, stderr) = home.pulled(&server, &["pull", name]);
        assert!(again == path && stderr.contains("already in the cache"), "{name}: {stderr}");
        // It is found, and is no model.
        home.refused(&server, &["show", name], &[path.to_str().unwrap()]);
    }
    // Another server than the configured one gets no token and has a folder of its own.
    let other = Server::new(&[("a-Q8_0.gguf", &bytes)]);
    let url = format!("{}/org/name/resolve/main/a-Q8_0.gguf", other.address);
    let mut command = home.command(&server.address, &["pull", &url]);
    let (stdout, stderr, code) = output(command.env("HF_TOKEN", "hf_secret"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("models--127.0.0.1+") && !stdout.contains("models--org"), "{stdout}");
    assert!(!other.log().is_empty() && other.log().iter().all(|request| request.token.is_none()));
    let host = other.address.strip_prefix("http://").unwrap();
    let (stdout, ..) = home.run(&server, &["list"]);
    assert!(stdout.contains(&format!("{host}/org/name:Q8_0")), "{stdout}");
    home.refused(&server, &["show", &format!("{host}/org/name")], &["models--127.0.0.1+"]);
    let (_, stderr, code) = home.run(&server, &["pull", "https://huggingface.co/datasets/org/name"]);
    assert!(code == Some(2) && stderr.contains("not that of a model"), "{stderr}");
}

#[test]
fn wrong_names_are_errors_and_never_stories() {
    let server = Server::new(&[("m-Q8_0.gguf", &tiny())]);
    let home = Home::new();
    home.pulled(&server, &["pull", "org/name"]);
    let file = home.0.path().join("config.toml");
    fs::write(&file, "[aliases]\nlittle = 'org/name'\nlost = 'org/lost'\n").unwrap();
    fs::write(home.0.path().join("story-q8_0.gguf"), b"x").unwrap();
    let run = |args: &[&str]| {
        let mut command = home.command(&server.address, args);
        output(command.env("FULMEN_CONFIG", &file).current_dir(home.0.path()))
    };
    let cases: [(&str, &[&str]); 12] = [
        ("org/nam", &["no such model in the cache", "`fulmen pull org/nam`", "did you mean org/name:Q8_0?"]),
        ("litle", &["is called litle", "did you mean little?"]),
        ("qwen3", &["is called qwen3", "`fulmen list` lists", "`fulmen pull ORG/NAME` downloads one"]),
        ("mistral", &["is called mistral", "`fulmen pull ORG/NAME` downloads one"]),
        ("gpt-oss", &["is called gpt-oss"]),
        ("Gemma", &["is called Gemma"]),
        ("llama3.2:1b", &["is called llama3.2:1b"]),
        ("story-q8-0.gguf", &["No such file", "did you mean story-q8_0.gguf?"]),
        ("./story.gguf", &["./story.gguf: cannot open it: No such file"]),
        ("a/b/c/d", &["a/b/c/d: cannot open it: No such file"]),
        ("lost", &["the alias lost means org/lost: ", "`fulmen pull org/lost`"]),
        ("hf.co/org/nme", &["did you mean org/name:Q8_0?"]),
    ];
    for (word, expected) in cases {
        for args in [
            &["run", word][..],
            &["run", word, "Hi"],
            &["inspect", word],
            &["tokenize", word, "x"],
            &["chat", word],
        ] {
            let (stdout, stderr, code) = run(args);
            assert_eq!((stdout.as_str(), code), ("", Some(1)), "{args:?}: {stderr}");
            expected.iter().for_each(|words| assert!(stderr.contains(words), "{args:?}: {words}: {stderr}"));
        }
    }
    let (_, stderr, _) = run(&["run", "qwen3"]);
    assert!(stderr.contains("if this is a prompt, pass it with --prompt"), "{stderr}");
    let (_, stderr, code) = run(&["run", "--prompt", "qwen3", "-n", "2", "--device", "cpu"]);
    assert_eq!(code, Some(0), "{stderr}");
    let generate = ["-n", "3", "--device", "cpu", "--raw"];
    let (_, stderr, code) = run(&[&["run", "little", "Hi"][..], &generate].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(run(&["list"]).0.contains("org/name:Q8_0 (little)"));
    assert!(run(&["show", "little"]).0.contains("llama"));
    // A word of a sentence is a prompt.
    let (stdout, stderr, code) = run(&["run", "Once", "-n", "3", "--device", "cpu", "--quiet"]);
    assert!(code == Some(0) && !stdout.is_empty(), "{stderr}");
    assert!(run(&["rm", "--yes", "little"]).0.starts_with("removed org/name:Q8_0"));
    // Also without a cache, or with one that cannot be read.
    let (_, stderr, code) = output(fulmen(&["run", "qwen3"]).env("HF_HUB_CACHE", &file));
    assert!(code == Some(1) && stderr.contains("is called qwen3"), "{stderr}");
}
