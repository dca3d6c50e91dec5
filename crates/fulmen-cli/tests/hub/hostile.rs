//! `fulmen pull` from servers that never send the file: it ends, says why, and leaves nothing that is taken
//! for the model.

use std::fs;
use std::time::{Duration, Instant};

use crate::server::{Faults, Server, sha256};
use crate::{Home, noise};

/// Every one of these took for ever or hours. Waits between attempts add up to 3.5 s.
const SOON: Duration = Duration::from_secs(25);

/// The pull is refused with these words, soon, after at most this many requests for the bytes.
fn refused(home: &Home, server: &Server, words: &[&str], requests: usize) -> String {
    let start = Instant::now();
    let stderr = home.refused(server, &["pull", "org/name"], words);
    assert!(start.elapsed() < SOON, "{:?}: {stderr}", start.elapsed());
    assert!(server.fetched().len() <= requests, "{:?}", server.fetched());
    assert!(!home.repo().join("refs").exists(), "a model is found when it is complete");
    assert!(!home.repo().join("snapshots").exists());
    stderr
}

fn server(bytes: &[u8], faults: Faults) -> Server {
    Server::new(&[("a.gguf", bytes)]).with(faults)
}

#[test]
fn a_server_that_always_answers_416_is_given_up() {
    let bytes = noise(20, 300_000);
    let server = server(&bytes, Faults { no_range: true, ..Faults::default() });
    let home = Home::new();
    refused(&home, &server, &["a.gguf: the server answered 416 to the request for the whole file"], 1);
    // Also with a part from an earlier command: the whole file is tried once.
    fs::write(home.blob(&format!("{}.incomplete", sha256(&bytes))), &bytes[..1000]).unwrap();
    refused(&home, &server, &["answered 416 to the request for the whole file"], 3);
}

#[test]
fn a_size_larger_than_the_body_is_found_at_once() {
    let bytes = noise(21, 300_000);
    let faults = Faults {
        size: Some("400000".to_owned()),
        listed_size: Some(400_000),
        etag: Some("some-mark"),
        ..Faults::default()
    };
    let words = ["a.gguf: expected 400000 bytes, but the server has 300000"];
    refused(&Home::new(), &server(&bytes, faults.clone()), &words, 1);
    // Without a length the body ends early, and the rest is out of range.
    let faults = Faults { no_length: true, ..faults };
    refused(&Home::new(), &server(&bytes, faults.clone()), &words, 2);
    // And without ranges the body comes again and again.
    let faults = Faults { whole: true, ..faults };
    refused(&Home::new(), &server(&bytes, faults), &["a.gguf: ", " of 400000 bytes"], 4);
}

#[test]
fn bodies_that_alternate_end_with_an_error() {
    let bytes = noise(22, 300_000);
    // Cut in the middle, and without ranges: each connection starts over.
    let faults = Faults { alternate: true, whole: true, cut: Some((200_000, 9999)), ..Faults::default() };
    refused(&Home::new(), &server(&bytes, faults), &["a.gguf: ", "of 300000 bytes"], 4);
    // With ranges, the parts do not belong together, and the hash tells.
    let faults = Faults { alternate: true, cut: Some((200_000, 1)), ..Faults::default() };
    let home = Home::new();
    refused(&home, &server(&bytes, faults), &["a.gguf: the checksum is"], 2);
    assert_eq!(fs::read_dir(home.repo().join("blobs")).unwrap().count(), 0);
}

#[test]
fn a_server_that_sends_some_bytes_per_connection_is_given_up() {
    let bytes = noise(23, 300_000);
    let server = server(&bytes, Faults { cut: Some((100, 9999)), ..Faults::default() });
    refused(&Home::new(), &server, &["ended after 400 of 300000 bytes"], 4);
}

#[test]
fn lengths_that_cannot_be_true_are_refused_before_the_download() {
    let bytes = noise(24, 1000);
    let huge = |size: &str, listed_size| {
        server(&bytes, Faults { size: Some(size.to_owned()), listed_size, ..Faults::default() })
    };
    let home = Home::new();
    let needed = ["16.0 EiB are needed, but the disk has", "HF_HUB_CACHE"];
    refused(&home, &huge("18446744073709551615", Some(u64::MAX)), &needed, 0);
    refused(&home, &huge("18446744073709551616", None), &["x-linked-size", "not a number of bytes"], 0);
    refused(&home, &huge("-1", None), &["x-linked-size"], 0);
    let words = ["a.gguf: the list of files says 1000 bytes, but the file's header 1001"];
    refused(&home, &huge("1001", None), &words, 0);
    // Sizes whose sum is more than 64 bits hold.
    let shards = Server::new(&[("m-00001-of-00002.gguf", b"a"), ("m-00002-of-00002.gguf", b"b")]);
    let size = Some((u64::MAX - 1).to_string());
    shards.set(Faults { size, listed_size: Some(u64::MAX - 1), ..Faults::default() });
    refused(&home, &shards, &["16.0 EiB are needed"], 0);
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let bytes = noise(25, 1000);
    let busy = |status, after: &str, count| {
        server(&bytes, Faults { busy: Some((status, after.to_owned(), count)), ..Faults::default() })
    };
    let start = Instant::now();
    let (_, stderr) = Home::new().pulled(&busy(429, "2", 1), &["pull", "org/name"]);
    assert!(start.elapsed() >= Duration::from_secs(2) && stderr.contains("retrying in 2.0 s"), "{stderr}");
    // A date in the past is now.
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    let (_, stderr) = Home::new().pulled(&busy(503, past, 2), &["pull", "org/name"]);
    assert!(stderr.contains("retrying in 0.0 s"), "{stderr}");
    // Nobody waits for an hour, or until 2199.
    for after in ["3600", "99999999999999999999", "Fri, 01 Nov 2199 08:49:37 GMT"] {
        let start = Instant::now();
        let stderr = Home::new().refused(
            &busy(429, after, 99),
            &["pull", "org/name"],
            &["answered 429", "try again in"],
        );
        assert!(start.elapsed() < Duration::from_secs(10) && !stderr.contains("retrying"), "{stderr}");
    }
}

