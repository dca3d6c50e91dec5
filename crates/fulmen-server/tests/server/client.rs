//! A plain HTTP client: one request per connection, and what it takes to misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The data of server-sent events, and their names.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{}", self.text());
        let text = self.text();
        assert!(text.ends_with("\n\n"), "{text}");
        let event = |block: &str| {
            let field = |name: &str| {
                let lines = block.lines().filter_map(|line| line.strip_prefix(name));
                lines.collect::<Vec<_>>().join("\n")
            };
            (field("event: "), field("data: "))
        };
        text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':')).map(event).collect()
    }

    /// The JSON of an event stream that ends with `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().expect("an event").1, "[DONE]");
        events.iter().map(|(_, data)| serde_json::from_str(data).expect(data)).collect()
    }

    /// The message of an error of OpenAI's shape.
    pub(crate) fn error(&self) -> String {
        self.json()["error"]["message"].as_str().expect("an error").to_owned()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// A request with a body and further header lines.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        text += "host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if method == "POST" {
        text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Reads a response to its end.
pub(crate) fn read_reply(stream: TcpStream) -> std::io::Result<Reply> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
    let mut body = Vec::new();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16)
                .map_err(|_| std::io::Error::other(format!("a chunk of size {line:?}")))?;
            let start = body.len();
            body.resize(start + size, 0);
            reader.read_exact(&mut body[start..])?;
            reader.read_exact(&mut [0; 2])?;
            if size == 0 {
                break;
            }
        }
    } else {
        reader.read_to_end(&mut body)?;
    }
    Ok(Reply { status, head: head.replace("\r\n", "\n"), body })
}

/// Sends bytes and reads the response.
pub(crate) fn send(address: SocketAddr, bytes: &[u8]) -> Reply {
    try_send(address, bytes).expect("a response")
}

/// The same; fails where the server closes the connection without a response.
pub(crate) fn try_send(address: SocketAddr, bytes: &[u8]) -> std::io::Result<Reply> {
    let mut stream = connect(address);
    // The server may answer and close before it has read all.
    let _ = stream.write_all(bytes);
    read_reply(stream)
}
