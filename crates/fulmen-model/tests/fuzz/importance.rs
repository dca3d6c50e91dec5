//! Mutated importance matrices.

use std::sync::Arc;

use fulmen_model::quantize::Importance;

use crate::{corpus, fuzz, mutate, number};

/// Reads a file and, if it is accepted, everything in it. Returns whether it was accepted.
fn read(bytes: &[u8]) -> bool {
    let importance = match Importance::from_bytes(Arc::new(bytes.to_vec())) {
        Ok(importance) => importance,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    assert!(importance.entries().len() > 0);
    for (name, values) in importance.entries() {
        assert!(values.iter().all(|value| value.is_finite() && *value >= 0.0), "{name}");
        assert!(4 * values.len() < bytes.len(), "{name}");
    }
    true
}

#[test]
fn the_corpus_is_read() {
    assert!(corpus::files(".imatrix.bin").iter().all(|bytes| read(bytes)));
}

#[test]
fn mutated_files_are_refused_or_read() {
    let files = corpus::files(".imatrix.bin");
    let cases = number("FULMEN_FUZZ_CASES", 10_000);
    fuzz("importance", cases, |random| mutate::mutated(&files, random), read);
}

/// The same through a file on disk.
#[test]
fn mutated_files_on_disk_are_refused_or_read() {
    let files = corpus::files(".imatrix.bin");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imatrix");
    let cases = number("FULMEN_FUZZ_CASES", 10_000) / 20;
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Importance::open(&path).is_ok(), read(bytes));
        read(bytes)
    };
    fuzz("importance-on-disk", cases, |random| mutate::mutated(&files, random), open);
}
