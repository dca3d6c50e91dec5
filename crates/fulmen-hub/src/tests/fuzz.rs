//! Mutated answers of a hub: lists, headers, whole responses. Nothing panics or hangs, what is accepted is
//! valid, and a file that does not have its hash is never linked.
//!
//! `FULMEN_FUZZ_SEED` and `FULMEN_FUZZ_CASES` choose the cases, `FULMEN_TEST_FULL=1` runs many. A case that
//! fails prints its seed and writes its input to the target folder; it goes into `tests/corpus` with the fix.
//! Lists and references of the corpus are read unchanged first, and then mutated.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
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

/// The files of the corpus whose names start so.
fn corpus(kind: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(kind));
    files.sort();
    assert!(!files.is_empty(), "{kind}");
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Runs cases, each from a seed of its own. A case puts what it tries into the place that it gets.
fn cases(name: &str, few: u64, many: u64, mut case: impl FnMut(&mut Rng, &Tried)) {
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
        let tried = Tried::default();
        let told = TellSeed { name, seed, tried: Arc::clone(&tried) };
        case(&mut Rng::with_seed(seed), &tried);
        std::mem::forget(told);
    }
}

/// The bytes that a case tries.
type Tried = Arc<Mutex<Vec<u8>>>;

/// Prints the seed of a case that panics, and keeps its input.
struct TellSeed<'a> {
    name: &'a str,
    seed: u64,
    tried: Tried,
}

impl Drop for TellSeed<'_> {
    fn drop(&mut self) {
        let TellSeed { name, seed, tried } = self;
        println!("{name}: run again with FULMEN_FUZZ_SEED={seed} FULMEN_FUZZ_CASES=1");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
        let path = folder.join(format!("hub-{name}-{seed}.bin"));
        let bytes = tried.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match fs::create_dir_all(&folder).and_then(|()| fs::write(&path, bytes)) {
            Ok(()) => println!("the input is in {}", path.display()),
            Err(error) => println!("the input is not kept: {}: {error}", path.display()),
        }
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

/// What a list of files must be for the rest of a download, whatever its bytes. Whether it was accepted.
fn check_list(body: &[u8]) -> bool {
    let Ok((commit, files)) = parse_list(body) else { return false };
    assert!(is_inside(&commit) && !commit.contains(['/', '.']));
    assert!(files.iter().all(|file| is_inside(&file.path)));
    for wanted in [None, Some("Q8_0"), Some("x.gguf")] {
        if let Ok(choice) = choose(&files, wanted) {
            assert!(!choice.files.is_empty());
            assert!(choice.files.iter().all(|file| files.contains(file)));
        }
    }
    complete_models(&files);
    true
}

/// What the name of a model must be, whatever its text: inside of the cache, and the same when it is printed.
fn check_reference(text: &str) {
    let Ok(reference) = text.parse::<Reference>() else { return };
    assert!(reference.file().is_none_or(is_inside) && is_inside(reference.repo()), "{text:?}");
    let again = reference.to_string().parse::<Reference>().unwrap();
    assert_eq!((again.repo(), again.revision()), (reference.repo(), reference.revision()), "{text:?}");
    assert_eq!((again.file(), again.endpoint()), (reference.file(), reference.endpoint()), "{text:?}");
}

#[test]
fn lists_of_files() {
    let lists = corpus("list");
    assert!(lists.iter().any(|body| check_list(body)));
    let (mut accepted, mut count) = (0, 0u64);
    cases("lists", 20_000, 1_000_000, |random, tried| {
        count += 1;
        let mut body = lists[random.usize(..lists.len())].clone();
        mutate(random, &mut body);
        tried.lock().unwrap().clone_from(&body);
        accepted += u64::from(check_list(&body));
    });
    println!("{accepted} of {count} lists accepted");
    assert!(count < 1000 || accepted > 100, "mutations must not be so many that nothing is parsed");
}

#[test]
fn headers_and_references() {
    let references = corpus("reference");
    references.iter().for_each(|bytes| check_reference(String::from_utf8_lossy(bytes).trim_end()));
    cases("headers", 20_000, 1_000_000, |random, tried| {
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
        *tried.lock().unwrap() = format!("{headers:?}").into_bytes();
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
        let mut bytes = references[random.usize(..references.len())].trim_ascii_end().to_vec();
        mutate(random, &mut bytes);
        tried.lock().unwrap().clone_from(&bytes);
        check_reference(&String::from_utf8_lossy(&bytes));
    });
}

/// A hub that sends whole responses, mutated from a seed.
struct RawServer {
    address: String,
    seed: Arc<Mutex<u64>>,
    /// Where it writes what it sends.
    sent: Arc<Mutex<Tried>>,
}

const CONTENT: &[u8] = b"GGUF and what comes after it, 0123456789 0123456789 0123456789";

impl RawServer {
    fn new() -> RawServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seed = Arc::new(Mutex::new(0u64));
        let sent = Arc::new(Mutex::new(Tried::default()));
        let (shared, log) = (Arc::clone(&seed), Arc::clone(&sent));
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
                log.lock().unwrap().lock().unwrap().extend(&bytes);
                // The client may be gone.
                let _ = stream.write_all(&bytes);
            }
        });
        RawServer { address, seed, sent }
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
    cases("responses", 200, 20_000, |random, tried| {
        count += 1;
        *server.seed.lock().unwrap() = random.u64(..);
        *server.sent.lock().unwrap() = Arc::clone(tried);
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
