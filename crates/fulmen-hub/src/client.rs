//! HTTP client for the hub's API.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::choose::RepoFile;
use crate::error::HubError;
use crate::reference::{Reference, escaped, is_inside};
use crate::retry::parse_retry_after;
use crate::settings::Settings;

/// Maximum number of redirects per file.
const MAX_REDIRECTS: usize = 8;
/// Size limit of a file list. Lists of thousands of files have about 2 MB.
const MAX_LIST: u64 = 64 << 20;
/// Timeout for a silent server.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a whole list of files.
const LIST_TIMEOUT: Duration = Duration::from_secs(300);

/// A client for one server. Redirects are followed here and not by the HTTP library: the first response
/// describes the file, the last one has its content, and the token is sent only to the server itself.
pub(crate) struct Client {
    agent: Agent,
    /// The server that is asked.
    endpoint: String,
    /// Its token, if there is one, goes to `settings.endpoint` and to no other server.
    settings: Settings,
}

/// A file's metadata, fetched before its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// The ETag, usually a hash of the content; also the name of the blob.
    pub(crate) etag: String,
    pub(crate) size: u64,
}

#[derive(serde::Deserialize)]
struct ModelInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(serde::Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

impl Client {
    pub(crate) fn new(settings: &Settings, reference: &Reference) -> Result<Client, HubError> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("fulmen/", env!("CARGO_PKG_VERSION")))
            // Compressed responses would have a different length.
            .accept_encoding("identity")
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_per_read(Some(TIMEOUT));
        if let Some(path) = &settings.certificates {
            let pem = std::fs::read(path).map_err(HubError::io(path))?;
            let items = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            let certificates: Vec<_> = items.collect();
            let roots = RootCerts::new_with_certs(&certificates);
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let endpoint = reference.endpoint().unwrap_or(&settings.endpoint).to_owned();
        Ok(Client { agent: config.build().into(), endpoint, settings: settings.clone() })
    }

    /// The commit of a revision and its files.
    pub(crate) fn list(&self, reference: &Reference) -> Result<(String, Vec<RepoFile>), HubError> {
        let (endpoint, repo) = (&self.endpoint, reference.repo());
        let url =
            format!("{endpoint}/api/models/{repo}/revision/{}?blobs=true", escaped(reference.revision(), ""));
        let mut response = self.follow("GET", &url, None, |_| false)?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(&url, &response, reference, None));
        }
        let body = response.body_mut().with_config().limit(MAX_LIST).read_to_vec();
        let body = body.map_err(|error| HubError::Network { url: url.clone(), error: error.into() })?;
        parse_list(&body).map_err(|problem| HubError::Answer { url, problem })
    }

    /// The URL of a file.
    pub(crate) fn file_url(&self, reference: &Reference, commit: &str, file: &str) -> String {
        format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            reference.repo(),
            escaped(commit, ""),
            escaped(file, "/")
        )
    }

    /// A file's metadata. Large files are stored elsewhere, but the first response describes them.
    pub(crate) fn info(&self, reference: &Reference, commit: &str, file: &str) -> Result<FileInfo, HubError> {
        let url = self.file_url(reference, commit, file);
        let mut facts = FileFacts::default();
        let wrong = |problem| HubError::Answer { url: url.clone(), problem };
        let mut invalid = None;
        let response = self.follow("HEAD", &url, None, |headers| {
            invalid = facts.linked(headers).err();
            invalid.is_some() || facts.are_known()
        })?;
        if let Some(problem) = invalid {
            return Err(wrong(problem));
        }
        let status = response.status();
        if status != StatusCode::OK && !(facts.are_known() && status.is_redirection()) {
            return Err(self.refused(&url, &response, reference, Some(file)));
        }
        facts.finish(response.headers()).map_err(wrong)
    }

    /// The content of a file from an offset on. The status is 200 (whole file) or 206 (from the offset on).
    pub(crate) fn bytes(
        &self,
        reference: &Reference,
        commit: &str,
        file: &str,
        from: u64,
    ) -> Result<Response<Body>, HubError> {
        let url = self.file_url(reference, commit, file);
        let response = self.follow("GET", &url, Some(from).filter(|&from| from > 0), |_| false)?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            _ => Err(self.refused(&url, &response, reference, Some(file))),
        }
    }

    /// Follows redirects until there are none, or until `enough` accepts the headers.
    fn follow(
        &self,
        method: &str,
        url: &str,
        from: Option<u64>,
        mut enough: impl FnMut(&HeaderMap) -> bool,
    ) -> Result<Response<Body>, HubError> {
        let mut at = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let response = self.once(method, &at, from)?;
            if enough(response.headers()) || !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| joined(&at, location));
            at = next.ok_or_else(|| HubError::Answer {
                url: at.clone(),
                problem: format!("invalid redirect to {:?}", location.unwrap_or("")),
            })?;
        }
        Err(HubError::Answer {
            url: url.to_owned(),
            problem: format!("redirected more than {MAX_REDIRECTS} times"),
        })
    }

    fn once(&self, method: &str, url: &str, from: Option<u64>) -> Result<Response<Body>, HubError> {
        let mut request = if method == "HEAD" { self.agent.head(url) } else { self.agent.get(url) };
        if url.contains("/api/models/") {
            request = request.config().timeout_global(Some(LIST_TIMEOUT)).build();
        }
        if let Some(from) = from {
            request = request.header("range", format!("bytes={from}-"));
        }
        if let Some(token) =
            self.settings.token.as_ref().filter(|_| same_server(&self.settings.endpoint, url))
        {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| HubError::Network { url: without_query(url), error: error.into() })
    }

    /// The error for an unsuccessful response.
    fn refused(
        &self,
        url: &str,
        response: &Response<Body>,
        reference: &Reference,
        file: Option<&str>,
    ) -> HubError {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        let (repo, endpoint) = (reference.repo().to_owned(), self.endpoint.clone());
        let token = self.settings.token.is_some() && same_server(&self.settings.endpoint, &endpoint);
        let revision = reference.revision().to_owned();
        match (header("x-error-code"), response.status().as_u16(), file) {
            ("GatedRepo", ..) => HubError::Gated { repo, endpoint, token },
            ("RevisionNotFound", ..) => HubError::NoRevision { repo, revision },
            ("EntryNotFound", _, Some(file)) | ("", 404, Some(file)) => {
                HubError::NoFile { repo, file: file.to_owned() }
            }
            ("RepoNotFound", ..) | (_, 401, _) | ("", 404, None) => {
                HubError::NoRepo { repo, endpoint, token }
            }
            (_, status, _) => {
                let message: String =
                    header("x-error-message").chars().filter(|c| !c.is_control()).take(300).collect();
                let retry_after = parse_retry_after(header("retry-after"), SystemTime::now());
                HubError::Status { url: url.to_owned(), status, message, retry_after }
            }
        }
    }
}

