//! Model references: `[HOST/]ORG/NAME[@REVISION][:FILE]`, or a URL.

use std::fmt;
use std::str::FromStr;

/// The default revision.
const MAIN: &str = "main";

/// A model on a hub: the repository, its revision, and optionally a file.
///
/// The hub's own hosts in front (`hf.co/ORG/NAME`, or a URL of a page or file there) mean the configured hub,
/// which may be a mirror. Another host means that server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The URL of another server than the configured hub.
    endpoint: Option<String>,
    repo: String,
    revision: Option<String>,
    file: Option<String>,
}

/// Why a text is not a model reference.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a model ({problem}); expected ORG/NAME, ORG/NAME:FILE, ORG/NAME@REVISION:FILE, \
     the same after HOST/, or a URL of a hub"
)]
pub struct ReferenceError {
    text: String,
    problem: &'static str,
}

/// Hosts that mean the configured hub.
const HUB_HOSTS: [&str; 3] = ["hf.co", "huggingface.co", "www.huggingface.co"];

impl Reference {
    /// `ORG/NAME`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// A branch, a tag or a commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// The file, or a part of its name such as `Q4_K_M`.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The server, if the reference names one that is not the configured hub.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// The host and port of `endpoint`.
    pub(crate) fn host(&self) -> Option<&str> {
        self.endpoint.as_deref().and_then(|url| url.split_once("://")).map(|(_, host)| host)
    }

    /// `[HOST/]ORG/NAME`.
    pub fn repo_with_host(&self) -> String {
        let host = self.host().map_or(String::new(), |host| format!("{host}/"));
        format!("{host}{}", self.repo)
    }

    /// Whether the revision is said and not the default.
    pub fn has_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// The same model at another revision.
    pub fn at(self, revision: &str) -> Result<Reference, ReferenceError> {
        Reference { revision: Some(revision.to_owned()), ..self }.checked(revision)
    }

    /// The same repository and revision, and this file.
    pub fn with_file(self, file: &str) -> Result<Reference, ReferenceError> {
        Reference { file: Some(file.to_owned()), ..self }.checked(file)
    }

    /// A text without its host, and the server that the host means.
    fn split_host(text: &str) -> Option<(Option<String>, &str)> {
        let (host, rest) = text.split_once('/')?;
        // `ORG/NAME` remains; an organization with a dot in its name is not a host.
        let names = rest.split([':', '@']).next().unwrap_or(rest);
        if !is_host(host) || names.split('/').count() != 2 {
            return None;
        }
        Some((endpoint(scheme(host), host), rest))
    }

    /// The model of a URL: the page of a repository, a folder or a file in it, or the file itself.
    fn from_url(text: &str, scheme: &str, rest: &str) -> Result<Reference, ReferenceError> {
        let wrong = |problem| ReferenceError { text: text.to_owned(), problem };
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (host, path) = rest.split_once('/').ok_or(wrong("the URL has no repository"))?;
        if !is_host(host) && host != "localhost" {
            return Err(wrong("the URL has no valid host"));
        }
        let parts: Option<Vec<String>> =
            path.split('/').filter(|part| !part.is_empty()).map(decoded).collect();
        let parts = parts.ok_or(wrong("the URL is not UTF-8"))?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (repo, rest) = match parts[..] {
            ["datasets" | "spaces" | "collections" | "papers", ..] => {
                return Err(wrong("the URL is not that of a model"));
            }
            [org, name, ref rest @ ..] => (format!("{org}/{name}"), rest),
            _ => return Err(wrong("the URL has no repository")),
        };
        let (revision, file) = match rest {
            [] => (None, String::new()),
            // A folder is not a model: only the revision counts.
            ["tree", "refs", kind, name, ..] => (Some(format!("refs/{kind}/{name}")), String::new()),
            ["tree", revision, ..] => (Some((*revision).to_owned()), String::new()),
            ["resolve" | "blob" | "raw", "refs", kind, name, file @ ..] => {
                (Some(format!("refs/{kind}/{name}")), file.join("/"))
            }
            ["resolve" | "blob" | "raw", revision, file @ ..] => {
                (Some((*revision).to_owned()), file.join("/"))
            }
            _ => return Err(wrong("the URL is neither that of a repository nor of a file")),
        };
        let file = Some(file).filter(|file| !file.is_empty());
        // `main` is the default, and the same model has one name.
        let revision = revision.filter(|revision| revision != MAIN);
        Reference { endpoint: endpoint(scheme, host), repo, revision, file }.checked(text)
    }

