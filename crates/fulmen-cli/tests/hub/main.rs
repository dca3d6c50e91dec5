//! `fulmen pull`, against a server on loopback, and how other commands find what it downloaded.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod models;
#[path = "../../../fulmen-hub/tests/server/mod.rs"]
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{fulmen, output};
use server::{COMMIT, Faults, Server, git_hash, sha256};

/// An empty cache.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn repo(&self) -> PathBuf {
        self.0.path().join("hub/models--org--name")
    }

    fn blob(&self, name: &str) -> PathBuf {
        self.repo().join("blobs").join(name)
    }

    /// The command with this cache and this server, isolated from the environment of the tests.
    fn command(&self, endpoint: &str, args: &[&str]) -> Command {
        let mut command = fulmen(args);
        for name in [
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HF_HUB_CACHE",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.0.path()).env("HF_ENDPOINT", endpoint);
        command
    }

    fn run(&self, server: &Server, args: &[&str]) -> (String, String, Option<i32>) {
        output(&mut self.command(&server.address, args))
    }

    fn pulled(&self, server: &Server, args: &[&str]) -> (PathBuf, String) {
        let (stdout, stderr, code) = self.run(server, args);
        assert_eq!(code, Some(0), "{stderr}");
        (PathBuf::from(stdout.trim_end()), stderr)
    }

    /// The command fails with these words; returns stderr.
    fn refused(&self, server: &Server, args: &[&str], words: &[&str]) -> String {
        let (stdout, stderr, code) = self.run(server, args);
        assert_eq!((stdout.as_str(), code), ("", Some(1)), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} is not in {stderr}");
        }
        stderr
    }
}

/// Random bytes, which are not a model.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = 2 * seed + 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(next).collect()
}

/// The bytes of a small model.
fn tiny() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let (_, stderr, code) =
        output(&mut fulmen(&["synth", "tiny-llama", path.to_str().unwrap(), "--type", "q8_0"]));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    fs::read(path).unwrap()
}

