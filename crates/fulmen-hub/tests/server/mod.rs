//! A hub on loopback: it lists files, redirects to where large ones are, and fails on demand. The tests of
//! the command use it, too.

// Each user needs a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request to the server.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    /// The first byte of the range that is requested.
    pub(crate) from: Option<usize>,
}

/// What the server does wrong.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Answers every request with this status and error code.
    pub(crate) refuse: Option<(u16, &'static str)>,
    /// `(bytes, count)`: closes the first `count` connections after `bytes` of a large file.
    pub(crate) cut: Option<(usize, usize)>,
    /// Closes the connection that sends the byte with this number, counted over all connections, before that
    /// byte; then there is no fault any more.
    pub(crate) cut_all: Option<usize>,
    /// Waits between the bytes of a large file.
    pub(crate) drip: Duration,
    /// How long a connection that is cut stays open.
    pub(crate) stall: Duration,
    /// Sends bytes that do not match the hash.
    pub(crate) spoil: bool,
    /// Ignores `Range`.
    pub(crate) whole: bool,
    /// Waits before each large file.
    pub(crate) wait: Duration,
    /// Says that files are elsewhere, on this server.
    pub(crate) elsewhere: Option<String>,
    /// Also lists these names.
    pub(crate) listed: Vec<String>,
    /// Answers every request for the bytes of a large file with 416.
    pub(crate) no_range: bool,
    /// The size in the header of a large file.
    pub(crate) size: Option<String>,
    /// The size in the list of files.
    pub(crate) listed_size: Option<u64>,
    /// The ETag of a large file, instead of its hash.
    pub(crate) etag: Option<&'static str>,
    /// Sends bodies without a length; they end with the connection.
    pub(crate) no_length: bool,
    /// Every other body has other bytes.
    pub(crate) alternate: bool,
    /// `(status, Retry-After, count)`: answers the first `count` requests so.
    pub(crate) busy: Option<(u16, String, usize)>,
}

/// A server that lives as long as the test.
pub(crate) struct Server {
    pub(crate) address: String,
    state: Arc<State>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: Mutex<Faults>,
    log: Mutex<Vec<Request>>,
}