    /// This reference if all parts are valid. `text` is what the user wrote.
    fn checked(self, text: &str) -> Result<Reference, ReferenceError> {
        let wrong = |problem| ReferenceError { text: text.to_owned(), problem };
        let parts: Vec<&str> = self.repo.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return Err(wrong("the repository is not ORG/NAME"));
        }
        // Two hyphens separate organization and name in the cache.
        if parts.iter().any(|part| part.contains("--")) {
            return Err(wrong("a name has two hyphens in a row"));
        }
        if self.revision.as_deref().is_some_and(|revision| !is_inside(revision)) {
            return Err(wrong("the revision is not a branch, tag or commit"));
        }
        if self.file.as_deref().is_some_and(|file| !is_inside(file)) {
            return Err(wrong("the file is not a path inside the repository"));
        }
        Ok(self)
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Reference, ReferenceError> {
        for scheme in ["https", "http"] {
            if let Some(rest) = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")) {
                return Reference::from_url(text, scheme, rest);
            }
        }
        let host = Reference::split_host(text);
        let (endpoint, name) = host.clone().unwrap_or((None, text));
        let (left, file) = name.split_once(':').map_or((name, None), |(left, file)| (left, Some(file)));
        let (repo, revision) = left.split_once('@').map_or((left, None), |(repo, rev)| (repo, Some(rev)));
        // What other tools write for "no file in particular".
        let file = file.filter(|file| host.is_none() || *file != "latest");
        let reference = Reference {
            endpoint,
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        };
        reference.checked(text)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.endpoint.as_deref(), self.host()) {
            (Some(url), Some(host))
                if url.split_once("://").is_some_and(|(used, _)| used == scheme(host)) =>
            {
                write!(f, "{host}/")?
            }
            // The host alone would mean another scheme.
            (Some(url), _) => {
                write!(f, "{url}/{}", self.repo)?;
                let revision = escaped(self.revision(), "");
                return match &self.file {
                    Some(file) => write!(f, "/resolve/{revision}/{}", escaped(file, "/")),
                    None => write!(f, "/tree/{revision}"),
                };
            }
            _ => {}
        }
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

/// How a host is asked if the reference has no scheme: in the clear only on this computer.
fn scheme(host: &str) -> &'static str {
    match host.split(':').next() {
        Some("localhost" | "127.0.0.1") => "http",
        _ => "https",
    }
}

/// The URL of a server; `None` for the configured hub.
fn endpoint(scheme: &str, host: &str) -> Option<String> {
    let host = host.to_ascii_lowercase();
    (!HUB_HOSTS.contains(&host.as_str())).then(|| format!("{scheme}://{host}"))
}

/// Whether a text is a host, perhaps with a port: a name with a dot in it, or `localhost`.
fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.contains("--")
    };
    (name.contains('.') || name == "localhost")
        && text.len() <= 128
        && name.split('.').all(label)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// A part of a URL with its percent-encoded bytes decoded; `None` if it is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.first_chunk::<2>().filter(|_| *first == b'%').and_then(|digits| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
        });
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

/// Whether a text is a valid organization or model name.
fn is_name(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=96).contains(&text.len())
        && text.chars().all(known)
        && !text.starts_with(['.', '-'])
        && !text.ends_with('.')
}

/// Whether a path stays inside its folder: named components only, no `..`, nothing with a special meaning on
/// any operating system.
pub(crate) fn is_inside(path: &str) -> bool {
    let part = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.contains(['\\', ':', '\0'])
            && !part.chars().any(char::is_control)
    };
    path.len() <= 1024 && path.split('/').all(part)
}

