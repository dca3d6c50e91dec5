//! TLS on loopback connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_server::{ServerError, ServerOptions, TlsFiles};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client;
use crate::server::{TestModel, TestServer, options, scripted, start_with};

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/tls")).join(name)
}

fn tls() -> Option<TlsFiles> {
    Some(TlsFiles { certificates: file("cert.pem"), key: file("key.pem") })
}

fn connect(server: &TestServer) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    StreamOwned::new(connection, stream)
}

#[test]
fn answers_are_encrypted() {
    let server = start_with(ServerOptions { tls: tls(), ..options() }, scripted(&["Hello there"]));
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "stream": true, "seed": 0 });
    let bytes = client::request("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    let mut stream = connect(&server);
    stream.write_all(&bytes).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("[DONE]"), "{text}");
    assert!(text.contains(r#""content":"H""#) && text.contains(r#""content":"ell""#), "{text}");
}

#[test]
fn plain_requests_and_silent_clients_do_not_hold_others_up() {
    let limits = fulmen_server::Limits { header_timeout: Duration::from_secs(2), ..Default::default() };
    let server = start_with(ServerOptions { tls: tls(), limits, ..options() }, TestModel::default());
    let silent = TcpStream::connect(server.address).unwrap();
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // An alert, or a closed connection: nothing that could be an answer.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    let mut stream = connect(&server);
    stream.write_all(&client::request("GET", "/health", &[], b"")).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    // A client that never begins is given up.
    let mut silent = silent;
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let refused = |certificates: PathBuf, key: PathBuf| {
        let options = ServerOptions { tls: Some(TlsFiles { certificates, key }), ..options() };
        match crate::server::bind_error(options) {
            ServerError::Tls(error) => error.to_string(),
            other => panic!("{other}"),
        }
    };
    let folder = std::env::temp_dir();
    assert!(refused(file("none.pem"), file("key.pem")).contains("none.pem"));
    assert!(refused(file("cert.pem"), file("cert.pem")).contains("cannot read"));
    assert!(refused(file("key.pem"), file("key.pem")).contains("has no certificate"));
    assert!(refused(folder.clone(), file("key.pem")).contains("cannot read"));
}