/// The commit and the files in a list of files; otherwise what is wrong with it.
pub(crate) fn parse_list(body: &[u8]) -> Result<(String, Vec<RepoFile>), String> {
    let info: ModelInfo =
        serde_json::from_slice(body).map_err(|error| format!("cannot parse the list of files: {error}"))?;
    if !is_file_name(&info.sha) {
        return Err(format!("{:?} is not a commit", info.sha));
    }
    let mut names = HashSet::new();
    if let Some(file) = info.siblings.iter().find(|file| !names.insert(&file.rfilename)) {
        return Err(format!("the list of files has {:?} twice", file.rfilename));
    }
    let files = info.siblings.into_iter().filter(|file| is_inside(&file.rfilename));
    Ok((info.sha, files.map(|file| RepoFile { path: file.rfilename, size: file.size }).collect()))
}

/// What the headers say about a file, redirect by redirect.
#[derive(Default)]
pub(crate) struct FileFacts {
    etag: Option<String>,
    size: Option<u64>,
}

impl FileFacts {
    /// Large files are stored elsewhere; the redirect to them says what they are.
    pub(crate) fn linked(&mut self, headers: &HeaderMap) -> Result<(), String> {
        self.etag = self.etag.take().or_else(|| etag(headers, "x-linked-etag"));
        self.size = match self.size {
            None => number(headers, "x-linked-size")?,
            size => size,
        };
        Ok(())
    }

