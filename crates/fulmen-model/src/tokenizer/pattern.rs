//! Recognizes the pre-tokenizer of a `tokenizer.json` by its pattern and maps it to the name used in GGUF
//! files.

use super::TokenizerError;
use super::json::{Pattern, Stage};

/// The patterns of `Split` stages that are followed by a `ByteLevel` stage.
const PATTERNS: [(&str, &str); 5] = [
    (
        "llama3",
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    (
        "qwen2",
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
            r"\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    (
        "qwen35",
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    (
        "tekken",
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    (
        "gpt-4o",
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
];

/// The name of the pre-tokenizer with these stages.
pub(super) fn pre_name(stages: &[&Stage]) -> Result<&'static str, TokenizerError> {
    let unsupported = |what: String| Err(TokenizerError::Unsupported { what });
    let (first, bytes) = match stages {
        [bytes] => (None, bytes),
        [first, bytes] => (Some(first), bytes),
        _ => {
            let kinds: Vec<&str> = stages.iter().map(|stage| stage.kind.as_str()).collect();
            return unsupported(format!("the pre-tokenizer {kinds:?}"));
        }
    };
    if bytes.kind != "ByteLevel" || bytes.add_prefix_space == Some(true) {
        return unsupported(format!("the pre-tokenizer {:?} with these settings", bytes.kind));
    }
    // On by default.
    let words = bytes.use_regex != Some(false);
    let Some(first) = first else {
        return if words { Ok("gpt-2") } else { unsupported("ByteLevel without a pattern".to_owned()) };
    };
    match (first.kind.as_str(), &first.pattern) {
        ("Digits", _) if first.individual_digits == Some(true) && words => Ok("smollm"),
        ("Split", Some(Pattern::Regex(pattern)))
            if !words && !first.invert && first.behavior.as_deref() == Some("Isolated") =>
        {
            match PATTERNS.iter().find(|row| row.1 == pattern) {
                Some(row) => Ok(row.0),
                None => unsupported(format!("the pattern {pattern:?}")),
            }
        }
        (kind, _) => unsupported(format!("the pre-tokenizer {kind:?} with these settings")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::Pre;
    use super::*;

    #[test]
    fn every_pattern_is_a_known_name() {
        for (name, _) in PATTERNS {
            assert!(Pre::named(name).is_some(), "{name}");
        }
    }
}
