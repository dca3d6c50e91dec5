//! Mutated answers of a hub: lists, headers, whole responses. Nothing panics or hangs, what is accepted is
//! valid, and a file that does not have its hash is never linked.
//!
//! `FULMEN_FUZZ_SEED` and `FULMEN_FUZZ_CASES` choose the cases, `FULMEN_TEST_FULL=1` runs many. A case that
//! fails prints its seed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use super::server::{COMMIT, sha256};
use super::{limits, settings};
use crate::choose::{choose, complete_models};
use crate::client::{FileFacts, number, parse_list};
use crate::disk::SystemDisk;
use crate::limits::Limits;
use crate::pull::Puller;
use crate::reference::{Reference, is_inside};
use crate::retry::parse_retry_after;

/// Runs cases, each from a seed of its own.
fn cases(name: &str, few: u64, many: u64, mut case: impl FnMut(&mut Rng)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let full = std::env::var_os("FULMEN_TEST_FULL").is_some_and(|value| value == "1");
    let fresh = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64;
    let seed = number("FULMEN_FUZZ_SEED").or_else(|| number("FULMEN_TEST_SEED")).unwrap_or_else(fresh);
    // Slow kinds of cases take a part of the number.
    let part = |cases: u64| (cases.saturating_mul(few) / 20_000).max(1);
    let count = number("FULMEN_FUZZ_CASES").map_or(if full { many } else { few }, part);
    println!("{name}: {count} cases from seed {seed}");
    for at in 0..count {
        let seed = seed.wrapping_add(at);
        let told = TellSeed(name, seed);
        case(&mut Rng::with_seed(seed));
        std::mem::forget(told);
    }
}

/// Prints the seed of a case that panics.
struct TellSeed<'a>(&'a str, u64);

impl Drop for TellSeed<'_> {
    fn drop(&mut self) {
        println!("{}: run again with FULMEN_FUZZ_SEED={} FULMEN_FUZZ_CASES=1", self.0, self.1);
    }
}

/// Pieces that have broken parsers.
const PIECES: [&str; 24] = [
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0",
    "1e400",
    "NaN",
    "null",
    "[]",
    "{}",
    "\"",
    "\\u0000",
    "\\ud800",
    "../",
    "/",
    ":",
    "%00",
    "\r\n",
    "\0",
    "\x1b[31m",
    "W/\"\"",
    "bytes */0",
    "-00001-of-99999.gguf",
    "é",
    concat!(
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    ),
];

/// Changes some bytes.
fn mutate(random: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 << random.u8(0..3) {
        let at = random.usize(0..=bytes.len());
        let end = (at + random.usize(0..=16)).min(bytes.len());
        match random.u8(0..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u8(0..8),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, random.u8(..)),
            3 => {
                let piece = PIECES[random.usize(0..PIECES.len())];
                drop(bytes.splice(at..end, piece.bytes()));
            }
            4 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => bytes.truncate(bytes.len().saturating_sub(random.usize(0..=2))),
        }
    }
}

fn list(random: &mut Rng) -> Vec<u8> {
    let names = [
        "m-Q4_K_M.gguf",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
        "config.json",
        "sub/x.gguf",
        "model.safetensors",
        "README.md",
    ];
    let files: Vec<String> = names
        .iter()
        .map(|name| format!("{{\"rfilename\": \"{name}\", \"size\": {}}}", random.u16(..)))
        .collect();
    format!("{{\"id\": \"org/name\", \"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", files.join(", ")).into()
}

#[test]
fn lists_of_files() {
    let (mut accepted, mut count) = (0, 0u64);
    cases("lists", 20_000, 1_000_000, |random| {
        count += 1;
        let mut body = list(random);
        mutate(random, &mut body);
        let Ok((commit, files)) = parse_list(&body) else { return };
        accepted += 1;
        assert!(is_inside(&commit) && !commit.contains(['/', '.']));
        assert!(files.iter().all(|file| is_inside(&file.path)));
        for wanted in [None, Some("Q8_0"), Some("x.gguf")] {
            if let Ok(choice) = choose(&files, wanted) {
                assert!(!choice.files.is_empty());
                assert!(choice.files.iter().all(|file| files.contains(file)));
            }
        }
        complete_models(&files);
    });
    println!("{accepted} of {count} lists accepted");
    assert!(count < 1000 || accepted > 100, "mutations must not be so many that nothing is parsed");
}

