//! File checksums.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// An incremental hash of a file.
pub(crate) enum Checksum {
    /// For large files: SHA-256 of the content.
    Sha256(Sha256),
    /// For small files: a git blob hash, SHA-1 of a header with the size and the content.
    Git(Sha1),
    /// The server's ETag is not a hash.
    None,
}

impl Checksum {
    /// The kind of hash that this ETag is.
    pub(crate) fn of(etag: &str, size: u64) -> Checksum {
        let hex = etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        match etag.len() {
            64 if hex => Checksum::Sha256(Sha256::new()),
            40 if hex => Checksum::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
            _ => Checksum::None,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Checksum::Sha256(hash) => hash.update(bytes),
            Checksum::Git(hash) => hash.update(bytes),
            Checksum::None => {}
        }
    }

    /// The hash in hexadecimal, if there is one.
    pub(crate) fn finish(self) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Checksum::Sha256(hash) => Some(hex(&hash.finalize())),
            Checksum::Git(hash) => Some(hex(&hash.finalize())),
            Checksum::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Checksum;

    #[test]
    fn hashes_are_those_of_the_standards() {
        let hash = |etag: &str, parts: &[&[u8]]| {
            let mut sum = Checksum::of(etag, parts.iter().map(|part| part.len() as u64).sum());
            parts.iter().for_each(|part| sum.update(part));
            sum.finish()
        };
        // SHA-256 of "abc" from FIPS 180; `git hash-object` of "hello\n".
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(sha, &[b"a", b"bc"]).as_deref(), Some(sha));
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(hash(git, &[b"hello\n"]).as_deref(), Some(git));
        assert_eq!(hash("some-mark", &[b"x"]), None);
    }
}