    fn are_known(&self) -> bool {
        self.etag.is_some() && self.size.is_some()
    }

    /// Takes what is missing from the last response.
    pub(crate) fn finish(self, headers: &HeaderMap) -> Result<FileInfo, String> {
        let etag = self.etag.or_else(|| etag(headers, "etag"));
        let etag = etag.ok_or("the response does not say which content it is (ETag)")?;
        let size = match self.size {
            None => number(headers, "content-length")?,
            size => size,
        };
        Ok(FileInfo { etag, size: size.ok_or("the response does not say how large it is (Content-Length)")? })
    }
}

/// An ETag without its quotes, if it is a valid file name.
fn etag(headers: &HeaderMap, name: &str) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    let text = text.trim_start_matches("W/").trim_matches('"');
    is_file_name(text).then(|| text.to_owned())
}

/// Whether an ETag is a valid file name, such as a hash.
fn is_file_name(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=128).contains(&text.len()) && text.chars().all(known)
}

/// The number in a header; an error if it is there and not a number of bytes.
pub(crate) fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|text| text.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("the header {name} is {value:?}, which is not a number of bytes")),
    }
}

/// The target of a redirect. `None` if invalid, or from https to http.
fn joined(from: &str, location: &str) -> Option<String> {
    let uri: Uri = from.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let to = match location {
        _ if location.starts_with("https://") || location.starts_with("http://") => location.to_owned(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ => return None,
    };
    (scheme == "http" || to.starts_with("https://")).then_some(to)
}

/// Whether two URLs refer to the same server.
fn same_server(a: &str, b: &str) -> bool {
    let server = |text: &str| {
        let uri: Uri = text.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, uri.host()?.to_ascii_lowercase(), port))
    };
    server(a).is_some() && server(a) == server(b)
}

/// A URL without its query: signatures do not belong in messages.
fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_lead_on_and_never_to_less_safety() {
        let from = "https://hub.example/a/b?x=1";
        assert_eq!(joined(from, "/c?d").as_deref(), Some("https://hub.example/c?d"));
        assert_eq!(joined(from, "//cdn.example/c").as_deref(), Some("https://cdn.example/c"));
        assert_eq!(joined(from, "https://cdn.example/c").as_deref(), Some("https://cdn.example/c"));
        assert_eq!(joined(from, "http://cdn.example/c"), None);
        assert_eq!(joined(from, "file:///etc/passwd"), None);
        assert_eq!(
            joined("http://localhost:1/a", "http://cdn.example/c").as_deref(),
            Some("http://cdn.example/c")
        );
    }

    #[test]
    fn the_token_goes_to_one_server() {
        let yes = [("https://hub.example", "https://HUB.example:443/a"), ("http://h:80", "http://h/x")];
        yes.iter().for_each(|(a, b)| assert!(same_server(a, b), "{a} {b}"));
        let no = [
            ("https://hub.example", "https://cdn.hub.example/a"),
            ("https://hub.example", "http://hub.example/a"),
            ("http://127.0.0.1:1", "http://127.0.0.1:2"),
            ("https://hub.example", "https://hub.example.evil/"),
            ("https://hub.example", "https://hub.example@evil/"),
        ];
        no.iter().for_each(|(a, b)| assert!(!same_server(a, b), "{a} {b}"));
    }

    #[test]
    fn parts_of_addresses_are_escaped() {
        assert_eq!(escaped("refs/pr/1", ""), "refs%2Fpr%2F1");
        assert_eq!(escaped("a b/ü?.gguf", "/"), "a%20b/%C3%BC%3F.gguf");
    }
}
