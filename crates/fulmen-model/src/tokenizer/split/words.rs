//! The pattern of Llama 3 and its relatives. Llama 3:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
//! \s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! Qwen2 splits digits one by one; Qwen3.5 also counts combining marks as parts of words. Contractions are
//! ASCII only: `'ſ` (U+017F, which some engines fold to `s`) is not one.

use super::{Class, Text};

/// A member of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tokenizer) struct Words {
    /// Maximum number of digits in a pre-token.
    digits: usize,
    /// Whether combining marks are parts of words.
    marks: bool,
}

pub(super) const LLAMA3: Words = Words { digits: 3, marks: false };
pub(super) const QWEN2: Words = Words { digits: 1, marks: false };
pub(super) const QWEN35: Words = Words { digits: 1, marks: true };

impl Words {
    /// The end of the pre-token that starts at `at`.
    pub(super) fn piece(self, text: Text<'_>, at: usize) -> usize {
        let in_word = if self.marks { Class::is_letter_or_mark } else { Class::is_letter };
        let other = if self.marks { Class::is_other_than_mark } else { Class::is_other };
        if let Some(end) = text.contraction(at, true) {
            return end;
        }
        let (c, class, next) = text.look(at);
        if in_word(class) || (!matches!(c, '\r' | '\n') && !class.is_number() && in_word(text.class(next))) {
            return text.run(next, in_word);
        }
        if class.is_number() {
            return numbers(text, at, self.digits);
        }
        punctuation(text, at, other, b"\r\n").unwrap_or_else(|| whitespace(text, at))
    }
}

/// The end of `\p{N}{1,most}`.
pub(super) fn numbers(text: Text<'_>, mut at: usize, most: usize) -> usize {
    for _ in 0..most {
        let (_, class, next) = text.look(at);
        if !class.is_number() {
            break;
        }
        at = next;
    }
    at
}

/// The end of ` ?[other]+[tail]*`.
pub(super) fn punctuation(
    text: Text<'_>,
    at: usize,
    other: impl Fn(Class) -> bool,
    tail: &[u8],
) -> Option<usize> {
    let start = if text.byte(at) == Some(b' ') { at + 1 } else { at };
    let end = text.run(start, other);
    (end > start).then(|| text.run_of(end, tail))
}

/// The end of `\s*[\r\n]+|\s+(?!\S)|\s+`.
pub(super) fn whitespace(text: Text<'_>, at: usize) -> usize {
    let end = text.run(at, Class::is_space);
    match text.0.as_bytes()[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
        Some(last) => at + last + 1,
        None => text.spaces(at, end),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Splitter, tests::pieces};
    use super::*;

    #[test]
    fn rules_of_llama3() {
        let cases: [(&str, &[&str]); 19] = [
            ("", &[]),
            ("Hello world", &["Hello", " world"]),
            ("I'LL we'Ve DON'T", &["I", "'LL", " we", "'Ve", " DON", "'T"]),
            ("'tis 'reel", &["'t", "is", " '", "reel"]),
            ("12345 678", &["123", "45", " ", "678"]),
            ("x=1234567", &["x", "=", "123", "456", "7"]),
            ("(word) \"quoted\"", &["(word", ")", " \"", "quoted", "\""]),
            ("\tif x:\n\t\treturn", &["\tif", " x", ":\n", "\t", "\treturn"]),
            ("a  \n\n  b", &["a", "  \n\n", " ", " b"]),
            ("a\r\n\r\n", &["a", "\r\n\r\n"]),
            ("end.\n\nNext", &["end", ".\n\n", "Next"]),
            ("a   b", &["a", "  ", " b"]),
            ("a   ", &["a", "   "]),
            ("   7", &["  ", " ", "7"]),
            ("... !!!\n", &["...", " !!!\n"]),
            ("Äpfel 漢字жук", &["Äpfel", " 漢字жук"]),
            ("e\u{301}tude", &["e", "\u{301}tude"]),
            ("🦀rust 🦀🦀", &["🦀rust", " 🦀🦀"]),
            ("a\u{a0}b\u{3000}\u{3000}c", &["a", "\u{a0}b", "\u{3000}", "\u{3000}c"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(Splitter::Words(LLAMA3), text), expected, "{text:?}");
        }
    }

    #[test]
    fn qwen2_takes_digits_one_by_one() {
        let expected = ["in", " ", "2", "0", "2", "4", ",", " a", "'S", "½", "²"];
        assert_eq!(pieces(Splitter::Words(QWEN2), "in 2024, a'S½²"), expected);
        assert_eq!(
            pieces(Splitter::Words(QWEN2), "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947}"),
            ["\u{928}\u{92e}\u{938}", "\u{94d}\u{924}", "\u{947}"]
        );
    }

    #[test]
    fn qwen35_keeps_marks_in_words() {
        let word = "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947}";
        assert_eq!(pieces(Splitter::Words(QWEN35), word), [word]);
        assert_eq!(pieces(Splitter::Words(QWEN35), "e\u{301}t"), ["e\u{301}t"]);
        assert_eq!(pieces(Splitter::Words(QWEN35), "\u{301}"), ["\u{301}"]);
        assert_eq!(pieces(Splitter::Words(QWEN35), "1\u{301} !\u{301}x"), ["1", "\u{301}", " !", "\u{301}x"]);
        assert_eq!(pieces(Splitter::Words(QWEN35), " ?!\n"), [" ?!\n"]);
    }
}