impl Server {
    /// A repository `org/name` with these files. Names that end in `.gguf` or `.safetensors` are large.
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let state = Arc::new(State { files, faults: Mutex::default(), log: Mutex::default() });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // A client may close the connection early.
                std::thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Server { address, state }
    }

    pub(crate) fn with(self, faults: Faults) -> Server {
        self.set(faults);
        self
    }

    pub(crate) fn set(&self, faults: Faults) {
        *self.state.faults.lock().unwrap() = faults;
    }

    /// What it does wrong now.
    pub(crate) fn faults(&self) -> Faults {
        self.state.faults.lock().unwrap().clone()
    }

    /// All requests so far.
    pub(crate) fn log(&self) -> Vec<Request> {
        self.state.log.lock().unwrap().clone()
    }

    /// Requests for the bytes of large files: the start of each range.
    pub(crate) fn fetched(&self) -> Vec<Option<usize>> {
        let log = self.log();
        log.iter().filter(|r| r.method == "GET" && r.path.starts_with("/cdn/")).map(|r| r.from).collect()
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The git blob hash of a file with this content.
pub(crate) fn git_hash(bytes: &[u8]) -> String {
    let mut hash = sha1::Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_large(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors")
}

/// A connection, which ends where [`Faults::cut_all`] says.
struct Wire<'a> {
    stream: TcpStream,
    state: &'a State,
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut rest = bytes;
        if let Some(left) = &mut self.state.faults.lock().unwrap().cut_all {
            rest = &bytes[..bytes.len().min(*left)];
            *left -= rest.len();
        }
        self.stream.write_all(rest)?;
        if rest.len() < bytes.len() {
            self.state.faults.lock().unwrap().cut_all = None;
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

impl State {
    /// The number of requests for the bytes of large files.
    fn fetched(&self) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().filter(|r| r.method == "GET" && r.path.starts_with("/cdn/")).count()
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let request = read(&stream)?;
        let mut stream = Wire { stream, state: self };
        self.log.lock().unwrap().push(request.clone());
        let faults = self.faults.lock().unwrap().clone();
        let reply = |status: &str, headers: &str, length: usize| {
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n")
        };
        if let Some((status, code)) = faults.refuse {
            let code = if code.is_empty() { String::new() } else { format!("X-Error-Code: {code}\r\n") };
            return stream.write_all(reply(&format!("{status} No"), &code, 0).as_bytes());
        }
        if let Some((status, retry_after, count)) = faults.busy.clone().filter(|(.., count)| *count > 0) {
            self.faults.lock().unwrap().busy = Some((status, retry_after.clone(), count - 1));
            let headers = format!("Retry-After: {retry_after}\r\n");
            return stream.write_all(reply(&format!("{status} Busy"), &headers, 0).as_bytes());
        }
        let not_found = |code: &str| reply("404 Not Found", &format!("X-Error-Code: {code}\r\n"), 0);
        let path = request.path.split('?').next().unwrap();
        let head = request.method == "HEAD";
        if let Some(revision) = path.strip_prefix("/api/models/org/name/revision/") {
            if ![COMMIT, "main", "refs%2Fpr%2F1"].contains(&revision) {
                return stream.write_all(not_found("RevisionNotFound").as_bytes());
            }
            let names = self.files.keys().map(String::as_str).chain(faults.listed.iter().map(String::as_str));
            let size = |name: &str| {
                faults.listed_size.unwrap_or(self.files.get(name).map_or(0, |bytes| bytes.len() as u64))
            };
            let siblings: Vec<_> = names
                .map(|name| serde_json::json!({ "rfilename": name, "size": size(name), "blobId": "x" }))
                .collect();
            let body =
                serde_json::json!({ "id": "org/name", "sha": COMMIT, "siblings": siblings }).to_string();
            let headers = "Content-Type: application/json\r\n";
            return stream.write_all((reply("200 OK", headers, body.len()) + &body).as_bytes());
        }
        if let Some(name) = path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")) {
            let Some(bytes) = self.files.get(name) else {
                return stream.write_all(not_found("EntryNotFound").as_bytes());
            };
            let commit = format!("X-Repo-Commit: {COMMIT}\r\n");
            if is_large(name) {
                let hash = faults.etag.map_or_else(|| sha256(bytes), str::to_owned);
                let size = faults.size.unwrap_or_else(|| bytes.len().to_string());
                let elsewhere = faults.elsewhere.unwrap_or_default();
                let headers = format!(
                    "{commit}X-Linked-Etag: \"{hash}\"\r\nX-Linked-Size: {size}\r\n\
                     Location: {elsewhere}/cdn/{name}?signed=1\r\n"
                );
                return stream.write_all(reply("302 Found", &headers, 0).as_bytes());
            }
            let headers = format!("{commit}ETag: \"{}\"\r\n", git_hash(bytes));
            let answer = reply("200 OK", &headers, bytes.len()).into_bytes();
            return stream.write_all(&[&answer[..], if head { &[] } else { bytes }].concat());
        }
        let Some(bytes) = path.strip_prefix("/cdn/").and_then(|name| self.files.get(name)) else {
            return stream.write_all(not_found("RepoNotFound").as_bytes());
        };
        std::thread::sleep(faults.wait);
        let from = request.from.filter(|_| !faults.whole).unwrap_or(0);
        if faults.no_range {
            return stream.write_all(reply("416 Range Not Satisfiable", "", 0).as_bytes());
        }
        if from > 0 && from >= bytes.len() {
            let range = format!("Content-Range: bytes */{}\r\n", bytes.len());
            return stream.write_all(reply("416 Range Not Satisfiable", &range, 0).as_bytes());
        }
        let mut rest = bytes[from..].to_vec();
        if faults.spoil || (faults.alternate && self.fetched().is_multiple_of(2)) {
            rest.iter_mut().for_each(|byte| *byte ^= 1);
        }
        let header = match from {
            0 if faults.no_length => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned(),
            0 => reply("200 OK", "", bytes.len()),
            _ => {
                let range = format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                reply("206 Partial Content", &range, rest.len())
            }
        };
        if let Some((after, times)) = faults.cut.filter(|(_, times)| *times > 0) {
            self.faults.lock().unwrap().cut = Some((after, times - 1));
            rest.truncate(after);
            stream.write_all(&[header.as_bytes(), &rest].concat())?;
            std::thread::sleep(faults.stall);
            return Ok(());
        }
        stream.write_all(header.as_bytes())?;
        if !faults.drip.is_zero() {
            return rest.iter().try_for_each(|byte| {
                std::thread::sleep(faults.drip);
                stream.write_all(&[*byte])
            });
        }
        stream.write_all(&rest)
    }
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, path, token: None, from: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.token = Some(value.to_owned()),
            "range" => {
                let from = value.strip_prefix("bytes=").and_then(|text| text.strip_suffix('-'));
                request.from = from.and_then(|text| text.parse().ok());
            }
            _ => {}
        }
    }
    Ok(request)
}