#[test]
fn only_what_was_verified_is_called_so() {
    let bytes = noise(26, 1000);
    let home = Home::new();
    let (_, stderr) = home.pulled(&server(&bytes, Faults::default()), &["pull", "org/name"]);
    assert!(stderr.contains("a.gguf (1000 B), verified\n"), "{stderr}");
    // 32 digits are MD5 or anything else; they are not checked.
    for etag in ["0123456789abcdef0123456789abcdef", "5f3759df-12c"] {
        let unknown = server(&bytes, Faults { etag: Some(etag), ..Faults::default() });
        let (path, stderr) = Home::new().pulled(&unknown, &["pull", "org/name"]);
        assert!(stderr.contains("not verified: the server sent no hash"), "{stderr}");
        assert!(!path.exists(), "its folder was removed with the home");
    }
}

#[test]
fn sixty_thousand_files_are_listed_and_chosen_from() {
    let bytes = noise(27, 1000);
    let listed = (0..60_000).map(|at| format!("x-{at}-Q8_0.gguf")).collect();
    let server = Server::new(&[("a-Q4_K_M.gguf", &bytes)]).with(Faults { listed, ..Faults::default() });
    let start = Instant::now();
    let (_, stderr) = Home::new().pulled(&server, &["pull", "org/name"]);
    assert!(stderr.len() < 2000 && stderr.contains("and 59980 more"), "{stderr}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let twice = Faults { listed: vec!["a-Q4_K_M.gguf".to_owned()], ..Faults::default() };
    server.set(twice);
    refused(&Home::new(), &server, &["the list of files has \"a-Q4_K_M.gguf\" twice"], 1);
}

#[cfg(unix)]
#[test]
fn nothing_is_written_through_symbolic_links() {
    use std::os::unix::fs::symlink;

    let bytes = noise(28, 1000);
    let server = server(&bytes, Faults::default());
    let (name, lock) = (sha256(&bytes), ".locks/models--org--name");
    let links = [
        format!("models--org--name/blobs/{name}.incomplete"),
        format!("{lock}/{name}.lock"),
        "models--org--name/blobs".to_owned(),
        "models--org--name/snapshots".to_owned(),
        "models--org--name/refs".to_owned(),
        "models--org--name".to_owned(),
        ".locks".to_owned(),
    ];
    for link in links {
        let (home, other) = (Home::new(), tempfile::tempdir().unwrap());
        let victim = other.path().join("victim");
        let is_file = link.ends_with(".lock") || link.ends_with(".incomplete");
        if is_file {
            fs::write(&victim, b"precious").unwrap();
        } else {
            fs::create_dir(&victim).unwrap();
        }
        let place = home.0.path().join("hub").join(&link);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        symlink(&victim, &place).unwrap();
        home.refused(&server, &["pull", "org/name"], &["is a symbolic link", place.to_str().unwrap()]);
        match is_file {
            true => assert_eq!(fs::read(&victim).unwrap(), b"precious", "{link}"),
            false => assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{link}"),
        }
    }
    // A blob, a ref or a file of a snapshot that is a link is replaced; where it leads to is not touched. The
    // cache itself may be a link.
    let (home, other) = (Home::new(), tempfile::tempdir().unwrap());
    symlink(other.path(), home.0.path().join("hub")).unwrap();
    let victim = home.0.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    fs::create_dir_all(home.repo().join("refs")).unwrap();
    fs::create_dir_all(home.repo().join("blobs")).unwrap();
    symlink(&victim, home.repo().join("refs/main")).unwrap();
    symlink(&victim, home.blob(&name)).unwrap();
    let (path, _) = home.pulled(&server, &["pull", "org/name"]);
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

/// What was downloaded is kept on purpose, and the message says so.
#[cfg(unix)]
#[test]
fn a_signal_keeps_what_was_downloaded_and_says_so() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    let bytes = noise(29, 3_000_000);
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        // The body stops in the middle: the server waits before it closes the connection.
        let stall = Duration::from_secs(20);
        let server = server(&bytes, Faults { cut: Some((2_000_000, 1)), stall, ..Faults::default() });
        let home = Home::new();
        let mut command = home.command(&server.address, &["pull", "org/name"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let partial = home.blob(&format!("{}.incomplete", sha256(&bytes)));
        let start = Instant::now();
        while partial.metadata().map_or(0, |file| file.len()) < 2_000_000 {
            assert!(start.elapsed() < SOON);
            std::thread::sleep(Duration::from_millis(5));
        }
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(stderr.ends_with("stopped; run the same command again to resume the download\n"), "{stderr}");
        assert_eq!(fs::read(&partial).unwrap(), &bytes[..2_000_000]);
        assert!(!home.repo().join("refs").exists());
        let (path, stderr) = home.pulled(&server, &["pull", "org/name"]);
        assert!(stderr.contains("resuming at 1.9 MiB"), "{stderr}");
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
}