#[test]
fn headers_and_references() {
    cases("headers", 20_000, 1_000_000, |random| {
        let mut headers = HeaderMap::new();
        let hash = sha256(b"x");
        let values = [
            ("etag", format!("\"{hash}\"")),
            ("x-linked-etag", format!("W/\"{hash}\"")),
            ("x-linked-size", random.u32(..).to_string()),
            ("content-length", random.u64(..).to_string()),
            ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        ];
        for (name, value) in values {
            let mut bytes = value.into_bytes();
            if random.bool() {
                mutate(random, &mut bytes);
            }
            if let (Ok(value), true) = (HeaderValue::from_bytes(&bytes), random.u8(0..8) > 0) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        let mut facts = FileFacts::default();
        if facts.linked(&headers).is_ok()
            && let Ok(info) = facts.finish(&headers)
        {
            assert!(is_inside(&info.etag) && !info.etag.contains(['/', '.']), "{info:?}");
        }
        let _ = number(&headers, "content-length");
        if let Some(value) = headers.get("retry-after").and_then(|value| value.to_str().ok()) {
            let _ = parse_retry_after(value, SystemTime::now());
        }
        let texts =
            ["hf.co/org/name@v1:Q8_0", "https://h.example/org/name/resolve/refs%2Fpr%2F1/a%20b.gguf?x"];
        let mut bytes = texts[random.usize(0..2)].as_bytes().to_vec();
        mutate(random, &mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(reference) = text.parse::<Reference>() {
            assert!(reference.file().is_none_or(is_inside) && is_inside(reference.repo()), "{text:?}");
            let again = reference.to_string().parse::<Reference>().unwrap();
            assert_eq!(
                (again.repo(), again.revision()),
                (reference.repo(), reference.revision()),
                "{text:?}"
            );
            assert_eq!(
                (again.file(), again.endpoint()),
                (reference.file(), reference.endpoint()),
                "{text:?}"
            );
        }
    });
}

/// A hub that sends whole responses, mutated from a seed.
struct RawServer {
    address: String,
    seed: Arc<Mutex<u64>>,
}

const CONTENT: &[u8] = b"GGUF and what comes after it, 0123456789 0123456789 0123456789";

impl RawServer {
    fn new() -> RawServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seed = Arc::new(Mutex::new(0u64));
        let shared = Arc::clone(&seed);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(&stream).lines();
                let first = lines.next().and_then(Result::ok).unwrap_or_default();
                let mut from = 0;
                for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
                    let range = line.to_ascii_lowercase();
                    let range = range.strip_prefix("range: bytes=").and_then(|text| text.strip_suffix('-'));
                    from = range.and_then(|text| text.parse().ok()).unwrap_or(from);
                }
                let mut random = {
                    let mut seed = shared.lock().unwrap();
                    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    Rng::with_seed(*seed)
                };
                let mut bytes = response(&mut random, &first, from);
                // Half of the answers are right, so that all steps of a download are reached.
                if random.bool() {
                    mutate(&mut random, &mut bytes);
                }
                // The client may be gone.
                let _ = stream.write_all(&bytes);
            }
        });
        RawServer { address, seed }
    }
}

/// A right answer. It has no redirect: a mutated one could lead to any server.
fn response(random: &mut Rng, request: &str, from: usize) -> Vec<u8> {
    let head = request.starts_with("HEAD");
    if request.contains("/api/models/") {
        let body = format!(
            "{{\"sha\": \"{COMMIT}\", \"siblings\": [{{\"rfilename\": \"a.gguf\", \"size\": {}}}]}}",
            CONTENT.len()
        );
        return format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .into();
    }
    let etag = if random.u8(0..4) > 0 { sha256(CONTENT) } else { "some-mark".to_owned() };
    let body = CONTENT.get(from..).unwrap_or(b"");
    let (status, range) = match from {
        0 => ("200 OK", String::new()),
        _ => {
            let (last, size) = (CONTENT.len() - 1, CONTENT.len());
            ("206 Partial Content", format!("Content-Range: bytes {from}-{last}/{size}\r\n"))
        }
    };
    let header = format!(
        "HTTP/1.1 {status}\r\nETag: \"{etag}\"\r\nContent-Length: {}\r\n{range}Connection: close\r\n\r\n",
        body.len()
    );
    [header.as_bytes(), if head { b"" } else { body }].concat()
}

#[test]
fn whole_responses() {
    let server = RawServer::new();
    let reference: Reference = "org/name".parse().unwrap();
    let (mut complete, mut count) = (0, 0u64);
    cases("responses", 200, 20_000, |random| {
        count += 1;
        *server.seed.lock().unwrap() = random.u64(..);
        let root = tempfile::tempdir().unwrap();
        let bounds = Limits { window: Duration::from_secs(5), ..limits() };
        let start = Instant::now();
        let settings = settings(&server.address, root.path());
        let result = Puller::new(&settings, &reference, &SystemDisk, bounds)
            .unwrap()
            .pull(&mut |_| ControlFlow::Continue(()));
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}: {result:?}", start.elapsed());
        if result.is_ok() {
            complete += 1;
        }
        hashes_are_right(root.path());
    });
    println!("{complete} of {count} downloads complete");
    assert!(count < 100 || complete > 0);
}

/// Every blob with a hash as its name has that hash.
fn hashes_are_right(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            hashes_are_right(&path);
        } else if kind.is_file() && name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            assert_eq!(sha256(&fs::read(&path).unwrap()), name.to_lowercase());
        }
    }
}
