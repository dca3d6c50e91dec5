//! API keys, from a file or the environment: arguments can be seen by other users of the machine.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Keys in the environment, separated by commas.
const VARIABLE: &str = "FULMEN_API_KEY";

/// Why keys could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("cannot read the API keys of {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{from} has no API key")]
    None { from: String },
    #[error("{from} has an API key with a space or a character outside ASCII")]
    Character { from: String },
}

/// The keys of the file and of the environment.
pub(super) fn read(file: Option<&Path>) -> Result<Vec<String>, KeyError> {
    let mut keys = Vec::new();
    if let Some(path) = file {
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| KeyError::Read { path: path.to_owned(), error })?;
        keys.extend(checked(text.lines(), path.display().to_string())?);
    }
    if let Some(text) = env::var(VARIABLE).ok().filter(|text| !text.is_empty()) {
        keys.extend(checked(text.split(','), VARIABLE.to_owned())?);
    }
    Ok(keys)
}

fn checked<'a>(texts: impl Iterator<Item = &'a str>, from: String) -> Result<Vec<String>, KeyError> {
    let keys: Vec<String> = texts
        .map(str::trim)
        .filter(|text| !text.is_empty() && !text.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if keys.is_empty() {
        return Err(KeyError::None { from });
    }
    if !keys.iter().all(|key| key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(KeyError::Character { from });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines() {
        let keys = |text: &str| checked(text.lines(), "a file".to_owned());
        assert_eq!(keys("# comment\n one \n\ntwo\n").unwrap(), ["one", "two"]);
        assert!(matches!(keys("# comment\n"), Err(KeyError::None { .. })));
        assert!(matches!(keys("a b\n"), Err(KeyError::Character { .. })));
    }
}