#[test]
fn the_default_file_is_downloaded_and_runs() {
    let (model, other) = (tiny(), noise(1, 5000));
    let server = Server::new(&[
        ("README.md", b"# Hi"),
        ("m-Q8_0.gguf", &other),
        ("m-Q4_K_M.gguf", &model),
        ("mmproj.gguf", &other),
    ]);
    let home = Home::new();
    home.refused(
        &server,
        &["run", "org/name", "Hi"],
        &["no file or folder org/name", "`fulmen pull org/name` downloads it"],
    );
    let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert!(
        stderr.contains("downloading m-Q4_K_M.gguf (") && stderr.contains("also available: m-Q8_0.gguf\n"),
        "{stderr}"
    );
    assert!(!stderr.contains('\x1b') && !stderr.contains('\r'), "no bar in a pipe: {stderr:?}");
    // The layout that the hub's own tools have.
    assert_eq!(path, home.repo().join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf"));
    assert_eq!(fs::read_to_string(home.repo().join("refs/main")).unwrap(), COMMIT);
    let hash = sha256(&model);
    assert_eq!(fs::read(home.blob(&hash)).unwrap(), model);
    #[cfg(unix)]
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../blobs").join(&hash));
    // Found by its name, by a part of its file's name, and without a network.
    drop(server);
    let mut gone = Server::new(&[]);
    gone.address = "http://127.0.0.1:9".to_owned();
    for name in ["org/name", "org/name:Q4_K_M", "org/name:m-Q4_K_M.gguf", "org/name@main"] {
        let args = ["run", name, "Hi", "-n", "3", "--device", "cpu", "--raw"];
        let (_, stderr, code) = home.run(&gone, &args);
        assert!(code == Some(0) && stderr.contains("answer "), "{name}: {stderr}");
    }
    let (stdout, ..) = home.run(&gone, &["inspect", "org/name"]);
    assert!(stdout.contains("llama"), "{stdout}");
    home.refused(
        &gone,
        &["run", "org/name:Q8_0", "Hi"],
        &["in the cache", "no file \"Q8_0\"", "`fulmen pull org/name:Q8_0`"],
    );
    home.refused(&gone, &["chat", "org/name@v2"], &["`fulmen pull org/name@v2` downloads it"]);
    home.refused(&gone, &["run", "org/missing.gguf", "Hi"], &["org/missing.gguf", "No such file"]);
}

#[test]
fn cached_files_are_not_downloaded_again() {
    let bytes = noise(2, 300_000);
    let server = Server::new(&[("a.gguf", &bytes)]);
    let home = Home::new();
    home.pulled(&server, &["pull", "org/name"]);
    let (_, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert!(stderr.contains("a.gguf is already in the cache"), "{stderr}");
    assert_eq!(server.fetched(), [None]);
    // A damaged blob is downloaded again.
    fs::write(home.blob(&sha256(&bytes)), b"short").unwrap();
    let (path, _) = home.pulled(&server, &["pull", "org/name", "--quiet"]);
    assert_eq!(fs::read(path).unwrap(), bytes);
    // By a branch with slashes, and by commit, which needs no ref.
    home.pulled(&server, &["pull", "org/name@refs/pr/1"]);
    assert_eq!(fs::read_to_string(home.repo().join("refs/refs/pr/1")).unwrap(), COMMIT);
    home.pulled(&server, &["pull", "org/name", "--revision", COMMIT]);
    assert!(!home.repo().join("refs").join(COMMIT).exists());
    assert_eq!(server.fetched().len(), 2);
    let (list, ..) = home.run(&server, &["pull", "org/name", "--list"]);
    assert!(list.contains("a.gguf") && list.contains("293 KiB"), "{list}");
}

#[test]
fn a_dropped_connection_resumes() {
    let bytes = noise(3, 300_000);
    let server =
        Server::new(&[("a.gguf", &bytes)]).with(Faults { cut: Some((100_000, 2)), ..Faults::default() });
    let home = Home::new();
    let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(server.fetched(), [None, Some(100_000), Some(200_000)]);
    assert!(stderr.contains("ended after 100000 of 300000 bytes") && stderr.contains("retrying"), "{stderr}");
}

#[test]
fn a_later_command_resumes_an_interrupted_download() {
    let bytes = noise(4, 300_000);
    let home = Home::new();
    let partial = home.blob(&format!("{}.incomplete", sha256(&bytes)));
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, &bytes[..123_456]).unwrap();
    let server = Server::new(&[("a.gguf", &bytes)]).with(Faults { cut: Some((0, 99)), ..Faults::default() });
    home.refused(
        &server,
        &["pull", "org/name"],
        &["after 123456 of 300000 bytes", "run the same command again to resume"],
    );
    assert_eq!(fs::read(&partial).unwrap(), &bytes[..123_456]);
    assert!(!home.repo().join("refs").exists(), "a model is found when it is complete");
    server.set(Faults::default());
    let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert!(stderr.contains("resuming at 120.6 KiB"), "{stderr}");
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(server.fetched().last(), Some(&Some(123_456)));
    assert!(!partial.exists());
}

#[test]
fn a_server_without_ranges_sends_the_whole_file() {
    let bytes = noise(5, 300_000);
    let faults = Faults { cut: Some((100_000, 1)), whole: true, ..Faults::default() };
    let server = Server::new(&[("a.gguf", &bytes)]).with(faults);
    let home = Home::new();
    let (path, _) = home.pulled(&server, &["pull", "org/name"]);
    assert_eq!(fs::read(path).unwrap(), bytes);
}

#[test]
fn files_with_a_wrong_hash_are_deleted() {
    let (bytes, small) = (noise(6, 50_000), b"{}".to_vec());
    let server = Server::new(&[("a.gguf", &bytes), ("config.json", &small)]);
    let home = Home::new();
    server.set(Faults { spoil: true, ..Faults::default() });
    home.refused(&server, &["pull", "org/name"], &["a.gguf: the checksum is", &sha256(&bytes), "discarded"]);
    assert_eq!(fs::read_dir(home.repo().join("blobs")).unwrap().count(), 0);
    assert!(!home.repo().join("refs").exists());
    // A partial file with the wrong content is detected, and the whole file is downloaded.
    server.set(Faults::default());
    fs::write(home.blob(&format!("{}.incomplete", sha256(&bytes))), noise(7, 20_000)).unwrap();
    let (path, _) = home.pulled(&server, &["pull", "org/name"]);
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(server.fetched()[1..], [Some(20_000), None]);
    // Small files have git's hash.
    let (path, _) = home.pulled(&server, &["pull", "org/name:config.json"]);
    assert_eq!(fs::read(path).unwrap(), small);
    assert_eq!(fs::read(home.blob(&git_hash(&small))).unwrap(), small);
}

#[test]
fn refusals_say_what_to_do() {
    let server = Server::new(&[("a.gguf", b"x")]);
    let home = Home::new();
    let refuse = |status, code| server.set(Faults { refuse: Some((status, code)), ..Faults::default() });
    refuse(401, "RepoNotFound");
    home.refused(
        &server,
        &["pull", "org/name"],
        &["org/name does not exist at http://127.0.0.1", "private", "HF_TOKEN"],
    );
    refuse(401, "");
    home.refused(&server, &["pull", "org/name"], &["HF_TOKEN"]);
    refuse(403, "GatedRepo");
    home.refused(&server, &["pull", "org/name"], &["org/name is gated: request access at http://127.0.0.1"]);
    refuse(403, "");
    home.refused(&server, &["pull", "org/name"], &["the server answered 403"]);
    refuse(404, "");
    home.refused(&server, &["pull", "org/name"], &["org/name does not exist at"]);
    server.set(Faults::default());
    home.refused(&server, &["pull", "org/name@v9"], &["org/name has no revision \"v9\""]);
    home.refused(&server, &["pull", "org/name:b.gguf"], &["no file \"b.gguf\"; available: a.gguf"]);
    home.refused(&server, &["pull", "org/other"], &["org/other does not exist at"]);
    server.set(Faults { listed: vec!["listed-Q4_K_M.gguf".to_owned()], ..Faults::default() });
    home.refused(&server, &["pull", "org/name"], &["org/name has no file \"listed-Q4_K_M.gguf\""]);
    refuse(503, "");
    home.refused(&server, &["pull", "org/name"], &["the server answered 503", "retrying"]);
    // A token that does not help.
    refuse(401, "RepoNotFound");
    let mut command = home.command(&server.address, &["pull", "org/name"]);
    let (_, stderr, _) = output(command.env("HF_TOKEN", "hf_x"));
    assert!(stderr.contains("the token in use does not grant access"), "{stderr}");
    let (_, stderr, code) = output(&mut home.command("http://127.0.0.1:9", &["pull", "org/name"]));
    assert!(code == Some(1) && stderr.contains("check the network connection"), "{stderr}");
    let (_, stderr, code) = home.run(&server, &["pull", "not a model"]);
    assert!(code == Some(2) && stderr.contains("ORG/NAME"), "{stderr}");
    let mut command = home.command("ftp://x", &["pull", "org/name"]);
    assert!(output(&mut command).1.contains("HF_ENDPOINT must be a URL"));
}

#[test]
fn file_names_cannot_escape_the_cache() {
    let server = Server::new(&[("a.gguf", b"x")]);
    server.set(Faults {
        listed: ["../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf"].map(str::to_owned).into(),
        ..Faults::default()
    });
    let home = Home::new();
    let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert!(path.ends_with("a.gguf") && !stderr.contains("evil"), "{stderr}");
    home.refused(&server, &["pull", "org/name@..%2f"], &["no revision"]);
}

#[test]
fn all_parts_of_a_split_model_are_downloaded() {
    let parts = [noise(8, 1000), noise(9, 2000)];
    let server =
        Server::new(&[("sub/m-00001-of-00002.gguf", &parts[0]), ("sub/m-00002-of-00002.gguf", &parts[1])]);
    let home = Home::new();
    let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert!(path.ends_with("sub/m-00001-of-00002.gguf"));
    assert!(stderr.contains("and its other parts, 2 files (2.9 KiB)"), "{stderr}");
    assert_eq!(fs::read(&path).unwrap(), parts[0]);
    assert_eq!(fs::read(path.with_file_name("m-00002-of-00002.gguf")).unwrap(), parts[1]);
}

#[test]
fn without_gguf_the_safetensors_folder_is_downloaded() {
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("model.safetensors", b"weights"),
        ("tokenizer.json", b"{ }"),
        ("README.md", b"no"),
        ("onnx/model.onnx", b"no"),
    ];
    let server = Server::new(&files);
    let home = Home::new();
    let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
    assert!(stderr.contains("downloading 3 files"), "{stderr}");
    assert_eq!(path, home.repo().join("snapshots").join(COMMIT));
    let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    home.refused(&server, &["run", "org/name", "Hi"], &["config.json"]);
    let empty = Server::new(&[("README.md", b"no")]);
    home.refused(&empty, &["pull", "org/name"], &["no GGUF file", "README.md"]);
}