/// Percent-encodes a text for a URL, except for the characters of `keep`.
pub(crate) fn escaped(text: &str, keep: &str) -> String {
    let plain = |byte: u8| {
        let c = char::from(byte);
        byte.is_ascii_alphanumeric() || "-._~".contains(c) || (byte.is_ascii() && keep.contains(c))
    };
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_found() {
        let reference: Reference = "org/name@refs/pr/3:sub/model-Q4_K_M.gguf".parse().unwrap();
        assert_eq!((reference.repo(), reference.revision()), ("org/name", "refs/pr/3"));
        assert_eq!(reference.file(), Some("sub/model-Q4_K_M.gguf"));
        assert_eq!(reference.to_string(), "org/name@refs/pr/3:sub/model-Q4_K_M.gguf");
        let plain: Reference = "gpt2".parse().unwrap();
        assert_eq!((plain.repo(), plain.revision(), plain.file()), ("gpt2", "main", None));
        let other = plain.at("v1").unwrap();
        assert_eq!((other.revision(), other.to_string().as_str()), ("v1", "gpt2@v1"));
    }

    #[test]
    fn a_host_may_be_in_front() {
        let parse = |text: &str| text.parse::<Reference>().unwrap();
        for text in ["hf.co/org/name:Q8_0", "huggingface.co/org/name:Q8_0", "HF.co/org/name:Q8_0"] {
            assert_eq!(parse(text), parse("org/name:Q8_0"), "{text}");
        }
        assert_eq!(parse("hf.co/org/name:latest"), parse("org/name"));
        assert_eq!(parse("org.x/name:sub/m.gguf").endpoint(), None, "an organization with a dot");
        let other = parse("hub.example/org/name@v1:Q8_0");
        assert_eq!((other.endpoint(), other.repo()), (Some("https://hub.example"), "org/name"));
        assert_eq!((other.revision(), other.file()), ("v1", Some("Q8_0")));
        assert_eq!(parse("localhost:8080/org/name").endpoint(), Some("http://localhost:8080"));
        for text in
            ["hub.example/org/name@v1:Q8_0", "localhost:80/a/b", "http://hub.example/a/b/blob/v1/c%20.gguf"]
        {
            let shown = parse(text).to_string();
            assert_eq!(shown.parse::<Reference>().ok(), Some(parse(text)), "{text} {shown}");
        }
    }

    #[test]
    fn urls_of_pages_and_files_name_models() {
        let hub = "https://huggingface.co/org/name";
        let cases = [
            ("", "org/name"),
            ("/", "org/name"),
            ("/tree/main", "org/name"),
            ("/tree/main/sub", "org/name"),
            ("/blob/main/m-Q4_K_M.gguf", "org/name:m-Q4_K_M.gguf"),
            ("/resolve/main/sub/m.gguf?download=true", "org/name:sub/m.gguf"),
            ("/resolve/v1.0/m%20x.gguf#top", "org/name@v1.0:m x.gguf"),
            ("/resolve/refs%2Fpr%2F1/m.gguf", "org/name@refs/pr/1:m.gguf"),
            ("/blob/refs/pr/1/m.gguf", "org/name@refs/pr/1:m.gguf"),
        ];
        for (end, name) in cases {
            let parse = |text: &str| text.parse::<Reference>();
            assert_eq!(parse(&format!("{hub}{end}")), parse(name), "{end}");
        }
        let mirror: Reference = "http://127.0.0.1:9/org/name/resolve/main/m.gguf".parse().unwrap();
        assert_eq!((mirror.endpoint(), mirror.host()), (Some("http://127.0.0.1:9"), Some("127.0.0.1:9")));
    }

    #[test]
    fn what_names_no_model_is_refused() {
        let texts = [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "a b/c",
            "../c",
            "a/..",
            "a/b:",
            "a/b:../x",
            "a/b:/x",
            "a/b:x//y",
            "a/b@",
            "a/b@../x",
            "a/b:x\\y",
            "a/b:x\0",
            "a--b/c",
            "https://",
            "https://hub.example",
            "https://hub.example/a",
            "https://hub.example/a/b/commits/main",
            "https://hub.example/a/b/resolve/main/../x",
            "https://hub.example/a/b/resolve/main/%2e%2e/x",
            "https://hub.example/a/%ff",
            "https://hub_example/a/b",
            "https://user@hub.example/a/b",
            "https://huggingface.co/datasets/a/b",
            "ftp://hub.example/a/b",
            "a--b.example/a/b",
            "a/b:c:d",
            "a/.b",
            "a/b.",
            "ü/b",
        ];
        for text in texts {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains("ORG/NAME"), "{text:?}: {error}");
        }
    }
}
