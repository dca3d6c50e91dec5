//! The name of a backend. The set of backends is open: any well-formed name can be registered and selected.

use std::{fmt, str::FromStr};

/// The name of a backend, such as `cpu` or `cuda`: 1 to 15 lowercase ASCII letters, digits and underscores,
/// the first one a letter. `auto` is no name, because it selects among all backends.
///
/// A name is a small value that is copied and compared, so a backend declares its own as a constant:
///
/// ```
/// use fulmen_core::BackendName;
///
/// const NAME: BackendName = BackendName::new("npu");
/// assert_eq!("npu".parse(), Ok(NAME));
/// assert!("NPU 1".parse::<BackendName>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendName {
    /// The name, followed by zeros.
    bytes: [u8; BackendName::MAX_LEN],
}

impl BackendName {
    /// The most bytes of a name.
    pub const MAX_LEN: usize = 15;

    /// A name that is known when the program is compiled.
    ///
    /// # Panics
    /// If it is malformed; in a constant that is an error of the compiler. Use `parse` for other names.
    pub const fn new(name: &str) -> BackendName {
        match BackendName::checked(name.as_bytes()) {
            Some(name) => name,
            None => panic!(
                "a backend's name has 1 to 15 lowercase letters, digits and underscores, the first a letter"
            ),
        }
    }

    const fn checked(name: &[u8]) -> Option<BackendName> {
        if name.is_empty() || name.len() > Self::MAX_LEN || !name[0].is_ascii_lowercase() {
            return None;
        }
        let mut bytes = [0; Self::MAX_LEN];
        let mut at = 0;
        while at < name.len() {
            if !(name[at].is_ascii_lowercase() || name[at].is_ascii_digit() || name[at] == b'_') {
                return None;
            }
            bytes[at] = name[at];
            at += 1;
        }
        match name {
            b"auto" => None,
            _ => Some(BackendName { bytes }),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(Self::MAX_LEN);
        // Only ASCII passes `checked`.
        str::from_utf8(&self.bytes[..len]).unwrap_or_default()
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackendName({:?})", self.as_str())
    }
}

/// Text that is no well-formed [`BackendName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no backend's name: 1 to 15 of a-z, 0-9 and _, the first a letter, and not \"auto\"")]
pub struct BackendNameError(pub String);

impl FromStr for BackendName {
    type Err = BackendNameError;

    fn from_str(text: &str) -> Result<Self, BackendNameError> {
        BackendName::checked(text.as_bytes()).ok_or_else(|| BackendNameError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print_the_same() {
        for text in ["a", "cpu", "wgpu", "cuda", "my_npu2", "fifteen_letters"] {
            let name: BackendName = text.parse().unwrap();
            assert_eq!(
                (name.as_str(), name.to_string().as_str(), name),
                (text, text, BackendName::new(text))
            );
        }
    }

    #[test]
    fn malformed_names_are_refused() {
        for text in ["", "auto", "CPU", "2d", "_x", "a:b", "a b", "a\0", "é", "sixteen_letters_"] {
            assert_eq!(text.parse::<BackendName>(), Err(BackendNameError(text.to_owned())));
        }
    }

    #[test]
    fn names_are_ordered_like_text() {
        let mut names = ["wgpu", "cpu", "cuda", "cu"].map(BackendName::new);
        names.sort();
        assert_eq!(names.map(|name| name.to_string()), ["cpu", "cu", "cuda", "wgpu"]);
    }
}
