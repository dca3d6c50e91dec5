//! Connections of the load generator, and the events of a streamed answer.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::BenchError;

/// A server.
pub(super) struct Target {
    url: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    /// What comes before the paths of the API.
    prefix: String,
    key: Option<HeaderValue>,
}

impl Target {
    pub(super) fn new(url: &str, key: Option<&str>) -> Result<Target, BenchError> {
        let wrong = |reason: &str| BenchError::Server { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("this is no URL: {error}")))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("expected http://HOST:PORT; the load generator does not use TLS"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("the URL has no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let value = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("the host is not valid"))?;
        let key = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}"))).transpose();
        Ok(Target {
            url: url.to_owned(),
            host,
            port: authority.port_u16().unwrap_or(80),
            authority: value,
            prefix: uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned(),
            key: key.map_err(|_| wrong("the API key has characters that no header can have"))?,
        })
    }

    pub(super) fn failed(&self, reason: impl ToString) -> BenchError {
        BenchError::Server { url: self.url.clone(), reason: reason.to_string() }
    }
}

/// An open connection. It answers one request after the other.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    target: Arc<Target>,
}

impl Connection {
    pub(super) async fn open(target: &Arc<Target>) -> Result<Connection, BenchError> {
        let failed = |error| target.failed(format!("cannot connect: {error}"));
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await.map_err(failed)?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| target.failed(error))?;
        // It ends with its sender; what goes wrong is seen by the requests.
        tokio::spawn(connection);
        Ok(Connection { sender, target: Arc::clone(target) })
    }

    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Response<Incoming>, BenchError> {
        let target = &self.target;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", target.prefix))
            .header(HOST, target.authority.clone());
        if let Some(key) = &target.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(body.unwrap_or_default());
        let request = request.body(body).map_err(|error| target.failed(error))?;
        self.sender.ready().await.map_err(|error| target.failed(error))?;
        self.sender.send_request(request).await.map_err(|error| target.failed(error))
    }

    /// The status and the whole body.
    pub(super) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(u16, String), BenchError> {
        let response = self.send(method, path, body).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| self.target.failed(error))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }
}

/// The name of the server's first model.
pub(super) async fn first_model(target: &Arc<Target>) -> Result<String, BenchError> {
    let (status, text) = Connection::open(target).await?.ask(Method::GET, "/v1/models", None).await?;
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match value["data"][0]["id"].as_str() {
        Some(name) if status == 200 => Ok(name.to_owned()),
        _ => Err(target.failed(format!("/v1/models answers with status {status} and names no model"))),
    }
}

/// Splits an event stream into the data of its events.
#[derive(Default)]
pub(super) struct Events {
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
}

impl Events {
    /// Takes bytes of the stream, and gives each event that they complete.
    pub(super) fn push(&mut self, bytes: &[u8], mut event: impl FnMut(&[u8])) {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                data(line, &mut event);
            } else {
                self.rest.extend_from_slice(line);
                data(&std::mem::take(&mut self.rest), &mut event);
            }
            bytes = after;
        }
        self.rest.extend_from_slice(bytes);
    }
}

fn data(line: &[u8], event: &mut impl FnMut(&[u8])) {
    if let Some(data) = line.strip_prefix(b"data:") {
        event(data.trim_ascii());
    }
}

/// A chunk of a streamed completion.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) choices: Vec<ChunkChoice<'a>>,
    pub(super) usage: Option<Usage>,
    #[serde(borrow)]
    pub(super) error: Option<ErrorObject<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChunkChoice<'a> {
    #[serde(borrow, default)]
    pub(super) text: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ErrorObject<'a> {
    #[serde(borrow, default)]
    pub(super) message: Cow<'a, str>,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct PromptDetails {
    pub(super) cached_tokens: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_wherever_the_bytes_are_cut() {
        let stream = b": keep-alive\n\ndata: {\"a\": 1}\r\n\ndata:two\n\nevent: x\ndata: [DONE]\n\n";
        for cut in 0..stream.len() {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for part in [&stream[..cut], &stream[cut..]] {
                events.push(part, |data| found.push(String::from_utf8(data.to_vec()).unwrap()));
            }
            assert_eq!(found, ["{\"a\": 1}", "two", "[DONE]"], "cut at {cut}");
        }
    }

    #[test]
    fn chunks_of_several_servers_are_read() {
        let text = r#"{"id":"x","choices":[{"text":"a\nb","index":0}],"usage":null}"#;
        let chunk: Chunk<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(chunk.choices[0].text, "a\nb");
        let text = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;
        let chunk: Chunk<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(chunk.usage.unwrap().completion_tokens, 4);
        let chunk: Chunk<'_> = serde_json::from_str(r#"{"error":{"message":"no","code":1}}"#).unwrap();
        assert_eq!(chunk.error.unwrap().message, "no");
    }

    #[test]
    fn urls_may_have_a_path_and_a_port() {
        let target = Target::new("http://localhost:81/base/v1/", Some("key")).unwrap();
        assert_eq!((target.host.as_str(), target.port, target.prefix.as_str()), ("localhost", 81, "/base"));
        let target = Target::new("http://[::1]", None).unwrap();
        assert_eq!((target.host.as_str(), target.port, target.prefix.as_str()), ("::1", 80, ""));
        for url in ["", "localhost:80", "https://localhost", "ftp://x"] {
            assert!(Target::new(url, None).is_err(), "{url}");
        }
        assert!(Target::new("http://x", Some("a\nb")).is_err());
    }
}
