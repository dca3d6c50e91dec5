//! Model references: `ORG/NAME[@REVISION][:FILE]`.

use std::fmt;
use std::str::FromStr;

/// The default revision.
const MAIN: &str = "main";

/// A model on a hub: the repository, its revision, and optionally a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    repo: String,
    revision: Option<String>,
    file: Option<String>,
}

/// Why a text is not a model reference.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a model ({problem}); expected ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION:FILE")]
pub struct ReferenceError {
    text: String,
    problem: &'static str,
}

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

    /// The same model at another revision.
    pub fn at(self, revision: &str) -> Result<Reference, ReferenceError> {
        format!("{}@{revision}{}", self.repo, self.file.map_or(String::new(), |file| format!(":{file}")))
            .parse()
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Reference, ReferenceError> {
        let wrong = |problem| ReferenceError { text: text.to_owned(), problem };
        if text.contains("://") {
            return Err(wrong("it is a URL"));
        }
        let (left, file) = text.split_once(':').map_or((text, None), |(left, file)| (left, Some(file)));
        let (repo, revision) = left.split_once('@').map_or((left, None), |(repo, rev)| (repo, Some(rev)));
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return Err(wrong("the repository is not ORG/NAME"));
        }
        // Two hyphens separate organization and name in the cache.
        if parts.iter().any(|part| part.contains("--")) {
            return Err(wrong("a name has two hyphens in a row"));
        }
        if revision.is_some_and(|revision| !is_inside(revision)) {
            return Err(wrong("the revision is not a branch, tag or commit"));
        }
        if file.is_some_and(|file| !is_inside(file)) {
            return Err(wrong("the file is not a path inside the repository"));
        }
        Ok(Reference {
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            "https://hub/a/b",
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