#[test]
fn the_token_is_not_sent_to_other_servers() {
    let bytes = noise(10, 1000);
    let cdn = Server::new(&[("a.gguf", &bytes)]);
    let hub = Server::new(&[("a.gguf", &bytes)]);
    hub.set(Faults { elsewhere: Some(cdn.address.clone()), ..Faults::default() });
    let home = Home::new();
    let mut command = home.command(&hub.address, &["pull", "org/name"]);
    let (_, stderr, code) = output(command.env("HF_TOKEN", "hf_secret"));
    assert!(code == Some(0) && !stderr.contains("secret"), "{stderr}");
    assert!(hub.log().iter().all(|request| request.token.as_deref() == Some("Bearer hf_secret")));
    assert_eq!(cdn.log().iter().map(|request| request.token.clone()).collect::<Vec<_>>(), [None]);
}

#[test]
fn only_one_of_two_processes_downloads() {
    let bytes = noise(11, 200_000);
    let server =
        Server::new(&[("a.gguf", &bytes)]).with(Faults { wait: Duration::from_secs(2), ..Faults::default() });
    let home = Home::new();
    let start = || {
        let mut command = home.command(&server.address, &["pull", "org/name"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let outputs = [start(), start()].map(|child| child.wait_with_output().unwrap());
    for output in &outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, outputs[0].stdout);
    }
    let waited = |output: &std::process::Output| {
        String::from_utf8_lossy(&output.stderr).contains("waiting for another process")
    };
    assert_eq!(outputs.iter().filter(|output| waited(output)).count(), 1);
    assert_eq!(server.fetched(), [None]);
}
