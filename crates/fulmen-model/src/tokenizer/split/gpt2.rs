//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

use super::{Class, Text};

/// The end of the pre-token that starts at `at`.
pub(super) fn piece(text: Text<'_>, at: usize) -> usize {
    if let Some(end) = text.contraction(at, false) {
        return end;
    }
    let word = if text.byte(at) == Some(b' ') { at + 1 } else { at };
    let class = text.class(word);
    if class.is_letter() {
        text.run(word, Class::is_letter)
    } else if class.is_number() {
        text.run(word, Class::is_number)
    } else if class.is_other() {
        text.run(word, Class::is_other)
    } else {
        text.spaces(at, text.run(at, Class::is_space))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Splitter, tests::pieces};

    #[test]
    fn rules() {
        let cases: [(&str, &[&str]); 20] = [
            ("", &[]),
            ("Hello world", &["Hello", " world"]),
            (
                "Hello, y'all! How are you?",
                &["Hello", ",", " y", "'", "all", "!", " How", " are", " you", "?"],
            ),
            (
                "I'll we've DON'T don't it's",
                &["I", "'ll", " we", "'ve", " DON", "'", "T", " don", "'t", " it", "'s"],
            ),
            ("'stop", &["'s", "top"]),
            (" 's", &[" '", "s"]),
            ("12345 678", &["12345", " 678"]),
            ("a1b2", &["a", "1", "b", "2"]),
            ("  a", &[" ", " a"]),
            ("a   b", &["a", "  ", " b"]),
            ("a   ", &["a", "   "]),
            ("a\n\nb", &["a", "\n", "\n", "b"]),
            ("a \n b", &["a", " \n", " b"]),
            ("\t\tx = 1;", &["\t", "\t", "x", " =", " 1", ";"]),
            ("!!! ???", &["!!!", " ???"]),
            ("Äpfel 漢字 жук", &["Äpfel", " 漢字", " жук"]),
            ("e\u{301}tude", &["e", "\u{301}", "tude"]),
            ("🦀🦀 rust", &["🦀🦀", " rust"]),
            ("a\u{a0}b\u{3000}c", &["a", "\u{a0}", "b", "\u{3000}", "c"]),
            ("x²½", &["x", "²½"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(Splitter::Gpt2, text), expected, "{text:?}");
        }
    }
}
